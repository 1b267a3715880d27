"""failures.json: what failed attempts die of and what is done about it, for the supervisors and the pods.

The launcher's own table (launcher/data/failures.toml), and before it a user's own rows: a failures.toml of the same form in a
folder of $LAUNCHER_CONF.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launcher.config.tables import users_rows
from launcher.issue import Issue, Severity
from launcher.node.causes import signature
from launcher.node.failures import ACTIONS, PLACES, Signature

TABLE = Path(__file__).resolve().parent.parent / "data" / "failures.toml"
OWN = "failures.toml"
"""The name of a user's own table in a folder of $LAUNCHER_CONF."""

_WORDS = frozenset({"name", "where", "patterns", "cause", "kind", "action", "help", "consequence", "source", "example"})
_NEEDED = ("name", "where", "patterns", "cause", "action")


def table_json() -> dict[str, object]:
    """The content of failures.json, the user's rows first. Raises Refused: a table of the user's is wrong; all that is."""
    return {"failures": [_row(one) for one in signatures()]}


def _row(one: Signature) -> dict[str, object]:
    """A row as the nodes need it: without its example and its source."""
    return {
        "name": one.name,
        "where": [place for place in PLACES if place in one.where],
        "patterns": [pattern.pattern for pattern in one.patterns],
        "cause": one.cause,
        "kind": one.kind,
        "action": one.action,
        "help": one.help,
        "consequence": one.consequence,
    }


@functools.cache
def own_signatures() -> tuple[Signature, ...]:
    """The rows that come with the launcher."""
    found, issues = read_table(TABLE.read_text(encoding="utf-8"), str(TABLE))
    assert not issues, issues
    return found


def signatures() -> tuple[Signature, ...]:
    """All rows, the user's first. Raises Refused: a table of the user's is wrong; all that is, at once."""
    return (*users_rows(OWN, read_table), *own_signatures())


def read_table(text: str, name: str) -> tuple[tuple[Signature, ...], list[Issue]]:
    """The rows of a table, and what is wrong with it. `name`: of its file, for the messages."""
    try:
        rows = tomllib.loads(text).get("failure", [])
    except tomllib.TOMLDecodeError as error:
        return (), [_issue(name, f"is no TOML: {error}", "see launcher/data/failures.toml for its form")]
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        return (), [_issue(name, "`failure` must be a list of tables", "write each row below a line [[failure]]")]
    found, issues = [], []
    for index, row in enumerate(rows):
        wrong = _wrong(row, f"{name}, failure {row.get('name') or index + 1}")
        issues += wrong
        if not wrong:
            found.append(signature(row))
    return tuple(found), issues


def _wrong(row: Mapping[str, Any], name: str) -> list[Issue]:
    issues = [_issue(name, f"has no `{word}`", "every failure needs one") for word in _NEEDED if not row.get(word)]
    unknown = sorted(set(row) - _WORDS)
    if unknown:
        issues.append(_issue(name, f"has {', '.join(unknown)}", f"there are: {', '.join(sorted(_WORDS))}"))
    for word, known in (("where", PLACES), ("action", tuple(ACTIONS))):
        value = row.get(word, [])
        for one in value if isinstance(value, list) else [value]:
            if one not in known:
                issues.append(_issue(name, f"{word} {one!r} is not known", f"there are: {', '.join(known)}"))
    patterns = row.get("patterns", [])
    for pattern in patterns if isinstance(patterns, list) else [patterns]:
        issues += _wrong_pattern(pattern, name)
    for word in ("where", "patterns"):
        if row.get(word) and not isinstance(row[word], list):
            issues.append(_issue(name, f"`{word}` must be a list", f"{word} = [{row[word]!r}]"))
    return issues


def _wrong_pattern(pattern: Any, name: str) -> list[Issue]:
    try:
        empty = re.compile(pattern).search("")
    except (re.error, TypeError) as error:
        return [
            _issue(name, f"the pattern {pattern!r} is no regular expression: {error}", "single quotes keep \\ as it is")
        ]
    return (
        [_issue(name, f"the pattern {pattern!r} fits every line", "name the words that only it has")] if empty else []
    )


def _issue(name: str, message: str, hint: str) -> Issue:
    return Issue("FAILURE_TABLE", Severity.ERROR, "", f"{name}: {message}", hint)
