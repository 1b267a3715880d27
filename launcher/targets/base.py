"""The contract that every target meets, and nothing else: a few functions, so that a target is a module.

All state lies in the run's folder. A target keeps none: what it must know later it returns from `start` as a handle (an
object of plain JSON) which the run stores; another process, after the shell is gone, hands it back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from launcher.issue import Issue, Refused, Severity
from launcher.node.layout import RunFolder

if TYPE_CHECKING:
    from launcher.plan.plan import Plan

KINDS = ("local", "slurm")
SUPERVISED = frozenset({"slurm"})
"""Targets whose job starts further attempts by itself: their runs outlive the submitting shell, and nobody waits for them."""

Handle = dict[str, Any]
"""How to find a started attempt again; JSON. The key `kind` names the target that made it."""

Options = dict[str, str]
"""What a target took from the submitting shell; stored in run.json, so that every attempt is started alike."""


class Presence(StrEnum):
    """Whether a started attempt is there. `waiting`: accepted, not yet on a node. `unknown`: cannot be judged from here."""

    WAITING = "waiting"
    ALIVE = "alive"
    GONE = "gone"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Sight:
    """What a target sees of one handle.

    `why`: one plain line for `waiting` and `unknown`, with what would help; for the others how it ended, or what is unusual.
    `since`: when its newest start began, Unix seconds by the target's clock; None = the target does not say.
    """

    presence: Presence
    why: str = ""
    since: float | None = None


@dataclass(frozen=True)
class Conditions:
    """What holds for one start alone and is not part of the bundle.

    after: the job to wait for, however it ends. singleton: not beside another job of the same name and user. exclude:
    nodes under suspicion from earlier attempts. A target without a queue refuses the first two.
    """

    after: Handle | None = None
    singleton: bool = False
    exclude: tuple[str, ...] = ()


NOW = Conditions()
"""No condition."""


class Target(Protocol):
    """Where bundles run. A module with these functions is one."""

    def options(self, environ: Mapping[str, str]) -> Options:
        """What later attempts must know of the submitting shell. Never a secret's value: it is written to run.json."""

    def refusals(self, plan: Plan, options: Options, conditions: Conditions = NOW) -> list[Issue]:
        """Everything about this plan that cannot work here, before anything is written. Starts nothing."""

    def start(self, run: RunFolder, attempt: int, options: Options, conditions: Conditions = NOW) -> Handle:
        """Start the worker(s) of `run.bundle` for `attempt`, whose folder exists, and return at once.

        The trainer gets the bundle as it lies there. The attempt outlives the calling process.
        Raises launcher.issue.Refused, with nothing started, when the machine lacks what launch.json asks for.
        """

    def adopt(self, started: Mapping[str, Any], folder: str) -> Handle | None:
        """A handle from a worker's own attempt.json, for an attempt without one (started by hand, or the launcher ended
        before `start` returned). None when this target finds attempts by an earlier start's handle.
        """

    def find(self, run: RunFolder) -> Handle | None:
        """A start of this run that waits or runs, whether or not somebody noted its handle. None where there is none, or
        where a lost handle cannot be: the worker's own word is enough.
        """

    def look(self, handles: Sequence[Handle]) -> list[Sight]:
        """Whether each is there, in the same order; one question to a scheduler for all of them. Changes nothing."""

    def stop(self, handle: Handle) -> None:
        """Ask for a checkpoint and the end, and return at once. No error when it is gone already."""

    def kill(self, handle: Handle) -> None:
        """End all of it now, left-over trainer processes of a dead worker included. No error when it is gone already."""


def get(kind: str) -> Target:
    """The target called `kind`, imported now and not before. Raises launcher.issue.Refused for one that is none."""
    if kind == "local":
        from launcher.targets import local

        return local
    if kind == "slurm":
        from launcher.targets import slurm

        return slurm
    hint = f"type target={'|'.join(KINDS)}"
    raise Refused(Issue("TARGET_UNKNOWN", Severity.ERROR, "target", f"there is no target {kind!r}", hint))
