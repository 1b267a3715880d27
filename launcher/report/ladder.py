"""The ladder as a table and a picture: what each rung was predicted to give, what it gave, and NVIDIA's article beside it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from launcher.report.compare import Told
from launcher.report.gains import Gain, of_rounds
from launcher.report.page import Draw, page_of, svg
from launcher.report.text import rounded

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ARTICLE = (103.0, 1068.0)
"""TFLOPS/GPU of NVIDIA's article before and after: DeepSeek-V3 671B on 128 GB200 (facts/article.md)."""

_MOST = ARTICLE[1] / ARTICLE[0]
_BAR = 0.38  # of a rung's room, which is 1


@dataclass(frozen=True)
class Step:
    """One rung. words: what it changes. left_out: why it is not on the ladder. rounds: what `report --json` says of its run in
    each round, nothing where there is none.

    expected: seconds a step by its plan; is_predicted: the plan's formula knows what this rung changes. flop, tokens: of a
    step and GPU, None = not known.
    """

    name: str
    words: tuple[str, ...] = ()
    adds: str = ""
    left_out: str = ""
    expected: float | None = None
    is_predicted: bool = True
    flop: float | None = None
    tokens: float | None = None
    rounds: Sequence[Told] = ()

    @property
    def runs(self) -> list[Told]:
        """Those that there are."""
        return [told for told in self.rounds if told]

    @property
    def state(self) -> str:
        """Of its runs, each state once; "" = there is none."""
        return ", ".join(dict.fromkeys(str(told["state"]) for told in self.runs))

    @property
    def measured(self) -> list[float]:
        """Seconds a step of each run that measured some."""
        return [told["speed"]["mean"]["seconds"] for told in self.runs if told.get("speed")]

    @property
    def seconds(self) -> float | None:
        """Measured, a step: the mean of the runs."""
        return statistics.fmean(self.measured) if self.measured else None

    def tflops(self, seconds: float | None) -> float | None:
        """Of a GPU."""
        return self.flop / seconds / 1e12 if self.flop and seconds else None


@dataclass(frozen=True)
class Row:
    """A step beside the measured one before (`against`) and the first measured one.

    predicted: speed over that one's, or over that of the first that can run while nothing is measured.
    """

    step: Step
    predicted: float | None = None
    against: str = ""
    gain: Gain | None = None
    total: Gain | None = None


def of_told(told: Told) -> Step:
    """A rung made of a run that somebody named."""
    each = told["per_step_and_gpu"]
    return Step(
        name=told["run"],
        expected=told["predicted"]["expected_s"],
        flop=each["flop"],
        tokens=each["tokens"],
        rounds=(told,),
    )


def rows(steps: Sequence[Step]) -> list[Row]:
    """Every step beside those before; what is left out is beside nothing."""
    found: list[Row] = []
    told = [step for step in steps if not step.left_out]
    first = before = next((step for step in told if step.seconds), None)
    expected = [step for step in (first, *told, *steps) if step is not None and step.expected]
    base = expected[0] if expected else None
    for step in steps:
        predicted = _speed(step) / _speed(base) if base and step.expected and step.is_predicted else None
        if step.left_out or not step.seconds or first is None or before is None:
            found.append(Row(step, predicted))
            continue
        if step is first:
            found.append(Row(step, predicted, total=Gain(1.0, 1.0, 1.0)))
            continue
        gains = (of_rounds(one.rounds, step.rounds) for one in (before, first))
        found.append(Row(step, predicted, before.name, *gains))
        before = step
    return found


def _speed(step: Step) -> float:
    """Predicted tokens a second and GPU, or steps where tokens are not known."""
    return (step.tokens or 1.0) / (step.expected or 1.0)


def _gain_json(found: Gain | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "value": rounded(found.value),
        "low": rounded(found.low),
        "high": rounded(found.high),
        "verdict": found.verdict,
    }


def ladder_json(steps: Sequence[Step]) -> dict[str, Any]:
    """For scripts."""
    rungs = []
    for row in rows(steps):
        step = row.step
        rungs.append(
            {
                "rung": step.name,
                "words": list(step.words),
                "adds": step.adds,
                "left_out": step.left_out,
                "predicted_seconds": rounded(step.expected),
                "predicted_tflops_per_gpu": rounded(step.tflops(step.expected)),
                "predicted_speed": rounded(row.predicted),
                "run": step.runs[0]["run"] if step.runs else "",
                "state": step.state,
                "runs": [
                    {
                        "run": told["run"],
                        "state": told["state"],
                        "seconds": told["speed"]["mean"]["seconds"] if told.get("speed") else None,
                    }
                    for told in step.runs
                ],
                "seconds": rounded(step.seconds),
                "tflops_per_gpu": rounded(step.tflops(step.seconds)),
                "against": row.against,
                "gain": _gain_json(row.gain),
                "gain_over_first": _gain_json(row.total) if row.against else None,
            }
        )
    return {"rungs": rungs, "article_tflops_per_gpu": list(ARTICLE)}


