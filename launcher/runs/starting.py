"""How attempts begin: a new run, or the next attempt of one that has work left. Only one process at a time does so."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.issue import Refused
from launcher.node.layout import RunFolder
from launcher.node.record import write_json
from launcher.render.folder import Bundle, asked_of, hashes_in, hashes_of, verify, worker_of, write
from launcher.runs import chains, store
from launcher.runs.attempts import Judged, State, by_files, handle_file, judge_one
from launcher.runs.decisions import suspects
from launcher.runs.saved import saved
from launcher.runs.status import describe, status_of
from launcher.runs.store import Run, RunsError
from launcher.runs.watch import pauses
from launcher.targets import base
from launcher.targets.base import NOW, Conditions, Handle, Options, Presence

if TYPE_CHECKING:
    from launcher.plan.plan import Plan

SETTLE_SECONDS = 60.0
"""For a worker that has written its verdict to be gone: it only ends. A minute is far beyond that."""


@dataclass(frozen=True)
class Submitted:
    """What a submission came to. `attempt`: the one started now, None when nothing was. `exit_code`: 0 or 1."""

    run: Run
    state: State
    attempt: int | None
    message: str
    exit_code: int


def submit(
    root: Path,
    bundle: Bundle,
    plan: Plan,
    environ: Mapping[str, str],
    provenance: Mapping[str, Any],
    *,
    conditions: Conditions = NOW,
) -> Submitted:
    """Make the run of this bundle, or find it, and start its next attempt if it has work left.

    `environ`: what the target takes its options from. `provenance`: for provenance.json, when the run is new.
    `conditions`: of this start alone.

    Raises:
        Refused: the target cannot run it; every reason.
        RunsError: the run's folder is damaged, or holds another bundle under this name.
    """
    run, options = made(root, bundle, plan, environ=environ, provenance=provenance, conditions=conditions)
    told = _worker_text(run, bundle)
    submitted = _go_on(run, options, conditions)
    return replace(submitted, message=f"{submitted.message}\n{told}") if told else submitted


def made(
    root: Path,
    bundle: Bundle,
    plan: Plan,
    *,
    environ: Mapping[str, str],
    provenance: Mapping[str, Any],
    conditions: Conditions,
) -> tuple[Run, Options]:
    """The run of this bundle, made now if it is not there yet, and its target's options. Nothing is started. Raises as `submit`."""
    kind = plan.experiment.target.kind
    target = base.get(kind)
    options = target.options(environ)
    if not (root / bundle.name).exists():
        issues = target.refusals(plan, options, conditions)
        if issues:
            raise Refused(*issues)
        record = {
            "target": kind,
            "experiment": plan.experiment.name,
            "content": bundle.content,
            "options": options,
        }

        def fill(folder: RunFolder) -> None:
            write(bundle, folder.bundle.path)
            write_json(folder.provenance, dict(provenance))

        store.create(root, bundle.name, record, fill)
    return store.load(root / bundle.name), options


def _worker_text(run: Run, bundle: Bundle) -> str:
    """A word about a run whose bundle was rendered by another launcher; empty when it is this very bundle.

    Raises RunsError when it is another experiment's.
    """
    if run.record.get("content") == bundle.content:
        return ""
    there, here = hashes_in(run.layout.bundle.path), hashes_of(bundle.files)
    if asked_of(there) != asked_of(here):
        raise RunsError(f"{run.folder} holds another bundle under this name", "give this experiment another: name=...")
    own, new = worker_of(there), worker_of(here)
    if own == new:
        return ""
    return (
        f"{run.name}: its bundle was rendered by another launcher: its attempts go on with that one's worker ({own}); "
        f"this launcher's is {new}"
    )


def resume(run: Run, conditions: Conditions = NOW) -> Submitted:
    """Start the next attempt of a run that is not finished, as it was submitted. Raises as `submit` does."""
    options = run.record.get("options")
    if not isinstance(options, dict):
        raise store.Damaged(run.layout.run, "has no options")
    submitted = _go_on(run, options, conditions)
    if submitted.state is State.FINISHED:
        hint = "to train on, submit the experiment with a larger trainer.steps: that is a new run"
        return Submitted(run, State.FINISHED, None, f"{submitted.message}\nnothing is left to resume; {hint}", 1)
    return submitted


def _go_on(run: Run, options: Options, conditions: Conditions) -> Submitted:
    with store.locked(run):
        run = store.load(run.folder)
        _note_a_lost_start(run)
        judged = _settled(run)
        if judged.state is State.DAMAGED:
            raise RunsError(judged.reason)
        if judged.state is State.FINISHED:
            return Submitted(run, State.FINISHED, None, _finished_text(run), 0)
        if judged.is_live:
            return Submitted(run, judged.state, None, _live_text(judged), 1)
        return _start(run, judged, options, conditions)


