"""The state of a run, worked out from its files and, where they are silent, from its target."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from launcher.issue import Refused
from launcher.node.codes import Outcome
from launcher.node.layout import AttemptFolder
from launcher.node.marks import DISPATCHED
from launcher.node.record import write_json
from launcher.runs.decisions import Decision, decision_of
from launcher.runs.store import Run, RunsError, is_locked, read_object, read_object_if_there
from launcher.targets import base
from launcher.targets.base import Handle, Presence, Sight


class State(StrEnum):
    """Where a run is. The first seven can change by themselves; of the others only a new attempt leads away.

    restarting: an attempt has ended, and its job, which is there, is about to begin the next.
    """

    WAITING = "waiting"
    STARTING = "starting"
    COMPILING = "compiling"
    RUNNING = "running"
    STOPPING = "stopping"
    RESTARTING = "restarting"
    UNKNOWN = "unknown"
    CREATED = "created"
    FINISHED = "finished"
    PREEMPTED = "preempted"
    OVERFLOW = "overflow"
    STALLED = "stalled"
    FAILED = "failed"
    DIED = "died"
    CANCELLED = "cancelled"
    DAMAGED = "damaged"


LIVE = frozenset(
    {
        State.WAITING,
        State.STARTING,
        State.COMPILING,
        State.RUNNING,
        State.STOPPING,
        State.RESTARTING,
        State.UNKNOWN,
    }
)

_ENDS = {
    Outcome.FINISHED: State.FINISHED,
    Outcome.PREEMPTED: State.PREEMPTED,
    Outcome.OVERFLOW: State.OVERFLOW,
    Outcome.STALLED: State.STALLED,
}

POLL_SECONDS = 0.2
"""Between two looks at one run's files, where somebody waits for it."""

CLOCK_SECONDS = 5.0
"""By how much the clocks of a node and of a scheduler may differ; a requeued job rests longer than that."""

COMPILE_MARK = b"Num_devices: "
"""MaxText 0.2.5 (utils/maxtext_utils.py, create_device_mesh) prints it once JAX has started on all ranks."""


@dataclass(frozen=True)
class Judged:
    """One run's state. `attempt`: the newest, None before the first. `result`: result.json. `reason`: one line.
    `decision`: a supervisor's, after the attempt's end.
    """

    run: Run
    state: State
    attempt: AttemptFolder | None = None
    handle: Handle | None = None
    result: dict[str, Any] | None = None
    reason: str = ""
    decision: Decision | None = None

    @property
    def is_live(self) -> bool:
        """Whether it runs, is about to, or may be running."""
        return self.state in LIVE


def handle_file(attempt: AttemptFolder) -> Path:
    """What the target's `start` returned."""
    return attempt.path / "handle.json"


def cancel_file(attempt: AttemptFolder) -> Path:
    """Present when a person asked for this attempt's end: {"asked": unix seconds, "given_up": bool}."""
    return attempt.path / "cancel.json"


def tidied_file(attempt: AttemptFolder) -> Path:
    """Present once nothing of this attempt is left in its cluster: {"at": unix seconds}."""
    return attempt.path / "tidied.json"


def mark_cancelled(attempt: AttemptFolder, given_up: bool = False) -> None:
    """Note that the end was asked for. `given_up`: its host cannot be reached and it counts as ended from now on."""
    write_json(cancel_file(attempt), {"asked": time.time(), "given_up": given_up})


def newest(run: Run) -> AttemptFolder | None:
    """The newest attempt that has a folder."""
    numbers = run.layout.attempt_numbers()
    return run.layout.attempt(numbers[-1]) if numbers else None


def handle_of(run: Run, attempt: AttemptFolder) -> Handle | None:
    """How the target finds this attempt: its own handle, else what is noted in its folder, else the start before it.

    One start can make several attempts: a supervisor makes the later ones. Raises Damaged.
    """
    own = read_object_if_there(handle_file(attempt))
    if own is not None:
        return own
    started = read_object_if_there(attempt.started())
    earlier = _earlier_handle(run, attempt)
    if earlier is not None and run.target in base.CLUSTERS:
        return earlier
    adopted = base.get(run.target).adopt(started, str(attempt.path)) if started else None
    return adopted if adopted is not None else earlier


def _earlier_handle(run: Run, attempt: AttemptFolder) -> Handle | None:
    for number in reversed(run.layout.attempt_numbers()):
        earlier = read_object_if_there(handle_file(run.layout.attempt(number)))
        if number < attempt.number and earlier is not None:
            return earlier
    return None


