"""What follows an overflow of TE's MoE receive buffers: a larger ragged_buffer_factor, and a clean checkpoint to go on from.

MaxText 0.2.5 says that the update of the overflowing step was skipped. It was not: tokens were dropped, training went on
until the check, and a checkpoint written since holds that update. A checkpoint is named by its last completed step, so
the clean ones are those before the overflowing step.
"""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Optional

from .checkpoints import held_by, newest, set_aside
from .codes import Code, outcome_of
from .ending import read_object
from .launch import Launch
from .layout import AttemptFolder, RunFolder
from .observe import Buffers, Overflow
from .policy import ACT, STOP
from .record import write_json
from .table import Row
from .verdict import RankEnd, Verdict

KEY = "ragged_buffer_factor"
WORST_CASE = -1.0  # MaxText: room for whatever the router does
# Over the demand that was seen: it is that of one window of steps, and the router moves on. Our choice, not measured: a
# quarter more memory in these buffers, against a restart and up to te_ep_overflow_check_every_n_steps lost steps.
MARGIN = 1.25
LEAST_MARGIN = 1.05  # where the GPU has no room for more: the recorded routers move by a few per cent between checks
_ROWS = 128  # TE's alignment of every local expert's rows
_FLAT = 1e-9  # of the float in the log


@dataclass(frozen=True)
class _Cure:
    """What the next attempt gets. factor: ragged_buffer_factor. held: the smallest that would have held, unrounded."""

    factor: float
    held: float


def cure(overflow: Overflow, buffers: Optional[Buffers]) -> _Cure:
    """The factor for the next attempt, from the log's own numbers.

    TE 2.20 gives each rank ceil128(factor * base) rows, base = those of a balanced router, at most the worst case. So
    demand / base would have held; MARGIN comes on top, rounded up to 1/100. What reaches the worst case becomes -1.

    >>> cure(Overflow(0, 3, 101120, 98304, 1.0), None).factor
    1.29
    """
    base = _base(overflow, buffers)
    held = overflow.demand / base
    factor = math.ceil(held * MARGIN * 100 - _FLAT) / 100
    worst = _worst(base, buffers)
    if worst is not None and _aligned(factor * base) >= worst:
        factor = WORST_CASE
    return _Cure(factor, held)


def _aligned(rows: float) -> int:
    return math.ceil(rows / _ROWS - _FLAT) * _ROWS


def _base(overflow: Overflow, buffers: Optional[Buffers]) -> float:
    """Rows at factor 1. The log has them rounded up to 128 after the factor: by the experts of a rank they are exact."""
    if buffers is not None:
        unit = _ROWS * buffers.local_experts
        exact = math.floor(overflow.capacity / overflow.factor / unit + _FLAT) * unit
        if exact and _aligned(exact * overflow.factor) == overflow.capacity:
            return exact
    return max(1.0, (overflow.capacity - _ROWS) / overflow.factor) if overflow.factor != 1 else overflow.capacity


