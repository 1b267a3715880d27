"""When the trainers are told to stop and when they are killed. Pure: the time comes in as an argument.

MaxText 0.2.5 catches SIGTERM, saves between two steps and ends with return code 0; it never dies of it. With
enable_checkpointing=false it ignores SIGTERM for ever.
"""

from __future__ import annotations

import signal
from enum import Enum

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
_AGAIN = (signal.SIGTERM, signal.SIGINT)

DEAF_GRACE = 5.0  # seconds until SIGKILL when MaxText saves nothing and ignores SIGTERM
FAILURE_GRACE = 10.0  # seconds for the other ranks to print the same error (an overflow is raised on all)
STALL_GRACE = 120.0  # seconds for evidence of a stall that another node saw: twice what it may take (flight.py)
EXIT_GRACE = 300.0  # seconds from the first return code 0 to the last: JAX's own shutdown barrier waits so long
SAME_REQUEST = 1.0  # seconds in which a second signal is an echo (SLURM signals the step and srun forwards it too)


class Act(Enum):
    """What a stop signal asks of the trainers."""

    NOTHING = "nothing"
    FORWARD = "forward"  # SIGTERM to every trainer
    KILL = "kill"  # SIGKILL to every trainer


class Stopping:
    """The stop state of one attempt. Times are seconds of one monotonic clock."""

    def __init__(self, grace: float, checkpointing: bool) -> None:
        self.grace = grace if checkpointing else min(grace, DEAF_GRACE)
        self.checkpointing = checkpointing
        self.signal: int | None = None  # the first stop signal
        self.why = ""  # of the deadline
        self.is_ending = False
        """Whether something has begun that ends the training: a stop signal, or a rank, here or elsewhere, that ended."""
        self._deadline: float | None = None
        self._first_again: float | None = None

    def on_signal(self, number: int, now: float) -> Act:
        """What to do about a stop signal that the worker got."""
        first = self.signal is None
        if first:
            self.signal = number
            ignores = "" if self.checkpointing else ", MaxText without checkpointing ignores SIGTERM"
            self._set(now + self.grace, f"killed {self.grace:g} s after {signal.Signals(number).name}{ignores}")
        if number in _AGAIN:
            if self._first_again is None:
                self._first_again = now
            elif now - self._first_again > SAME_REQUEST:
                self._set(now, f"killed by a second {signal.Signals(number).name}")
                return Act.KILL
        return Act.FORWARD if first else Act.NOTHING

    def on_exit(self, rank: int, returncode: int, now: float) -> None:
        """Takes in that a rank ended by itself while others go on."""
        if returncode != 0:
            self._set(now + FAILURE_GRACE, f"killed {FAILURE_GRACE:g} s after rank {rank} failed")
        else:
            self._set(now + EXIT_GRACE, f"killed {EXIT_GRACE:g} s after rank {rank} ended with return code 0")

    def on_peer_failure(self, node: int, now: float) -> None:
        """Takes in that a rank of another node failed: the ranks here wait for it in vain."""
        self._set(now + FAILURE_GRACE, f"killed {FAILURE_GRACE:g} s after node {node} failed")

    def is_due(self, now: float) -> bool:
        """Whether the trainers that still live must be killed now."""
        return self._deadline is not None and now >= self._deadline

    def on_peer_stall(self, node: int, now: float) -> None:
        """Takes in that another node saw a stall: this one gathers evidence too, and its own watcher then ends it."""
        self._set(now + STALL_GRACE, f"killed {STALL_GRACE:g} s after node {node} saw a stall", is_ending=False)

    def _set(self, deadline: float, why: str, *, is_ending: bool = True) -> None:
        self.is_ending = self.is_ending or is_ending
        if self._deadline is None or deadline < self._deadline:
            self._deadline, self.why = deadline, why
