"""The cause of a failed attempt: the table of signatures, a user's own rows before it, and the logs' last lines."""

from __future__ import annotations

import functools
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.config.groups import CONF_DIR, search_path
from launcher.issue import Issue, Refused, Severity
from launcher.node.failures import ACTIONS, PLACES, Finding, Signature, Tail, recognise
from launcher.node.layout import AttemptFolder
from launcher.runs.logs import SRUN_LOG
from launcher.runs.store import read_object_if_there

TABLE = Path(__file__).resolve().parent.parent / "data" / "failures.toml"
OWN = "failures.toml"
"""The name of a user's own table in a folder of $LAUNCHER_CONF."""

_TAIL = 1 << 15  # bytes of each log's end: some 130 step lines, or three stacks; 1,024 ranks' make 32 MiB
_WORDS = frozenset({"name", "where", "patterns", "cause", "kind", "action", "help", "consequence", "source", "example"})
_NEEDED = ("name", "where", "patterns", "cause", "action")


@functools.cache
def own_signatures() -> tuple[Signature, ...]:
    """The rows that come with the launcher."""
    found, issues = read_table(TABLE.read_text(encoding="utf-8"), str(TABLE))
    assert not issues, issues
    return found


def signatures() -> tuple[Signature, ...]:
    """All rows, the user's first. Raises Refused: a table of the user's is wrong; all that is, at once."""
    found: list[Signature] = []
    issues: list[Issue] = []
    for folder in search_path():
        path = folder / OWN
        if folder != CONF_DIR and path.is_file():
            rows, wrong = read_table(path.read_text(encoding="utf-8"), str(path))
            found += rows
            issues += wrong
    if issues:
        raise Refused(*issues)
    return (*found, *own_signatures())


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
            found.append(_signature(row))
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


def _signature(row: Mapping[str, Any]) -> Signature:
    return Signature(
        name=str(row["name"]),
        patterns=tuple(re.compile(pattern) for pattern in row["patterns"]),
        where=frozenset(row["where"]),
        cause=str(row["cause"]),
        kind=str(row.get("kind", "")),
        action=str(row["action"]),
        help=str(row.get("help", "")),
        consequence=bool(row.get("consequence", False)),
        source=str(row.get("source", "")),
        example=str(row.get("example", "")),
    )


def cause_of(attempt: AttemptFolder, reason: str = "", table: Sequence[Signature] | None = None) -> Finding | None:
    """What an attempt that failed died of; None when it left no words at all.

    `reason`: what the cluster says of its end. The ranks of the node that failed first come first. Raises Refused.
    """
    return recognise(tails(attempt, reason), signatures() if table is None else table)


def tails(attempt: AttemptFolder, reason: str = "") -> list[Tail]:
    """The last lines of every log of an attempt, the ranks' first, in their order.

    srun's only where no worker could say how it ended: srun ends all other tasks when one fails, and then tells of those.
    """
    result = read_object_if_there(attempt.result()) or {"by": "nobody"}
    anchor = float((read_object_if_there(attempt.started()) or {}).get("started") or 0)
    found: list[tuple[tuple[int, int], Tail]] = []
    try:
        entries = [entry.name for entry in os.scandir(attempt.path)]
    except OSError:
        entries = []
    for name in entries:
        match = re.fullmatch(r"(rank|worker)(\d+)\.log", name)
        if match is not None:
            place, number = match[1], int(match[2])
            tail = Tail(f"{place} {number}", place, _last_lines(attempt.path / name), anchor)
            found.append(((PLACES.index(place), number), tail))
    ordered = [tail for _, tail in sorted(found, key=lambda pair: pair[0])]
    if "by" in result and not attempt.failure.exists():
        ordered.append(Tail("srun", "srun", _last_lines(attempt.path / SRUN_LOG), anchor))
    if reason:
        ordered.append(Tail("the cluster", "kubernetes", [reason], anchor))
    return [tail for tail in ordered if tail.lines]


def _last_lines(path: Path) -> list[str]:
    try:
        with open(path, "rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - _TAIL))
            data = file.read(_TAIL)
    except OSError:
        return []
    lines = data.split(b"\n")[1 if end > _TAIL else 0 :]
    return [line.decode("utf-8", "replace") for line in lines if line]
