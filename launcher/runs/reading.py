"""A run's logs and metrics files, read into its table: only what was written since the last time."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from launcher.node.clock import Clock
from launcher.node.layout import AttemptFolder, RunFolder
from launcher.node.scan import metrics, pieces, read_piece, step_times
from launcher.node.table import Source, Spread, Table
from launcher.runs.store import read_object_if_there

RANK_0 = frozenset({0})
"""Whose log is enough for all but a comparison of ranks: they go in step, and each prints every step."""

_RANK_LOG = re.compile(r"rank(\d+)\.log")
_MOST_STEPS = 1 << 16  # of a spread in memory: some 20 MB
_FOLDER = "."  # the source whose offset is the folder's time of change


@contextmanager
def table_of(run: RunFolder, ranks: Container[int] | None = None) -> Iterator[Table]:
    """The run's table, up to date for those ranks (None = all). Raises Damaged: an attempt's file cannot be read.

    Where its file cannot be used (another person's run, no locks, a full disk) all is read into memory instead.
    """
    table = _opened(run.table)
    try:
        try:
            update(table, run, ranks)
            table.keep()
        except sqlite3.Error:
            table.close()
            table = Table(None)
            update(table, run, ranks)
        yield table
    finally:
        table.close()


def behind(run: RunFolder) -> int:
    """Bytes of rank 0's logs and metrics that the table does not hold yet."""
    total = 0
    table = _opened(run.table)
    try:
        for number in run.attempt_numbers():
            attempt = run.attempt(number)
            for path in (attempt.rank_log(0), attempt.metrics):
                size = path.stat().st_size if path.exists() else 0
                total += max(0, size - table.source(number, path.name).offset)
    finally:
        table.close()
    return total


def _opened(path: Path) -> Table:
    for _ in range(2):
        try:
            return Table(path)
        except sqlite3.OperationalError:
            break
        except sqlite3.DatabaseError:  # no database: half written in a power cut, or not ours
            try:
                path.unlink()
            except OSError:
                break
    return Table(None)


def update(table: Table, run: RunFolder, ranks: Container[int] | None = None) -> None:
    """Read on in every attempt. Those before the newest are over: they are looked into again only if files came."""
    folder = _FOLDER if ranks is None else f"{_FOLDER}rank0"
    numbers = run.attempt_numbers()
    for number in numbers:
        attempt = run.attempt(number)
        changed = attempt.path.stat().st_mtime_ns or 1  # an archive may give 1970; 0 = never looked into
        if number == numbers[-1] or table.source(number, folder).offset != changed:
            read_attempt(table, attempt, ranks)
            table.note_source(number, folder, Source(changed if number != numbers[-1] else 0))


def read_attempt(table: Table, attempt: AttemptFolder, ranks: Container[int] | None = None) -> None:
    """Read on in one attempt's files; ranks: whose logs, None = all."""
    started = (read_object_if_there(attempt.started()) or {}).get("started")
    anchor = float(started) if isinstance(started, int | float) else None
    spread = Spread()
    for rank, path in sorted(_rank_logs(attempt)):
        if ranks is not None and rank not in ranks:
            continue
        for times in _read_log(table, attempt.number, path, anchor, is_first=rank == 0):
            spread.add(rank, times)
            if len(spread) > _MOST_STEPS:
                table.add_spread(spread.take(attempt.number))
    table.add_spread(spread.take(attempt.number))
    source = table.source(attempt.number, attempt.metrics.name)
    for data, offset in pieces(attempt.metrics, source.offset):
        table.add_metrics(attempt.number, metrics(data))
        source = Source(offset)
    table.note_source(attempt.number, attempt.metrics.name, source)


def _rank_logs(attempt: AttemptFolder) -> list[tuple[int, Path]]:
    with os.scandir(attempt.path) as entries:
        found = [(_RANK_LOG.fullmatch(entry.name), entry.path) for entry in entries]
    return [(int(match[1]), Path(path)) for match, path in found if match is not None]


def _read_log(
    table: Table, attempt: int, path: Path, anchor: float | None, *, is_first: bool
) -> Iterator[Iterable[tuple[int, float | None]]]:
    """When the steps of a rank were done, piece by piece; of the first rank also all that it says goes into the table."""
    source = table.source(attempt, path.name)
    clock: Clock | None = None
    for data, offset in pieces(path, source.offset):
        if clock is None:
            clock = _clock(path, anchor, source)
        if is_first:
            steps, marks = read_piece(data, clock)
            table.add_steps(attempt, steps)
            table.add_marks(attempt, marks)
            yield [(step.step, at) for step, at in steps]
        else:
            yield step_times(data, clock)
        source = Source(offset, clock.zone)
    if clock is not None:
        table.note_source(attempt, path.name, source)


def _clock(path: Path, anchor: float | None, source: Source) -> Clock:
    """Without a start, stamps are taken for UTC in the year in which the log was written."""
    return Clock(path.stat().st_mtime, 0) if anchor is None else Clock(anchor, source.zone)
