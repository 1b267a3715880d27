"""How much faster one run is than another, in tokens a second and GPU: no gain inside the noise."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from launcher.report.compare import Ratio, Told, of_times
from launcher.report.window import half_of


class Gain(Ratio):
    """Speed of b over a's: above 1 b is faster."""

    @property
    def verdict(self) -> str:
        """In words, of b."""
        return self.unsure or ("faster" if self.value > 1 else "slower")


def gain(a: Told, b: Told) -> Gain | None:
    """b against a; None when one of them measured nothing.

    Where both tell their tokens, a step of more tokens may take longer; else equal steps are taken for granted.
    """
    ratio = of_times(a, b)
    if ratio is None:
        return None
    x, y = ((told.get("per_step_and_gpu") or {}).get("tokens") for told in (a, b))
    share = y / x if x and y else 1.0
    if ratio.low is None or ratio.high is None:
        return Gain(share / ratio.value)
    # A lower bound at or below 0 (an interval wider than the mean) leaves the gain without an upper one.
    return Gain(share / ratio.value, share / ratio.high, share / ratio.low if ratio.low > 0 else float("inf"))


def of_rounds(a: Sequence[Told], b: Sequence[Told]) -> Gain | None:
    """b's runs against a's, round by round, so that a machine that slows down slows both; None where nothing was measured.

    The interval is that of the rounds' gains, which knows the noise between runs; it is no narrower than the steps of all of
    them make it. Of one round it is that run's own.
    """
    gains = [found for one, two in zip(a, b, strict=False) if (found := gain(one, two)) is not None]
    if not gains:
        first = [next((told for told in some if told.get("speed")), None) for some in (a, b)]
        return gain(first[0], first[1]) if first[0] and first[1] else None
    if len(gains) == 1:
        return gains[0]
    values = [found.value for found in gains]
    value = statistics.fmean(values)
    own = [found.value - found.low for found in gains if found.low is not None]
    half = max(half_of(values), math.hypot(*own) / len(own) if own else 0.0)
    return Gain(value, value - half, value + half)
