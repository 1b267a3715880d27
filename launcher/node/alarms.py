"""What the steps of a run say that somebody should know: a loss or a gradient that is no number or jumps, a router that
leaves its balance, MoE buffers that fill up, steps that take too long. Fed row by row in bounded memory; numbers.py acts.

The thresholds are our choice, made so that none of the recorded clean runs raises an alarm; where they come from stands
beside each.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import deque
from typing import NamedTuple, Optional

from .steps import JUNK_STEPS
from .table import Row

NAN = "nan"
SPIKE = "loss_spike"
GRADIENT = "grad_spike"
IMBALANCE = "imbalance"
HEADROOM = "headroom"
OVERFLOWING = "overflowing"
SLOW = "slow_step"

LOSS_WINDOW = 128  # steps, as OLMo-core's stability monitor (shared/facts/peers.md section 1)
SPIKE_SIGMAS = 6.0  # the same source; of MAD scaled to a normal distribution's sigma
SPIKE_SHARE = 0.05  # of the median: a flat loss, printed with three digits, has a MAD of zero
_LEAST = 16  # values before a window says anything
_SIGMA = 1.4826  # MAD of a normal distribution -> its standard deviation

# Gradient norms vary far more than losses: a single batch may double one. What ruins a run is of another size.
GRADIENT_FACTOR = 3.0  # times the median

LOAD_WINDOW = 128  # steps before the newest ones
LOAD_STEPS = 16  # the newest ones: a router that moves for a few steps is none that has left its balance
LOAD_FACTOR = 1.5  # times the median: the busiest rank's experts, and so the step, take that much longer
_LOAD = "moe_max_load_ratio"  # maxtext 0.2.5 common/metric_logger.py, on the step line with log_moe_max_load_ratio

WARN_SHARE = 0.9  # of the receive buffers' rows; the margin of a cured factor starts at 0.8 (overflow.MARGIN)
REARM_SHARE = 0.85  # below it the next crossing is told again
TREND_WINDOW = 50  # steps
HORIZON = 1000  # steps ahead: an overflow that the trend brings later is not told yet

SLOW_FACTOR = 3.0  # times the median; the recorded fast runs vary by a factor of 2
SLOW_SECONDS = 2.0  # and by at least so much
PACE_WINDOW = 50  # steps


class Alarm(NamedTuple):
    """One thing that somebody should know. at: Unix seconds, None = the line had no time. text: one line.

    since: the first step whose update may be what went wrong, so that a checkpoint of it is not clean; None = none is.
    """

    kind: str
    step: int
    at: Optional[float]
    text: str
    since: Optional[int] = None


class Sound:
    """A loss or a gradient norm that is no number."""

    def __init__(self) -> None:
        self._attempt = 0
        self._was_sound = True
        self._sound_update = -1  # the newest step whose gradient is known to be a number

    def feed(self, row: Row) -> Alarm | None:
        """The alarm of one step; what stays NaN is told once an attempt."""
        if row.attempt != self._attempt:
            self._attempt, self._was_sound, self._sound_update = row.attempt, True, -1
        seen = [
            (name, value)
            for name, value in (("loss", row.loss), ("gradient norm", row.grad_norm))
            if value is not None and not math.isfinite(value)
        ]
        if not seen:
            if row.loss is not None:
                self._was_sound = True
            if row.grad_norm is not None:
                self._sound_update = row.step
            return None
        was_sound, self._was_sound = self._was_sound, False
        if not was_sound:
            return None
        name, value = seen[0]
        # A loss is that of the weights before the step's own update: unless the update before it is known to be sound,
        # that one may have ruined them.
        since = row.step - 1 if name == "loss" and self._sound_update != row.step - 1 else row.step
        return Alarm(NAN, row.step, row.at, f"the {name} is {value} at step {row.step}", max(since, 0))


class Spikes:
    """Jumps far beyond the newest values of one number."""

    def __init__(self, kind: str, name: str, share: float, back: int) -> None:
        """share: of the median, by which a spike is above it at least. back: Alarm.since, in steps before the spike."""
        self._kind, self._name, self._share, self._back = kind, name, share, back
        self._steps: deque[int] = deque(maxlen=LOSS_WINDOW)
        self._window: deque[float] = deque(maxlen=LOSS_WINDOW)

    def feed(self, row: Row, value: float | None) -> Alarm | None:
        """The alarm of one step."""
        if value is None or not math.isfinite(value):
            return None
        while self._steps and self._steps[-1] >= row.step:  # an earlier attempt's, that did not come to count
            self._steps.pop()
            self._window.pop()
        alarm = self._spike(row, value)
        self._steps.append(row.step)
        self._window.append(value)
        return alarm

    def _spike(self, row: Row, value: float) -> Alarm | None:
        # A jump of six sigma is above all that was seen: that is cheap to ask first, and a plateau alarms but once.
        if len(self._window) < _LEAST or value <= max(self._window):
            return None
        median = statistics.median(self._window)
        sigma = _SIGMA * statistics.median(abs(seen - median) for seen in self._window)
        if value - median <= max(SPIKE_SIGMAS * sigma, self._share * abs(median)):
            return None
        text = (
            f"{self._name} {value:.3f} at step {row.step}: the median of the {len(self._window)} before is {median:.3f}"
        )
        return Alarm(self._kind, row.step, row.at, f"{text} (robust sigma {sigma:.3f})", max(row.step - self._back, 0))


class Balance:
    """How much more than before the router gives to the busiest rank."""

    def __init__(self) -> None:
        self._steps: deque[int] = deque(maxlen=LOAD_WINDOW + LOAD_STEPS)
        self._loads: deque[float] = deque(maxlen=LOAD_WINDOW + LOAD_STEPS)
        self._told = False

    def feed(self, row: Row) -> Alarm | None:
        """The alarm of one step; told once until the load is usual again."""
        load = _load(row)
        if load is None or not math.isfinite(load):
            return None
        while self._steps and self._steps[-1] >= row.step:
            self._steps.pop()
            self._loads.pop()
        self._steps.append(row.step)
        self._loads.append(load)
        # What is less than that above the least of all is so above their median, too: that is cheap to ask.
        if len(self._loads) < _LEAST + LOAD_STEPS or (not self._told and load < LOAD_FACTOR * min(self._loads)):
            return None
        loads = list(self._loads)
        usual, newest = statistics.median(loads[:-LOAD_STEPS]), statistics.median(loads[-LOAD_STEPS:])
        was, self._told = self._told, newest >= LOAD_FACTOR * usual
        if was or not self._told:
            return None
        more = f"{newest / usual:.2f} times that of the {len(loads) - LOAD_STEPS} steps before"
        text = f"the busiest rank's MoE load is {more} (median of {LOAD_STEPS} steps, at step {row.step})"
        return Alarm(IMBALANCE, row.step, row.at, text, self._steps[-LOAD_STEPS])


def _load(row: Row) -> float | None:
    """The busiest rank's share of the tokens, in units that are the same for all steps of a run.

    MaxText's ratio to the mean where it prints that; else the rows that TE's busiest rank receives. Those of a balanced
    router are as many at each step, so that they need not be known.
    """
    if row.others and _LOAD in row.others:
        ratio = json.loads(row.others).get(_LOAD)
        if ratio is not None:
            return float(ratio)
    return row.demand or None


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
        self._sound = Sound()
        # A loss shows what the update before it did; a gradient's norm is that of the step's own update.
        self._loss = Spikes(SPIKE, "loss", SPIKE_SHARE, 1)
        self._gradient = Spikes(GRADIENT, "gradient norm", GRADIENT_FACTOR - 1, 0)
        self._balance = Balance()
        self._headroom = Headroom()
        self._pace = Pace()

    def feed(self, row: Row, excused: bool = False) -> list[Alarm]:
        """The alarms of one step; excused: as for Pace."""
        found = (
            self._sound.feed(row),
            self._loss.feed(row, row.loss),
            self._gradient.feed(row, row.grad_norm),
            self._balance.feed(row),
            self._headroom.feed(row),
            self._pace.feed(row, excused),
        )
        return [alarm for alarm in found if alarm is not None]
