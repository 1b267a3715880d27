"""What SLURM's words for a job mean: its states, and why it is pending with what would help (launcher/data/slurm_reasons.toml)."""

from __future__ import annotations

import functools
import time
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

_FAR_SECONDS = 30 * 86400.0  # SLURM counts with the time limits of jobs: without any, it "expects" a start in a year
TABLE = Path(__file__).resolve().parent.parent / "data" / "slurm_reasons.toml"


class Phase(StrEnum):
    """Where a job is. `waits`: in the queue, also again. `lives`: on nodes. `over`: it will not run again by itself."""

    WAITS = "waits"
    LIVES = "lives"
    OVER = "over"


@dataclass(frozen=True)
class JobState:
    """One of SLURM's states. why: in plain words, where the state alone says something that a person should know."""

    phase: Phase
    why: str = ""


@functools.cache
def states() -> Mapping[str, JobState]:
    """SLURM's long word -> what it means."""
    rows = tomllib.loads(TABLE.read_text(encoding="utf-8"))["state"]
    return {word: JobState(Phase(row["phase"]), row.get("why", "")) for row in rows for word in row["words"]}


def state(word: str) -> JobState:
    """A state's meaning; one that is not in the table lives: nothing is started beside it, and nothing is taken for lost."""
    return states().get(word, JobState(Phase.LIVES))


@functools.cache
def table() -> tuple[Mapping[str, Any], ...]:
    """The rows: word, why, help, start (whether SLURM's expected start is worth telling)."""
    return tuple(tomllib.loads(TABLE.read_text(encoding="utf-8"))["reason"])


def sentence(job: str, reason: str, dependency: str = "", start: float | None = None) -> str:
    """One line: why the job waits, and what would help.

    Args:
        job: its number.
        reason: as squeue's %r has it, a word, or a word and more after a comma, or a sentence with `_` for spaces.
        dependency: as squeue's %E has it.
        start: when SLURM expects to start it, Unix seconds; None = it does not say.
    """
    said = reason.strip("()").replace("_", " ")
    word, _, detail = said.partition(",")
    row = _row(said) or _row(word)
    if row is None:
        return f"SLURM says {reason or 'nothing'}; `scontrol show job {job}` says more"
    words = {
        "job": job,
        "word": word,
        "detail": f" ({detail.strip()})" if detail.strip(" :") else "",
        "dependency": dependency,
    }
    expected = ""
    if row.get("start") and start is not None and start - time.time() < _FAR_SECONDS:
        expected = f" (SLURM expects to start it at {time.strftime('%Y-%m-%d %H:%M', time.localtime(start))})"
    return f"{row['why'].format(**words)}{expected}; {row['help'].format(**words)}"


def _row(said: str) -> Mapping[str, Any] | None:
    for row in table():
        word = row["word"]
        if fnmatchcase(said, word) or (" " in word and said.startswith(word)):
            return row
    return None
