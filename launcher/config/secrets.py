"""Secrets written as literals: how they are found by name or by shape, and how every text that is shown is kept free of them."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from launcher.config.maxtext_schema import SNAPSHOTS
from launcher.config.schema import OPEN_DICTS, Experiment
from launcher.issue import Issue

TOKEN_KEYS = {"hf_access_token": "HF_TOKEN"}
"""MaxText's keys that hold a token, with the variable that is read instead."""

HIDDEN = "***"

REFERENCES = "target.kubernetes.secrets"
"""Where a name that sounds secret has a reference, SECRET/KEY, and no value."""

_NUMBER = re.compile(r"[-+]?[0-9.]+(e[-+]?[0-9]+)?", re.IGNORECASE)


@functools.cache
def _table() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((SNAPSHOTS.parent / "secrets.json").read_text(encoding="utf-8"))
    return found


def sounds_secret(name: str) -> bool:
    """Does a name say that its value is a secret? TOKENIZER and TOKENS_PER_CHUNK do not, nor does a path to a file."""
    upper = re.sub(r"[^A-Z0-9]+", "_", name.upper())
    if upper.rpartition("_")[2] in _table()["harmless"] and not upper.endswith("KEY_ID"):
        return False
    return any(re.search(rf"(^|_){word}(_|$)", upper) for word in _table()["names"])


@functools.cache
def _any_format() -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{known['pattern']})" for known in _table()["formats"]))


def format_of(name: str, text: str) -> tuple[str, str] | None:
    """What a text is by its shape, and the variable that usually carries it."""
    if _any_format().search(text):
        return next(
            (known["what"], known["name"]) for known in _table()["formats"] if re.search(known["pattern"], text)
        )
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
    free = (base in OPEN_DICTS and base != REFERENCES) or base.startswith("maxtext.")
    number = _NUMBER.fullmatch(text) and not re.search("PASS|SECRET", name.upper())
    harmless = number or not text.strip() or text.lower() in ("true", "false", "none") or text.startswith(("/", "~"))
    return free and not harmless and (sounds_secret(name) or name in TOKEN_KEYS)


_ASSIGNED = re.compile(r"""\b([A-Za-z_]\w*)=("[^"]*"|'[^']*'|[^\s;&|]+)""")


def _in_shell(line: str) -> Iterator[tuple[str, str]]:
    """Each NAME=VALUE of a shell line whose name says that its value is a secret, unless the value comes from elsewhere."""
    for name, value in _ASSIGNED.findall(line):
        text = value.strip("'\"")
        if not text.startswith(("$", "`")) and _named_secret(f"env.vars.{name}", text):
            yield name, text


class Found(NamedTuple):
    """A literal secret: where it stands, its text, what it looks like, the variable that should carry it."""

    path: str
    text: str
    what: str
    variable: str


def find(experiment: Experiment) -> tuple[Found, ...]:
    """Every literal secret of an experiment."""
    found = []
    for path, text in _leaves(experiment, ""):
        name = path.rpartition(".")[2]
        shape = format_of(name, text)
        if shape:
            found.append(Found(path, text, *shape))
        elif _named_secret(path, text):
            found.append(Found(path, text, "a secret, by its name", TOKEN_KEYS.get(name, name.upper())))
        elif path == "target.slurm.setup":
            found += [Found(path, value, "a secret, by its name", variable) for variable, value in _in_shell(text)]
    return tuple(found)


def in_words(words: Sequence[str]) -> tuple[Found, ...]:
    """Every literal secret of a command line: a value whose key sounds like one, wherever the key stands."""
    found = []
    for word in words:
        path, equals, value = word.partition("=")
        path, text = path.lstrip("+~"), value.strip("'\"")
        name = path.rpartition(".")[2]
        if (
            equals
            and path != "env.secrets"
            and not path.startswith(REFERENCES)
            and _named_secret(f"env.vars.{name}", text)
        ):
            found.append(Found(path, text, "a secret, by its name", name.upper()))
    return tuple(found)


def hide(text: str, secrets: Sequence[Found] = ()) -> str:
    """A text with these secrets, and whatever else has the shape of one, blotted out.

    >>> hide("submit +env.vars.HF_TOKEN=abcdef", in_words(["+env.vars.HF_TOKEN=abcdef"]))
    'submit +env.vars.HF_TOKEN=***'
    """
    for secret in sorted((found.text for found in secrets), key=len, reverse=True):
        # A short one only where it stands alone: it may be part of a word.
        text = (
            text.replace(secret, HIDDEN)
            if len(secret) > 5
            else re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", HIDDEN, text)
        )
    return _any_format().sub(HIDDEN, text)


def hide_in(issue: Issue, secrets: Sequence[Found]) -> Issue:
    """The issue with every literal secret blotted out of its texts."""
    field, message, hint = (hide(text, secrets) for text in (issue.field, issue.message, issue.hint))
    return dataclasses.replace(issue, field=field, message=message, hint=hint)
