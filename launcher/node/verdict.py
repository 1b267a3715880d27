"""From what the ranks did to the attempt's exit code, outcome and one-line reason. Pure."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from .codes import Code, Outcome, exit_code_of, outcome_of
from .monitor import Stop
from .observe import Observed

_SIGNAL_TEXT = "termination signal"  # maxtext 0.2.5 common/checkpointing.py: StopTraining after SIGTERM
_TARGET_TEXT = "Target loss"  # common/metric_logger.py: the user's target_eval_loss was reached


@dataclass(frozen=True)
class RankEnd:
    """How one process ended. returncode: subprocess's (-n = signal n; None = it would not die).

    killed: by the worker's own SIGKILL, so its return code says nothing. The order in a list is the order of the ends.
    """

    rank: int
    returncode: int | None
    killed: bool
    observed: Observed


@dataclass(frozen=True)
class Asked:
    """What the attempt was for. steps: the total. checkpoints: committed steps on disk, None = cannot be seen from
    here (remote storage). signal: the stop signal that the worker got, or None. why_killed: its reason for SIGKILL.
    stop: what the monitor asked for, and what therefore ended the training."""

    steps: int
    checkpointing: bool
    checkpoints: Sequence[int] | None = ()
    signal: int | None = None
    why_killed: str = ""
    stop: Stop | None = None


@dataclass(frozen=True)
class Verdict:
    """The attempt's end. first_step, last_step: completed in this attempt. checkpoint: the newest committed one."""

    code: int
    outcome: Outcome
    reason: str
    first_step: int | None
    last_step: int | None
    checkpoint: int | None


def judge(ends: Sequence[RankEnd], asked: Asked) -> Verdict:
    """The verdict on one attempt from the ends of this node's ranks, in the order in which they ended."""
    firsts = [end.observed.first_step for end in ends if end.observed.first_step is not None]
    lasts = [end.observed.last_step for end in ends if end.observed.last_step is not None]
    first, last = min(firsts, default=None), max(lasts, default=None)
    checkpoint = max(asked.checkpoints, default=None) if asked.checkpoints else None
    code, reason = (
        _overflow(ends)
        or _finished(ends, asked, last, checkpoint)
        or _asked_for(ends, asked)
        or _stopped(ends, asked, last, checkpoint)
        or _ended_early(ends, asked, last)
        or _failed(ends, asked, first)
    )
    return Verdict(code, outcome_of(code), reason, first, last, checkpoint)


def by_monitor(stop: Stop) -> Verdict:
    """What the other nodes are told when the monitor of this one asks for the end."""
    return Verdict(stop.code, outcome_of(stop.code), stop.reason, None, None, None)


_Ruling = tuple[int, str]


def _overflow(ends: Sequence[RankEnd]) -> _Ruling | None:
    for end in ends:
        if end.observed.overflow is not None and end.returncode != 0:
            return Code.OVERFLOW, end.observed.overflow.text
    return None


def _finished(ends: Sequence[RankEnd], asked: Asked, last: int | None, checkpoint: int | None) -> _Ruling | None:
    if not ends:
        return None
    done = [end.observed.done_up_to for end in ends if end.observed.done_up_to is not None]
    if done and max(done) >= asked.steps - 1:
        return Code.FINISHED, f"all {asked.steps} steps were completed before this attempt"
    target = next((end.observed.stopped for end in ends if _TARGET_TEXT in (end.observed.stopped or "")), None)
    clean = all(end.returncode == 0 for end in ends)
    if target is not None and clean:
        return Code.FINISHED, f"{target} (at step {last})"
    # A checkpoint of the last step counts like its line: stopped there by a signal, MaxText saves and never prints it.
    saved = checkpoint is not None and checkpoint >= asked.steps - 1
    if not saved and (last is None or last < asked.steps - 1):
        return None
    interrupted = any(end.observed.stopped is not None for end in ends)
    if clean and (saved or not interrupted or not asked.checkpointing):
        return Code.FINISHED, f"all {asked.steps} steps completed"
    honest = all(end.returncode == 0 or end.killed for end in ends)
    if honest and saved and any(end.returncode == 0 for end in ends):
        return Code.FINISHED, f"all {asked.steps} steps completed and saved; {asked.why_killed}"
    return None


