"""Submit, resume and cancel as the command line has them: they print what happens and return the exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.issue import Issue, Refused, Severity
from launcher.runs import chains, ending, progress, starting, store, sweeps
from launcher.runs.attempts import judge_one
from launcher.runs.starting import Submitted
from launcher.runs.store import Run
from launcher.targets import base
from launcher.targets.base import Conditions, Handle

if TYPE_CHECKING:
    from launcher.plan.plan import Plan
    from launcher.render.folder import Bundle


def submit(
    plan: Plan,
    bundle: Bundle,
    *,
    runs: str | None = None,
    detach: bool = False,
    after: str | None = None,
    singleton: bool = False,
) -> int:
    """Start the bundle's run, or say why there is nothing to start; in the foreground until its end unless `detach`.

    A cluster's run is never waited for. `after`: a run whose job must have ended first. `singleton`: not beside another
    job of the same name. 0: finished (now or before), or started and not waited for. 1: it runs already, or its
    configuration was refused by MaxText. 2: it ended in another way.
    Raises launcher.issue.Refused: it cannot start here, every reason.
    """
    from launcher.targets import provenance

    origin = provenance.collect(sys.argv)
    root = store.root(runs)
    conditions = _conditions(root, after, singleton)
    return _go(starting.submit(root, bundle, plan, os.environ, origin, conditions=conditions), detach)


def sweep(
    points: Sequence[sweeps.Point],
    introduce: Callable[[int], None],
    *,
    runs: str | None = None,
    after: str | None = None,
    singleton: bool = False,
    at_once: int | None = None,
) -> int:
    """Start the runs of all points, together where the target can; the worst exit code of `submit`.

    `introduce`: called with a point's place before what came of it is told. `at_once`: see sweeps.Sweep.
    """
    from launcher.targets import provenance

    root = store.root(runs)
    conditions = _conditions(root, after, singleton)
    origin = provenance.collect(sys.argv)
    codes, going = [], 0
    for place, submitted in sweeps.Sweep(root, os.environ, origin, conditions, at_once, _say).submit(points):
        introduce(place)
        if submitted.attempt is not None and submitted.run.target in base.CLUSTERS:
            _say(submitted.message)
            going += 1
        else:
            codes.append(_go(submitted, detach=False))
    if going:
        _say("they run on by themselves. See: runs; follow one: logs RUN -f; end one: cancel RUN")
    return max(codes, default=0)


def resume(run: Run, detach: bool = False) -> int:
    """Start the next attempt of a run that is not finished; exit codes as of `submit`, and 1 for a finished run."""
    return _go(starting.resume(run), detach)


def cancel(run: Run, now: bool = False) -> int:
    """End a run: ask for a checkpoint and wait, or (`now`) kill it. 0: it has ended, or had before. 2: not yet."""
    return ending.cancel_now(run, _say) if now else ending.cancel(run, _say)


def _go(submitted: Submitted, detach: bool) -> int:
    _say(submitted.message)
    if submitted.attempt is None:
        return submitted.exit_code
    name = submitted.run.name
    if detach or submitted.run.target in base.CLUSTERS:
        _say(f"{name}: runs on by itself. See: status {name}; follow: logs {name} -f; end: cancel {name}")
        return 0
    return progress.follow(submitted.run, submitted.attempt, sys.stdout)


def _conditions(root: Path, after: str | None, singleton: bool) -> Conditions:
    return Conditions(_job_of(store.open_run(root, after)) if after else None, singleton)


def _job_of(run: Run) -> Handle | None:
    """The job that another run shall wait for; None, and a word about it, when that run is over already."""
    judged = judge_one(run)
    if not judged.is_live:
        _say(f"{run.name}: {judged.state} already, there is nothing to wait for")
        return None
    if judged.handle is None or "job" not in judged.handle:
        message = f"{run.name} is in no queue of SLURM (target {run.target}): nothing can be queued behind it"
        raise Refused(Issue("AFTER_RUN", Severity.ERROR, "", message, f"wait for its end: logs {run.name} -f"))
    return chains.waited_for(run, judged.handle)


def _say(text: str) -> None:
    print(text, flush=True)
