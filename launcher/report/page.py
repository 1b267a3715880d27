"""A report as one HTML file that needs nothing else: figures, plots (SVG), attempts, where it comes from. No script."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from launcher.issue import Issue, Refused, Severity
from launcher.report.measured import Report
from launcher.report.text import as_json, text
from launcher.report.trace import Breakdown
from launcher.report.trace_text import trace_json, trace_plot, trace_text
from launcher.report.window import Window
from launcher.runs.goodput import Goodput, Kind

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PAGE = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 1000px; margin: 2em auto; padding: 0 1em; color: #222 }}
h1 {{ font-size: 1.4em }} h2 {{ font-size: 1.1em; margin: 1.6em 0 .3em }} svg {{ width: 100%; height: auto }}
pre {{ font: 12.5px/1.4 ui-monospace, monospace; background: #f6f6f4; padding: 1em; overflow-x: auto }}
summary {{ cursor: pointer; margin: 1.6em 0 .3em; font-weight: 600 }}
</style></head><body>
<h1>{title}</h1>
<pre id="report">{text}</pre>
{plots}
<details><summary>Everything as JSON</summary><pre id="json">{json}</pre></details>
</body></html>
"""

COLOURS = {
    Kind.PRODUCTIVE: "#1a7f37",
    Kind.CHECKPOINT: "#8fbbd9",
    Kind.COMPILE: "#e08e45",
    Kind.START: "#f3c98b",
    Kind.REPLAYED: "#9d4edd",
    Kind.STALLED: "#c44536",
    Kind.DOWN: "#555555",
    Kind.QUEUE: "#bbbbbb",
}
_SIZE = (9.6, 2.6)  # inches, 100 px each
_MOST_POINTS = 2000  # of a line: what a screen shows


def _thinned(points: Sequence[tuple[int, float]]) -> Sequence[tuple[int, float]]:
    every = -(-len(points) // _MOST_POINTS)
    return points if every <= 1 else [*points[::every], points[-1]]


Draw = Callable[["Axes"], None]
"""Draws one plot."""


def _line(axes: Axes, points: Sequence[tuple[int, float]], label: str) -> None:
    thin = _thinned(points)
    axes.plot([step for step, _ in thin], [value for _, value in thin], linewidth=1.2, color="#1b6ca8")
    axes.set_xlabel("step")
    axes.set_ylabel(label)


def _steps(axes: Axes, window: Window, expected: float | None) -> None:
    _line(axes, [(step.step, step.seconds) for step in window.steps], "seconds")
    out = [step for step in window.steps if step.why]
    axes.plot([s.step for s in out], [s.seconds for s in out], "x", color="#c44536", label="left out")
    axes.axhline(window.mean, color="#1a7f37", linewidth=1, label=f"mean {window.mean:.4g} s")
    if expected:
        axes.axhline(expected, color="#e08e45", linewidth=1, linestyle="--", label="predicted")
    axes.set_ylim(bottom=0)
    axes.legend(loc="lower right", fontsize=8)


def _headroom(axes: Axes, shares: Sequence[tuple[int, float]]) -> None:
    _line(axes, shares, "share in use")
    axes.axhline(1, color="#c44536", linewidth=1)
    axes.set_ylim(bottom=0)


def _goodput(axes: Axes, found: Goodput) -> None:
    left = 0.0
    for kind, colour in COLOURS.items():
        share = found.share(kind)
        if share:
            axes.barh([0], [share], left=left, color=colour, label=f"{kind.value} {share:.1%}")
            left += share
    axes.set_xlim(0, 1)
    axes.set_yticks([])
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=4, fontsize=8, frameon=False)


def svg(salt: str, draw: Draw, height: float = _SIZE[1]) -> str:
    """One plot. The same values give the same bytes: ids come from `salt`, and no date is written.

    Raises Refused: matplotlib is not installed.
    """
    try:
        import matplotlib
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    except ImportError as error:
        hint = "pip install 'launcher[report]'; the terminal and --json need nothing"
        message = "the page's plots need matplotlib, which is not here"
        raise Refused(Issue("REPORT_EXTRA", Severity.ERROR, "", message, hint)) from error
    with matplotlib.rc_context({"svg.hashsalt": salt, "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(_SIZE[0], height), layout="constrained")
        FigureCanvasSVG(figure)
        draw(figure.add_subplot())
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    drawn = out.getvalue()
    return drawn[drawn.index("<svg") :]


def page_of(title: str, told: str, plots: Sequence[tuple[str, str]], content: Mapping[str, Any]) -> str:
    """A page of text, plots (heading, SVG) and everything as JSON."""
    return PAGE.format(
        title=escape(title),
        text=escape(told),
        plots="\n".join(f"<h2>{escape(name)}</h2>\n{drawn}" for name, drawn in plots),
        json=escape(json.dumps(content, indent=1)),
    )


def page(report: Report, profile: Breakdown | None = None) -> str:
    """The page of one run, with its profile where there is one. Raises Refused: matplotlib is not installed."""
    window, losses, shares = report.window, report.losses, report.headroom
    plots = []
    if window is not None:
        plots.append(("Seconds a step", svg("steps", lambda axes: _steps(axes, window, report.asked.expected))))
    if losses:
        plots.append(("Loss", svg("loss", lambda axes: _line(axes, losses, "loss"))))
    if shares:
        name = "MoE receive buffer of the busiest rank"
        plots.append((name, svg("headroom", lambda axes: _headroom(axes, shares))))
    if report.goodput.wall:
        plots.append(("Where the time went", svg("goodput", lambda axes: _goodput(axes, report.goodput), 1.4)))
    told, content = text(report), as_json(report)
    if profile is not None:
        height, draw = trace_plot(profile)
        plots.append(("Where the profiled time went, a device a bar", svg("trace", draw, height)))
        told, content = f"{told}\n\n{trace_text(profile)}", content | {"trace": trace_json(profile)}
    return page_of(report.run, told, plots, content)