def _note_a_lost_start(run: Run) -> None:
    """A launcher that ended before it had noted its start may have left one in a queue: then that is the attempt's."""
    if run.target not in base.CLUSTERS:
        return
    judged = by_files(run)
    if judged.state is State.DIED and judged.attempt is not None and judged.handle is None:
        found = base.get(run.target).find(run.layout)
        if found is not None:
            write_json(handle_file(judged.attempt), found)


def _settled(run: Run) -> Judged:
    """The run's state once a worker that has written its verdict is gone too (it ends within moments)."""
    deadline = time.monotonic() + SETTLE_SECONDS
    for seconds in pauses(run.target):
        judged = judge_one(run)
        if judged.is_live or judged.state is State.FINISHED or judged.handle is None or time.monotonic() > deadline:
            return judged
        if base.get(run.target).look([judged.handle])[0].presence not in (Presence.ALIVE, Presence.WAITING):
            return judged
        time.sleep(seconds)
    raise AssertionError("pauses never end")


def _start(run: Run, before: Judged, options: Options, conditions: Conditions) -> Submitted:
    issues = verify(run.layout.bundle.path)
    if issues:
        raise Refused(*issues)
    target = base.get(run.target)
    if before.handle is not None:
        target.kill(before.handle)  # trainers that outlived their worker would write into the same checkpoints
    number = before.attempt.number + 1 if before.attempt is not None else 1
    attempt = run.layout.attempt(number)
    conditions = replace(conditions, exclude=(*conditions.exclude, *suspects(run)))
    try:
        attempt.path.mkdir(parents=True)
    except FileExistsError:
        message = f"{run.name}: attempt {number} was started by somebody else just now"
        raise RunsError(message, f"see: status {run.name}") from None
    try:
        handle = target.start(run.layout, number, options, conditions)
    except BaseException:
        if not any(attempt.path.iterdir()):
            attempt.path.rmdir()
        raise
    handle = chains.noted(handle, conditions)
    write_json(handle_file(attempt), handle)
    if options != run.record.get("options"):
        write_json(run.layout.run, {**run.record, "options": options})
    text = _started_text(run, before, number, as_what(handle, conditions))
    followers = chains.move(run, handle) if before.attempt is not None else []
    return Submitted(run, State.STARTING, number, "\n".join([text, *followers]), 0)


def as_what(handle: Handle, conditions: Conditions) -> str:
    """How a scheduler knows what was started; empty without one."""
    if not base.title(handle):
        return ""
    after = [f"after job {conditions.after['job']}"] if conditions.after else []
    after += ["not beside another of its name"] if conditions.singleton else []
    after += [f"not on {', '.join(conditions.exclude)}"] if conditions.exclude else []
    return f"submitted as {base.title(handle)}{' (' + ', '.join(after) + ')' if after else ''}"


def _started_text(run: Run, before: Judged, number: int, submitted: str) -> str:
    if before.attempt is None:
        return f"{run.name}: {submitted or 'started'}"
    newest = saved(run)
    if not newest.is_known:
        source = "resumes from the newest checkpoint on its storage, if there is one"
    elif newest.step is None:
        source = "starts from step 0: there is no checkpoint"
    else:
        source = f"resumes from the checkpoint of step {newest.step}"
    why = f": {before.reason}" if before.reason else ""
    submitted = f", {submitted}" if submitted else ""
    ended = f"{run.name}: attempt {before.attempt.number} {before.state}{why}"
    return f"{ended}\n{run.name}: attempt {number} {source}{submitted}"


def _finished_text(run: Run) -> str:
    status = status_of(run)
    steps = f" {status.steps} steps" if status.steps else ""
    last = "" if status.last_step is None else f", last step {status.last_step}"
    loss = "" if status.loss is None else f", loss {status.loss:.3f}"
    return f"{run.name}: is finished:{steps}{last}{loss}, in {run.folder}"


def _live_text(judged: Judged) -> str:
    name, attempt = judged.run.name, judged.attempt.number if judged.attempt else 0
    if judged.state is State.UNKNOWN:
        gone = f"if it is gone for good: cancel {name} --now"
        return f"{name}: whether attempt {attempt} still runs cannot be told: {judged.reason}; {gone}"
    ways = f"follow it: logs {name} -f; see: status {name}; end it: cancel {name}"
    return f"{name}: attempt {attempt} is there already ({describe(judged).state}); {ways}"
