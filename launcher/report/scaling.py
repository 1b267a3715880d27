"""The same experiment at several sizes: what a GPU delivers at each, against the smallest and against the article's 97 %."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from launcher.issue import Issue, Refused, Severity
from launcher.report.measured import Report
from launcher.report.page import Draw, page_of, svg
from launcher.report.text import rounded
from launcher.report.window import interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ARTICLE = (1024, 0.97)
"""GPUs and efficiency of NVIDIA's article on dropless MoE in JAX (facts/article.md)."""

FEWEST_COMMON = 6
"""Steps below which the runs' own windows are taken: an interval needs as many (window.interval)."""


@dataclass(frozen=True)
class Size:
    """One run. efficiency: tokens/s/GPU over the smallest run's; predicted: the same of the plans. low, high: 95 % interval."""

    run: str
    gpus: int
    seconds: float
    steps: int
    tflops: float | None
    rate: float
    efficiency: float
    low: float | None
    high: float | None
    predicted: float | None


@dataclass(frozen=True)
class Scaling:
    """Runs by size. matched: all windows hold the same steps. weak: every run gives a GPU as many tokens a step."""

    sizes: Sequence[Size]
    matched: bool
    weak: bool


def scaling(reports: Sequence[Report]) -> Scaling:
    """The runs side by side. Raises Refused: fewer than two sizes, or a run that measured nothing."""
    issues = [
        Issue(
            "SCALING",
            Severity.ERROR,
            "",
            f"{one.run} has no step to measure",
            "name runs that trained ten steps or more",
        )
        for one in reports
        if one.window is None or not one.asked.tokens or not one.asked.gpus
    ]
    if not issues and len({one.asked.gpus for one in reports}) < 2:
        message = f"all of these runs have {reports[0].asked.gpus} GPUs: scaling wants two sizes or more"
        issues = [Issue("SCALING", Severity.ERROR, "", message, "`compare` is for runs of one size")]
    if issues:
        raise Refused(*issues)
    ordered = sorted(reports, key=lambda one: (one.asked.gpus, one.run))
    common = set.intersection(*({step.step for step in one.window.counted} for one in ordered if one.window))
    matched = len(common) >= FEWEST_COMMON
    measured = [_measured(one, common if matched else None) for one in ordered]
    return Scaling(
        [_size(one, own, ordered[0], measured[0]) for one, own in zip(ordered, measured, strict=True)],
        matched,
        len({one.asked.tokens for one in ordered}) == 1,
    )


@dataclass(frozen=True)
class _Measured:
    seconds: float
    half: float | None
    steps: int


def _measured(report: Report, common: set[int] | None) -> _Measured:
    assert report.window is not None
    seconds = [step.seconds for step in report.window.counted if common is None or step.step in common]
    _, high = interval(seconds)
    mean = statistics.fmean(seconds)
    return _Measured(mean, None if high is None else (high - mean) / mean, len(seconds))


def _size(report: Report, own: _Measured, first: Report, least: _Measured) -> Size:
    asked, base = report.asked, first.asked
    rate, base_rate = (asked.tokens or 0) / own.seconds, (base.tokens or 0) / least.seconds
    efficiency = rate / base_rate
    half = None if own.half is None or least.half is None else efficiency * math.hypot(own.half, least.half)
    is_first = report is first
    predicted = None
    if asked.expected and base.expected and asked.tokens and base.tokens:
        predicted = (asked.tokens / asked.expected) / (base.tokens / base.expected)
    return Size(
        report.run,
        asked.gpus,
        own.seconds,
        own.steps,
        report.tflops(own.seconds),
        rate,
        efficiency,
        None if half is None or is_first else efficiency - half,
        None if half is None or is_first else efficiency + half,
        predicted,
    )


def scaling_json(found: Scaling) -> dict[str, Any]:
    """For scripts."""
    sizes = [
        {key: rounded(value) if isinstance(value, float) else value for key, value in vars(size).items()}
        for size in found.sizes
    ]
    return {"sizes": sizes, "matched_windows": found.matched, "weak": found.weak, "article": list(ARTICLE)}


def scaling_text(found: Scaling) -> str:
    """A table by size, and what it is worth."""
    rows = [("GPUs", "s/step", "TFLOPS/GPU", "tokens/s/GPU", "efficiency", "predicted", "run")]
    for size in found.sizes:
        bounds = "" if size.low is None else f" ({size.low:.1%} to {size.high:.1%})"
        rows.append(
            (
                f"{size.gpus:,}",
                f"{size.seconds:.4g}",
                "-" if size.tflops is None else f"{size.tflops:,.4g}",
                f"{size.rate:,.0f}",
                f"{size.efficiency:.1%}{bounds}",
                "-" if size.predicted is None else f"{size.predicted:.1%}",
                size.run,
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    steps = {size.steps for size in found.sizes}
    lines.append(
        f"windows: the same {steps.pop()} steps of each"
        if found.matched
        else f"windows: each run's own, fewer than {FEWEST_COMMON} steps are common to all"
    )
    if not found.weak:
        lines.append("a GPU gets another number of tokens in some of them: this is no weak scaling")
    lines.append(f"for comparison: {ARTICLE[1]:.0%} at {ARTICLE[0]:,} GPUs in NVIDIA's article")
    return "\n".join(lines)


def _draw(found: Scaling) -> Draw:
    def draw(axes: Axes) -> None:
        sizes = found.sizes
        gpus = [size.gpus for size in sizes]
        axes.set_xscale("log", base=2)
        errors = [0.0 if size.low is None else size.efficiency - size.low for size in sizes]
        axes.errorbar(
            gpus, [s.efficiency for s in sizes], yerr=errors, marker="o", capsize=3, color="#1b6ca8", label="measured"
        )
        told = [(size.gpus, size.predicted) for size in sizes if size.predicted is not None]
        axes.plot([g for g, _ in told], [p for _, p in told], "--", color="#e08e45", label="predicted")
        axes.plot([ARTICLE[0]], [ARTICLE[1]], "*", markersize=12, color="#c44536", label="NVIDIA's article")
        axes.set_ylim(0, 1.1)
        axes.set_xlabel("GPUs")
        axes.set_ylabel("efficiency")
        axes.set_xticks([*gpus, ARTICLE[0]], [str(number) for number in (*gpus, ARTICLE[0])])
        axes.legend(loc="lower left", fontsize=8)

    return draw


def scaling_page(found: Scaling) -> str:
    """The page. Raises Refused: matplotlib is not installed."""
    return page_of(
        "Scaling",
        scaling_text(found),
        [("Tokens/s/GPU, against the smallest", svg("scaling", _draw(found)))],
        scaling_json(found),
    )