def judge(runs: Sequence[Run]) -> list[Judged]:
    """The state of each, in the same order. Each target is asked once, for all of its runs that are not known to be over."""
    found = [by_files(run) for run in runs]
    asked: dict[str, list[int]] = {}
    for index, judged in enumerate(found):
        if must_ask(judged):
            asked.setdefault(judged.run.target, []).append(index)
    for kind, indexes in asked.items():
        sights = look(kind, [found[index].handle or {} for index in indexes])
        for index, sight in zip(indexes, sights, strict=True):
            found[index] = by_words(found[index], sight)
    return found


def judge_one(run: Run) -> Judged:
    """The state of one run."""
    return judge([run])[0]


def must_ask(judged: Judged) -> bool:
    """Whether the files alone do not tell, so that the target must."""
    return judged.state is State.UNKNOWN and judged.handle is not None


def look(kind: str, handles: list[Handle]) -> list[Sight]:
    """What the target of that kind sees; unknown when there is no such target here."""
    try:
        return base.get(kind).look(handles)
    except Refused as error:
        return [Sight(Presence.UNKNOWN, str(error))] * len(handles)


def by_files(run: Run) -> Judged:
    """What the files alone say; UNKNOWN with a handle when the target must be asked."""
    try:
        return _from_files(run)
    except Refused as error:
        return Judged(run, State.DAMAGED, reason=str(error))


def by_sight(judged: Judged, sight: Sight) -> Judged:
    """The state by what the target sees of the handle."""
    try:
        return _with_sight(judged, sight)
    except RunsError as error:
        return Judged(judged.run, State.DAMAGED, judged.attempt, reason=str(error))


def by_words(judged: Judged, sight: Sight) -> Judged:
    """by_sight, after rank 0's words were brought into the run's folder where its worker does not write there itself."""
    if judged.run.target in base.DISTANT and judged.handle is not None and sight.presence is not Presence.UNKNOWN:
        base.get(judged.run.target).bring(judged.run.layout, judged.handle, frozenset({0}))
        judged = by_files(judged.run)
        if not must_ask(judged):
            return judged
    return by_sight(judged, sight)


def _from_files(run: Run) -> Judged:
    if run.damage:
        raise RunsError(run.damage)
    attempt = newest(run)
    if attempt is None:
        return Judged(run, State.CREATED, reason=f"never started; start it: python -m launcher resume {run.name}")
    result, decision = read_object_if_there(attempt.result()), decision_of(attempt)
    over = _over(run, attempt, result, decision)
    if over is not None:
        return over
    given_up = read_object_if_there(cancel_file(attempt)) or {}
    if given_up.get("given_up"):
        return Judged(run, State.CANCELLED, attempt, reason="given up by hand: its host could not be asked")
    handle = handle_of(run, attempt)
    if handle is not None:
        return Judged(run, State.UNKNOWN, attempt, handle, result, decision=decision)
    if is_locked(run):
        return Judged(run, State.STARTING, attempt)
    handle = handle_of(run, attempt)  # it may have come between the two looks
    if handle is not None:
        return Judged(run, State.UNKNOWN, attempt, handle, result, decision=decision)
    if result is not None:
        return _ended(run, attempt, result, decision)
    why = "never began: the launcher ended before it had started the worker"
    if run.target in base.CLUSTERS:
        why = "the launcher ended before it had noted a job; if there is one, `resume` finds it"
    return Judged(run, State.DIED, attempt, reason=why)


def _over(run: Run, attempt: AttemptFolder, result: dict[str, Any] | None, decision: Decision | None) -> Judged | None:
    """The end, where the files show that nothing follows by itself."""
    stopped = decision is not None and not decision.goes_on
    if result is not None:
        ended = _ended(run, attempt, result, decision)
        return ended if stopped or ended.state in (State.FINISHED, State.CANCELLED) else None
    if decision is None or not stopped:
        return None
    cancelled = read_object_if_there(cancel_file(attempt)) is not None
    state = State.CANCELLED if cancelled else State.DIED
    return Judged(run, state, attempt, handle_of(run, attempt), reason=decision.reason)


