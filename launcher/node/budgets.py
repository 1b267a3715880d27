"""What follows the end of an attempt: another one in this allocation, the queue again, or the end. Pure.

Nothing retries for ever: every decision but a stop is charged to one budget, and none is ever given back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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


FAILURES, PREEMPTIONS, BAD_NODES, ROLLBACKS = BUDGETS = ("failures", "preemptions", "bad_nodes", "rollbacks")
"""The budgets, by their names in launch.json's `restarts`."""

OF_KIND = "kinds."
"""Before the name of a kind of failure that has a budget of its own."""

STALL, OVERFLOW = "stall", "overflow"
"""Kinds that an exit code tells; all others are those of the failure table."""

Spent = Mapping[str, int]
"""What the attempts so far have taken from each budget."""


def setting(charge: str) -> str:
    """What a user types to change a budget.

    >>> setting("failures"), setting("kinds.stall")
    ('monitor.max_failures', 'monitor.max_of_kind.stall')
    """
    kind = charge.removeprefix(OF_KIND)
    return f"monitor.max_{charge}" if kind == charge else f"monitor.max_of_kind.{kind}"


def plus(spent: Spent, charge: Optional[str]) -> dict[str, int]:
    """One more of a budget; None = of none."""
    return {**spent, charge: spent.get(charge, 0) + 1} if charge is not None else dict(spent)


@dataclass(frozen=True)
class Budgets:
    """How often a submission is started again for each cause; pause_seconds: before the first restart.

    kinds: kinds of failure that are charged to a budget of their own alone.
    """

    failures: int = 3
    preemptions: int = 1000
    bad_nodes: int = 5
    rollbacks: int = 2
    pause_seconds: float = 10.0
    kinds: Mapping[str, int] = field(default_factory=dict)

    def limit(self, charge: str) -> int:
        """How often that budget may be charged."""
        kind = charge.removeprefix(OF_KIND)
        return int(getattr(self, charge)) if kind == charge else self.kinds[kind]


@dataclass(frozen=True)
class Ending:
    """How an attempt ended. code, reason: as in result.json. host: the node that failed first, if one did.

    progressed: a newer checkpoint or a later step than any attempt before had. suspects: nodes to do without.
    final: why nothing may follow, whatever the budgets allow; "" = something may. kind: of failure, "" = not known.
    cause: what went wrong, as the reason of a decision has it; "" = the code or the reason says it.
    """

    code: int
    reason: str
    progressed: bool = False
    host: str = ""
    suspects: tuple[str, ...] = ()
    final: str = ""
    kind: str = ""
    cause: str = ""


@dataclass(frozen=True)
class Allocation:
    """What the job still has. enough_nodes: without those excluded. seconds_left: of its time limit, None = no end.

    least_seconds: those of its end in which no attempt is begun. is_over: the job ended with the attempt, and SLURM has
    started it anew. are_recreated: the JobSet controller makes all pods anew, wherever there is room. is_machine: it is
    this machine alone, which nobody takes away and which has no queue.
    """

    enough_nodes: bool = True
    seconds_left: Optional[float] = None
    may_requeue: bool = True
    least_seconds: float = LEAST_SECONDS
    is_over: bool = False
    are_recreated: bool = False
    is_machine: bool = False


@dataclass(frozen=True)
class Decision:
    """The next step. exclude: nodes to do without, all that are known. charged: which budget pays, None = none."""

    action: Action
    reason: str
    pause_seconds: float = 0.0
    exclude: tuple[str, ...] = ()
    charged: Optional[str] = None


def charge_of(ending: Ending, budgets: Budgets) -> str:
    """Which budget pays. A bad node pays from its own, progress or not: another node is tried each time.

    A preemption that brought nothing is a failure: a job whose time is too short for one checkpoint would go on for ever.
    """
    if ending.code == Code.BAD_NODE:
        return BAD_NODES
    if ending.code == Code.DIVERGED:
        return ROLLBACKS
    if ending.code == Code.PREEMPTED and ending.progressed:
        return PREEMPTIONS
    return f"{OF_KIND}{ending.kind}" if ending.kind in budgets.kinds else FAILURES


def decide(
    ending: Ending, spent: Spent, budgets: Budgets, allocation: Allocation, excluded: Sequence[str] = ()
) -> Decision:
    """The decision after one attempt. `spent`: by the attempts before it. `excluded`: nodes given up before."""
    exclude = tuple(sorted({*excluded, *ending.suspects}))
    if ending.code == Code.FINISHED:
        return Decision(Action.STOP, ending.reason, exclude=exclude)
    final = ending.final or ("no retry helps" if ending.code == Code.CONFIG_REFUSED else "")
    if final:
        return Decision(Action.STOP, f"{final}: {ending.reason}", exclude=exclude)
    charge = charge_of(ending, budgets)
    now, limit = plus(spent, charge)[charge], budgets.limit(charge)
    name = charge.removeprefix(OF_KIND).replace("_", " ")
    cause = f"; {ending.cause}" if ending.cause else ""
    if now > limit:
        why = f"{name}: {now} of {limit} allowed ({setting(charge)}), no further start{cause}"
        return Decision(Action.STOP, f"{why}; {ending.reason}", exclude=exclude, charged=charge)
    pause = pause_before(now, budgets)
    action, why = _way(ending, allocation, pause)
    reason = f"{why} ({name}: {now} of {limit}{cause}): {ending.reason}"
    return Decision(action, reason, pause if action is Action.RESTART else 0.0, exclude, charge)


def pause_before(number: int, budgets: Budgets) -> float:
    """Seconds before the restart after the `number`-th (from 1) charge of one kind: it doubles, up to ten minutes.

    >>> [pause_before(n, Budgets(pause_seconds=10)) for n in (1, 2, 3, 40)]
    [10.0, 20.0, 40.0, 600.0]
    """
    return min(PAUSE_LIMIT, budgets.pause_seconds * 2.0 ** min(number - 1, 30))


def _way(ending: Ending, allocation: Allocation, pause: float) -> tuple[Action, str]:
    left = allocation.seconds_left
    if allocation.are_recreated:
        return Action.RESTART, "once more in new pods"
    if allocation.is_machine:
        if allocation.enough_nodes:
            return Action.RESTART, "once more on this machine"
        return Action.STOP, "there is no machine but this one"
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
