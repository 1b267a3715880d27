"""The way to an attempt's first step, piece by piece, from the marks in rank 0's log. Pure."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from launcher.node import marks as m
from launcher.node.steps import JUNK_STEPS
from launcher.node.table import Row
from launcher.runs.history import Life

PYTHON, SET_UP, RESTORE, XLA, FIRST_STEP = "Python and JAX", "set-up", "restore", "XLA", "first step"
"""PYTHON: node check, imports, JAX on all ranks. SET_UP: model, checkpoint manager, NCCL EP's buffers. RESTORE: the checkpoint.
XLA: weights laid out, the train step compiled or found. FIRST_STEP: what it took longer than others: kernels that NCCL EP
compiles, communicators."""


@dataclass(frozen=True)
class Piece:
    """A stretch of the way. name: of several where nobody told when one gave way to the next. end: Unix seconds; None = not yet."""

    names: tuple[str, ...]
    end: float | None

    @property
    def name(self) -> str:
        """For people."""
        return ", ".join(self.names)


def pieces(life: Life) -> list[Piece]:
    """From the worker's start on; the last one, while it lasts, has no end. Nothing where nobody told the start."""
    if life.started is None:
        return []
    times: dict[str, float] = {}
    for mark in life.marks:
        if mark.at is not None:
            times.setdefault(mark.kind, mark.at)
    wanted = [(PYTHON, times.get(m.STARTED)), (SET_UP, times.get(m.FRESH, times.get(m.RESTORING)))]
    if m.RESTORING in times and m.FRESH not in times:
        wanted.append((RESTORE, times.get(m.RESTORED)))
    wanted += [(XLA, times.get(m.COMPILED)), (FIRST_STEP, _began(life.rows))]
    found: list[Piece] = []
    open_ones: tuple[str, ...] = ()
    for name, end in wanted:
        open_ones += (name,)
        if end is not None:
            found.append(Piece(open_ones, end))
            open_ones = ()
    return [*found, Piece(open_ones[:1], None)] if open_ones else found


def seconds(life: Life) -> dict[str, float]:
    """Name -> seconds of each piece that is over, in order."""
    found: dict[str, float] = {}
    before = life.started
    for piece in pieces(life):
        if piece.end is not None and before is not None:
            found[piece.name] = max(0.0, piece.end - before)
            before = max(before, piece.end)
    return found


def _began(rows: Sequence[Row]) -> float | None:
    """When an ordinary step would have begun: MaxText prints the first line when the second step is done."""
    first = next((row.at for row in rows if row.at is not None), None)
    return None if first is None else first - 2 * typical(rows)


def typical(rows: Sequence[Row]) -> float:
    """The median time between two steps' lines, those of the first ones left out if there are others; 0 without any."""
    times = [row.at for row in rows if row.at is not None]
    took = [later - earlier for earlier, later in itertools.pairwise(times)]
    return max(0.0, statistics.median(took[JUNK_STEPS:] or took)) if took else 0.0
