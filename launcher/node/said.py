"""Which records a worker in a pod says, and when."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

from .checkpoints import committed_steps
from .ending import read_object
from .layout import AttemptFolder, RunFolder
from .speech import ADJUST, CHECKPOINTS, STEPS_LIMIT, Speaker

LOOK_SECONDS = 10.0  # between two looks for new checkpoints: one listing on a shared file system


class Said:
    """What this worker has told of its attempt. Only node 0 tells of checkpoints and of what concerns the run."""

    def __init__(self, speaker: Speaker, attempt: AttemptFolder, node: int, checkpoints: Optional[Path] = None) -> None:
        """`checkpoints`: their folder; None = on remote storage, not seen from here."""
        self._speaker = speaker
        self._attempt = attempt
        self._node = node
        self._checkpoints = checkpoints if node == 0 and speaker.is_heard else None
        self._steps: Optional[list[int]] = None
        self._looked: Optional[float] = None

    @property
    def is_heard(self) -> bool:
        """Whether this worker is in a pod, and tells its records."""
        return self._speaker.is_heard

    def file(self, path: Path, content: dict[str, Any]) -> None:
        """Says one of the attempt's files."""
        self._speaker.say(self._attempt.number, path.name, content)

    def look(self, now: float) -> None:
        """Says which checkpoints there are, when that has changed; looks every LOOK_SECONDS of the monotonic `now`."""
        if self._checkpoints is None or (self._looked is not None and now - self._looked < LOOK_SECONDS):
            return
        self._looked = now
        try:
            steps = committed_steps(self._checkpoints)[-STEPS_LIMIT:]
            if steps != self._steps:
                at = (self._checkpoints / str(steps[-1])).stat().st_mtime if steps else None
                self._speaker.say(self._attempt.number, CHECKPOINTS, {"steps": steps, "at": at})
                self._steps = steps
        except OSError:  # MaxText has just removed an old one, or the volume is away: next time
            return

    def last_words(self, run: RunFolder, path: Path, result: dict[str, Any]) -> None:
        """Says what the attempt came to: `result`, which belongs to `path`, comes last."""
        if not self._speaker.is_heard:
            return
        if self._node == 0:
            self._looked = None
            self.look(0.0)
            failure, adjusted = read_object(self._attempt.failure), read_object(run.adjust)
            if failure is not None and failure.get("start") == result.get("start"):
                self.file(self._attempt.failure, failure)
            if adjusted is not None:
                self._speaker.say(None, ADJUST, adjusted)
        self.file(path, result)
