"""What follows the end of an attempt: another one in this allocation, the queue again, or the end. Pure.

Nothing retries for ever: every decision but a stop is charged to one of three budgets, and none is ever given back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Optional

from .codes import Code

PAUSE_LIMIT = 600.0  # seconds; the pause doubles up to this
# Seconds of the time limit below which no attempt is begun: SLURM has sent its signal of the coming end by then and sends it
# once only. The default of target.slurm.signal_seconds, for a bundle that does not name it.
LEAST_SECONDS = 720.0


class Action(Enum):
    """What the supervisor does next."""

    RESTART = "restart"  # in this allocation, after the pause
    REQUEUE = "requeue"  # the job goes back to the queue and keeps its number
    STOP = "stop"


class Charge(Enum):
    """The budgets, by their names in launch.json's `restarts`."""

    FAILURE = "failures"
    PREEMPTION = "preemptions"
    BAD_NODE = "bad_nodes"


BUDGETS = tuple(charge.value for charge in Charge)

SETTINGS = {
    Charge.FAILURE: "monitor.max_failures",
    Charge.PREEMPTION: "monitor.max_preemptions",
    Charge.BAD_NODE: "monitor.max_bad_nodes",
}
"""What a user types to change a budget."""


@dataclass(frozen=True)
class Budgets:
    """How often a submission is started again for each cause; pause_seconds: before the first restart."""

    failures: int = 3
    preemptions: int = 1000
    bad_nodes: int = 5
    pause_seconds: float = 10.0


@dataclass(frozen=True)
class Spent:
    """What the attempts so far have taken from each budget."""

    failures: int = 0
    preemptions: int = 0
    bad_nodes: int = 0

    def plus(self, charge: Charge) -> Spent:
        """One more of a kind."""
        return replace(self, **{charge.value: getattr(self, charge.value) + 1})


@dataclass(frozen=True)
class Ending:
    """How an attempt ended. code, reason: as in result.json. host: the node that failed first, if one did.

    progressed: a newer checkpoint or a later step than any attempt before had. suspects: nodes to do without.
    cancelled: a person asked for the end. misplaced: these nodes cannot run it, wherever in them it starts.
    unhealed: buffers overflowed and nobody made them larger.
    """

    code: int
    reason: str
    progressed: bool = False
    host: str = ""
    suspects: tuple[str, ...] = ()
    cancelled: bool = False
    misplaced: bool = False
    unhealed: bool = False


@dataclass(frozen=True)
class Allocation:
    """What the job still has. enough_nodes: without those excluded. seconds_left: of its time limit, None = no end.

    least_seconds: those of its end in which no attempt is begun. is_over: the job ended with the attempt, and SLURM has
    started it anew. are_recreated: the JobSet controller makes all pods anew, wherever there is room.
    """

    enough_nodes: bool = True
    seconds_left: Optional[float] = None
    may_requeue: bool = True
    least_seconds: float = LEAST_SECONDS
    is_over: bool = False
    are_recreated: bool = False


@dataclass(frozen=True)
class Decision:
    """The next step. exclude: nodes to do without, all that are known. charged: what it was counted as."""

    action: Action
    reason: str
    pause_seconds: float = 0.0
    exclude: tuple[str, ...] = ()
    charged: Optional[Charge] = None


def charge_of(ending: Ending) -> Charge:
    """Which budget pays. A bad node pays from its own, progress or not: another node is tried each time.

    A preemption that brought nothing is a failure: a job whose time is too short for one checkpoint would go on for ever.
    """
    if ending.code == Code.BAD_NODE:
        return Charge.BAD_NODE
    return Charge.PREEMPTION if ending.code == Code.PREEMPTED and ending.progressed else Charge.FAILURE


def decide(
    ending: Ending, spent: Spent, budgets: Budgets, allocation: Allocation, excluded: Sequence[str] = ()
) -> Decision:
    """The decision after one attempt. `spent`: by the attempts before it. `excluded`: nodes given up before."""
    exclude = tuple(sorted({*excluded, *ending.suspects}))
    if ending.code == Code.FINISHED:
        return Decision(Action.STOP, ending.reason, exclude=exclude)
    final = _why_final(ending)
    if final:
        return Decision(Action.STOP, f"{final}: {ending.reason}", exclude=exclude)
    charge = charge_of(ending)
    now, limit = getattr(spent.plus(charge), charge.value), getattr(budgets, charge.value)
    if now > limit:
        why = f"{charge.value.replace('_', ' ')}: {now} of {limit} allowed ({SETTINGS[charge]}), no further start"
        return Decision(Action.STOP, f"{why}; {ending.reason}", exclude=exclude, charged=charge)
    pause = pause_before(now, budgets)
    action, why = _way(ending, allocation, pause)
    count = f"{charge.value.replace('_', ' ')}: {now} of {limit}"
    reason = f"{why} ({count}): {ending.reason}"
    return Decision(action, reason, pause if action is Action.RESTART else 0.0, exclude, charge)


def pause_before(number: int, budgets: Budgets) -> float:
    """Seconds before the restart after the `number`-th (from 1) charge of one kind: it doubles, up to ten minutes.

    >>> [pause_before(n, Budgets(pause_seconds=10)) for n in (1, 2, 3, 40)]
    [10.0, 20.0, 40.0, 600.0]
    """
    return min(PAUSE_LIMIT, budgets.pause_seconds * 2.0 ** min(number - 1, 30))


def _why_final(ending: Ending) -> str:
    if ending.cancelled:
        return "a person asked for the end"
    if ending.code == Code.CONFIG_REFUSED:
        return "no retry helps"
    if ending.unhealed:
        return "a larger ragged_buffer_factor is left to a person (monitor.overflow=stop)"
    return "these nodes cannot run it" if ending.misplaced else ""


def _way(ending: Ending, allocation: Allocation, pause: float) -> tuple[Action, str]:
    left = allocation.seconds_left
    if allocation.are_recreated:
        return Action.RESTART, "once more in new pods"
    if ending.code == Code.PREEMPTED:
        why = "its time or place was taken"
    elif allocation.is_over:
        why = "its job ended with it"
    elif not allocation.enough_nodes:
        why = f"without {', '.join(ending.suspects)} too few nodes are left" if ending.suspects else "too few nodes"
    elif left is not None and left - pause < allocation.least_seconds:
        why = f"{max(0.0, left):.0f} s of the time limit are left, too few for another attempt"
    else:
        return Action.RESTART, "once more on these nodes" if not ending.suspects else "once more on the other nodes"
    if allocation.may_requeue:
        return Action.REQUEUE, f"{why}, back to the queue"
    return Action.STOP, f"{why}, and the job may not be requeued (target.slurm.requeue=false): go on with `resume`"
