"""What the steps of a run say that somebody should know: a loss that is no number or jumps, MoE buffers that fill up,
steps that take too long. Fed row by row in bounded memory; nothing is done about it here.

The thresholds are our choice, made so that none of the recorded clean runs raises an alarm; where they come from stands
beside each.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from typing import NamedTuple

from .steps import JUNK_STEPS
from .table import Row

NAN = "nan"
SPIKE = "loss_spike"
HEADROOM = "headroom"
OVERFLOWING = "overflowing"
SLOW = "slow_step"

LOSS_WINDOW = 128  # steps, as OLMo-core's stability monitor (shared/facts/peers.md section 1)
SPIKE_SIGMAS = 6.0  # the same source; of MAD scaled to a normal distribution's sigma
SPIKE_SHARE = 0.05  # of the median: a flat loss, printed with three digits, has a MAD of zero
_LEAST = 16  # values before a window says anything
_SIGMA = 1.4826  # MAD of a normal distribution -> its standard deviation

WARN_SHARE = 0.9  # of the receive buffers' rows; the margin of a cured factor starts at 0.8 (overflow.MARGIN)
REARM_SHARE = 0.85  # below it the next crossing is told again
TREND_WINDOW = 50  # steps
HORIZON = 1000  # steps ahead: an overflow that the trend brings later is not told yet

SLOW_FACTOR = 3.0  # times the median; the recorded fast runs vary by a factor of 2
SLOW_SECONDS = 2.0  # and by at least so much
PACE_WINDOW = 50  # steps


class Alarm(NamedTuple):
    """One thing that somebody should know. at: Unix seconds, None = the line had no time. text: one line."""

    kind: str
    step: int
    at: float | None
    text: str


class Loss:
    """NaN, Inf, and jumps far beyond the newest losses."""

    def __init__(self) -> None:
        self._window: deque[float] = deque(maxlen=LOSS_WINDOW)
        self._was_sound = True

    def feed(self, row: Row) -> Alarm | None:
        """The alarm of one step; a loss that stays NaN is told once."""
        loss = row.loss
        if loss is None:
            return None
        if not math.isfinite(loss):
            was_sound, self._was_sound = self._was_sound, False
            return Alarm(NAN, row.step, row.at, f"the loss is {loss} at step {row.step}") if was_sound else None
        self._was_sound = True
        alarm = self._spike(row, loss)
        self._window.append(loss)
        return alarm

    def _spike(self, row: Row, loss: float) -> Alarm | None:
        # A jump of six sigma is above all that was seen: that is cheap to ask first, and a plateau alarms but once.
        if len(self._window) < _LEAST or loss <= max(self._window):
            return None
        median = statistics.median(self._window)
        sigma = _SIGMA * statistics.median(abs(value - median) for value in self._window)
        if loss - median <= max(SPIKE_SIGMAS * sigma, SPIKE_SHARE * abs(median)):
            return None
        text = f"loss {loss:.3f} at step {row.step}: the median of the {len(self._window)} before is {median:.3f}"
        return Alarm(SPIKE, row.step, row.at, f"{text} (robust sigma {sigma:.3f})")


class Headroom:
    """How full the busiest rank's MoE receive buffer is."""

    def __init__(self) -> None:
        self._shares: deque[float] = deque(maxlen=TREND_WINDOW)
        self._warned = False
        self._overflowing = False

    def feed(self, row: Row) -> Alarm | None:
        """The alarm of one step: it overflows, or it is nearly full and its trend says that it will."""
        if row.demand is None or not row.capacity:
            return None
        share = row.demand / row.capacity
        self._shares.append(share)
        said = f"{row.demand:.0f} of {row.capacity:.0f} rows ({share:.1%}) of the MoE receive buffer at step {row.step}"
        if share > 1:
            was, self._overflowing = self._overflowing, True
            text = f"{said}: tokens are dropped; MaxText ends the run at its next check"
            return None if was else Alarm(OVERFLOWING, row.step, row.at, text)
        self._overflowing = False
        if share < REARM_SHARE:
            self._warned = False
        slope = self._slope()
        if share < WARN_SHARE or self._warned or slope <= 0 or (1 - share) / slope > HORIZON:
            return None
        self._warned = True
        left = math.ceil((1 - share) / slope)
        return Alarm(
            HEADROOM, row.step, row.at, f"{said}, rising by {slope:.3%} a step: it overflows in about {left} steps"
        )

    def _slope(self) -> float:
        """Share per step: from the medians of the two halves of the window, so that single steps count little."""
        half = len(self._shares) // 2
        if 2 * half < _LEAST:
            return 0.0
        values = list(self._shares)
        return (statistics.median(values[-half:]) - statistics.median(values[:half])) / (len(values) - half)


class Pace:
    """Steps that take far longer than the newest ones."""

    def __init__(self) -> None:
        self._window: deque[float] = deque(maxlen=PACE_WINDOW)
        self._attempt = 0
        self._seen = 0
        self._last: float | None = None

    def feed(self, row: Row, excused: bool = False) -> Alarm | None:
        """The alarm of one step. excused: a checkpoint, an evaluation or the profiler came in between."""
        if row.attempt != self._attempt:
            self._attempt, self._seen, self._last = row.attempt, 0, None
            self._window.clear()
        self._seen += 1
        last, self._last = self._last, row.at
        took = row.at - last if row.at is not None and last is not None else row.seconds
        if took is None or self._seen <= JUNK_STEPS or excused:
            return None
        alarm = None
        if len(self._window) >= _LEAST:
            median = statistics.median(self._window)
            if took > max(SLOW_FACTOR * median, median + SLOW_SECONDS):
                text = (
                    f"step {row.step} took {took:.1f} s: the median of the {len(self._window)} before is {median:.3f} s"
                )
                alarm = Alarm(SLOW, row.step, row.at, text)
        self._window.append(took)
        return alarm


class Alarms:
    """All of them over the steps of a run, in the order of attempts and steps."""

    def __init__(self) -> None:
        self._loss = Loss()
        self._headroom = Headroom()
        self._pace = Pace()

    def feed(self, row: Row, excused: bool = False) -> list[Alarm]:
        """The alarms of one step; excused: as for Pace."""
        found = (self._loss.feed(row), self._headroom.feed(row), self._pace.feed(row, excused))
        return [alarm for alarm in found if alarm is not None]
