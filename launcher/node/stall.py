"""Does the training still move: the bounds on the time to the first step and between steps. Pure: the time comes in.

MaxText 0.2.5 prints a step when the next one is under way, and the last one after its checkpoint is written
(metric_logger.py; train.py train_loop), so a pause shows up to two lines before the number that it belongs to.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Optional

from .marks import DISPATCHED, EVALUATED, FALLBACK, SAVED, SAVING, parse_mark
from .steps import JUNK_STEPS, parse_step

LEAST_SECONDS, MEDIANS, MORE_SECONDS = 300.0, 10.0, 60.0
"""Between two steps: as long as the longest of LEAST_SECONDS, MEDIANS medians, and the median with MORE_SECONDS (ours: a
collective that a congested network delays comes back within minutes, NCCL's own time-outs are longer)."""

FIRST_LEAST_SECONDS, FIRST_FACTOR = 900.0, 3.0
"""To the first step, when earlier attempts had one: FIRST_FACTOR times their longest. The least: a compile cache that is
gone costs minutes."""

COMPILED_SHARE = 0.25
"""Of what was asked for to the first step, that step itself gets once it is compiled and under way, FIRST_LEAST_SECONDS at least:
two H200s on which a collective hung in it would have stood for an hour. Where all went well it took 1 to 28 s there, the most with
NCCL EP, which compiles its kernels in it."""

PAUSE_SECONDS = 1800.0
"""At least, for a step near a pause (a checkpoint, an evaluation, ...): Orbax gives up an unfinished save after 1,200 s by
itself, and how long one took says little about the next one on a shared file system."""

LEAST_STEPS = 5  # intervals before the median says anything
_WINDOW = 128  # of them
_SLEPT = 30.0  # seconds without a look: the worker itself was suspended, so the trainers were too

CHECKPOINT, EVALUATION, PROFILE = "a checkpoint", "an evaluation", "the profiler"
RAMPUP, FALLING_BACK = "a new batch size", "MaxText's fallback"
_OF_MARK = {SAVING: CHECKPOINT, SAVED: CHECKPOINT, EVALUATED: EVALUATION, FALLBACK: FALLING_BACK}
_RAMPUP = "[Rampup Batch Size Phase]"  # common/metric_logger.py: each new batch size is compiled when it comes


class Bounds(NamedTuple):
    """What was asked for, in seconds. step: None = from what was seen."""

    first: float
    step: Optional[float] = None


@dataclass(frozen=True)
class Schedule:
    """When training pauses by plan. Steps; a period of 0: never. profile: the steps of an attempt, from its first one."""

    steps: int
    checkpoint_period: int = 0
    eval_interval: int = 0
    eval_start: int = 0
    profile: Sequence[int] = ()

    def pause(self, last: int, first: int) -> str:
        """What may hold up the line of the step after `last` in an attempt that began with step `first`; "" for nothing."""
        near = range(last, last + 3)
        if self.checkpoint_period and (
            near[-1] >= self.steps - 1 or any(step % self.checkpoint_period == 0 for step in near)
        ):
            return CHECKPOINT
        if self.eval_interval and any((step - self.eval_start) % self.eval_interval == 0 for step in near):
            return EVALUATION
        return PROFILE if any(step - first in self.profile for step in near) else ""


class Stalled(NamedTuple):
    """No step came for `seconds`, longer than `bound`. last: each rank's last completed step, None = not one yet."""

    seconds: float
    bound: float
    what: str
    last: Mapping[int, Optional[int]]

    @property
    def text(self) -> str:
        """One line."""
        told = [step for step in self.last.values() if step is not None]
        behind = [rank for rank, step in self.last.items() if step is not None and step < max(told)]
        after = f"after step {max(told)}" if told else "since the start"
        but = f"; rank(s) {', '.join(map(str, behind[:8]))} reached only step {min(told)}" if behind else ""
        return f"no step for {self.seconds:.0f} s {after}{but} (bound: {self.bound:.0f} s, {self.what})"


@dataclass
class _Rank:
    last: Optional[int] = None
    since: float = 0.0
    took: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    count: int = 0
    pause: str = ""
    is_compiled: bool = False


class Clock:
    """When each rank of this node moved last. Times are seconds of one monotonic clock."""

    def __init__(self, ranks: Sequence[int], bounds: Bounds, schedule: Schedule, began: float) -> None:
        self._ranks = {rank: _Rank(since=began) for rank in ranks}
        self._bounds = bounds
        self._schedule = schedule
        self._first: Optional[int] = None
        self._looked = began

    def line(self, rank: int, text: str, now: float) -> None:
        """Takes in one line of a rank."""
        own = self._ranks[rank]
        step = parse_step(text)
        if own.last is None and not own.is_compiled and DISPATCHED in text:
            own.is_compiled, own.since = True, now
        if step is None:
            mark = parse_mark(text, None) if own.last is not None else None
            if mark is not None and mark.kind in _OF_MARK:
                own.pause = _OF_MARK[mark.kind]
            return
        if own.last is not None:
            self._took(own, now - own.since)
        self._first = step.step if self._first is None else self._first
        own.last, own.since, own.count = step.step, now, own.count + 1
        own.pause = RAMPUP if _RAMPUP in text else ""

    def _took(self, own: _Rank, seconds: float) -> None:
        if own.count >= JUNK_STEPS and not self._pause(own):
            own.took.append(seconds)

    def _pause(self, own: _Rank) -> str:
        return own.pause or self._schedule.pause(own.last or 0, self._first or 0)

    def look(self, now: float) -> Optional[Stalled]:
        """The stall of the rank that has stood still longest beyond its bound; None while all move.

        A rank that never printed a step does not count once another one has: collectives hold them together.
        """
        slept, self._looked = now - self._looked, now
        if slept > _SLEPT:
            self.excuse(slept)
        has_begun = self._first is not None
        found: Optional[Stalled] = None
        for own in self._ranks.values():
            seconds = now - own.since
            if (has_begun and own.last is None) or seconds < self._least:
                continue
            bound, what = self._bound(own)
            if seconds > bound and (found is None or seconds > found.seconds):
                found = Stalled(seconds, bound, what, self.last)
        return found

    def excuse(self, seconds: float) -> None:
        """So much of the time did not count: nobody could have moved."""
        for own in self._ranks.values():
            own.since += seconds

    @property
    def last(self) -> dict[int, Optional[int]]:
        """Each rank's last completed step."""
        return {rank: own.last for rank, own in self._ranks.items()}

    @property
    def moved(self) -> float:
        """When any rank completed its newest step, or all began."""
        return max(own.since for own in self._ranks.values())

    @property
    def _least(self) -> float:
        """No bound is below this, so most looks end here."""
        step = self._bounds.step if self._bounds.step is not None else LEAST_SECONDS
        return min(self._bounds.first, FIRST_LEAST_SECONDS, step)

    def _bound(self, own: _Rank) -> tuple[float, str]:
        if own.last is None and own.is_compiled:
            given = max(FIRST_LEAST_SECONDS, COMPILED_SHARE * self._bounds.first)
            return min(self._bounds.first, given), "for the first step, which was compiled"
        if own.last is None:
            return self._bounds.first, "to the first step"
        usual = self._usual(own)
        pause = self._pause(own)
        if not pause:
            return usual or (max(self._bounds.first, LEAST_SECONDS), "few steps have been seen")
        return max(PAUSE_SECONDS, 0.0 if usual is None else usual[0]), f"as {pause} may hold it up"

    def _usual(self, own: _Rank) -> Optional[tuple[float, str]]:
        if self._bounds.step is not None:
            return self._bounds.step, "as monitor.stall_seconds says"
        if len(own.took) < LEAST_STEPS:
            return None
        median = statistics.median(own.took)
        return max(LEAST_SECONDS, MEDIANS * median, median + MORE_SECONDS), f"the median step took {median:.2f} s"


def first_bound(wanted: float, seen: Sequence[float]) -> float:
    """Seconds to the first step: `wanted`, or less when earlier attempts needed less. seen: their seconds.

    >>> first_bound(3600, []), first_bound(3600, [100.0]), first_bound(3600, [100.0, 400.0])
    (3600, 900.0, 1200.0)
    """
    return min(wanted, max(FIRST_LEAST_SECONDS, FIRST_FACTOR * max(seen))) if seen else wanted
