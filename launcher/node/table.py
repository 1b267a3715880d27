"""The metrics table of a run: one row a step of each attempt, the marks of its logs, and how far each file was read.

SQLite, because every Python that has the standard library reads and writes it (the worker's own rule), one file holds it,
rows of a step can be completed from several files, and a table with its offsets is written whole or not at all. Parquet
would be smaller, but needs a library of 100 MB and cannot be added to.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .marks import Mark
from .steps import StepLine

VERSION = 3  # of the tables, and of the marks that are known; a file of another version is made anew from the logs
_PATIENCE = 5.0  # seconds that another reader gets to finish

_TABLES = """
CREATE TABLE step (
  attempt INTEGER, step INTEGER, at REAL, seconds REAL, tflops REAL, tokens REAL, weights REAL, loss REAL,
  grad_norm REAL, learning_rate REAL, demand REAL, capacity REAL, ranks INTEGER NOT NULL DEFAULT 0,
  first_at REAL, last_at REAL, last_rank INTEGER, others TEXT, PRIMARY KEY (attempt, step)) WITHOUT ROWID;
CREATE TABLE mark (attempt INTEGER, position INTEGER, kind TEXT, at REAL, step INTEGER, text TEXT);
CREATE TABLE source (attempt INTEGER, name TEXT, offset INTEGER, zone INTEGER, PRIMARY KEY (attempt, name)) WITHOUT ROWID;
"""
_LINE = """
INSERT INTO step (attempt, step, at, seconds, tflops, tokens, weights, loss, others) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (attempt, step) DO UPDATE SET at = excluded.at, seconds = excluded.seconds, tflops = excluded.tflops,
  tokens = excluded.tokens, weights = excluded.weights, loss = coalesce(loss, excluded.loss), others = excluded.others
"""
_METRICS = """
INSERT INTO step (attempt, step, loss, grad_norm, learning_rate, demand, capacity, seconds, tflops, tokens)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (attempt, step) DO UPDATE SET loss = coalesce(excluded.loss, loss), grad_norm = excluded.grad_norm,
  learning_rate = excluded.learning_rate, demand = excluded.demand, capacity = excluded.capacity,
  seconds = coalesce(seconds, excluded.seconds), tflops = coalesce(tflops, excluded.tflops),
  tokens = coalesce(tokens, excluded.tokens)
"""
_SPREAD = """
INSERT INTO step (attempt, step, ranks, first_at, last_at, last_rank) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (attempt, step) DO UPDATE SET ranks = ranks + excluded.ranks, first_at = min(coalesce(first_at, excluded.first_at),
  coalesce(excluded.first_at, first_at)), last_rank = CASE WHEN last_at IS NULL OR excluded.last_at > last_at
  THEN excluded.last_rank ELSE last_rank END, last_at = max(coalesce(last_at, excluded.last_at),
  coalesce(excluded.last_at, last_at))
"""
_CLIPPED = "learning/grad_norm"  # at most gradient_clipping_threshold; it counts where MaxText writes no other
_KEYS = (
    "learning/loss",
    "learning/raw_grad_norm",
    "learning/current_learning_rate",
    "learning/te_moe_max_total_recv_tokens",
    "learning/te_moe_recv_capacity_per_rank",
    "perf/step_time_seconds",
    "perf/per_device_tflops_per_sec",
    "perf/per_device_tokens_per_sec",
)


class Row(NamedTuple):
    """One step of one attempt; what nobody printed is None.

    at: when rank 0 printed its line, Unix seconds. seconds, tflops, tokens, weights: as in steps.StepLine. grad_norm: before
    clipping. demand, capacity: rows in one rank's MoE receive buffer, wanted by the busiest and there. ranks: how many
    ranks' logs report the step, first_at, last_at, last_rank: when the first and the last of them did, and which was last.
    others: JSON.
    """

    attempt: int
    step: int
    at: float | None = None
    seconds: float | None = None
    tflops: float | None = None
    tokens: float | None = None
    weights: float | None = None
    loss: float | None = None
    grad_norm: float | None = None
    learning_rate: float | None = None
    demand: float | None = None
    capacity: float | None = None
    ranks: int = 0
    first_at: float | None = None
    last_at: float | None = None
    last_rank: int | None = None
    others: str | None = None


class Source(NamedTuple):
    """How far a file was read. offset: in bytes. zone: of its stamps, seconds east of UTC, None = none was seen yet."""

    offset: int = 0
    zone: int | None = None


class Spread:
    """When the ranks completed each step, over many logs; `take` empties it."""

    def __init__(self) -> None:
        self._steps: dict[int, list[Any]] = {}

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, rank: int, times: Iterable[tuple[int, float | None]]) -> None:
        """What one piece of a rank's log says."""
        steps = self._steps
        for step, at in times:
            seen = steps.get(step)
            if seen is None:
                steps[step] = [1, at, at, rank]
                continue
            seen[0] += 1
            if at is None:
                continue
            if seen[1] is None or at < seen[1]:
                seen[1] = at
            if seen[2] is None or at > seen[2]:
                seen[2], seen[3] = at, rank

    def take(self, attempt: int) -> list[tuple[Any, ...]]:
        """The rows for Table.spread."""
        rows = [(attempt, step, *seen) for step, seen in self._steps.items()]
        self._steps.clear()
        return rows


