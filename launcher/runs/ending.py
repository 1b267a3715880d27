"""How attempts are ended by hand: asked for a checkpoint first, or killed."""

from __future__ import annotations

import time
from collections.abc import Callable

from launcher.node.record import write_json
from launcher.runs.attempts import (
    POLL_SECONDS,
    Judged,
    State,
    cancel_file,
    judge_one,
    mark_cancelled,
    tidied_file,
)
from launcher.runs.figures import duration, tail_steps
from launcher.runs.saved import saved
from launcher.runs.store import Run, RunsError
from launcher.runs.watch import Watch
from launcher.targets import base

Say = Callable[[str], None]

KILL_WAIT_SECONDS = 60.0
"""For killed processes to be gone: the kernel first frees their memory, hundreds of GB in well under a minute."""
JOB_KILL_WAIT_SECONDS = 300.0
"""For a killed job to be gone: SLURM's KillWait (30 s by default), its epilog, and the same; Kubernetes takes a second."""
_HANGS = {
    "slurm": "a node may hang: see `sinfo -R`",
    "kubernetes": "a node may hang: `status` names the pods, `kubectl get nodes` shows whether theirs are ready",
}
_PROGRESS_SECONDS = 5.0
_IDLE = (State.WAITING, State.RESTARTING)  # no trainer runs: in the queue, or between two attempts
_TIDY_SECONDS = 60.0  # for pods that have said their last word to be gone
_STOP_MARGIN_SECONDS = 60.0  # beyond the worker's own grace: it kills, reaps and writes its verdict


def cancel(run: Run, say: Say, wait_seconds: float | None = None) -> int:
    """Ask the run to save a checkpoint and end, and wait for it: 0 when it has ended, 2 when it is still at it.

    `wait_seconds`: None = the time that the worker gives MaxText (stop_grace_seconds) and a minute.
    Raises RunsError: it cannot be reached from here.
    """
    judged = judge_one(run)
    if not judged.is_live:
        say(_not_running_text(judged))
        _tidy(judged, say)
        return 0
    if judged.state is State.UNKNOWN or judged.attempt is None or judged.handle is None:
        reason = judged.reason or "it is being started right now"
        raise RunsError(f"{run.name} cannot be asked: {reason}", f"if it is gone for good: cancel {run.name} --now")
    if judged.state is not State.STOPPING:  # a second signal would have the worker kill
        _ask(judged)
    bound = (
        wait_seconds if wait_seconds is not None else float(run.launch()["stop_grace_seconds"]) + _STOP_MARGIN_SECONDS
    )
    if judged.state in _IDLE:
        say(f"{run.name}: nothing of it is running ({judged.state}): cancelled outright")
    else:
        asked = f"asked to save a checkpoint and end; waiting at most {duration(bound)}"
        say(f"{run.name}: {asked} (to kill it instead: cancel {run.name} --now)")
    ended = _wait_for_end(run, bound, say)
    if ended is None:
        say(f"{run.name}: still ending after {duration(bound)}; it goes on by itself; cancel {run.name} --now kills it")
        return 2
    say(_ended_text(ended))
    _tidy(ended, say)
    return 0


def cancel_now(run: Run, say: Say) -> int:
    """Kill the run: 0 when it is gone, 2 when it would not die. What was trained after the last checkpoint is lost.

    A run whose host cannot be reached is marked as given up, so that it can be resumed here.
    """
    judged = judge_one(run)
    if not judged.is_live:
        say(_not_running_text(judged))
        _tidy(judged, say)
        return 0
    if judged.attempt is None or judged.handle is None:
        raise RunsError(f"{run.name} is being started right now", "try again in a moment")
    if judged.state is State.UNKNOWN:
        mark_cancelled(judged.attempt, given_up=True)
        say(
            f"{run.name}: marked as given up, not killed: {judged.reason}. Make sure that it is gone before you resume it"
        )
        return 0
    mark_cancelled(judged.attempt)
    base.get(run.target).kill(judged.handle)
    supervised = run.target in base.CLUSTERS
    bound = JOB_KILL_WAIT_SECONDS if supervised else KILL_WAIT_SECONDS
    ended = _wait_for_end(run, bound, say)
    if ended is None:
        why = f"does not die of SIGKILL within {duration(bound)}: a process hangs in the kernel (driver or disk)"
        if supervised:
            why = f"was told to end {duration(bound)} ago and is not gone; {_HANGS[run.target]}"
        say(f"{run.name}: {why}")
        return 2
    say(_ended_text(ended))
    _tidy(ended, say)
    return 0


def _tidy(judged: Judged, say: Say) -> None:
    """Remove what the run left in its cluster, once."""
    if judged.handle is None or judged.attempt is None or judged.run.target not in base.DISTANT:
        return
    if tidied_file(judged.attempt).exists():
        return
    deadline = time.monotonic() + _TIDY_SECONDS
    while (left := base.get(judged.run.target).tidy(judged.handle)) and time.monotonic() < deadline:
        time.sleep(1.0)
    for line in left:
        say(f"{judged.run.name}: {line}; cancel {judged.run.name} again removes it")
    if not left:
        write_json(tidied_file(judged.attempt), {"at": time.time()})


def _ask(judged: Judged) -> None:
    """Ask for a checkpoint and the end; where nothing runs, there is nothing to save."""
    assert judged.attempt is not None
    assert judged.handle is not None
    mark_cancelled(judged.attempt)
    target = base.get(judged.run.target)
    if judged.state in _IDLE:
        target.kill(judged.handle)
    else:
        target.stop(judged.handle)


def _wait_for_end(run: Run, seconds: float, say: Say) -> Judged | None:
    begun = told = time.monotonic()
    watch = Watch(run)
    while True:
        judged = watch.look()
        if not judged.is_live:
            return judged
        if judged.attempt is not None and judged.handle is not None and not cancel_file(judged.attempt).exists():
            _ask(judged)  # the next attempt had begun before the last one's end was asked for
        now = time.monotonic()
        if now - begun > seconds:
            return None
        if now - told >= _PROGRESS_SECONDS:
            told = now
            lines, _ = tail_steps(judged.attempt.rank_log(0)) if judged.attempt else ([], True)
            at = f", last step {lines[-1].step}" if lines else ""
            say(f"{run.name}: ending for {duration(now - begun)}{at}")
        time.sleep(POLL_SECONDS)


def _not_running_text(judged: Judged) -> str:
    attempt = f" (attempt {judged.attempt.number})" if judged.attempt else ""
    return f"{judged.run.name}: is not running: {judged.state}{attempt}"


def _ended_text(judged: Judged) -> str:
    newest = saved(judged.run)
    kept = "; no checkpoint" if newest.step is None else f"; newest checkpoint: step {newest.step}"
    kept = kept if newest.is_known else ""
    on = "" if judged.state is State.FINISHED else f"; go on with: resume {judged.run.name}"
    return f"{judged.run.name}: {judged.state}: {judged.reason}{kept}{on}"
