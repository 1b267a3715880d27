"""Who failed first, over all nodes of an attempt: one file that the first failing worker makes and all others watch.

Without it a dead rank on another node looks like something else here: SLURM's SIGTERM to the rest of the step like a
preemption, JAX's heartbeat timeout (100 s later) like a fault of this node.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from typing import Any

from .codes import Code, outcome_of
from .layout import AttemptFolder
from .place import host_name
from .verdict import Verdict

PAUSE = 5.0  # seconds between two looks: one look-up a node, bearable for a shared file system at 256 nodes
_STALE = 60.0  # seconds before our own start: where starts have no name, an older file is of an earlier one


@dataclass(frozen=True)
class Failure:
    """The first failure of an attempt. code, reason: what that node's worker would say; at: Unix seconds.

    start: which start of all nodes it happened in; "" where starts have no name.
    """

    node: int
    host: str
    code: int
    reason: str
    at: float
    start: str = ""


class Peers:
    """The other nodes of this attempt, seen through the shared run folder."""

    def __init__(
        self, attempt: AttemptFolder, node: int, nodes: int, started: float, start: str = "", *, again: bool = False
    ) -> None:
        """`started`: Unix seconds. `start`: this start's name; pods of one start may begin minutes apart.

        `again`: this node has begun under this name before: what failed before now was seen to then.
        """
        self._path = attempt.failure
        self._node = node
        self._alone = nodes == 1
        self._started = started
        self._start = start
        self._again = again
        self._looked = 0.0

    def report(self, verdict: Verdict) -> None:
        """Says that a rank of this node failed by itself; the first node to say so is the one that is believed."""
        if self._alone:
            return
        failure = {
            "node": self._node,
            "host": host_name(),
            "code": int(verdict.code),
            "reason": verdict.reason,
            "at": time.time(),
            "start": self._start,
        }
        try:
            self._remove_stale()
            with self._path.open("x", encoding="utf-8") as file:
                file.write(json.dumps(failure) + "\n")
        except OSError:  # another node was first, or the folder cannot be written
            return

    def _remove_stale(self) -> None:
        """Makes room where an earlier start of this attempt's number left its failure."""
        found = self._read()
        if found is not None and self._is_stale(found):
            # Renamed first: of two nodes that do this at once, one alone finds the old file.
            aside = self._path.with_name(f".{self._path.name}.{self._node}.{os.getpid()}.old")
            os.rename(self._path, aside)
            aside.unlink()

    def _read(self) -> Failure | None:
        try:
            data: dict[str, Any] = json.loads(self._path.read_text(encoding="utf-8"))
            return Failure(**data)
        except (OSError, ValueError, TypeError):  # none, or half written
            return None

    def _is_stale(self, failure: Failure) -> bool:
        if self._start or failure.start:
            return failure.start != self._start or (self._again and failure.at < self._started)
        return failure.at < self._started - _STALE

    def look(self, now: float) -> Failure | None:
        """Another node's failure, looked for at most every PAUSE seconds of the monotonic clock `now`."""
        if self._alone or now - self._looked < PAUSE:
            return None
        self._looked = now
        return self.first_failure()

    def first_failure(self) -> Failure | None:
        """The attempt's first failure, if it was on another node."""
        if self._alone:
            return None
        failure = self._read()
        is_anothers = failure is not None and failure.node != self._node and not self._is_stale(failure)
        return failure if is_anothers else None


def blame(own: Verdict, failure: Failure | None) -> Verdict:
    """This node's verdict in the light of the attempt's first failure.

    What stays: finished, and what every rank sees alike and says best itself (overflow, a refused configuration).
    """
    if failure is None or own.code in (Code.FINISHED, Code.OVERFLOW, Code.CONFIG_REFUSED):
        return own
    reason = f"node {failure.node} ({failure.host}) failed first: {failure.reason}"
    return Verdict(failure.code, outcome_of(failure.code), reason, own.first_step, own.last_step, own.checkpoint)
