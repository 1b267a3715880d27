"""Runs side by side, as `report --json` tells them: how much faster, on how sure a footing, and whether within limits of a golden one.

Nothing is called faster or slower whose interval of the ratio holds 1.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.issue import Issue, Refused, Severity

Told = Mapping[str, Any]
"""What `report --json` prints."""

LIMITS = {"time": 0.05, "memory": 0.05, "loss": 0.01}
"""How much worse than golden is still good, as a share: seconds a step and memory as in Megatron-Bridge's golden tests (5 %,
facts/peers.md section 1); loss: the mean difference over common steps, relative to golden's (our choice: a tenth of what
separates two learning rates on the recorded runs)."""


@dataclass(frozen=True)
class Ratio:
    """b over a. low, high: the 95 % interval, None where one side has too few steps."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def unsure(self) -> str:
        """Why neither is called faster; "" = one is."""
        if self.low is None or self.high is None:
            return "too few steps to tell"
        return "no difference beyond the noise" if self.low <= 1 <= self.high else ""

    @property
    def verdict(self) -> str:
        """In words about b's time."""
        return self.unsure or f"{abs(1 - self.value):.1%} {'slower' if self.value > 1 else 'faster'}"


def of_times(a: Told, b: Told) -> Ratio | None:
    """Seconds a step of b over a's; None when one of them measured nothing."""
    one, two = a.get("speed"), b.get("speed")
    if not one or not two:
        return None
    x, y = one["mean"]["seconds"], two["mean"]["seconds"]
    halves = []
    for speed, mean in ((one, x), (two, y)):
        edge = speed.get("slowest_of_interval")
        if edge is None:
            return Ratio(y / x)
        halves.append((edge["seconds"] - mean) / mean)
    half = y / x * math.hypot(*halves)  # relative errors of a quotient add in squares
    return Ratio(y / x, y / x - half, y / x + half)


def of_losses(a: Told, b: Told) -> tuple[float, int] | None:
    """Mean of |b - a| / |a| over the steps that both have, and how many these are; None without a common step."""
    other = dict(map(tuple, b.get("loss") or ()))
    shares = [
        abs(other[step] - value) / abs(value)
        for step, value in a.get("loss") or ()
        if value and other.get(step) is not None
    ]
    return (statistics.fmean(shares), len(shares)) if shares else None


def of_memory(a: Told, b: Told) -> float | None:
    """XLA's own estimates, b over a; MaxText prints them to 0.1 GiB, so that two small ones are 0 and equal."""
    one, two = ((told.get("memory_bytes") or {}).get("compiled") for told in (a, b))
    if one is None or two is None:
        return None
    return 1.0 if one == two else two / one if one else None


def read_golden(path: Path) -> Told:
    """A file that `report RUN --json` wrote. Raises Refused: it is none."""
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Refused(_issue(f"{path} cannot be read: {error}")) from error
    if not isinstance(told, dict) or not {"run", "speed", "loss", "memory_bytes"} <= told.keys():
        raise Refused(_issue(f"{path} holds no report"))
    return told


def _issue(message: str) -> Issue:
    hint = "write one: python -m launcher report RUN --json > golden.json"
    return Issue("GOLDEN", Severity.ERROR, "", message, hint)


@dataclass(frozen=True)
class Check:
    """One limit. seen: in words. passed: None = it could not be judged, which counts as failed."""

    name: str
    seen: str
    passed: bool | None


def verify(told: Told, golden: Told, limits: Mapping[str, float]) -> list[Check]:
    """A run against a golden one. Faster, smaller is always good; a loss may differ either way, but not by more."""
    found = [Check("finished", f"{told.get('state')}, step {told.get('last_step')}", told.get("state") == "finished")]
    ratio, limit = of_times(golden, told), limits["time"]
    if ratio is None:
        found.append(Check("time", "one of the two has no step to measure", None))
    else:
        seen = f"{ratio.value:.4f} of golden's seconds a step, at most {1 + limit:g} ({ratio.verdict})"
        # Within the noise a limit is not judged to be passed over.
        least = ratio.value if ratio.low is None else ratio.low
        found.append(Check("time", seen, least <= 1 + limit))
    memory, limit = of_memory(golden, told), limits["memory"]
    if memory is None:
        found.append(Check("memory", "XLA's estimate is missing in one of the two", None))
    else:
        found.append(Check("memory", f"{memory:.4f} of golden's, at most {1 + limit:g}", memory <= 1 + limit))
    loss, limit = of_losses(golden, told), limits["loss"]
    if loss is None:
        found.append(Check("loss", "no step is common to both", None))
    else:
        found.append(
            Check("loss", f"{loss[0]:.4%} off over {loss[1]} common steps, at most {limit:.4g}", loss[0] <= limit)
        )
    return found


def verify_text(checks: Sequence[Check]) -> str:
    """A line a limit."""
    words = {True: "passed", False: "FAILED", None: "UNKNOWN"}
    return "\n".join(f"{words[check.passed]:<8} {check.name:<9} {check.seen}" for check in checks)


def compare_json(told: Sequence[Told]) -> list[dict[str, Any]]:
    """Each of them beside the first."""
    found = []
    for one in told:
        ratio, loss, speed = of_times(told[0], one), of_losses(told[0], one), one.get("speed") or {}
        found.append(
            {
                "run": one["run"],
                "seconds": (speed.get("mean") or {}).get("seconds"),
                "tflops_per_gpu": (speed.get("mean") or {}).get("tflops_per_gpu"),
                "tokens_per_s_per_gpu": (speed.get("mean") or {}).get("tokens_per_s_per_gpu"),
                "steps": speed.get("steps", 0),
                "ratio": None if ratio is None else ratio.value,
                "ratio_low": None if ratio is None else ratio.low,
                "ratio_high": None if ratio is None else ratio.high,
                "verdict": "" if one is told[0] else "not measured" if ratio is None else ratio.verdict,
                "loss_difference": None if loss is None else loss[0],
                "memory_ratio": of_memory(told[0], one),
                "goodput": one["goodput"]["share"]["productive"],
            }
        )
    return found


_HEADS = ("run", "s/step", "TFLOPS/GPU", "tokens/s/GPU", "steps", "time / first", "loss off", "memory", "verdict")


def compare_text(told: Sequence[Told]) -> str:
    """A table, the first run on top; every other beside it."""

    def number(value: float | None, form: str) -> str:
        return "-" if value is None else form.format(value)

    rows = [list(_HEADS)]
    for one in compare_json(told):
        bounds = "" if one["ratio_low"] is None else f" ({one['ratio_low']:.3f} to {one['ratio_high']:.3f})"
        rows.append(
            [
                one["run"],
                number(one["seconds"], "{:.4g}"),
                number(one["tflops_per_gpu"], "{:,.4g}"),
                number(one["tokens_per_s_per_gpu"], "{:,.0f}"),
                str(one["steps"]),
                "1" if not one["verdict"] else number(one["ratio"], "{:.3f}") + bounds,
                number(one["loss_difference"], "{:.2%}"),
                number(one["memory_ratio"], "{:.3f}"),
                one["verdict"] or "(the first)",
            ]
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADS))]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
