"""What a failed attempt died of: the first failure over all ranks' last lines, by a table of signatures. Pure.

The table itself is data (launcher/data/failures.toml); here is only how it is applied.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .clock import Clock
from .observe import Observed
from .steps import MARK

PLACES = ("rank", "worker", "srun", "kubernetes")
"""Whose words: a rank's log, a worker's own, srun's and slurmstepd's, a reason that Kubernetes gave."""

ACTIONS = {
    "retry": "start again on the same nodes",
    "exclude": "start again without that node",
    "raise_factor": "start again with a larger ragged_buffer_factor",
    "stop": "do not start again before it is changed",
}
"""What should follow, and how it is said."""


@dataclass(frozen=True)
class Signature:
    """One row of the table. patterns: any of them in one line. where: of PLACES. cause: one line. action: of ACTIONS.

    consequence: it says that something else failed first, so any other finding counts more. source: who documents it.
    """

    name: str
    patterns: tuple[re.Pattern[str], ...]
    where: frozenset[str]
    cause: str
    kind: str
    action: str
    help: str = ""
    consequence: bool = False
    source: str = ""
    example: str = ""


@dataclass(frozen=True)
class Tail:
    """The last lines of one log. who: "rank 3", "worker 0", "srun". place: of PLACES. anchor: the attempt's start."""

    who: str
    place: str
    lines: Sequence[str]
    anchor: float = 0.0


@dataclass(frozen=True)
class Finding:
    """What was recognised. signature: None = nothing in the table fits. at: Unix seconds, None = no line told a time."""

    signature: Signature | None
    who: str
    line: str
    at: float | None = None

    @property
    def cause(self) -> str:
        """One line: what went wrong and who said so."""
        if self.signature is None:
            return f"unknown failure; the most telling line is of {self.who}: {self.line}"
        return f"{self.signature.cause} ({self.who}: {self.line})"

    @property
    def advice(self) -> str:
        """What should be done about it; empty for an unknown failure."""
        if self.signature is None:
            return ""
        help_text = f"; {self.signature.help}" if self.signature.help else ""
        return f"{ACTIONS[self.signature.action]}{help_text}"


_SHOWN = 240  # characters of a line that are told


class _Table:
    """The rows for one place. Lines that many ranks print alike, as those of a stack, are looked at once."""

    def __init__(self, signatures: Sequence[Signature], place: str) -> None:
        self.rows = [signature for signature in signatures if place in signature.where]
        self._any_of = _any_of(self.rows)
        self._known: dict[str, int | None] = {}

    def row(self, line: str) -> int | None:
        """The index of the first row that fits a line."""
        try:
            return self._known[line]
        except KeyError:
            found = self._known[line] = self._row(line)
            return found

    def _row(self, line: str) -> int | None:
        if MARK in line or (self._any_of is not None and not self._any_of.search(line)):
            return None
        fitting = (
            index for index, row in enumerate(self.rows) if any(pattern.search(line) for pattern in row.patterns)
        )
        return next(fitting, None)


def recognise(tails: Sequence[Tail], signatures: Sequence[Signature]) -> Finding | None:
    """The first failure of an attempt; None when no log holds a line.

    Failures count before what they bring about on other ranks, those that the table does not know included; of two the one
    that was logged first does. Lines without a stamp take the time of the stamp before them; without any, the order of
    `tails` decides.
    """
    tables = {place: _Table(signatures, place) for place in PLACES}
    best: tuple[tuple[bool, float, int], Finding] | None = None
    for order, tail in enumerate(tails):
        for finding in _findings(tail, tables[tail.place]):
            assert finding.signature is not None
            when = finding.at if finding.at is not None else float("inf")
            key = (finding.signature.consequence, when, order)
            if best is None or key < best[0]:
                best = (key, finding)
    if best is None:
        return _telling(tails)
    is_consequence = best[1].signature is not None and best[1].signature.consequence
    return (_unknown(tails, tables["rank"]) if is_consequence else None) or best[1]


def _unknown(tails: Sequence[Tail], table: _Table) -> Finding | None:
    """An exception of a rank that comes before all in its log that the table knows, so before any consequence there."""
    for tail in tails:
        if tail.place == "rank":
            seen = _observed(itertools.takewhile(lambda line: table.row(line) is None, tail.lines))
            if seen.failure is not None:
                return Finding(None, tail.who, _short(seen.failure))
    return None


def _findings(tail: Tail, table: _Table) -> list[Finding]:
    """The first failure and the first consequence in one log; of one moment's lines the first in the table counts."""
    clock = Clock(tail.anchor)
    found: dict[bool, tuple[int, Finding]] = {}
    now: float | None = None
    for line in tail.lines:
        at = clock.at(line)
        now = now if at is None else at
        index = table.row(line)
        if index is None:
            continue
        signature = table.rows[index]
        first = found.get(signature.consequence)
        if first is None or (first[1].at == now and index < first[0]):
            found[signature.consequence] = (index, Finding(signature, tail.who, _short(line), now))
    return [finding for _, finding in found.values()]


def _any_of(signatures: Sequence[Signature]) -> re.Pattern[str] | None:
    """One expression for all patterns; None where they cannot be joined (flags, groups of the same name)."""
    try:
        return re.compile("|".join(f"(?:{pattern.pattern})" for one in signatures for pattern in one.patterns))
    except re.error:
        return None


def _telling(tails: Sequence[Tail]) -> Finding | None:
    """The line that an unknown failure explains itself by: an exception's before a log's, a rank's before the others'."""
    ordered = sorted(tails, key=lambda tail: PLACES.index(tail.place))
    last = None
    for tail in ordered:
        seen = _observed(tail.lines)
        if seen.failure is not None:
            return Finding(None, tail.who, _short(seen.failure))
        if last is None and seen.error is not None:
            last = Finding(None, tail.who, _short(seen.error))
    return last


def _observed(lines: Iterable[str]) -> Observed:
    seen = Observed()
    for line in lines:
        seen.feed(line)
    return seen


def _short(line: str) -> str:
    text = " ".join(line.split())
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
