"""A plan as one web page: its numbers as stacked bars (SVG), its text, no script and nothing from the network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from launcher.plan.plan import Plan
from launcher.render.plan_numbers import Piece, gib, memory_pieces, time_pieces
from launcher.render.plan_text import plan_text

COLOURS = (
    "#1b6ca8",
    "#8fbbd9",
    "#e08e45",
    "#f3c98b",
    "#6a994e",
    "#b7d3a1",
    "#9d4edd",
    "#d0b3ec",
    "#c44536",
    "#9a9a9a",
    "#555555",
)
"""Fills in order, dark and light in turn so that neighbours differ in print too; every piece has its name beside it."""

WIDTH, HEIGHT, ROW = 960, 44, 22

PAGE = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 1000px; margin: 2em auto; padding: 0 1em; color: #222 }}
h1 {{ font-size: 1.4em }} h2 {{ font-size: 1.1em; margin: 1.6em 0 .3em }} svg {{ width: 100%; height: auto }}
pre {{ font: 12.5px/1.4 ui-monospace, monospace; background: #f6f6f4; padding: 1em; overflow-x: auto }}
.OVER {{ color: #b00020 }} .TIGHT {{ color: #9a6700 }} .FITS {{ color: #1a7f37 }}
</style></head><body>
<h1>{title}</h1>
<p>{description}</p>
{bars}
<h2>In words</h2>
<pre>{text}</pre>
</body></html>
"""


def _svg(pieces: Sequence[Piece], whole: float, said: Sequence[str], limit: float = 0.0, at: str = "") -> str:
    """A stacked bar with a line at the limit, and below it a legend of a row a piece."""
    rows, left = [], 0.0
    for number, (piece, words) in enumerate(zip(pieces, said, strict=True)):
        width, colour = piece.size / whole * WIDTH, COLOURS[number % len(COLOURS)]
        y = HEIGHT + 34 + number * ROW
        title = escape(f"{piece.name} {words}")
        rows.append(
            f'<rect x="{left:.1f}" y="16" width="{width:.1f}" height="{HEIGHT}" fill="{colour}"><title>{title}</title></rect>'
        )
        rows.append(
            f'<rect x="0" y="{y - 12}" width="14" height="14" fill="{colour}"/><text x="22" y="{y}">{title}</text>'
        )
        left += width
    if limit:
        x = limit / whole * WIDTH
        anchor = "end" if x > WIDTH / 2 else "start"
        rows.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="10" y2="{HEIGHT + 22}" stroke="#b00020" stroke-width="2"/>')
        rows.append(f'<text x="{x:.1f}" y="9" text-anchor="{anchor}" font-size="12">{escape(at)}</text>')
    height = HEIGHT + 30 + len(pieces) * ROW
    drawn = "\n".join(rows)
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" font-size="14" font-family="system-ui, sans-serif">\n{drawn}\n</svg>'


def _memory(plan: Plan) -> str:
    assert plan.numbers is not None
    memory = plan.numbers.memory
    pieces = memory_pieces(memory)
    verdict = f'<b class="{memory.verdict}">{memory.verdict}</b>, ' if memory.verdict else ""
    head = f"<h2>Memory of a GPU: {verdict}{gib(memory.total)}</h2>"
    said = [gib(piece.size) for piece in pieces]
    return head + _svg(pieces, max(memory.total, memory.limit), said, memory.limit, f"XLA may use {gib(memory.limit)}")


def _time(plan: Plan) -> str:
    assert plan.numbers is not None
    time = plan.numbers.throughput
    if time is None:
        return ""
    pieces = time_pieces(time)
    said = [f"{piece.size:.3g} s ({piece.size / time.expected:.0%})" for piece in pieces]
    head = (
        f"<h2>Time of a step: {time.expected:.3g} s expected, {time.low:.3g} to {time.high:.3g} s likely</h2>"
        f"<p>{time.tflops(time.expected):,.0f} TFLOPS a GPU, MFU {time.mfu:.1%}; never below {time.floor:.3g} s</p>"
    )
    return head + _svg(pieces, time.expected, said)


def plan_page(plan: Plan, cost: str = "") -> str:
    """The page; without numbers it holds the text alone. cost: the line of `--price`."""
    bars = _memory(plan) + _time(plan) if plan.numbers is not None else ""
    experiment = plan.experiment
    return PAGE.format(
        title=escape(experiment.name),
        description=escape(experiment.description),
        bars=bars,
        text=escape(plan_text(plan) + (f"\n{cost}\n" if cost else "")),
    )
