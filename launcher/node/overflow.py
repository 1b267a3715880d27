"""What follows an overflow of TE's MoE receive buffers: a larger ragged_buffer_factor, and a clean checkpoint to go on from.

MaxText 0.2.5 says that the update of the overflowing step was skipped. It was not: tokens were dropped, training went on
until the check, and a checkpoint written since holds that update. A checkpoint is named by its last completed step, so
the clean ones are those before the overflowing step.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Optional

from .checkpoints import committed_steps
from .codes import Code, outcome_of
from .ending import read_object
from .launch import Launch
from .layout import AttemptFolder, RunFolder
from .observe import Buffers, Overflow
from .policy import ACT
from .record import write_json
from .verdict import RankEnd, Verdict

KEY = "ragged_buffer_factor"
WORST_CASE = -1.0  # MaxText: room for whatever the router does
# Over the demand that was seen: it is that of one window of steps, and the router moves on. Our choice, not measured: a
# quarter more memory in these buffers, against a restart and up to te_ep_overflow_check_every_n_steps lost steps.
MARGIN = 1.25
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

    checkpoints: None = on remote storage. The verdict becomes 78 where another start would not help. Raises OSError.
    """
    seen = next((end.observed for end in ends if end.observed.overflow is not None), None)
    if verdict.code != Code.OVERFLOW or seen is None or seen.overflow is None:
        return verdict
    overflow = seen.overflow
    if overflow.factor <= 0:
        return _hopeless(verdict, f"{KEY}={overflow.factor:g} is the worst case already")
    found = cure(overflow, seen.buffers)
    if launch.overflow != ACT:
        hint = f"{found.held:.3f} would have held: set moe.{KEY}={found.factor:g}, or monitor.overflow=act"
        return replace(verdict, reason=f"{verdict.reason}; {hint}")
    adjusted = read_object(run.adjust) or {}
    past: list[dict[str, Any]] = list(adjusted.get("history") or [])
    tried = [entry for entry in past if entry.get("key") == KEY and entry.get("new") == found.factor]
    if tried or found.factor == overflow.factor:
        when = f"attempt {tried[-1].get('attempt')} set it" if tried else "it is in use"
        return _hopeless(verdict, f"{KEY}={found.factor:g} is wanted, but {when} and it did not help")
    unseen = _unseen(overflow, launch) if checkpoints is None else None
    if unseen is not None:
        return _hopeless(
            verdict,
            f"a checkpoint of step {unseen} may hold the overflowing update, and it lies on remote storage: delete what is "
            f"of step {overflow.step} or later, set moe.{KEY}={found.factor:g}",
        )
    moved = [] if checkpoints is None else _set_aside(checkpoints, overflow.step, attempt.number)
    entry = {
        "attempt": attempt.number,
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
    keys = {**(adjusted.get("maxtext") or {}), KEY: found.factor}
    write_json(run.adjust, {**adjusted, "maxtext": keys, "history": [*past, entry]})
    clean = committed_steps(checkpoints) if checkpoints is not None else []
    kept = clean[-1] if clean else (None if checkpoints is not None else verdict.checkpoint)
    return replace(verdict, reason=_told(verdict, overflow, found, moved), checkpoint=kept)


def _told(verdict: Verdict, overflow: Overflow, found: _Cure, moved: Sequence[Path]) -> str:
    aside = f"; set aside, as they hold the overflowing update: {', '.join(map(str, moved))}" if moved else ""
    change = f"{KEY} {overflow.factor:g} -> {found.factor:g} for the next attempt ({found.held:.3f} would have held)"
    return f"{verdict.reason}; {change}{aside}"


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


def _set_aside(checkpoints: Path, step: int, attempt: int) -> list[Path]:
    """Moves the checkpoints from `step` on beside their folder, where MaxText and Orbax do not look. Deletes nothing."""
    moved = []
    for tainted in [found for found in committed_steps(checkpoints) if found >= step]:
        aside = checkpoints.with_name(f"{checkpoints.name}.overflow")
        aside.mkdir(exist_ok=True)
        target = aside / f"{tainted}.attempt{attempt}"
        os.rename(checkpoints / str(tainted), target)
        moved.append(target)
    return moved
