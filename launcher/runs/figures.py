"""Numbers out of rank 0's log, reading only its end: a log may hold gigabytes."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.node.steps import JUNK_STEPS, StepLine, parse_step

WINDOW = 20
"""Steps that the current speed is the median of."""

_KEPT = WINDOW + JUNK_STEPS  # step lines that are read
_FIRST_READ = 1 << 14  # bytes: some 60 step lines, or what MaxText prints about one checkpoint
_ENOUGH_READ = 1 << 17  # bytes after which one step line is enough
_MOST_READ = 1 << 23  # bytes after which a log without a step line is taken to have none


@dataclass(frozen=True)
class Speed:
    """Medians over `steps` steps. seconds: per step. tokens: per second and device, None when not printed."""

    seconds: float
    tokens: float | None
    steps: int


def tail_steps(log: Path) -> tuple[list[StepLine], bool]:
    """The last step lines of a log, oldest first (a few, none without a log), and whether these are all that it has.

    A line without its newline is not read: it is still being written.
    """
    size = _FIRST_READ
    while True:
        try:
            with open(log, "rb") as file:
                end = file.seek(0, os.SEEK_END)
                begin = max(0, end - size)
                file.seek(begin)
                data = file.read(end - begin)
        except OSError:
            return [], True
        lines = [line for line in data.split(b"\n")[1 if begin else 0 : -1] if b"completed " in line]
        found = [parse_step(line.decode("utf-8", "replace")) for line in lines[-_KEPT:]]
        steps = [step for step in found if step is not None]
        enough = len(steps) >= WINDOW or (steps and size >= _ENOUGH_READ)
        if enough or begin == 0 or size >= _MOST_READ:
            return steps, begin == 0 and len(lines) <= _KEPT
        size *= 8


def speed(steps: Sequence[StepLine], first_steps_included: bool) -> Speed | None:
    """The speed over the newest of these steps; None when none is left after the attempt's first three, or none says its seconds."""
    sound = steps[JUNK_STEPS if first_steps_included else 0 :][-WINDOW:]
    seconds = [step.seconds for step in sound if step.seconds is not None]
    if not seconds:
        return None
    tokens = [step.tokens for step in sound if step.tokens is not None]
    return Speed(statistics.median(seconds), statistics.median(tokens) if tokens else None, len(seconds))


def duration(seconds: float) -> str:
    """A duration as a person says it.

    >>> duration(7.4), duration(192), duration(9000), duration(200000)
    ('7 s', '3 min 12 s', '2 h 30 min', '2 d 7 h')
    """
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"
