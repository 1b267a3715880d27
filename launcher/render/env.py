"""The variables of the trainer's processes, and the `env` file that both a shell and the worker read."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from launcher.config.schema import Experiment

PGLE = "JAX_ENABLE_PGLE"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def value_text(value: object) -> str:
    """A variable's text: true/false for bools, numbers as Python prints them, text unchanged.

    >>> value_text(True), value_text(0.88), value_text(16), value_text(" a b ")
    ('true', '0.88', '16', ' a b ')

    Raises:
        ValueError: null, a list or a mapping, or text with a NUL.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is a {type(value).__name__}, wanted text, a number or true/false")
    if "\0" in value:
        raise ValueError(f"{value!r} holds a NUL, which no variable can")
    return value


def variables(experiment: Experiment) -> dict[str, str]:
    """What the experiment sets for every trainer process, sorted by name.

    The experiment's own variables (env.vars) win over the cluster's (fabric.vars): who names a variable for one run
    means it. JAX_ENABLE_PGLE is what xla.pgle becomes.

    Raises:
        ValueError: a name that no shell can export, or a value that is no text.
    """
    merged: dict[str, object] = {**experiment.fabric.vars, **experiment.env.vars}
    if experiment.xla.pgle:
        merged[PGLE] = True
    found: dict[str, str] = {}
    for name, value in sorted(merged.items()):
        if not _NAME.fullmatch(name):
            raise ValueError(f"env.vars: {name!r} is no variable's name, wanted letters, digits and _")
        try:
            found[name] = value_text(value)
        except ValueError as error:
            raise ValueError(f"env.vars.{name}: {error}") from error
    return found


def text(chosen: Mapping[str, str]) -> str:
    """The file `env`: `export NAME=value` a variable, sorted, quoted so that sh and shlex.split read the same.

    >>> text({"B": "a b", "A": "1"})
    "export A=1\\nexport B='a b'\\n"
    """
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in sorted(chosen.items()))
