"""The cause of a failed attempt: the bundle's table of failures (failures.json), and the logs' last lines.

launcher/runs/causes.py reads the table's own form, a user's rows included; render puts all of them into the bundle.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .codes import refused
from .ending import read_object, srun_log
from .failures import ACTIONS, PLACES, Signature, Tail
from .layout import AttemptFolder

_TAIL = 1 << 15  # bytes of each log's end: some 130 step lines, or three stacks; 1,024 ranks' make 32 MiB


def read_table(path: Path) -> tuple[Signature, ...]:
    """The rows of failures.json, the user's first; none where there is no such file. Refuses (78) a wrong one."""
    if not path.exists():
        return ()
    try:
        return tuple(signature(row) for row in json.loads(path.read_text(encoding="utf-8"))["failures"])
    except (OSError, ValueError, KeyError, TypeError, re.error) as error:
        raise refused(f"{path} is no table of failures: {error!r}; render the bundle again") from error


def signature(row: dict[str, Any]) -> Signature:
    """One row of the table, as TOML or JSON have it. Raises KeyError, TypeError, ValueError, re.error."""
    found = Signature(
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
    if found.action not in ACTIONS or not found.where <= set(PLACES):
        raise ValueError(f"{found.name}: action {found.action}, where {', '.join(sorted(found.where))}")
    return found


def tails(attempt: AttemptFolder, reason: str = "") -> list[Tail]:
    """The last lines of every log of an attempt, the ranks' first, in their order. `reason`: what the cluster says of its end.

    srun's only where no worker could say how it ended: srun ends all other tasks when one fails, and then tells of those.
    """
    result = read_object(attempt.result()) or {"by": "nobody"}
    anchor = float((read_object(attempt.started()) or {}).get("started") or 0)
    found: list[tuple[tuple[int, int], Tail]] = []
    try:
        entries = [entry.name for entry in os.scandir(attempt.path)]
    except OSError:
        entries = []
    for name in entries:
        match = re.fullmatch(r"(rank|worker)(\d+)\.log", name)
        if match is not None:
            place, number = match[1], int(match[2])
            tail = Tail(f"{place} {number}", place, last_lines(attempt.path / name), anchor)
            found.append(((PLACES.index(place), number), tail))
    ordered = [tail for _, tail in sorted(found, key=lambda pair: pair[0])]
    if "by" in result and not attempt.failure.exists():
        ordered.append(Tail("srun", "srun", last_lines(srun_log(attempt)), anchor))
    if reason:
        ordered.append(Tail("the cluster", "kubernetes", [reason], anchor))
    return [tail for tail in ordered if tail.lines]


def last_lines(path: Path, most: int = _TAIL) -> Sequence[str]:
    """The whole lines in the last `most` bytes of a file; none where it cannot be read."""
    try:
        with open(path, "rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - most))
            data = file.read(most)
    except OSError:
        return []
    lines = data.split(b"\n")[1 if end > most else 0 :]
    return [line.decode("utf-8", "replace") for line in lines if line]
