"""Read override words (`mesh.ici.expert=8`, `+exp=dsv3_128gpu`) and say what is wrong with each, all at once.

Hydra answers a typo with "to append to your config use +": that hides the mistake. Here each word is first held against
the typed schema, so a wrong key is refused with the nearest right ones, and a needless or missing `+` is forgiven.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import shlex
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, ValueType
from hydra.errors import HydraException

from launcher.config import groups, maxtext_schema
from launcher.config.schema import MAXTEXT_GROUPS, OPEN_DICTS, OWN_WORDS, Experiment
from launcher.issue import Issue, Severity
from launcher.suggest import suggest


@dataclass(frozen=True)
class Choice:
    """One legal override: `group` is set for a choice of a config file (`mesh=...`), else it sets a value."""

    override: Override
    group: str | None


@functools.cache
def schema_keys() -> dict[str, type]:
    """Every dotted key of the experiment with its declared type, inner nodes included."""
    found: dict[str, type] = {}

    def walk(cls: type, prefix: str) -> None:
        for name, kind in typing.get_type_hints(cls).items():
            found[prefix + name] = kind
            if isinstance(kind, type) and dataclasses.is_dataclass(kind):
                walk(kind, f"{prefix}{name}.")

    walk(Experiment, "")
    return found


def kinds(key: str) -> list[typing.Any]:
    """The types that a key's value may have, without None; [None] for a key that is not the schema's."""
    kind = schema_keys().get(key)
    each = typing.get_args(kind) if typing.get_origin(kind) is typing.Union else (kind,)
    return [one for one in each if one is not type(None)]


def as_list(word: str) -> str | None:
    """KEY=VALUE as one types it into a shell for a key whose value is a list; None for another key.

    >>> as_list("+trainer.workarounds=a,b"), as_list("trainer.steps=3,4")
    ("'+trainer.workarounds=[a,b]'", None)
    """
    key, _, value = word.partition("=")
    is_list = all(typing.get_origin(kind) is list for kind in kinds(key.lstrip("+")))
    return shlex.quote(f"{key}=[{value}]") if is_list else None


def is_open(key: str) -> bool:
    """True for a key below one of the dictionaries that take any name."""
    return any(key.startswith(f"{base}.") for base in OPEN_DICTS)


def maxtext_home(key: str) -> str | None:
    """Where a MaxText key is set here: `ici_fsdp_parallelism` -> `mesh.ici.fsdp`, `steps` -> `trainer.steps`."""
    for part in ("ici", "dcn"):
        axis = key.removeprefix(f"{part}_").removesuffix("_parallelism")
        if key == f"{part}_{axis}_parallelism" and f"mesh.{part}.{axis}" in schema_keys():
            return f"mesh.{part}.{axis}"
    for group in MAXTEXT_GROUPS:
        if f"{group}.{key}" in schema_keys() and key not in OWN_WORDS.get(group, ()):
            return f"{group}.{key}"
    return {"model_name": "model.name", "base_output_directory": "checkpoint.directory", "run_name": "name"}.get(key)


def nearest(key: str, path: Sequence[Path]) -> str:
    """What the writer of an unknown key most likely meant, as a hint."""
    home = maxtext_home(key)
    if home:
        return f"type {home}=..."
    newest = maxtext_schema.load(maxtext_schema.versions()[-1])
    if key in newest.keys:
        return f"that is a MaxText key: type +maxtext.{key}=..."
    same_leaf = [k for k in schema_keys() if k.rpartition(".")[2] == key.rpartition(".")[2]]
    near = same_leaf or suggest(key, [*schema_keys(), *groups.groups(path)])
    near = near or [maxtext_home(k) or f"+maxtext.{k}" for k in suggest(key.rpartition(".")[2], newest.keys, n=1)]
    return f"did you mean {' or '.join(near)}?" if near else "`python -m launcher --help` lists the groups"


def _unknown_option(group: str, value: str, path: Sequence[Path]) -> Issue:
    legal = groups.options(group, path)
    near = suggest(value, legal)
    plus = "+" if group == "exp" else ""
    hint = f"did you mean {' or '.join(f'{plus}{group}={n}' for n in near)}? " if near else ""
    return Issue(
        "OPTION_UNKNOWN",
        Severity.ERROR,
        group,
        f"{plus}{group}={value}: there is no such {group}",
        f"{hint}There are: {', '.join(legal)}",
    )


def _parse(word: str, sweep: bool) -> Override | Issue:
    field = word.lstrip("+~").partition("=")[0]
    if "=" not in word and not word.startswith("~"):
        return Issue(
            "OVERRIDE_SYNTAX",
            Severity.ERROR,
            field,
            f"`{word}` is no override: it has no `=`",
            "type KEY=VALUE, or a verb as the first word",
        )
    try:
        override: Override = OverridesParser.create().parse_override(word)
    except HydraException:
        value = word.partition("=")[2]
        hint = (
            f"quote the value for Hydra and for the shell: \"{field}='{value}'\""
            if "'" not in value
            else "close each quote and bracket"
        )
        return Issue("OVERRIDE_SYNTAX", Severity.ERROR, field, f"`{word}`: Hydra cannot read the value", hint)
    if override.is_sweep_override() and not sweep:
        value = word.partition("=")[2]
        listed = as_list(word)
        one = f"a list of them type {listed}" if listed else f"one value with commas type \"{field}='{value}'\""
        message, hint = f"`{word}` names several values", f"add -m to run one job a value; for {one}"
        return Issue("OVERRIDE_SWEEP", Severity.ERROR, field, message, hint)
    return override


def is_hydra_word(word: str) -> bool:
    """True for an override of Hydra's own settings (hydra.run.dir=..., hydra/sweeper=...)."""
    return re.match(r"[+~]*hydra[./]", word) is not None


def _values(override: Override) -> list[object]:
    """The value, or those that a sweep names; none for a sweep that only its sweeper can enumerate (glob, interval)."""
    if not override.is_sweep_override():
        return [override.value()]
    countable = override.is_discrete_sweep() and override.value_type is not ValueType.GLOB_CHOICE_SWEEP
    return list(override.sweep_iterator()) if countable else []


def read(word: str, path: Sequence[Path], sweep: bool = False) -> Choice | Issue:
    """One word from the command line: a legal choice, or what is wrong with it; with `sweep` it may name several values."""
    override = _parse(word, sweep)
    if isinstance(override, Issue):
        return override
    key = override.key_or_group
    values = _values(override)
    if key in groups.groups(path) and not any(isinstance(value, dict) for value in values):
        wrong = [v for v in map(str, values) if v not in groups.options(key, path)]
        return _unknown_option(key, wrong[0], path) if wrong else Choice(override, key)
    if key in schema_keys() or is_open(key) or key in OPEN_DICTS:
        return Choice(override, None)
    return Issue("KEY_UNKNOWN", Severity.ERROR, key, f"`{word}`: there is no key {key}", nearest(key, path))
