"""Logs read in big pieces from where the last reading ended: whole lines only, in memory that does not grow with them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .clock import Clock
from .marks import PREFILTER, Mark, parse_mark
from .steps import MARK, StepLine, parse_step

BLOCK = 1 << 20  # bytes of one read: measured no slower than 4 or 16 MiB, and 1,024 logs cost no more memory than one
_MARK = MARK.encode()
_PREFIX = 160  # bytes before a mark in which its line begins: absl's prefix and MaxText's "[Rampup ...]" are shorter


def pieces(path: Path, offset: int) -> Iterator[tuple[bytes, int]]:
    """The whole lines from `offset` on, piece by piece, each with the offset after it.

    A last line without its newline is left for later: it is still being written, or its writer was killed. A file that
    has become shorter was begun anew and is read from its start. A line longer than a block is passed over in parts.
    """
    try:
        file = open(path, "rb", buffering=0)  # noqa: SIM115
    except OSError:
        return
    with file:
        if file.seek(0, 2) < offset:
            offset = 0
        while True:
            file.seek(offset)
            data = file.read(BLOCK)
            cut = data.rfind(b"\n") + 1
            if not cut:
                if len(data) < BLOCK:
                    return
                cut = len(data)
            offset += cut
            yield data[:cut], offset


def step_times(data: bytes, clock: Clock) -> list[tuple[int, float | None]]:
    """Each completed step in a piece with the time of its line: all that is wanted of ranks other than 0."""
    found: list[tuple[int, float | None]] = []
    minutes: dict[bytes, float | None] = {}
    find, rfind = data.find, data.rfind
    at = find(_MARK)
    while at >= 0:
        number = at + len(_MARK)
        begin = rfind(b"\n", max(0, at - _PREFIX), at) + 1
        end = find(b",", number, number + 12)
        at = find(_MARK, number)
        digits = data[number:end] if end > 0 else b""
        if not digits.isdigit():
            continue
        minute = data[begin : begin + 11]
        if minute not in minutes:
            minutes[minute] = clock.minute(data[begin : begin + 12].decode("latin-1"))
        base = minutes[minute]
        try:
            when = None if base is None else base + float(data[begin + 12 : begin + 21])
        except ValueError:
            when = None
        found.append((int(digits), when))
    return found


def read_piece(data: bytes, clock: Clock) -> tuple[list[tuple[StepLine, float | None]], list[Mark]]:
    """All steps and marks in a piece of rank 0's log."""
    steps: list[tuple[StepLine, float | None]] = []
    marks: list[Mark] = []
    wanted = PREFILTER.search
    for raw in data.split(b"\n"):
        if b"completed " in raw:
            line = raw.decode("utf-8", "replace")
            step = parse_step(line)
            if step is not None:
                steps.append((step, clock.at(line)))
                continue
        if wanted(raw):
            line = raw.decode("utf-8", "replace")
            mark = parse_mark(line, clock.at(line))
            if mark is not None:
                marks.append(mark)
    return steps, marks


def metrics(data: bytes) -> list[dict[str, Any]]:
    """The objects of MaxText's metrics_file that name a step; a line that is none is passed over."""
    found = []
    for raw in data.split(b"\n"):
        if not raw.strip():
            continue
        try:
            entry = json.loads(raw)
        except ValueError:
            continue
        step = entry.get("step") if isinstance(entry, dict) else None
        if isinstance(step, (int, float)) and math.isfinite(step):
            found.append(entry)
    return found
