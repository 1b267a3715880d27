"""Secrets written as literals. They would lie in the bundle, the queue's record and every log; no text here repeats one."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from launcher.config.maxtext_schema import SNAPSHOTS
from launcher.config.schema import Experiment
from launcher.issue import Issue
from launcher.plan.case import Case, Rule, error

TOKEN_KEYS = {"hf_access_token": "HF_TOKEN"}
"""MaxText's keys that hold a token, with the variable that is read instead."""

HIDDEN = "***"

_NUMBER = re.compile(r"[-+]?[0-9.]+(e[-+]?[0-9]+)?", re.IGNORECASE)


@functools.cache
def _table() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((SNAPSHOTS.parent / "secrets.json").read_text(encoding="utf-8"))
    return found


def _sounds_secret(name: str) -> bool:
    """Does a name say that its value is a secret? TOKENIZER and TOKENS_PER_CHUNK do not, nor does a path to a file."""
    upper = re.sub(r"[^A-Z0-9]+", "_", name.upper())
    if upper.rpartition("_")[2] in _table()["harmless"] and not upper.endswith("KEY_ID"):
        return False
    return any(re.search(rf"(^|_){word}(_|$)", upper) for word in _table()["names"])


def _format(name: str, text: str) -> tuple[str, str] | None:
    """What a text is by its shape, and the variable that usually carries it."""
    for known in _table()["formats"]:
        if re.search(known["pattern"], text):
            return known["what"], known["name"]
    key = _table()["hex_key"]
    if re.search(key["name_pattern"], name.upper()) and re.search(key["pattern"], text):
        return key["what"], key["name"]
    return None


def _leaves(value: object, path: str) -> Iterator[tuple[str, str]]:
    """Every text and whole number below a value, with its dotted path."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _leaves(inner, path)
    elif isinstance(value, str | int) and not isinstance(value, bool):
        yield path, str(value)


def _named_secret(path: str, text: str) -> bool:
    """A value whose name says so, where names are free: variables, flags and MaxText keys."""
    base, _, name = path.rpartition(".")
    free = base in ("env.vars", "fabric.vars", "xla.flags", "maxtext", "model.overrides") or base.startswith("maxtext.")
    number = _NUMBER.fullmatch(text) and not re.search("PASS|SECRET", name.upper())
    harmless = number or not text.strip() or text.lower() in ("true", "false", "none") or text.startswith(("/", "~"))
    return free and not harmless and (_sounds_secret(name) or name in TOKEN_KEYS)


def _found(experiment: Experiment) -> Iterator[tuple[str, str, str, str]]:
    """(path, text, what it is, variable) of every literal secret."""
    for path, text in _leaves(experiment, ""):
        name = path.rpartition(".")[2]
        shape = _format(name, text)
        if shape:
            yield path, text, *shape
        elif _named_secret(path, text):
            variable = TOKEN_KEYS.get(name, name.upper())
            yield path, text, "a secret, by its name", variable


def hide(text: str, experiment: Experiment) -> str:
    """A text with every literal secret of the experiment blotted out."""
    for _, secret, _, _ in sorted(_found(experiment), key=lambda found: -len(found[1])):
        # A short one only where it stands alone: it may be part of a word.
        text = (
            text.replace(secret, HIDDEN)
            if len(secret) > 5
            else re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", HIDDEN, text)
        )
    return re.sub("|".join(f"(?:{known['pattern']})" for known in _table()["formats"]), HIDDEN, text)


def literals(case: Case) -> Iterator[Issue]:
    """One issue for each place that holds a secret."""
    for path, _, what, usual in _found(case.experiment):
        base, _, name = path.rpartition(".")
        variable = name if base in ("env.vars", "fabric.vars") and _sounds_secret(name) else usual
        deletable = base in ("env.vars", "fabric.vars", "xla.flags", "maxtext", "model.overrides")
        # A variable's name is safe to show, a whole path is not when the secret stands where a name should be.
        field = hide(path, case.experiment)
        away = (
            ""
            if field != path
            else f"~{path} "
            if deletable
            else f"{path}=[{variable}] "
            if path == "env.secrets"
            else f"{path}=null "
        )
        names = [*(n for n in case.experiment.env.secrets if _format("", n) is None), variable]
        listed = "" if path == "env.secrets" else f"'env.secrets=[{','.join(dict.fromkeys(names))}]' "
        message = f"the value looks like {what}; written here it would be stored in the bundle and shown by the queue"
        hint = f"type {away}{listed}and export {variable} where you submit"
        yield error("SECRET_LITERAL", field, message, hint)


RULES: tuple[Rule, ...] = (literals,)
