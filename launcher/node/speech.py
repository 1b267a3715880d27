"""What a worker in a pod says on standard output for the launcher, whose machine need not see the pods' volume.

One record is one line: `launcher-record {"attempt": 3, "file": "result.json", "content": {...}}`, ASCII, no newline
inside. It stands at the beginning of the line: a rank's own line begins with `[rank] `, so a trainer that prints such
text is not taken for the worker. Whoever reads must cut at "\\n" alone: `str.splitlines` also cuts inside a rank's line.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from .layout import RunFolder
from .output import Console

MARK = "launcher-record "
CHECKPOINTS = "checkpoints.json"
"""{"steps": [...], "at": Unix seconds}: the committed checkpoints, ascending, and when the newest one was complete (null:
none is there); node 0 says it whenever it changes."""
ADJUST = "adjust.json"
"""The run's, so its attempt is null."""
STEPS_LIMIT = 500  # the newest that are said: a container runtime cuts lines at 16 KiB

_FILES = re.compile(
    r"attempt(?:-node[0-9]{1,6})?\.json|result\.json|node[0-9]{1,6}\.json|failure\.json|(?:health|flight|pace)-node[0-9]{1,6}\.json|decision\.json|checkpoints\.json"
)
_LABEL = re.compile(r"\[([0-9]{1,7}|worker)\] (.*)", re.DOTALL)


@dataclass(frozen=True)
class Record:
    """One file's content. attempt: whose it is, from 1; None = the run's. file: its name there, one of layout.py's."""

    attempt: Optional[int]
    file: str
    content: dict[str, Any]

    def path(self, run: RunFolder) -> Path:
        """Where it belongs in a run's folder."""
        return run.adjust if self.attempt is None else run.attempt(self.attempt).path / self.file


def line(record: Record) -> str:
    """The record's line, without its newline.

    >>> line(Record(3, "checkpoints.json", {"steps": [2]}))
    'launcher-record {"attempt": 3, "file": "checkpoints.json", "content": {"steps": [2]}}'
    """
    return MARK + json.dumps({"attempt": record.attempt, "file": record.file, "content": record.content})


def parse(text: str) -> Optional[Record]:
    """The record in one line of a worker's output; None for every other line, a cut one, and a name that is not known.

    >>> parse('[0] launcher-record {"attempt": 3, "file": "result.json", "content": {}}') is None
    True
    """
    if not text.startswith(MARK) or not text.isascii():
        return None
    try:
        data = json.loads(text[len(MARK) :])
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict) or set(data) != {"attempt", "file", "content"}:
        return None
    attempt, file, content = data["attempt"], data["file"], data["content"]
    if not isinstance(file, str) or not isinstance(content, dict):
        return None
    if attempt is None:
        return Record(None, file, content) if file == ADJUST else None
    if not isinstance(attempt, int) or isinstance(attempt, bool) or attempt < 1 or not _FILES.fullmatch(file):
        return None
    return Record(attempt, file, content)


def label(text: str) -> Optional[tuple[str, str]]:
    """Who speaks in one line of a worker's output, a rank's number or "worker", and the words; None: nobody is named.

    >>> label("[12] completed step: 7"), label("[worker] finished (0)")
    (('12', 'completed step: 7'), ('worker', 'finished (0)'))
    """
    match = _LABEL.fullmatch(text)
    return (match[1], match[2]) if match is not None else None


class Speaker:
    """Says records on the worker's standard output; without a console it says nothing: others read the files."""

    def __init__(self, console: Optional[Console]) -> None:
        self._console = console

    @property
    def is_heard(self) -> bool:
        """Whether anybody listens."""
        return self._console is not None

    def say(self, attempt: Optional[int], file: str, content: dict[str, Any]) -> None:
        """Says one record; unlike the trainers' lines it is never dropped, however slowly the output is read."""
        if self._console is not None:
            self._console.keep(line(Record(attempt, file, content)))