def _with_sight(judged: Judged, sight: Sight) -> Judged:
    attempt = judged.attempt
    assert attempt is not None
    if sight.presence is Presence.UNKNOWN:
        return replace(judged, state=State.UNKNOWN, reason=_after(judged, sight.why))
    if sight.attempt is not None and sight.attempt > attempt.number and sight.presence is not Presence.GONE:
        about = f"attempt {sight.attempt} is about to begin"
        return replace(
            judged, state=State.RESTARTING, reason=_after(judged, f"{about}: {sight.why}" if sight.why else about)
        )
    if sight.presence is Presence.WAITING:
        return replace(judged, state=State.WAITING, reason=_after(judged, sight.why))
    cancelled = read_object_if_there(cancel_file(attempt))
    if sight.presence is Presence.ALIVE:
        if judged.result is not None or judged.decision is not None:
            return replace(judged, state=State.RESTARTING, reason=_next(judged))
        if _is_of_an_earlier_start(attempt, sight.since):
            why = f"SLURM started {base.title(judged.handle) or 'it'} anew; attempt {attempt.number + 1} is about to begin"
            return replace(judged, state=State.RESTARTING, reason=why)
        if cancelled is not None:
            return replace(
                judged, state=State.STOPPING, reason=_joined("asked to save a checkpoint and end", sight.why)
            )
        return replace(judged, state=_phase(attempt), reason=sight.why)
    run = judged.run
    fresh = by_files(run)  # a result, a decision or an attempt may have come between the two looks
    if not must_ask(fresh):
        return fresh
    if fresh.attempt != attempt:
        return by_sight(fresh, sight)
    if judged.result is not None:
        ended = _ended(run, attempt, judged.result, None)
        return replace(ended, reason=_joined(ended.reason, sight.why))
    began = attempt.started().exists()
    if cancelled is not None:
        reason = "killed by cancel" if began else "cancelled before it began"
        return replace(judged, state=State.CANCELLED, reason=reason)
    why = sight.why or "killed (SIGKILL, out of memory) or the machine went down"
    reason = f"the worker is gone and left no result: {why}" if began else f"it never began: {why}"
    if judged.decision is not None:
        reason = f"{judged.decision.reason}; {why}"
    return replace(judged, state=State.DIED, reason=reason)


def _is_of_an_earlier_start(attempt: AttemptFolder, since: float | None) -> bool:
    """Whether the job has begun anew since this attempt began: the scheduler itself requeued it."""
    started = read_object_if_there(attempt.started()) if since is not None else None
    return started is not None and since is not None and float(started["started"]) < since - CLOCK_SECONDS


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def _after(judged: Judged, why: str) -> str:
    """The reason of an attempt that has ended, before what holds the next one up."""
    if judged.decision is not None:
        return f"{why}; {judged.decision.reason}"
    ended = judged.result.get("reason", "") if judged.result is not None else ""
    return f"{why}; attempt {judged.attempt.number} ended: {ended}" if ended and judged.attempt else why


def _next(judged: Judged) -> str:
    assert judged.attempt is not None
    if judged.decision is None:
        ended = "" if judged.result is None else f": {judged.result.get('reason', '')}"
        return f"attempt {judged.attempt.number} has ended{ended}; what follows is being decided"
    left = judged.decision.at + judged.decision.pause_seconds - time.time()
    soon = f"in {left:.0f} s, " if left >= 1 else ""
    return f"{soon}{judged.decision.reason}"


def _phase(attempt: AttemptFolder) -> State:
    """How far an attempt is that lives: a later figure (a step line) can only raise this to RUNNING."""
    try:
        with open(attempt.rank_log(0), "rb") as log:
            said = log.read(1 << 18)
    except OSError:
        return State.STARTING
    if DISPATCHED.encode() in said:
        return State.RUNNING
    return State.COMPILING if COMPILE_MARK in said else State.STARTING


def _ended(run: Run, attempt: AttemptFolder, result: dict[str, Any], decision: Decision | None) -> Judged:
    try:
        outcome = Outcome(result["outcome"])
    except (KeyError, ValueError):
        raise RunsError(f"{attempt.result()}: has no outcome that this launcher knows") from None
    # A supervisor writes the result where no worker was left to do so.
    unsaid = outcome is Outcome.TRAINER and result.get("by") == "supervisor"
    state = State.DIED if unsaid else _ENDS.get(outcome, State.FAILED)
    if state is not State.FINISHED and cancel_file(attempt).exists():
        read_object(cancel_file(attempt))
        state = State.CANCELLED
    handle = read_object_if_there(handle_file(attempt)) or _earlier_handle(run, attempt)
    reason = str(result.get("reason", ""))
    added = decision.added(reason) if decision is not None and state is not State.CANCELLED else ""
    return Judged(run, state, attempt, handle, result, f"{reason}; {added}" if added else reason, decision)
