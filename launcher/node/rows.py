"""The steps of the attempt that runs now, as table rows: rank 0's step lines joined with its metrics_file as both grow.

MaxText (common/metric_logger.py) prints a step's line, then writes its metrics, then goes on: when the line of a later
step has come, the metrics of the earlier one are in the file or never will be.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from .clock import Clock
from .layout import RunFolder
from .scan import metrics, pieces
from .steps import StepLine, parse_step
from .table import Row, joined

_EVERY = 0.2  # seconds between two looks into the file
_PATIENCE = 2.0  # seconds that one half of a step waits for the other; in MaxText milliseconds lie between them
_TAIL = 1 << 20  # bytes of an earlier attempt's file: a thousand steps
_BEFORE = 256  # steps of earlier attempts, more than any window of alarms.py
_ATTEMPTS = 8  # that are looked through for them
_MOST = 1024  # halves that wait; more are nonsense in the file


@dataclass
class _Half:
    """What is known of a step whose row was not given out yet. since: when the first half came, of the monotonic clock."""

    since: Optional[float] = None
    line: Optional[StepLine] = None
    at: Optional[float] = None
    entry: Optional[Mapping[str, Any]] = None


class LiveRows:
    """Feed it rank 0's lines, ask it for the rows that are complete. What an earlier use of the folder left is passed over."""

    def __init__(self, attempt: int, metrics_file: Path, started: float) -> None:
        """started: of the attempt, Unix seconds; it gives the log's stamps their year and zone."""
        self._attempt = attempt
        self._metrics = metrics_file
        self._clock = Clock(started)
        self._waiting: dict[int, _Half] = {}
        self._given = -1  # the newest step whose row was given out
        self._newest = -1  # the newest step whose line has come
        self._looked: Optional[float] = None
        try:
            self._offset = metrics_file.stat().st_size
        except OSError:
            self._offset = 0

    def line(self, text: str) -> Optional[int]:
        """One line of rank 0. The step that it reports, None for any other line."""
        step = parse_step(text)
        if step is None:
            return None
        half = self._half(step.step)
        if half is not None:
            half.line, half.at = step, self._clock.at(text) or time.time()
            self._newest = max(self._newest, step.step)
        return step.step

    def _half(self, step: int) -> Optional[_Half]:
        """None for a step that is over: its other half came too late."""
        if step <= self._given or (step not in self._waiting and len(self._waiting) >= _MOST):
            return None
        return self._waiting.setdefault(step, _Half())

    def look(self, now: float) -> list[Row]:
        """The rows that became complete, by step. `now`: of the monotonic clock."""
        if self._looked is not None and now - self._looked < _EVERY:
            return []
        self._looked = now
        self._read()
        found = []
        for step in sorted(self._waiting):
            half = self._waiting[step]
            half.since = now if half.since is None else half.since
            whole = half.line is not None and half.entry is not None
            if not whole and step >= self._newest and now - half.since < _PATIENCE:
                break
            found.append(self._give(step))
        return found

    def close(self) -> list[Row]:
        """The rows that were still waiting, when nothing more comes."""
        self._read()
        return [self._give(step) for step in sorted(self._waiting)]

    def _give(self, step: int) -> Row:
        half = self._waiting.pop(step)
        self._given = max(self._given, step)
        return joined(self._attempt, step, half.line, half.at, half.entry)

    def _read(self) -> None:
        for data, offset in pieces(self._metrics, self._offset):
            self._offset = offset
            for entry in metrics(data):
                half = self._half(int(entry["step"]))
                if half is not None:
                    half.entry = entry


def earlier(run: RunFolder, number: int) -> list[Row]:
    """The newest steps of the attempts before `number`, by step; of one that was trained twice, the newer attempt's."""
    found: dict[int, Row] = {}
    for past in [seen for seen in run.attempt_numbers() if seen < number][: -_ATTEMPTS - 1 : -1]:
        path = run.attempt(past).metrics
        try:
            begin = max(0, path.stat().st_size - _TAIL)
        except OSError:
            continue
        for data, _ in pieces(path, begin):
            for entry in metrics(data):
                step = int(entry["step"])
                found.setdefault(step, joined(past, step, None, None, entry))
        if len(found) >= _BEFORE:
            break
    return [found[step] for step in sorted(found)]
