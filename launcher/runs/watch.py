"""Looking at one run again and again without wearing out its scheduler: the files at once, the target now and then."""

from __future__ import annotations

import time
from collections.abc import Iterator

from launcher.runs.attempts import POLL_SECONDS, Judged, by_files, by_sight, by_words, look, must_ask
from launcher.runs.store import Run
from launcher.targets import base
from launcher.targets.base import Sight

FIRST_SECONDS, LONGEST_SECONDS = 0.5, 15.0
"""Between two questions to a scheduler, where somebody waits: twice as long each time. A few hundred people who follow
their runs then cost its controller some tens of questions a second."""


def pauses(kind: str) -> Iterator[float]:
    """Seconds to wait before the next question to the target of that kind, without end."""
    if kind not in base.CLUSTERS:
        while True:
            yield POLL_SECONDS
    seconds = FIRST_SECONDS
    while True:
        yield seconds
        seconds = min(LONGEST_SECONDS, seconds * 2)


class Watch:
    """One run, looked at as often as one likes. What a scheduler said is believed until its next turn, or until the files
    show that something has happened."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._sight: Sight | None = None
        self._stage: tuple[object, ...] = ()
        self._due = 0.0
        self._pauses = pauses(run.target)

    def look(self) -> Judged:
        """The run's state now."""
        judged = by_files(self._run)
        if not must_ask(judged):
            return judged
        stage = _stage(judged)
        if stage != self._stage:
            self._stage, self._sight, self._pauses = stage, None, pauses(self._run.target)
        if self._sight is None or time.monotonic() >= self._due or self._run.target not in base.CLUSTERS:
            self._sight = look(self._run.target, [judged.handle or {}])[0]
            self._due = time.monotonic() + next(self._pauses)
            return by_words(judged, self._sight)
        return by_sight(judged, self._sight)


def _stage(judged: Judged) -> tuple[object, ...]:
    """How far the newest attempt is by its files."""
    attempt = judged.attempt
    if attempt is None:
        return ()
    return attempt.number, attempt.started().exists(), judged.result is not None, judged.decision is not None
