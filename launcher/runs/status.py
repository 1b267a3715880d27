"""What `status` and `runs` say: one value a run, as aligned lines, as a table, or as JSON."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.issue import Refused
from launcher.node.layout import AttemptFolder
from launcher.node.steps import StepLine
from launcher.runs.attempts import Judged, State, judge, tidied_file
from launcher.runs.figures import duration, speed, tail_steps
from launcher.runs.logs import SRUN_LOG
from launcher.runs.saved import saved
from launcher.runs.store import Run, RunsError, read_object_if_there
from launcher.targets import base

if TYPE_CHECKING:
    from launcher.runs.goodput import Goodput


@dataclass(frozen=True)
class Status:
    """One run as it is now.

    Steps count from 0 as MaxText does: `last_step` 19 of `steps` 20 is the end; `steps` None: none is wanted (a check of
    the nodes). `step_attempt`: the attempt that completed it. seconds_per_step: median of the newest `speed_steps` steps,
    the attempt's first three left out.
    tokens_per_second_per_device: MaxText's. eta_seconds: only while it runs. checkpoint: the newest committed step.
    restarts: attempts but the first. job: its number or name at a scheduler, empty without one. left: what is still there of
    a run that is over, and how to remove it. reason: one line, why it is not
    running. log: where to read on. cause, advice: of a failed run, by the table of failures, and what should follow.
    goodput: where its time went, None where that takes long to read. These three come from the logs: of one run alone.
    """

    run: str
    state: State
    target: str = ""
    attempt: int | None = None
    restarts: int = 0
    job: str = ""
    steps: int | None = None
    last_step: int | None = None
    step_attempt: int | None = None
    loss: float | None = None
    seconds_per_step: float | None = None
    speed_steps: int = 0
    tokens_per_second_per_device: float | None = None
    eta_seconds: float | None = None
    checkpoint: int | None = None
    checkpoint_age_seconds: float | None = None
    created: str = ""
    elapsed_seconds: float | None = None
    reason: str = ""
    log: str = ""
    path: str = ""
    left: str = ""
    cause: str = ""
    advice: str = ""
    goodput: Goodput | None = None


def status_of(run: Run) -> Status:
    """The status of one run, with what only its logs tell."""
    judged = judge([run])[0]
    return _with_logs(describe(judged), judged)


QUICK_BYTES = 16 << 20
"""Logs that are read for one status, a second or two; of a run that says more `events --goodput` tells where the time went."""

_FAILED = frozenset({State.FAILED, State.DIED, State.OVERFLOW})


def _with_logs(status: Status, judged: Judged) -> Status:
    """Where the time went and, of a failure, the cause."""
    if status.state is State.DAMAGED or judged.attempt is None:
        return status
    from launcher.runs.goodput import goodput
    from launcher.runs.history import history
    from launcher.runs.reading import RANK_0, behind, table_of

    found = None
    try:
        if behind(judged.run.layout) <= QUICK_BYTES:
            with table_of(judged.run.layout, RANK_0) as table:
                found = goodput(history(judged, table))
    except (RunsError, OSError, TypeError, KeyError, ValueError):  # what an older attempt left damaged hides no status
        return status
    cause, advice = "", ""
    if status.state is State.STALLED:
        cause, advice = _evidence(judged.attempt)
    elif status.state in _FAILED:
        cause, advice = _cause(judged.attempt, judged.reason)
    return dataclasses.replace(status, goodput=found, cause=cause, advice=advice)


def _evidence(attempt: AttemptFolder) -> tuple[str, str]:
    """What stands out among the nodes, and where all of it lies, if it lies here: of a stall the logs say nothing."""
    from launcher.node import flight

    folder = attempt.path / "flight"
    return flight.told(attempt), f"the evidence of each node is in {folder}" if folder.is_dir() else ""


def _cause(attempt: AttemptFolder, reason: str) -> tuple[str, str]:
    """Cause and advice, where the table knows it; what is unknown says no more than the reason does."""
    from launcher.runs.causes import cause_of

    try:
        found = cause_of(attempt, reason)
    except Refused as error:
        return f"not looked up, the table of failures is wrong: {error.issues[0].message}", ""
    if found is None or (found.signature is None and reason):
        return "", ""
    return found.cause, found.advice


def statuses(runs: Sequence[Run]) -> list[Status]:
    """The status of each, in the same order; a target is asked once for all of its runs."""
    return [describe(judged) for judged in judge(runs)]


def status_json(status: Status) -> dict[str, Any]:
    """For `--json`: the fields of Status by name."""
    plain = dataclasses.asdict(dataclasses.replace(status, goodput=None))
    return {**plain, "goodput": None if status.goodput is None else status.goodput.as_json()}


def describe(judged: Judged) -> Status:
    """The status of a run whose state is known."""
    try:
        return _figures(judged, time.time())
    except (RunsError, OSError, TypeError, KeyError, ValueError) as error:
        reason = str(error) if isinstance(error, RunsError) else f"cannot be read: {error!r}"
        return Status(
            run=judged.run.name,
            state=State.DAMAGED,
            target=judged.run.target,
            attempt=judged.attempt.number if judged.attempt else None,
            created=str(judged.run.record.get("created", "")),
            reason=reason,
            path=str(judged.run.folder),
        )


def _figures(judged: Judged, now: float) -> Status:
    run, state = judged.run, judged.state
    numbers = run.layout.attempt_numbers()
    steps: int | None = None
    saved, age = None, None
    only_checked = False
    if state is not State.DAMAGED:
        launch = run.launch()
        only_checked = bool((launch.get("node_check") or {}).get("only"))
        steps = None if only_checked else int(launch["steps"])
        saved, age = _checkpoint(run, now)
    shown: AttemptFolder | None = None
    lines: list[StepLine] = []
    from_start = True
    for number in reversed(numbers):
        shown = run.layout.attempt(number)
        lines, from_start = tail_steps(shown.rank_log(0))
        if lines:
            break
    pace = speed(lines, from_start)
    current = judged.attempt is not None and shown is not None and shown.number == judged.attempt.number
    if current and lines and state in (State.STARTING, State.COMPILING):
        state = State.RUNNING
    last = lines[-1].step if lines else None
    left = steps - 1 - last if steps is not None and last is not None else None
    return Status(
        run=run.name,
        state=state,
        target=run.target,
        attempt=judged.attempt.number if judged.attempt else None,
        restarts=max(0, len(numbers) - 1),
        job=base.title(judged.handle).removeprefix("job "),
        steps=steps,
        last_step=last,
        step_attempt=shown.number if lines and shown else None,
        loss=lines[-1].loss if lines else None,
        seconds_per_step=pace.seconds if pace else None,
        speed_steps=pace.steps if pace else 0,
        tokens_per_second_per_device=pace.tokens if pace else None,
        eta_seconds=left * pace.seconds if state is State.RUNNING and left is not None and pace else None,
        checkpoint=saved,
        checkpoint_age_seconds=age,
        created=str(run.record.get("created", "")),
        elapsed_seconds=_elapsed(judged, now),
        reason=judged.reason if state is not State.FINISHED or only_checked else "",
        log=str(log_of(judged)) if judged.attempt else "",
        path=str(run.folder),
        left=_left(judged),
    )


def _left(judged: Judged) -> str:
    """What a run that is over may still hold in a cluster; empty once `cancel` or `resume` has tidied up."""
    domains = (judged.handle or {}).get("compute_domains") or ()
    if judged.is_live or judged.attempt is None or not domains or tidied_file(judged.attempt).exists():
        return ""
    return f"ComputeDomain {', '.join(domains)} may still hold its racks' NVLink: cancel {judged.run.name} removes it"


def _checkpoint(run: Run, now: float) -> tuple[int | None, float | None]:
    newest = saved(run)
    return newest.step, None if newest.at is None else max(0.0, now - newest.at)


def _elapsed(judged: Judged, now: float) -> float | None:
    """Seconds that the newest attempt ran, or has been running."""
    if judged.result is not None:
        return float(judged.result["ended"]) - float(judged.result["started"])
    if judged.attempt is None or not judged.is_live:
        return None
    started = read_object_if_there(judged.attempt.started())
    return now - float(started["started"]) if started else None


def log_of(judged: Judged) -> Path:
    """The log that says most about the newest attempt: of the rank that the reason names, else rank 0's, else the worker's."""
    assert judged.attempt is not None
    named = re.match(r"rank (\d+) ", judged.reason)
    for rank in ([int(named.group(1))] if named else []) + [0]:
        log = judged.attempt.rank_log(rank)
        if log.exists():
            return log
    worker, srun = judged.attempt.worker_log(), judged.attempt.path / SRUN_LOG
    if not worker.exists() and srun.exists():
        return srun
    job = judged.run.folder / f"slurm-{(judged.handle or {}).get('job')}.log"
    return job if not worker.exists() and job.exists() else worker


def checkpoint_text(status: Status) -> str:
    """The newest checkpoint and its age."""
    if status.checkpoint is None:
        return "none"
    age = "" if status.checkpoint_age_seconds is None else f", {duration(status.checkpoint_age_seconds)} ago"
    return f"step {status.checkpoint}{age}"


def status_text(status: Status) -> str:
    """The lines of `status RUN`."""
    attempt = "" if status.attempt is None else f", attempt {status.attempt}"
    restarts = f" ({status.restarts} restart{'s' if status.restarts > 1 else ''})" if status.restarts else ""
    elapsed = f", {duration(status.elapsed_seconds)}" if status.elapsed_seconds is not None else ""
    rows = [
        ("run", f"{status.run} on {status.target or 'an unknown target'}"),
        ("state", f"{status.state}{attempt}{restarts}{elapsed}"),
    ]
    if status.job:
        rows.append(("job", status.job))
    why = (("reason", status.reason), ("cause", status.cause), ("next", status.advice))
    rows += [(name, value) for name, value in why if value]
    if status.last_step is not None:
        earlier = f" (in attempt {status.step_attempt})" if status.step_attempt != status.attempt else ""
        rows.append(
            ("steps", f"{status.last_step + 1} of {status.steps} done, last is step {status.last_step}{earlier}")
        )
    elif status.steps is not None:
        rows.append(("steps", f"0 of {status.steps} done"))
    if status.loss is not None:
        rows.append(("loss", f"{status.loss:.3f}"))
    if status.seconds_per_step is not None:
        tokens = status.tokens_per_second_per_device
        rate = "" if tokens is None else f", {tokens:.1f} tokens/s/device"
        rows.append(("speed", f"{status.seconds_per_step:.3f} s/step{rate} (median of {status.speed_steps} steps)"))
    if status.eta_seconds is not None:
        rows.append(("left", f"about {duration(status.eta_seconds)}"))
    if status.steps is not None:
        rows.append(("checkpoint", checkpoint_text(status)))
    spent = "" if status.goodput is None else status.goodput.line()
    last = (("goodput", spent), ("left", status.left), ("log", status.log), ("path", status.path))
    rows += [(name, value) for name, value in last if value]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def table(found: Sequence[Status]) -> str:
    """The lines of `runs`: one a run, a header above."""
    head = ("RUN", "STATE", "ATTEMPT", "STEPS", "LOSS", "S/STEP", "LEFT", "CHECKPOINT", "CREATED")
    rows = [head, *(_row(status) for status in found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _row(status: Status) -> tuple[str, ...]:
    done = "-" if status.steps is None else f"{0 if status.last_step is None else status.last_step + 1}/{status.steps}"
    return (
        status.run,
        str(status.state),
        "-" if status.attempt is None else str(status.attempt),
        done,
        "-" if status.loss is None else f"{status.loss:.3f}",
        "-" if status.seconds_per_step is None else f"{status.seconds_per_step:.3f}",
        "-" if status.eta_seconds is None else duration(status.eta_seconds),
        checkpoint_text(status) if status.state is not State.DAMAGED else "-",
        status.created or "-",
    )