class Table:
    """The table in a file, or in memory (path None). Use it as a context: what a block adds is kept when it ends well."""

    def __init__(self, path: Path | None) -> None:
        """Opens or makes it. Raises sqlite3.Error, OSError: it cannot be written there."""
        self.db = sqlite3.connect(":memory:" if path is None else path, timeout=_PATIENCE, isolation_level=None)
        try:
            # It can be made anew from the logs at any time, so speed counts for more than a power cut.
            self.db.execute("PRAGMA synchronous = OFF")
            self.db.execute("BEGIN IMMEDIATE")
            if self.db.execute("PRAGMA user_version").fetchone()[0] != VERSION:
                for (name,) in self.db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                    self.db.execute(f"DROP TABLE {name}")
                for statement in _TABLES.split(";"):
                    self.db.execute(statement)
                self.db.execute(f"PRAGMA user_version = {VERSION}")
        except BaseException:
            self.db.close()
            raise

    def __enter__(self) -> Table:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self.keep()
        finally:
            self.close()

    def close(self) -> None:
        """Forgets what was added and not kept."""
        self.db.close()

    def keep(self) -> None:
        """Writes what was added; from then on the table is only read, and others may write. Raises sqlite3.Error."""
        if self.db.in_transaction:
            self.db.execute("COMMIT")

    def source(self, attempt: int, name: str) -> Source:
        """How far a file of an attempt was read."""
        found = self.db.execute("SELECT offset, zone FROM source WHERE attempt = ? AND name = ?", (attempt, name))
        row = found.fetchone()
        return Source(*row) if row is not None else Source()

    def note_source(self, attempt: int, name: str, source: Source) -> None:
        """It was read so far."""
        self.db.execute("INSERT OR REPLACE INTO source VALUES (?, ?, ?, ?)", (attempt, name, *source))

    def add_steps(self, attempt: int, steps: Sequence[tuple[StepLine, float | None]]) -> None:
        """Rank 0's step lines; of a step that is there already the newer line counts, its exact loss stays."""
        rows = [
            (attempt, s.step, at, s.seconds, s.tflops, s.tokens, s.weights, _stored(s.loss), _json(s.others))
            for s, at in steps
        ]
        self.db.executemany(_LINE, rows)

    def add_metrics(self, attempt: int, entries: Sequence[Mapping[str, Any]]) -> None:
        """Lines of the metrics_file."""
        rows = [(attempt, int(entry["step"]), *map(_stored, _values(entry))) for entry in entries]
        self.db.executemany(_METRICS, rows)

    def add_spread(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Spread.take's rows."""
        self.db.executemany(_SPREAD, rows)

    def add_marks(self, attempt: int, marks: Sequence[Mark]) -> None:
        """Marks in the order of the log."""
        begin = self.db.execute("SELECT count(*) FROM mark WHERE attempt = ?", (attempt,)).fetchone()[0]
        rows = [(attempt, begin + index, *mark) for index, mark in enumerate(marks)]
        self.db.executemany("INSERT INTO mark VALUES (?, ?, ?, ?, ?, ?)", rows)

    def rows(self, attempt: int | None = None) -> list[Row]:
        """All rows, or those of one attempt, by attempt and step."""
        where = "" if attempt is None else "WHERE attempt = ?"
        found = self.db.execute(
            f"SELECT {', '.join(Row._fields)} FROM step {where} ORDER BY attempt, step",
            () if attempt is None else (attempt,),
        )
        return [_row(values) for values in found]

    def marks(self, attempt: int) -> list[Mark]:
        """The marks of an attempt in the order of its log."""
        found = self.db.execute("SELECT kind, at, step, text FROM mark WHERE attempt = ? ORDER BY position", (attempt,))
        return [Mark(*values) for values in found]


_FIRST, _END = Row._fields.index("loss"), Row._fields.index("capacity") + 1


def _row(values: tuple[Any, ...]) -> Row:
    if str in map(type, values[_FIRST:_END]):
        numbers = (float(value) if isinstance(value, str) else value for value in values[_FIRST:_END])
        values = (*values[:_FIRST], *numbers, *values[_END:])
    return Row(*values)


def joined(attempt: int, step: int, line: StepLine | None, at: float | None, entry: Mapping[str, Any] | None) -> Row:
    """The row of one step from rank 0's line and from the line of the metrics_file, as the table joins them."""
    row = Row(attempt, step)
    if line is not None:
        row = row._replace(
            at=at, seconds=line.seconds, tflops=line.tflops, tokens=line.tokens, weights=line.weights, loss=line.loss,
            others=_json(line.others),
        )  # fmt: skip
    if entry is None:
        return row
    loss, grad_norm, learning_rate, demand, capacity, seconds, tflops, tokens = _values(entry)
    return row._replace(
        loss=row.loss if loss is None else loss,
        grad_norm=grad_norm,
        learning_rate=learning_rate,
        demand=demand,
        capacity=capacity,
        seconds=seconds if row.seconds is None else row.seconds,
        tflops=tflops if row.tflops is None else row.tflops,
        tokens=tokens if row.tokens is None else row.tokens,
    )


def _values(entry: Mapping[str, Any]) -> list[float | None]:
    """Those of _KEYS in a line of the metrics_file."""
    found = [_number(entry.get(key)) for key in _KEYS]
    if found[1] is None:
        found[1] = _number(entry.get(_CLIPPED))
    return found


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _stored(value: float | None) -> float | str | None:
    """SQLite keeps NaN as NULL: then it would look like a loss that nobody printed."""
    return value if value is None or math.isfinite(value) else str(value)


def _json(others: Mapping[str, float]) -> str | None:
    return json.dumps(others) if others else None
