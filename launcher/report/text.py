"""A report for a terminal and for scripts."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from launcher.node import rollback
from launcher.report.measured import GIB, Report, finite
from launcher.report.window import Window
from launcher.runs.figures import duration

_SIGNIFICANT = 5


def rounded(value: float | None, digits: int = _SIGNIFICANT) -> float | None:
    """To so many significant digits; None for what is no number.

    >>> rounded(1.23456789), rounded(float("nan"))
    (1.2346, None)
    """
    value = finite(value)
    return None if value is None else float(f"{value:.{digits}g}")


def ranges(steps: Sequence[int]) -> str:
    """Steps as a person writes them.

    >>> ranges([1, 2, 3, 7, 9, 10])
    '1-3, 7, 9-10'
    """
    groups: list[list[int]] = []
    for step in steps:
        if groups and step == groups[-1][-1] + 1:
            groups[-1].append(step)
        else:
            groups.append([step])
    return ", ".join(str(group[0]) if len(group) == 1 else f"{group[0]}-{group[-1]}" for group in groups)


def _speed_json(report: Report, found: Window) -> dict[str, Any]:
    def of(seconds: float | None) -> dict[str, Any] | None:
        if seconds is None:
            return None
        return {
            "seconds": rounded(seconds),
            "tflops_per_gpu": rounded(report.tflops(seconds)),
            "mfu": rounded(report.mfu(seconds)),
            "tokens_per_s_per_gpu": rounded(report.rate(seconds)),
        }

    counted = found.counted
    return {
        "attempt": found.attempt,
        "first_step": counted[0].step,
        "last_step": counted[-1].step,
        "steps": len(counted),
        "left_out": {why: list(steps) for why, steps in found.left_out.items()},
        "clock": "log" if found.by_log else "maxtext",
        "mean": of(found.mean),
        "slowest_of_interval": of(found.high),
        "fastest_of_interval": of(found.low),
        "median": of(found.median),
        "with_all_steps": of(found.all_in),
    }


def as_json(report: Report) -> dict[str, Any]:
    """Everything, in SI units; the same run gives the same bytes."""
    asked, found = report.asked, report.window
    return {
        "run": report.run,
        "experiment": report.experiment,
        "state": report.state,
        "target": report.target,
        "model": asked.model,
        "hardware": asked.hardware,
        "gpus": asked.gpus,
        "nodes": asked.nodes,
        "steps": report.steps,
        "last_step": report.last_step,
        "speed": None if found is None else _speed_json(report, found),
        "predicted": {
            "expected_s": asked.expected,
            "low_s": asked.low,
            "high_s": asked.high,
            "measured_over_expected": rounded(found.mean / asked.expected) if found and asked.expected else None,
        },
        "per_step_and_gpu": {"flop": asked.flop, "tokens": asked.tokens, "peak_flops_per_s": asked.peak},
        "memory_bytes": {
            "peak": report.peak,
            "compiled": report.compiled,
            "planned": asked.memory,
            "limit": asked.limit,
        },
        "loss": [[step, finite(value)] for step, value in report.losses],
        "headroom": [[step, rounded(value)] for step, value in report.headroom],
        "goodput": report.goodput.as_json(),
        "attempts": [vars(ended) for ended in report.attempts],
        "adjusted": list(report.adjusted),
        "provenance": dict(report.provenance),
    }


def _figures(report: Report, seconds: float) -> str:
    told = [f"{seconds:.4g} s"]
    for value, form in (
        (report.tflops(seconds) if report.asked.peak else None, "{:,.4g} TFLOPS/GPU"),  # of a CPU nobody asks
        (report.mfu(seconds), "MFU {:.1%}"),
        (report.rate(seconds), "{:,.0f} tokens/s/GPU"),
    ):
        told += [form.format(value)] if value is not None else []
    return ", ".join(told)


def _speed_lines(report: Report) -> list[str]:
    found = report.window
    if found is None:
        return ["speed        no step to measure: the first three of an attempt do not count"]
    counted = found.counted
    lines = [f"step         {_figures(report, found.mean)}"]
    if found.low is not None and found.high is not None:
        lines.append(f"             95 % interval {found.low:.4g} to {found.high:.4g} s; median {found.median:.4g} s")
    clock = "between the log's lines" if found.by_log else "MaxText's own seconds: the log has no times"
    steps = ranges([step.step for step in counted])
    lines.append(f"             {len(counted)} steps of attempt {found.attempt} ({steps}), {clock}")
    if found.left_out:
        told = "; ".join(f"{why} {ranges(steps)}" for why, steps in found.left_out.items())
        lines.append(f"             left out: {told}. With all but the warm-up: {found.all_in:.4g} s")
    expected, asked = report.asked.expected, report.asked
    if expected:
        band = f" ({asked.low:.4g} to {asked.high:.4g})" if asked.low and asked.high else ""
        lines.append(f"predicted    {expected:.4g} s{band}: measured / predicted {found.mean / expected:.3g}")
    return lines


def _loss_lines(report: Report) -> list[str]:
    if not report.losses:
        return []
    first, last = report.losses[0], report.losses[-1]
    tail = [value for _, value in report.losses[-10:]]
    return [
        f"loss         {first[1]:.4g} at step {first[0]} -> {last[1]:.4g} at step {last[0]}"
        f" (mean of the last {len(tail)}: {statistics.fmean(tail):.4g})"
    ]


def _memory_lines(report: Report) -> list[str]:
    asked = report.asked
    told = [
        f"{name} {value / GIB:,.1f} GiB"
        for name, value in (
            ("peak", report.peak),
            ("XLA", report.compiled),
            ("planned", asked.memory),
            ("limit", asked.limit),
        )
        if value and value >= GIB / 20
    ]
    return [f"memory       {', '.join(told)} a GPU"] if told else []


def _start_line(report: Report) -> list[str]:
    """Where the time to the first step went, in the newest attempt that came to one."""
    trained = [ended for ended in report.attempts if ended.first is not None and any(ended.start.values())]
    if not trained:
        return []
    ended = trained[-1]
    told = ", ".join(f"{name} {_seconds(value)}" for name, value in ended.start.items())
    which = f" of attempt {ended.attempt}" if len(report.attempts) > 1 else ""
    return [f"start        {_seconds(sum(ended.start.values()))} to the first step{which}: {told}"]


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value < 60 else duration(value)


def text(report: Report) -> str:
    """The lines of `report RUN`."""
    asked = report.asked
    last = "no step" if report.last_step is None else f"step {report.last_step} of 0..{report.steps - 1}"
    size = f"{asked.gpus} x {asked.hardware}" if asked.gpus else report.target
    lines = [f"{report.run}: {report.state}, {last}; {asked.model or report.experiment} on {size}", ""]
    lines += [*_speed_lines(report), *_loss_lines(report), *_memory_lines(report)]
    if report.headroom:
        step, most = max(report.headroom, key=lambda pair: pair[1])
        lines.append(f"MoE buffers  at most {most:.1%} full (step {step})")
    lines += [f"goodput      {report.goodput.line()}", *_start_line(report)]
    for ended in report.attempts:
        steps = "no step" if ended.first is None else f"steps {ended.first}-{ended.last}"
        lines.append(
            f"attempt {ended.attempt:<4} {steps}, {ended.outcome}{': ' + ended.reason if ended.reason else ''}"
        )
    for entry in report.adjusted:
        lines.append(f"changed      {rollback.told(entry)} after attempt {entry.get('attempt')}")
    versions = report.provenance.get("versions") or {}
    told = [f"{name} {version}" for name, version in versions.items() if version]
    lines += [f"versions     {', '.join(told)}"] if told else []
    return "\n".join(lines)
