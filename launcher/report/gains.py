"""How much faster one run is than another, in tokens a second and GPU: no gain inside the noise."""

from __future__ import annotations

from dataclasses import dataclass

from launcher.report.compare import Told, of_times


@dataclass(frozen=True)
class Gain:
    """Speed of b over a's. low, high: its 95 % interval, None where one of them has too few steps."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def verdict(self) -> str:
        """In words, of b."""
        if self.low is None or self.high is None:
            return "too few steps to tell"
        if self.low <= 1 <= self.high:
            return "no difference beyond the noise"
        return "faster" if self.value > 1 else "slower"


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
