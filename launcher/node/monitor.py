"""What watches the trainers of this node while they run, and may ask for their end.

Several watchers, each about one thing (stall.py, numbers.py, ...), see every line and are asked a few times a second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Optional, Protocol

Pids = Callable[[], Mapping[int, int]]
"""The live trainers of this node: rank -> process id."""


class Stop(NamedTuple):
    """The trainers shall be killed (SIGKILL: nothing is saved). code: of codes.py; reason: one line, as result.json has it."""

    code: int
    reason: str


class Watcher(Protocol):
    """One thing that is watched. Both are called by the thread that reads the trainers' output: they must be quick."""

    def line(self, rank: int, text: str, now: float) -> None:
        """One line of a rank, without its newline; `now`: seconds of the monotonic clock."""

    def look(self, now: float) -> Optional[Stop]:
        """Called a few times a second while trainers run; a Stop ends the attempt."""


class Monitor:
    """All watchers of this node as one."""

    def __init__(self, watchers: Sequence[Watcher] = ()) -> None:
        self.stop: Optional[Stop] = None
        """The first that was asked for."""
        self._watchers = tuple(watchers)

    def line(self, rank: int, text: str, now: float) -> None:
        """Shows one line to all."""
        for watcher in self._watchers:
            watcher.line(rank, text, now)

    def look(self, now: float) -> Optional[Stop]:
        """The first Stop that any of them asks for; from then on none is asked any more."""
        if self.stop is None:
            for watcher in self._watchers:
                self.stop = watcher.look(now)
                if self.stop is not None:
                    return self.stop
        return None