def _worst(base: float, buffers: Optional[Buffers]) -> Optional[int]:
    """TE's worst case in rows of one rank; None when the log does not tell the sizes (TE then caps by itself)."""
    if buffers is None:
        return None
    local, tokens = buffers.local_experts, buffers.ep * buffers.tokens
    chosen = max(1, int(base // buffers.tokens))  # experts a token; what rounding adds is less than one
    some = _aligned(tokens * min(chosen, local) + (_ROWS - 1) * local)
    return min(local * _aligned(tokens), some)


def act(
    verdict: Verdict,
    ends: Sequence[RankEnd],
    *,
    launch: Launch,
    run: RunFolder,
    attempt: AttemptFolder,
    checkpoints: Optional[Path],
) -> Verdict:
    """Node 0's part after an overflow: adjust.json, tainted checkpoints set aside. Any other verdict is given back as it is.

    monitor.overflow=warn changes no factor, and goes on from the clean checkpoint too. checkpoints: None = on remote
    storage. The verdict becomes 78 where another start would not help. Raises OSError.
    """
    seen = next((end.observed for end in ends if end.observed.overflow is not None), None)
    if verdict.code != Code.OVERFLOW or seen is None or seen.overflow is None:
        return verdict
    overflow = seen.overflow
    if overflow.factor <= 0:
        return _hopeless(verdict, f"{KEY}={overflow.factor:g} is the worst case already")
    found = cure(overflow, seen.buffers)
    hint = f"{found.held:.3f} would have held: set moe.{KEY}={found.factor:g}"
    if launch.overflow == STOP:
        said = f"{verdict.reason}; {hint}, or monitor.overflow=act{held_by(checkpoints, overflow.step)}"
        return replace(verdict, reason=said)
    adjusted = read_object(run.adjust) or {}
    past: list[dict[str, Any]] = list(adjusted.get("history") or [])
    if launch.overflow == ACT:
        found, why_not = _fitting(found, launch.largest_factor)
        tried = [entry for entry in past if entry.get("key") == KEY and entry.get("new") == found.factor]
        if tried or found.factor == overflow.factor:
            when = f"attempt {tried[-1].get('attempt')} set it" if tried else "it is in use"
            why_not = why_not or f"{KEY}={found.factor:g} is wanted, but {when} and it did not help"
        if why_not:
            return _hopeless(verdict, why_not)
    unseen = _unseen(overflow, launch) if checkpoints is None else None
    if unseen is not None:
        return _hopeless(
            verdict,
            f"a checkpoint of step {unseen} may hold the overflowing update, and it lies on remote storage: delete what is "
            f"of step {overflow.step} or later, set moe.{KEY}={found.factor:g}",
        )
    moved = [] if checkpoints is None else set_aside(checkpoints, overflow.step, attempt.number, "overflow")
    if launch.overflow == ACT:
        entry = _entry(overflow, found, moved, attempt.number)
        keys = {**(adjusted.get("maxtext") or {}), KEY: found.factor}
        write_json(run.adjust, {**adjusted, "maxtext": keys, "history": [*past, entry]})
        change = (
            f"{KEY} {overflow.factor:g} -> {found.factor:g} for the next attempt ({found.held:.3f} would have held)"
        )
    else:
        change = f"{hint}; monitor.overflow={launch.overflow} starts again as it was"
    kept = verdict.checkpoint if checkpoints is None else newest(checkpoints)
    aside = f"; set aside, as they hold the overflowing update: {', '.join(map(str, moved))}" if moved else ""
    return replace(verdict, reason=f"{verdict.reason}; {change}{aside}", checkpoint=kept)


def act_unreported(
    verdict: Verdict,
    overflow: Optional[Overflow],
    buffers: Optional[Buffers],
    *,
    launch: Launch,
    run: RunFolder,
    attempt: AttemptFolder,
    checkpoints: Optional[Path],
) -> Verdict:
    """Node 0's part where rows did not fit and the attempt ended before MaxText's check would have said so.

    overflow: by the metrics (seen_in); None = there was none. The code stays what it is: a stop signal's, a dead rank's.
    Where no larger factor can be had, the next attempt overflows again and is told so. Raises OSError.
    """
    if overflow is None or verdict.code in (Code.FINISHED, Code.OVERFLOW, Code.CONFIG_REFUSED):
        return verdict
    rows = f"demand {overflow.demand} rows, capacity {overflow.capacity}"
    said = (
        f"{verdict.reason}; the MoE receive buffer overflowed at step {overflow.step} ({rows}) before MaxText's check"
    )
    if launch.overflow == STOP:
        return replace(verdict, reason=f"{said}{held_by(checkpoints, overflow.step)}")
    moved = [] if checkpoints is None else set_aside(checkpoints, overflow.step, attempt.number, "overflow")
    is_known = launch.overflow == ACT and overflow.factor > 0
    found, why_not = (
        _fitting(cure(overflow, buffers), launch.largest_factor) if is_known else (_Cure(0, 0), "not known")
    )
    if not why_not and found.factor != overflow.factor:
        adjusted = read_object(run.adjust) or {}
        keys = {**(adjusted.get("maxtext") or {}), KEY: found.factor}
        history = [*(adjusted.get("history") or []), _entry(overflow, found, moved, attempt.number)]
        write_json(run.adjust, {**adjusted, "maxtext": keys, "history": history})
        said += f"; {KEY} {overflow.factor:g} -> {found.factor:g} for the next attempt"
    kept = verdict.checkpoint if checkpoints is None else newest(checkpoints)
    aside = f"; set aside, as they hold the overflowing update: {', '.join(map(str, moved))}" if moved else ""
    return replace(verdict, reason=f"{said}{aside}", checkpoint=kept)


def seen_in(row: Row, factor: float, before: Optional[Overflow] = None) -> Overflow:
    """The overflow of a step whose rows did not fit; of several steps the first one and the largest demand count.

    factor: of the attempt, 0 = not known.
    """
    step, demand = (row.step, 0) if before is None else (before.step, before.demand)
    return Overflow(step, row.step, max(demand, int(row.demand or 0)), int(row.capacity or 0), factor)


def factor_in(maxtext_yml: Path, keys: Mapping[str, Any]) -> float:
    """The ragged_buffer_factor of an attempt, `keys` being those of its command line; 0 = it is not said."""
    seen = keys.get(KEY)
    if seen is None:
        with contextlib.suppress(OSError):
            match = re.search(
                rf"^{KEY}: (\S+)", maxtext_yml.read_text(encoding="utf-8", errors="replace"), re.MULTILINE
            )
            seen = match[1] if match else None
    try:
        return float(seen or 0)
    except (TypeError, ValueError):
        return 0.0


def _entry(overflow: Overflow, found: _Cure, moved: Sequence[Path], attempt: int) -> dict[str, Any]:
    """What adjust.json's history says of it."""
    return {
        "attempt": attempt,
        "step": overflow.step,
        "key": KEY,
        "old": overflow.factor,
        "new": found.factor,
        "why": overflow.text,
        "demand": overflow.demand,
        "capacity": overflow.capacity,
        "held": round(found.held, 4),
        "moved": [str(path) for path in moved],
        "at": time.time(),
    }


def _fitting(found: _Cure, largest: Optional[float]) -> tuple[_Cure, str]:
    """The cure within `largest`, the largest factor that fits the GPU by the plan; and why there is none, else "".

    largest: None = not known, WORST_CASE = all fit.
    """
    if largest is None or largest == WORST_CASE or 0 < found.factor <= largest:
        return found, ""
    if found.held * LEAST_MARGIN <= largest:
        return replace(found, factor=largest), ""
    wanted = "the worst case (-1)" if found.factor == WORST_CASE else f"{found.factor:g}"
    return found, (
        f"{KEY}={wanted} is wanted ({found.held:.3f} would have held), but by the plan a GPU's memory takes at most "
        f"{largest:g}: type a smaller trainer.per_device_batch_size, or remat=full"
    )


def _hopeless(verdict: Verdict, why: str) -> Verdict:
    return replace(
        verdict,
        code=int(Code.CONFIG_REFUSED),
        outcome=outcome_of(Code.CONFIG_REFUSED),
        reason=f"{verdict.reason}; {why}",
    )


def _unseen(overflow: Overflow, launch: Launch) -> Optional[int]:
    """The first step from the overflow to the check at which MaxText saves by its period (step % period == 0), or None."""
    period = launch.checkpoint_period
    if not launch.checkpointing or period < 1:
        return None
    step = math.ceil(overflow.step / period) * period
    return step if step <= overflow.detected else None
