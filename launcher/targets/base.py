"""The contract that every target meets, and nothing else: a few functions, so that a target is a module.

All state lies in the run's folder. A target keeps none: what it must know later it returns from `start` as a handle (an
object of plain JSON) which the run stores; another process, after the shell is gone, hands it back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from launcher.issue import Issue, Refused, Severity
from launcher.node.layout import RunFolder

if TYPE_CHECKING:
    from launcher.plan.plan import Plan
    from launcher.render.folder import Bundle

KINDS = ("local", "slurm", "kubernetes")
CLUSTERS = frozenset({"slurm", "kubernetes"})
"""Targets with a scheduler: their runs outlive the submitting shell, and nobody waits for them."""

DISTANT = frozenset({"kubernetes"})
"""Targets whose workers do not write into the run's folder: what they say must be brought."""

Handle = dict[str, Any]
"""How to find a started attempt again; JSON. The key `kind` names the target that made it."""

Options = dict[str, str]
"""What a target took from the submitting shell; stored in run.json, so that every attempt is started alike."""


def title(handle: Handle | None) -> str:
    """What a scheduler or cluster calls it, for people; empty for a process of this machine.

    >>> title({"job": "12"}), title({"jobset": "demo-1a2b3c4d", "namespace": "ml"}), title(None)
    ('job 12', 'JobSet demo-1a2b3c4d in namespace ml', '')
    """
    if handle and "job" in handle:
        return f"job {handle['job']}"
    if handle and "jobset" in handle:
        return f"JobSet {handle['jobset']} in namespace {handle.get('namespace')}"
    return ""


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
    `attempt`: the attempt that its newest start is, where the target counts them; it may not have said a word yet.
    """

    presence: Presence
    why: str = ""
    since: float | None = None
    attempt: int | None = None


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

    def bring(self, run: RunFolder, handle: Handle, ranks: frozenset[int] | None) -> list[str]:
        """Bring what the workers of these ranks (None = all) said since the last time into the run's folder, each word once.

        Nothing where they write there themselves. Returns what could not be read now, one line each; never raises for it.
        """

    def listen(self, run: RunFolder, handle: Handle, ranks: frozenset[int] | None) -> list[str]:
        """bring, and as long as this process lives every further word as it is said; to be called again for new starts."""

    def tidy(self, handle: Handle) -> list[str]:
        """Remove what only a live run needs, once it is gone; returns what has to stay for now and why, one line each."""

    def rehearse(self, plan: Plan, options: Options) -> list[str]:
        """What the cluster's server says that a submission would do, line by line; nothing is started.

        Raises launcher.issue.Refused: what it would refuse, or that this target has no server.
        """


class Batch(Protocol):
    """How a target takes several new runs in one submission."""

    def shape(self, bundle: Bundle) -> object:
        """What runs of one submission must have in common, as a value that can be compared and hashed."""

    def most(self) -> int:
        """The most runs of one submission; less than 2 = none at all."""

    def start(
        self, root: Path, runs: Sequence[RunFolder], conditions: Conditions, at_once: int | None
    ) -> tuple[Path, list[Handle]]:
        """Start the first attempt of each, all or none: the text that was submitted, and their handles in the same order.

        root: the folder of these runs. at_once: how many may run at the same time, None = any number.
        Raises as Target.start does.
        """


def batch(kind: str) -> Batch | None:
    """How that target takes several runs at once; None where they are started one by one."""
    if kind == "slurm":
        from launcher.targets import slurm_array

        return slurm_array
    return None


class Ordered(Protocol):
    """What a target with a queue of its own can do beyond Target."""

    def follow(self, handle: Handle, after: Handle) -> str:
        """Have a start that still waits wait for `after`, too. Returns why not, empty when it does now."""


def ordered(kind: str) -> Ordered | None:
    """That target's queue; None without one."""
    if kind == "slurm":
        from launcher.targets import slurm

        return slurm
    return None


def get(kind: str) -> Target:
    """The target called `kind`, imported now and not before. Raises launcher.issue.Refused for one that is none."""
    if kind == "local":
        from launcher.targets import local

        return local
    if kind == "slurm":
        from launcher.targets import slurm

        return slurm
    if kind == "kubernetes":
        from launcher.targets import kubernetes

        return kubernetes
    hint = f"type target={'|'.join(KINDS)}"
    raise Refused(Issue("TARGET_UNKNOWN", Severity.ERROR, "target", f"there is no target {kind!r}", hint))
