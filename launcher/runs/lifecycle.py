"""Submit, resume and cancel as the command line has them: they print what happens and return the exit code."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from launcher.runs import ending, progress, starting, store
from launcher.runs.starting import Submitted
from launcher.runs.store import Run

if TYPE_CHECKING:
    from launcher.plan.plan import Plan
    from launcher.render.folder import Bundle


def submit(plan: Plan, bundle: Bundle, runs: str | None = None, detach: bool = False) -> int:
    """Start the bundle's run, or say why there is nothing to start; in the foreground until its end unless `detach`.

    0: finished (now or before), or started with `detach`. 1: it runs already, or its configuration was refused by
    MaxText. 2: it ended in another way. Raises launcher.issue.Refused: it cannot start here, every reason.
    """
    from launcher.targets import provenance

    origin = provenance.collect(sys.argv)
    return _go(starting.submit(store.root(runs), bundle, plan, os.environ, origin), detach)


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
    if detach:
        _say(f"{name}: runs on by itself. See: status {name}; follow: logs {name} -f; end: cancel {name}")
        return 0
    return progress.follow(submitted.run, submitted.attempt, sys.stdout)


def _say(text: str) -> None:
    print(text, flush=True)
