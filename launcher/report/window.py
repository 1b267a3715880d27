"""Which steps of a run are measured, and how long one took: wall time between the lines of a log, not MaxText's `seconds`.

MaxText 0.2.5 dispatches steps ahead of the device, so that `seconds` of single steps jitters (on the recorded H200 runs from
0.04 to 0.38 s about a mean of 0.19 s) while the lines keep step with the device. What a step line includes besides the step is
left out, and named.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from launcher.node import marks as m
from launcher.node.marks import Mark
from launcher.node.steps import JUNK_STEPS
from launcher.node.table import Row
from launcher.runs.history import History, Life

WARM_UP, PROFILER, CHECKPOINT, EVALUATION = "warm-up", "profiler", "checkpoint", "evaluation"
LAST, OUTLIER = "last", "outlier"
WHY = (WARM_UP, PROFILER, CHECKPOINT, EVALUATION, LAST, OUTLIER)
"""Why a step is left out. The last step of an attempt that is over: MaxText prints each line when the next step is done, but
that one at once, so that it comes early (on recorded runs after 0.146 s among steps of 0.191 s, 4.00 s among 4.63 s). An
outlier is a pause of the host or the network: a garbage collection, a neighbour's traffic."""

OUTLIER_SIGMAS, OUTLIER_SHARE = 6.0, 0.25
"""A step is an outlier beyond both, above the median: robust sigmas, and a share of it. Our choice: no step of the recorded
H200 runs is one (every 20th line of TE's is late by a quarter, and the next is early), and the one published garbage collection
(9.115 s among 8.688 s, facts/peers.md section 3) stays in."""

_SIGMA = 1.4826  # median absolute deviation -> standard deviation, of a normal distribution
_BLOCKS = 10  # means of neighbouring steps: what one line is late the next is early, so single steps are no independent samples
# Student's t, two-sided 95 %, by degrees of freedom from 1 (any table of it).
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


@dataclass(frozen=True)
class Profile:
    """MaxText's profiler: the steps [first, first + steps) of an attempt, counted from its first. steps: 0 = none."""

    first: int = 0
    steps: int = 0


@dataclass(frozen=True)
class Step:
    """One measured step. seconds: from the line before to its own. why: it is left out; "" = it counts."""

    step: int
    seconds: float
    why: str = ""


@dataclass(frozen=True)
class Window:
    """The measured steps of one attempt, all seconds a step.

    by_log: between the lines' times; else MaxText's own `seconds`, where the lines have no time. mean: over what counts;
    low, high: its 95 % interval from the means of blocks, None below 6 steps. all_in: the mean with everything after the
    warm-up.
    """

    attempt: int
    steps: Sequence[Step]
    by_log: bool
    mean: float
    median: float
    all_in: float
    low: float | None = None
    high: float | None = None

    @property
    def counted(self) -> list[Step]:
        """The steps that count."""
        return [step for step in self.steps if not step.why]

    @property
    def left_out(self) -> Mapping[str, list[int]]:
        """Why -> the steps."""
        found = {why: [step.step for step in self.steps if step.why == why] for why in WHY}
        return {why: steps for why, steps in found.items() if steps}


def window(history: History, profile: Profile) -> Window | None:
    """The attempt with most steps that count, the newest of equals; None when no step counts."""
    best: Window | None = None
    for life in history.lives:
        found = _of(life, profile)
        if found is not None and (best is None or len(found.counted) >= len(best.counted)):
            best = found
    return best


def _of(life: Life, profile: Profile) -> Window | None:
    rows = life.rows
    by_log = sum(row.at is not None for row in rows) > 1
    steps = _named(rows, life.marks, profile, by_log)
    if life.ended is not None and steps and not steps[-1].why:
        steps[-1] = Step(steps[-1].step, steps[-1].seconds, LAST)
    steps = _without_outliers(steps)
    counted = [step.seconds for step in steps if not step.why]
    if not counted:
        return None
    everything = [step.seconds for step in steps if step.why != WARM_UP]
    low, high = interval(counted)
    return Window(
        attempt=life.number,
        steps=steps,
        by_log=by_log,
        mean=statistics.fmean(counted),
        median=statistics.median(counted),
        all_in=statistics.fmean(everything),
        low=low,
        high=high,
    )


def _named(rows: Sequence[Row], marks: Sequence[Mark], profile: Profile, by_log: bool) -> list[Step]:
    """Every step with its seconds, and why it is left out by what came in between."""
    pauses = {m.SAVING: CHECKPOINT, m.EVALUATED: EVALUATION}
    found: list[Step] = []
    before = rows[0] if rows else None
    late = ""  # a line is printed when the next step is done: what came in between may show in either
    for row in rows[1:]:
        assert before is not None
        seconds = row.at - before.at if by_log and row.at is not None and before.at is not None else row.seconds
        between = [
            pauses[mark.kind]
            for mark in marks
            if mark.kind in pauses and mark.at is not None and before.at is not None and row.at is not None
            if before.at < mark.at <= row.at
        ]
        index = row.step - rows[0].step
        why, late = late, ""
        if index <= JUNK_STEPS:  # the line before is still one of the junk steps'
            why = WARM_UP
        elif profile.steps and profile.first - 1 <= index <= profile.first + profile.steps + 1:
            why = PROFILER
        elif between:
            why = late = between[0]
        if seconds is not None and seconds > 0 and row.step == before.step + 1:
            found.append(Step(row.step, seconds, why))
        before = row
    return found


def _without_outliers(steps: Sequence[Step]) -> list[Step]:
    """Names the pauses: a step beyond the limit even when what the next line is early by is taken off.

    Where the host alone was late (MaxText reads a counter from the device to look for an overflow), the next line is early by as
    much. Both count then: without the late one the steps would seem faster than they were.
    """
    counted = [step.seconds for step in steps if not step.why]
    if len(counted) < _BLOCKS:
        return list(steps)
    median = statistics.median(counted)
    sigma = _SIGMA * statistics.median(abs(value - median) for value in counted)
    limit = median + max(OUTLIER_SIGMAS * sigma, OUTLIER_SHARE * median)
    pauses = set()
    for step, after in itertools.zip_longest(steps, steps[1:]):
        made_up = median - after.seconds if after is not None and not after.why else 0.0
        if not step.why and step.seconds - max(0.0, made_up) > limit:
            pauses |= {step, after} if made_up > limit - median else {step}
    return [Step(step.step, step.seconds, OUTLIER) if step in pauses else step for step in steps]


def interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    """The 95 % interval of the mean of a series whose neighbours depend on one another; (None, None) below 6 values.

    From the means of up to ten blocks of neighbours, by Student's t.

    >>> interval([1.0] * 12)
    (1.0, 1.0)
    """
    if len(values) < 6:
        return None, None
    blocks = min(_BLOCKS, len(values) // 3)
    bounds = [len(values) * number // blocks for number in range(blocks + 1)]
    means = [statistics.fmean(values[a:b]) for a, b in itertools.pairwise(bounds)]
    mean, half = statistics.fmean(values), half_of(means)
    return mean - half, mean + half


def half_of(values: Sequence[float]) -> float:
    """Half of the 95 % interval of the mean of two or more independent values, by Student's t.

    >>> round(half_of([1.0, 1.1, 1.2]), 3)
    0.248
    """
    return _T[min(len(values) - 2, len(_T) - 1)] * statistics.stdev(values) / math.sqrt(len(values))
