"""Where a run's time went, from its logs and its scheduler's facts alone. Pure.

Every microsecond between the submission and now (or the end) belongs to exactly one of KINDS, so that they add up to the
wall time without a rest. What the logs say with a step's precision is cut at the time of its line: MaxText 0.2.5 prints
a step when the next one is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from launcher.node import marks as m
from launcher.node.codes import Code
from launcher.node.table import Row
from launcher.runs import first_step
from launcher.runs.decisions import REQUEUE
from launcher.runs.figures import duration
from launcher.runs.history import History, Life


class Kind(StrEnum):
    """What a piece of time was used for.

    queue: waiting for nodes. start: container, Python, JAX on all ranks, restoring, the first step's extra time. compile:
    XLA's, with the weights laid out before it. productive: steps trained for the first time. checkpoint: by how much longer
    than others the steps were that saved one, and saving at the end. replayed: steps that an earlier attempt had trained.
    stalled: no step although the trainer lived. down: nobody trained: ends, pauses, waiting for a person.
    """

    QUEUE = "queue"
    START = "start"
    COMPILE = "compile"
    PRODUCTIVE = "productive"
    CHECKPOINT = "checkpoint"
    REPLAYED = "replayed"
    STALLED = "stalled"
    DOWN = "down"


STALL_FACTOR, STALL_SECONDS = 10.0, 60.0
"""A step that is longer than both, this many medians and the median with so many seconds, stood still for the rest."""

_MICRO = 1_000_000
_TOLD = 0.001  # the least share that a line tells


@dataclass(frozen=True)
class Goodput:
    """Microseconds of each kind; `wall` is their sum, and the time from `begin` to `end` (Unix microseconds)."""

    begin: int
    end: int
    spent: dict[Kind, int]

    @property
    def wall(self) -> int:
        """All of it, in microseconds."""
        return self.end - self.begin

    def share(self, kind: Kind) -> float:
        """Of the wall time; 0 for a run without any."""
        return self.spent[kind] / self.wall if self.wall else 0.0

    def as_json(self) -> dict[str, Any]:
        """Seconds and shares of each kind; the microseconds add up exactly."""
        return {
            "wall_seconds": self.wall / _MICRO,
            "microseconds": {kind.value: self.spent[kind] for kind in Kind},
            "seconds": {kind.value: self.spent[kind] / _MICRO for kind in Kind},
            "share": {kind.value: self.share(kind) for kind in Kind},
        }

    def line(self) -> str:
        """What a person wants to know in one line: the productive share, and what took the rest."""
        rest = sorted((kind for kind in Kind if kind is not Kind.PRODUCTIVE), key=lambda kind: -self.spent[kind])
        told = [f"{kind} {self.share(kind):.1%}" for kind in rest if self.share(kind) >= _TOLD]
        return ", ".join([f"{self.share(Kind.PRODUCTIVE):.1%} of {duration(self.wall / _MICRO)}", *told])

    def text(self) -> str:
        """A line a kind: seconds and share."""
        rows = [(kind.value, self.spent[kind] / _MICRO, self.share(kind)) for kind in Kind]
        lines = [f"{name:<10} {seconds:>14.3f} s  {share:>6.1%}" for name, seconds, share in rows]
        return "\n".join([*lines, f"{'wall':<10} {self.wall / _MICRO:>14.3f} s"])


class _Ledger:
    """Time, given away from the past to the present; a moment that lies before what is given away adds nothing."""

    def __init__(self, begin: float, end: float) -> None:
        self.begin = self.cursor = _micro(begin)
        self._end = max(self.begin, _micro(end))
        self.spent = dict.fromkeys(Kind, 0)

    def until(self, moment: float | None, kind: Kind) -> None:
        """All up to that moment was of this kind; None = nobody knows when it was."""
        if moment is not None:
            self._to(min(_micro(moment), self._end), kind)

    def close(self, kind: Kind) -> Goodput:
        """The rest is of this kind."""
        self._to(self._end, kind)
        return Goodput(self.begin, self._end, self.spent)

    def _to(self, moment: int, kind: Kind) -> None:
        if moment > self.cursor:
            self.spent[kind] += moment - self.cursor
            self.cursor = moment

    @property
    def now(self) -> float:
        """Up to when all is given away, in Unix seconds."""
        return self.cursor / _MICRO


def _micro(seconds: float) -> int:
    return round(seconds * _MICRO)


def goodput(history: History) -> Goodput:
    """Where the time of a run went."""
    ledger = _Ledger(history.created, history.now)
    best = -1
    before: Life | None = None
    for life in history.lives:
        _gap(ledger, before, life)
        is_last = life is history.lives[-1]
        _attempt(ledger, life, best, history.now if is_last and history.is_live else None)
        best = max(best, max((row.step for row in life.rows), default=-1))
        before = life
    return ledger.close(Kind.QUEUE if before is None or before.started is None or _requeued(before) else Kind.DOWN)


def _requeued(life: Life | None) -> bool:
    return life is not None and life.decision is not None and life.decision.action == REQUEUE


def _gap(ledger: _Ledger, before: Life | None, life: Life) -> None:
    """Between two attempts: the queue when the job went back to it, or was submitted anew; else down."""
    if before is not None and not _requeued(before):
        asked = life.asked if before.decision is None or not before.decision.goes_on else life.started
        ledger.until(asked, Kind.DOWN)
    ledger.until(life.started, Kind.QUEUE)


def _attempt(ledger: _Ledger, life: Life, best: int, now: float | None) -> None:
    """One attempt; `best`: the last step of those before it. `now`: when it lives."""
    if life.started is None:
        return
    rows = [row for row in life.rows if row.at is not None]
    phase = _start(ledger, life)
    typical = first_step.typical(rows)
    saves = sorted(mark.at for mark in life.marks if mark.kind in (m.SAVED, m.SAVING) and mark.at is not None)
    _steps(ledger, rows, typical, saves, best)
    end = now if now is not None else life.ended
    if not rows:
        ledger.until(end, phase)
    elif now is not None:
        kind = Kind.REPLAYED if rows[-1].step < best else Kind.PRODUCTIVE
        ledger.until(min(now, ledger.now + _limit(typical)), kind)
        ledger.until(now, Kind.STALLED)
    else:
        ledger.until(max((at for at in saves if at > ledger.now), default=None), Kind.CHECKPOINT)
        ledger.until(end, Kind.STALLED if life.code == Code.STALLED else Kind.DOWN)


def _start(ledger: _Ledger, life: Life) -> Kind:
    """From the worker's start to the first step; gives what an attempt without a step was doing last."""
    kind = Kind.START
    for piece in first_step.pieces(life):
        # Builds before 0.2.5 compile within the first step, and say nothing of it.
        kind = Kind.COMPILE if first_step.XLA in piece.names else Kind.START
        ledger.until(piece.end, kind)
    return kind


def _limit(typical: float) -> float:
    return max(STALL_FACTOR * typical, typical + STALL_SECONDS)


def _steps(ledger: _Ledger, rows: Sequence[Row], typical: float, saves: Sequence[float], best: int) -> None:
    next_save = 0
    for row in rows:
        assert row.at is not None
        saved = False
        while next_save < len(saves) and saves[next_save] <= row.at:
            saved = saved or saves[next_save] > ledger.now
            next_save += 1
        took = row.at - ledger.now
        if saved and took > typical:
            ledger.until(row.at - typical, Kind.CHECKPOINT)
        elif took > _limit(typical) and len(rows) > 1:
            ledger.until(row.at - typical, Kind.STALLED)
        ledger.until(row.at, Kind.REPLAYED if row.step <= best else Kind.PRODUCTIVE)
