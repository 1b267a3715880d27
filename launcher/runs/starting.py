"""How attempts begin: a new run, or the next attempt of one that has work left. Only one process at a time does so."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.issue import Refused
from launcher.node import checkpoints
from launcher.node.layout import RunFolder
from launcher.node.record import write_json
from launcher.render.folder import Bundle, verify, write
from launcher.runs import store
from launcher.runs.attempts import POLL_SECONDS, Judged, State, handle_file, judge_one
from launcher.runs.status import status_of
from launcher.runs.store import Run, RunsError
from launcher.targets import base
from launcher.targets.base import Options, Presence

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
    root: Path, bundle: Bundle, plan: Plan, environ: Mapping[str, str], provenance: Mapping[str, Any]
) -> Submitted:
    """Make the run of this bundle, or find it, and start its next attempt if it has work left.

    `environ`: what the target takes its options from. `provenance`: for provenance.json, when the run is new.

    Raises:
        Refused: the target cannot run it; every reason.
        RunsError: the run's folder is damaged, or holds another bundle under this name.
    """
    kind = plan.experiment.target.kind
    target = base.get(kind)
    options = target.options(environ)
    if not (root / bundle.name).exists():
        issues = target.refusals(plan, options)
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
    run = store.load(root / bundle.name)
    if run.record.get("content") != bundle.content:
        raise RunsError(f"{run.folder} holds another bundle under this name", "give this experiment another: name=...")
    return _go_on(run, options)


def resume(run: Run) -> Submitted:
    """Start the next attempt of a run that is not finished, as it was submitted. Raises as `submit` does."""
    options = run.record.get("options")
    if not isinstance(options, dict):
        raise store.Damaged(run.layout.run, "has no options")
    submitted = _go_on(run, options)
    if submitted.state is State.FINISHED:
        hint = "to train on, submit the experiment with a larger trainer.steps: that is a new run"
        return Submitted(run, State.FINISHED, None, f"{submitted.message}\nnothing is left to resume; {hint}", 1)
    return submitted


def _go_on(run: Run, options: Options) -> Submitted:
    with store.locked(run):
        run = store.load(run.folder)
        judged = _settled(run)
        if judged.state is State.DAMAGED:
            raise RunsError(judged.reason)
        if judged.state is State.FINISHED:
            return Submitted(run, State.FINISHED, None, _finished_text(run), 0)
        if judged.is_live:
            return Submitted(run, judged.state, None, _live_text(judged), 1)
        return _start(run, judged, options)


def _settled(run: Run) -> Judged:
    """The run's state once a worker that has written its verdict is gone too (it ends within moments)."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        judged = judge_one(run)
        if judged.is_live or judged.handle is None or time.monotonic() > deadline:
            return judged
        if base.get(run.target).look([judged.handle])[0].presence is not Presence.ALIVE:
            return judged
        time.sleep(POLL_SECONDS)


def _start(run: Run, before: Judged, options: Options) -> Submitted:
    issues = verify(run.layout.bundle.path)
    if issues:
        raise Refused(*issues)
    target = base.get(run.target)
    if before.handle is not None:
        target.kill(before.handle)  # trainers that outlived their worker would write into the same checkpoints
    number = before.attempt.number + 1 if before.attempt is not None else 1
    attempt = run.layout.attempt(number)
    try:
        attempt.path.mkdir(parents=True)
    except FileExistsError:
        message = f"{run.name}: attempt {number} was started by somebody else just now"
        raise RunsError(message, f"see: status {run.name}") from None
    try:
        handle = target.start(run.layout, number, options)
    except BaseException:
        if not any(attempt.path.iterdir()):
            attempt.path.rmdir()
        raise
    write_json(handle_file(attempt), handle)
    if options != run.record.get("options"):
        write_json(run.layout.run, {**run.record, "options": options})
    return Submitted(run, State.STARTING, number, _started_text(run, before, number), 0)


def _started_text(run: Run, before: Judged, number: int) -> str:
    if before.attempt is None:
        return f"{run.name}: started"
    folder = run.checkpoints()
    step = checkpoints.newest(folder) if folder is not None else None
    if folder is None:
        source = "resumes from the newest checkpoint on remote storage, if there is one"
    elif step is None:
        source = "starts from step 0: there is no checkpoint"
    else:
        source = f"resumes from the checkpoint of step {step}"
    why = f": {before.reason}" if before.reason else ""
    return f"{run.name}: attempt {before.attempt.number} {before.state}{why}\n{run.name}: attempt {number} {source}"


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
    return f"{name}: attempt {attempt} is there already ({judged.state}); {ways}"