_HEADS = ("rung", "predicted s", "TFLOPS/GPU", "speed", "measured s", "TFLOPS/GPU", "gain", "speed", "")


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _range(seconds: Sequence[float]) -> str:
    if len(seconds) < 2:
        return _number(seconds[0] if seconds else None, "{:.4g}")
    return f"{statistics.fmean(seconds):.4g} ({len(seconds)} runs: {min(seconds):.4g} to {max(seconds):.4g})"


def _bounded(found: Gain | None) -> str:
    if found is None:
        return "-"
    bounds = "" if found.low is None else f" ({found.low:.3g} to {found.high:.3g})"
    return f"x{found.value:.3g}{bounds}"


def _cells(row: Row) -> tuple[str, ...]:
    step = row.step
    if step.left_out:
        verdict = "left out"
    elif row.gain is not None:
        verdict = row.gain.verdict
    elif step.seconds:
        verdict = "the first"
    else:
        verdict = f"{step.state}, nothing measured yet" if step.state else "not run"
    return (
        step.name,
        _number(step.expected, "{:.4g}"),
        _number(step.tflops(step.expected), "{:,.4g}"),
        _number(row.predicted, "x{:.3g}"),
        _range(step.measured),
        _number(step.tflops(step.seconds), "{:,.4g}"),
        _bounded(row.gain),
        "x1" if not row.against and row.total else _bounded(row.total),
        verdict,
    )


def ladder_text(steps: Sequence[Step]) -> str:
    """A table, then what each rung is and why others are left out."""
    table = [_HEADS, *map(_cells, rows(steps))]
    widths = [max(len(line[column]) for line in table) for column in range(len(_HEADS))]
    lines = ["  ".join(f"{c:<{w}}" for c, w in zip(line, widths, strict=True)).rstrip() for line in table]
    lines.append(
        "gain: over the measured rung before, 95 % interval; speed: over the first rung; tokens a second and GPU"
        + ("; of runs of one round each against each other" if any(len(step.measured) > 1 for step in steps) else "")
    )
    if any(step.expected and not step.is_predicted for step in steps):
        names = ", ".join(step.name for step in steps if step.expected and not step.is_predicted)
        lines.append(f"predicted: the formula does not know what {names} changes, its seconds are those of the rest")
    lines.append(
        f"for comparison: {ARTICLE[0]:g} -> {ARTICLE[1]:,g} TFLOPS/GPU (x{_MOST:.1f}), DeepSeek-V3 on 128 GB200 in "
        "NVIDIA's article; it prints no rung in between"
    )
    for step in steps:
        about = [f"  {line}" for line in (step.adds, f"left out: {step.left_out}" if step.left_out else "") if line]
        if about or step.words:
            lines += ["", f"{step.name}: {' '.join(step.words) or 'nothing to type'}", *about]
        lines += [f"  run {told['run']}: {told['state']}" for told in step.runs] if about else []
    return "\n".join(lines)


def _draw(steps: Sequence[Step]) -> Draw:
    found = [row for row in rows(steps) if not row.step.left_out]

    def draw(axes: Axes) -> None:
        told = [(place, row.predicted) for place, row in enumerate(found) if row.predicted is not None]
        axes.bar(
            [place - _BAR / 2 for place, _ in told],
            [value for _, value in told],
            _BAR,
            color="#f3c98b",
            label="predicted",
        )
        measured = [(place, row.total, row.step) for place, row in enumerate(found) if row.total is not None]
        bars = axes.bar(
            [place + _BAR / 2 for place, _, _ in measured],
            [total.value for _, total, _ in measured],
            _BAR,
            color="#1b6ca8",
            label="measured",
            yerr=[
                [0.0 if t.low is None else t.value - t.low for _, t, _ in measured],
                [0.0 if t.high is None else t.high - t.value for _, t, _ in measured],
            ]
            if measured
            else None,
            capsize=3,
        )
        axes.bar_label(bars, [_number(step.tflops(step.seconds), "{:,.4g}") for _, _, step in measured], fontsize=8)
        axes.axhline(_MOST, color="#c44536", linewidth=1, linestyle="--")
        axes.text(0, _MOST, f"NVIDIA's article: {ARTICLE[0]:g} -> {ARTICLE[1]:,g} TFLOPS/GPU", va="bottom", fontsize=8)
        axes.set_xticks(range(len(found)), [row.step.name for row in found])
        axes.set_ylim(0, 1.12 * max(_MOST, *(value for _, value in told), *(t.value for _, t, _ in measured), 1.0))
        axes.set_ylabel("speed, times the first")
        axes.legend(loc="center left", fontsize=8)

    return draw


def ladder_page(title: str, steps: Sequence[Step]) -> str:
    """The page. Raises Refused: matplotlib is not installed."""
    plots = [("Speed by rung; over the bars: measured TFLOPS/GPU", svg("ladder", _draw(steps), 3.4))]
    return page_of(title, ladder_text(steps), plots, ladder_json(steps))
