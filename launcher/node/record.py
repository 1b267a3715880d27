"""attempt.json and result.json: what others read about an attempt. Written whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .layout import AttemptFolder
from .place import Place, host_name
from .submission import job_number
from .verdict import RankEnd, Verdict


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Replaces `path` in one step, so that a reader never sees half a file."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(json.dumps(data, indent=1) + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def process_start(pid: int) -> int | None:
    """When a process began, in clock ticks since boot (field 22 of /proc/PID/stat, proc(5)); None if it is gone.

    With the pid it names one process for good: pids are used again.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19])


def started_content(
    attempt: AttemptFolder, place: Place, command: Sequence[str], started: float, start: str
) -> dict[str, Any]:
    """attempt.json of this node: who runs the attempt, where, since when (`started`: Unix seconds).

    `job`: SLURM's number for it, null elsewhere; by it a job is found whose number the launcher could not note.
    `pod`: the pod's name, null elsewhere. `start`: which start of all nodes this is (pod.py), "" where nobody says so.
    """
    return {
        "attempt": attempt.number,
        "node": place.node,
        "pid": os.getpid(),
        "process_start": process_start(os.getpid()),
        "host": host_name(),
        "started": started,
        "command": list(command),
        "coordinator": place.address,
        "job": job_number(os.environ) or None,
        "pod": os.environ.get("POD_NAME"),
        "start": start,
    }


def result_content(
    verdict: Verdict, *, steps: int, ends: Sequence[RankEnd], started: float, ended: float, start: str
) -> dict[str, Any]:
    """result.json of a node. `steps`: the total asked for (0: launch.json was unreadable); times: Unix seconds."""
    return {
        "code": int(verdict.code),
        "outcome": verdict.outcome.value,
        "reason": verdict.reason,
        "first_step": verdict.first_step,
        "last_step": verdict.last_step,
        "steps": steps,
        "checkpoint": verdict.checkpoint,
        "ranks": [{"rank": end.rank, "returncode": end.returncode} for end in sorted(ends, key=lambda end: end.rank)],
        "started": started,
        "ended": ended,
        "start": start,
    }