def _asked_for(ends: Sequence[RankEnd], asked: Asked) -> _Ruling | None:
    """What the monitor asked for, unless a rank failed by itself in the moment before."""
    if asked.stop is None or any(not end.killed and end.returncode not in (0, None) for end in ends):
        return None
    return asked.stop.code, asked.stop.reason


def _stopped(ends: Sequence[RankEnd], asked: Asked, last: int | None, checkpoint: int | None) -> _Ruling | None:
    """The end after a stop signal: asked of the worker, or sent to the trainers by someone else."""
    by_text = any(_SIGNAL_TEXT in (end.observed.stopped or "") for end in ends)
    if not (by_text or asked.signal is not None):
        return None
    # SIGTERM kills a rank that JAX has not yet started, and its peers then fail to connect: still the signal's doing.
    early = any(end.returncode == -signal.SIGTERM for end in ends)
    if not early and any(not end.killed and end.returncode != 0 for end in ends):
        return None
    name = signal.Signals(asked.signal).name if asked.signal is not None else "a signal to the trainer"
    at = f"stopped by {name} " + ("before the first step" if last is None else f"after step {last}")
    killed = f" ({asked.why_killed})" if asked.why_killed else ""
    if asked.checkpoints is None:
        if by_text and not killed:
            return Code.PREEMPTED, f"{at}; its checkpoint is on remote storage, not checked from here"
        return 1, f"{at}{killed}; whether a checkpoint was saved cannot be seen from here (remote storage)"
    if checkpoint is None:
        lost = "nothing is lost" if last is None else f"steps up to {last} are lost"
        cure = "" if last is None or not asked.checkpointing else "; enable_autocheckpoint=true saves at the signal"
        return 1, f"{at}{killed}; there is no checkpoint: {lost}{cure}"
    # The checkpoint may be one step ahead of the log: MaxText prints a step one step late, and not after a signal.
    if last is None or checkpoint >= last:
        return Code.PREEMPTED, f"{at}{killed}; the checkpoint of step {checkpoint} holds everything"
    return Code.PREEMPTED, (
        f"{at}{killed}; the newest checkpoint is of step {checkpoint}: "
        f"{last - checkpoint} step(s) will be trained again"
    )


def _ended_early(ends: Sequence[RankEnd], asked: Asked, last: int | None) -> _Ruling | None:
    """Return code 0 everywhere, without the last step and without a signal: MaxText ran out of data, or worse."""
    if not ends or any(end.returncode != 0 for end in ends):
        return None
    where = "no step was completed" if last is None else f"the last completed step is {last} of 0..{asked.steps - 1}"
    said = next((end.observed.stopped for end in ends if end.observed.stopped), "MaxText gave no reason")
    return 1, f"the trainer ended with return code 0 but {where}: {said}"


def _failed(ends: Sequence[RankEnd], asked: Asked, first: int | None) -> _Ruling:
    if first is None:
        for end in ends:
            if end.observed.refusal is not None and end.returncode != 0:
                return Code.CONFIG_REFUSED, end.observed.refusal
    for end in ends:
        if not end.killed and end.returncode not in (0, None):
            code = exit_code_of(end.returncode)
            code = 1 if code in list(Code) else code  # the table's codes are ours alone
            return code, f"rank {end.rank} {_death(end.returncode)}{_last_words(end)}"
    stuck = ", ".join(str(end.rank) for end in ends if end.returncode != 0)
    return 1, f"rank(s) {stuck} had to be killed: {asked.why_killed or 'no rank ended by itself'}"


def _last_words(end: RankEnd) -> str:
    """What explains a rank's death; a rank killed from outside had no time to say anything about it."""
    last = end.observed.last_step
    if end.returncode == -signal.SIGKILL and last is not None:
        return f" after step {last}"
    return f": {end.observed.error or 'it printed nothing'}"


def _death(returncode: int) -> str:
    if returncode >= 0:
        return f"ended with return code {returncode}"
    try:
        return f"was killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"was killed by signal {-returncode}"
