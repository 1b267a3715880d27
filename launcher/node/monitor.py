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
    """One thing that is watched. All is called by the thread that reads the trainers' output: it must be quick."""

    def line(self, rank: int, text: str, now: float) -> None:
        """One line of a rank, without its newline; `now`: seconds of the monotonic clock."""

    def look(self, now: float) -> Optional[Stop]:
        """Called a few times a second while trainers run, also while they end; a Stop ends the attempt."""

    def close(self) -> None:
        """Called once when no trainer runs any more: what was opened or started is to go."""


class Monitor:
    """All watchers of this node as one."""

    def __init__(self, watchers: Sequence[Watcher] = ()) -> None:
        self._watchers = tuple(watchers)

    def line(self, rank: int, text: str, now: float) -> None:
        """Shows one line to all."""
        for watcher in self._watchers:
            watcher.line(rank, text, now)

    def look(self, now: float) -> Optional[Stop]:
        """Asks all; the first Stop that any of them asks for."""
        stops = [watcher.look(now) for watcher in self._watchers]
        return next((stop for stop in stops if stop is not None), None)

    def close(self) -> None:
        """Ends all."""
        for watcher in self._watchers:
            watcher.close()
