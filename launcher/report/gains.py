"""How much faster one run is than another, in tokens a second and GPU: no gain inside the noise."""

from __future__ import annotations

from launcher.report.compare import Ratio, Told, of_times


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
