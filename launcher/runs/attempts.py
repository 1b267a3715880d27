"""The state of a run, worked out from its files and, where they are silent, from its target."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from launcher.issue import Refused
from launcher.node.codes import Outcome
from launcher.node.layout import AttemptFolder
from launcher.node.record import write_json
from launcher.runs.store import Run, RunsError, is_locked, read_object, read_object_if_there
from launcher.targets import base
from launcher.targets.base import Handle, Presence, Sight


class State(StrEnum):
    """Where a run is. The first six can change by themselves; of the others only a new attempt leads away."""

    WAITING = "waiting"
    STARTING = "starting"
    COMPILING = "compiling"
    RUNNING = "running"
    STOPPING = "stopping"
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


LIVE = frozenset({State.WAITING, State.STARTING, State.COMPILING, State.RUNNING, State.STOPPING, State.UNKNOWN})

_ENDS = {
    Outcome.FINISHED: State.FINISHED,
    Outcome.PREEMPTED: State.PREEMPTED,
    Outcome.OVERFLOW: State.OVERFLOW,
    Outcome.STALLED: State.STALLED,
}

POLL_SECONDS = 0.2
"""Between two looks at one run's files, where somebody waits for it."""

COMPILE_MARK = b"Num_devices: "
"""MaxText 0.2.5 (utils/maxtext_utils.py, create_device_mesh) prints it once JAX has started on all ranks."""


@dataclass(frozen=True)
class Judged:
    """One run's state. `attempt`: the newest, None before the first. `result`: result.json. `reason`: one line."""

    run: Run
    state: State
    attempt: AttemptFolder | None = None
    handle: Handle | None = None
    result: dict[str, Any] | None = None
    reason: str = ""

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


def mark_cancelled(attempt: AttemptFolder, given_up: bool = False) -> None:
    """Note that the end was asked for. `given_up`: its host cannot be reached and it counts as ended from now on."""
    write_json(cancel_file(attempt), {"asked": time.time(), "given_up": given_up})


def newest(run: Run) -> AttemptFolder | None:
    """The newest attempt that has a folder."""
    numbers = run.layout.attempt_numbers()
    return run.layout.attempt(numbers[-1]) if numbers else None


def handle_of(run: Run, attempt: AttemptFolder) -> Handle | None:
    """How the target finds this attempt: its own handle, else its worker's word, else the start before it.

    One start can make several attempts: on a cluster the supervisor makes the later ones. Raises Damaged.
    """
    own = read_object_if_there(handle_file(attempt))
    if own is not None:
        return own
    started = read_object_if_there(attempt.started())
    adopted = base.get(run.target).adopt(started, str(attempt.path)) if started else None
    if adopted is not None:
        return adopted
    for number in reversed(run.layout.attempt_numbers()):
        earlier = read_object_if_there(handle_file(run.layout.attempt(number)))
        if number < attempt.number and earlier is not None:
            return earlier
    return None


def judge(runs: Sequence[Run]) -> list[Judged]:
    """The state of each, in the same order. Each target is asked once, for all of its runs that are not known to be over."""
    found: list[Judged] = []
    for run in runs:
        try:
            found.append(_from_files(run))
        except Refused as error:
            found.append(Judged(run, State.DAMAGED, reason=str(error)))
    waiting: dict[str, list[int]] = {}
    for index, judged in enumerate(found):
        if judged.state is State.UNKNOWN and judged.handle is not None:
            waiting.setdefault(judged.run.target, []).append(index)
    for kind, indexes in waiting.items():
        sights = _look(kind, [found[index].handle or {} for index in indexes])
        for index, sight in zip(indexes, sights, strict=True):
            try:
                found[index] = _with_sight(found[index], sight)
            except RunsError as error:
                found[index] = Judged(found[index].run, State.DAMAGED, found[index].attempt, reason=str(error))
    return found


def judge_one(run: Run) -> Judged:
    """The state of one run."""
    return judge([run])[0]


def _look(kind: str, handles: list[Handle]) -> list[Sight]:
    try:
        return base.get(kind).look(handles)
    except Refused as error:
        return [Sight(Presence.UNKNOWN, str(error))] * len(handles)


def _from_files(run: Run) -> Judged:
    """What the files alone say; UNKNOWN with a handle when the target must be asked."""
    if run.damage:
        raise RunsError(run.damage)
    attempt = newest(run)
    if attempt is None:
        return Judged(run, State.CREATED, reason=f"never started; start it: python -m launcher resume {run.name}")
    result = read_object_if_there(attempt.result())
    if result is not None:
        return _ended(run, attempt, result)
    given_up = read_object_if_there(cancel_file(attempt)) or {}
    if given_up.get("given_up"):
        return Judged(run, State.CANCELLED, attempt, reason="given up by hand: its host could not be asked")
    handle = handle_of(run, attempt)
    if handle is not None:
        return Judged(run, State.UNKNOWN, attempt, handle)
    if is_locked(run):
        return Judged(run, State.STARTING, attempt)
    handle = handle_of(run, attempt)  # it may have come between the two looks
    if handle is not None:
        return Judged(run, State.UNKNOWN, attempt, handle)
    return Judged(run, State.DIED, attempt, reason="never began: the launcher ended before it had started the worker")


def _with_sight(judged: Judged, sight: Sight) -> Judged:
    run, attempt, handle = judged.run, judged.attempt, judged.handle
    assert attempt is not None
    if sight.presence is Presence.UNKNOWN:
        return Judged(run, State.UNKNOWN, attempt, handle, reason=sight.why)
    if sight.presence is Presence.WAITING:
        return Judged(run, State.WAITING, attempt, handle, reason=sight.why)
    cancelled = read_object_if_there(cancel_file(attempt))
    if sight.presence is Presence.ALIVE:
        if cancelled is not None:
            return Judged(run, State.STOPPING, attempt, handle, reason="asked to save a checkpoint and end")
        return Judged(run, _phase(attempt), attempt, handle)
    result = read_object_if_there(attempt.result())  # it may have come between the two looks
    if result is not None:
        return _ended(run, attempt, result)
    if cancelled is not None:
        return Judged(run, State.CANCELLED, attempt, handle, reason="killed by cancel")
    why = "the worker is gone and left no result: killed (SIGKILL, out of memory) or the machine went down"
    return Judged(run, State.DIED, attempt, handle, reason=why)


def _phase(attempt: AttemptFolder) -> State:
    """How far an attempt is that lives: a later figure (a step line) can only raise this to RUNNING."""
    try:
        with open(attempt.rank_log(0), "rb") as log:
            return State.COMPILING if COMPILE_MARK in log.read(1 << 18) else State.STARTING
    except OSError:
        return State.STARTING


def _ended(run: Run, attempt: AttemptFolder, result: dict[str, Any]) -> Judged:
    try:
        state = _ENDS.get(Outcome(result["outcome"]), State.FAILED)
    except (KeyError, ValueError):
        raise RunsError(f"{attempt.result()}: has no outcome that this launcher knows") from None
    if state is not State.FINISHED and cancel_file(attempt).exists():
        read_object(cancel_file(attempt))
        state = State.CANCELLED
    handle = read_object_if_there(handle_file(attempt))
    return Judged(run, state, attempt, handle, result, str(result.get("reason", "")))
