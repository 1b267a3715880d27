"""`--after RUN` means the run, not one job of it: when RUN is resumed, what still waits for it waits for its new job too."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.issue import Refused
from launcher.runs import store
from launcher.runs.attempts import handle_of, judge_one, newest
from launcher.runs.store import Run
from launcher.targets import base
from launcher.targets.base import Conditions, Handle

AFTER = "after"
"""The key of a handle that names the run which its job was to follow."""


def noted(handle: Handle, conditions: Conditions) -> Handle:
    """The handle with the run that its job waits for."""
    return {**handle, AFTER: conditions.after[AFTER]} if conditions.after and AFTER in conditions.after else handle


def waited_for(run: Run, handle: Handle) -> Handle:
    """A run's live job as the condition of another's start."""
    return {**handle, AFTER: run.name}


def move(run: Run, handle: Handle) -> list[str]:
    """Have the runs that wait for this one wait for its new job; a line about each."""
    queue = base.ordered(run.target)
    if queue is None:
        return []
    told, job = [], base.title(handle)
    for follower, its in _followers(run):
        why = queue.follow(its, handle)
        if why:
            told.append(f"{follower.name}: was to start after {run.name}, but does not wait for its {job}: {why}")
        else:
            told.append(f"{follower.name}: starts after {run.name}: now after its {job}")
    return told


def _followers(run: Run) -> Iterator[tuple[Run, Handle]]:
    """The runs beside it that were submitted to start after it and are not over, with the handles of their newest attempts."""
    for other in store.all_runs(run.folder.parent):
        try:
            attempt = newest(other) if not other.damage and other.target == run.target else None
            its = handle_of(other, attempt) if attempt is not None else None
        except Refused:
            continue
        if its is not None and its.get(AFTER) == run.name and judge_one(other).is_live:
            yield other, its
