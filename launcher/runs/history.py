"""What happened to a run, as facts with times: its attempts from their folders, its steps and marks from its table."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from launcher.node.layout import AttemptFolder
from launcher.node.marks import Mark
from launcher.node.table import Row, Table
from launcher.runs.attempts import Judged, handle_file
from launcher.runs.decisions import Decision, decision_of
from launcher.runs.store import read_object_if_there


@dataclass(frozen=True)
class Life:
    """One attempt. Times are Unix seconds; None = not yet, or nobody knows.

    asked: when it was submitted, for one that a person started. started, ended: its worker's life. hosts: that it ran on.
    code: the worker's exit code. outcome, reason: its words. decision: a supervisor's, after it. rows, marks: of its logs.
    """

    number: int
    asked: float | None = None
    started: float | None = None
    ended: float | None = None
    hosts: tuple[str, ...] = ()
    code: int | None = None
    outcome: str = ""
    reason: str = ""
    decision: Decision | None = None
    rows: Sequence[Row] = field(default=(), repr=False)
    marks: Sequence[Mark] = field(default=(), repr=False)


@dataclass(frozen=True)
class History:
    """A run from its submission on. now: until when it is told: the moment of asking while it lives, else its end."""

    created: float
    now: float
    is_live: bool
    steps: int
    lives: Sequence[Life]


def history(judged: Judged, table: Table, now: float | None = None) -> History:
    """The history of a run whose state is known and whose table is up to date. Raises Damaged."""
    run = judged.run
    numbers = run.layout.attempt_numbers()
    lives = [
        _life(run.layout.attempt(number), table, number != numbers[-1] or not judged.is_live) for number in numbers
    ]
    created = _created(run.record.get("created"))
    firsts = [at for life in lives[:1] for at in (life.asked, life.started) if at is not None]
    begin = created if created is not None else min(firsts, default=run.layout.run.stat().st_mtime)
    ends = [begin, *(at for life in lives for at in (life.started, life.ended) if at is not None)]
    moment = time.time() if now is None else now
    return History(
        created=begin,
        now=moment if judged.is_live else max(ends),
        is_live=judged.is_live,
        steps=int(run.launch()["steps"]),
        lives=lives,
    )


def _created(text: Any) -> float | None:
    """run.json's time, ISO 8601 with a zone."""
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return None


def _life(attempt: AttemptFolder, table: Table, is_over: bool) -> Life:
    started = read_object_if_there(attempt.started()) or {}
    result = read_object_if_there(attempt.result()) or {}
    decision = decision_of(attempt)
    rows, marks = table.rows(attempt.number), table.marks(attempt.number)
    begin = started.get("started", result.get("started"))
    ended = result.get("ended")
    if ended is None and is_over and begin is not None:
        ended = _last_sign(attempt, decision, rows, marks)
    code = result.get("code")
    return Life(
        number=attempt.number,
        asked=_changed(handle_file(attempt)),
        started=None if begin is None else float(begin),
        ended=None if ended is None else float(ended),
        hosts=hosts_of(attempt),
        code=int(code) if isinstance(code, int) else None,
        outcome=str(result.get("outcome", "")),
        reason=str(result.get("reason", "")),
        decision=decision,
        rows=rows,
        marks=marks,
    )


def _last_sign(
    attempt: AttemptFolder, decision: Decision | None, rows: Sequence[Row], marks: Sequence[Mark]
) -> float | None:
    """When an attempt whose worker could not say it was over: as the supervisor saw it, else its last words."""
    if decision is not None and decision.at:
        return decision.at
    spoken = [row.at for row in rows[-1:] if row.at is not None] + [mark.at for mark in marks if mark.at is not None]
    return max(spoken, default=_changed(attempt.rank_log(0)) or _changed(attempt.worker_log()))


def _changed(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def hosts_of(attempt: AttemptFolder) -> tuple[str, ...]:
    """The nodes of an attempt by their own names, in the order of their indexes' names; none before it began."""
    names = sorted(path.name for path in attempt.path.glob("attempt-node*.json"))
    records = [attempt.started(), *(attempt.path / name for name in names)]
    found = [(read_object_if_there(path) or {}).get("host") for path in records]
    return tuple(str(host) for host in found if host)
