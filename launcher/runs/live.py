"""`watch`: a live view on a terminal that is drawn anew, and plain lines elsewhere. The run is only looked at."""

from __future__ import annotations

import io
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from launcher.runs.attempts import State
from launcher.runs.events import Event, event_text
from launcher.runs.store import Run
from launcher.runs.view import Look, line, look, rows

LOOK_SECONDS = 2.0
"""Between two looks; a run whose logs take long to read is looked at less often."""

FRAME_SECONDS = 0.25
"""Between two drawings: a resized terminal is right again after so long."""

PLAIN_SECONDS = 10.0
"""Between two lines of figures where nothing can be drawn over."""

_BUSY = 9  # times what a look took, at least, until the next one: of 200,000 steps it takes seconds
_LABEL = 12  # columns for the rows' names
_ONCE_EVENTS = 10
_WIDTH = 120  # columns, where the output has none
_BAD = frozenset({State.FAILED, State.DIED, State.STALLED, State.OVERFLOW, State.DAMAGED})
_ALARMS = frozenset(
    {"nan", "loss_spike", "grad_spike", "imbalance", "headroom", "overflowing", "overflow", "aborted", "slow_step"}
    | {"stalled", "straggler", "unknown_failure"}
)


def watch(run: Run, out: TextIO, *, once: bool) -> int:
    """Shows the run until it is over, or once; the exit code of the command. Ctrl-C ends the showing alone."""
    if isinstance(out, io.TextIOWrapper):
        out.reconfigure(errors="replace")  # a locale without the bars' characters
    if once:
        _print(look(run), out)
        return 0
    with _ctrl_c() as pressed:
        if out.isatty():
            seen = _on_terminal(run, Console(file=out), pressed)
            _print(seen, out)  # the screen is gone: what it showed last stays
        else:
            seen = _plain(run, out, pressed)
    if seen.is_live:
        out.write(f"{seen.status.run} goes on; to end it: python -m launcher cancel {seen.status.run}\n")
        out.flush()
    return 0


def _print(seen: Look, out: TextIO) -> None:
    if out.isatty():
        console = Console(file=out)
        console.print(_picture(seen, console.width, _ONCE_EVENTS))
        return
    for name, text in rows(seen, _WIDTH):
        out.write(f"{name:<{_LABEL}} {text}\n")
    for event in seen.events[-_ONCE_EVENTS:]:
        out.write(event_text(event) + "\n")


@contextmanager
def _ctrl_c() -> Iterator[list[int]]:
    """Signals that end the showing, collected: the terminal is left as it was found."""
    pressed: list[int] = []

    def on_signal(number: int, _frame: FrameType | None) -> None:
        pressed.append(number)

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield pressed
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _looks(run: Run, pressed: list[int]) -> Iterator[tuple[Look, float]]:
    """The run as it changes, with the monotonic time of the next look, until it is over or somebody wants the end."""
    while True:
        begun = time.monotonic()
        seen = look(run)
        now = time.monotonic()
        yield seen, now + max(LOOK_SECONDS, _BUSY * (now - begun))
        if pressed or not seen.is_live:
            return


def _on_terminal(run: Run, console: Console, pressed: list[int]) -> Look:
    with Live(console=console, screen=True, auto_refresh=False) as live:
        for seen, until in _looks(run, pressed):
            while True:
                height = console.height
                live.update(_picture(seen, console.width, height - len(rows(seen, console.width)) - 2), refresh=True)
                if pressed or time.monotonic() >= until or not seen.is_live:
                    break
                time.sleep(FRAME_SECONDS)
    return seen


def _plain(run: Run, out: TextIO, pressed: list[int]) -> Look:
    """Events as they come, and the figures now and then; all of them at the end."""
    told: set[Event] = set()
    shown, when = "", float("-inf")
    for seen, until in _looks(run, pressed):
        for event in seen.events:
            if event not in told:
                told.add(event)
                out.write(event_text(event) + "\n")
        text, now = line(seen), time.monotonic()
        if text != shown and (now - when >= PLAIN_SECONDS or not seen.is_live):
            out.write(text + "\n")
            shown, when = text, now
        out.flush()
        while seen.is_live and not pressed and time.monotonic() < until:
            time.sleep(FRAME_SECONDS)
    return seen


def _picture(seen: Look, width: int, events: int) -> Group:
    """Rows and the newest events, as wide as the terminal."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(style="bold", width=_LABEL, no_wrap=True)
    grid.add_column(no_wrap=True, overflow="ellipsis")
    for name, text in rows(seen, max(1, width - _LABEL - 1)):
        grid.add_row(name, Text(text, style=_style(seen, name)))
    newest = seen.events[-events:] if events > 0 else ()
    lines = [Text(event_text(event), style=_event_style(event), no_wrap=True, overflow="ellipsis") for event in newest]
    return Group(grid, Rule(style="dim"), *lines)


def _style(seen: Look, name: str) -> str:
    if name == "state":
        return "bold red" if seen.status.state in _BAD else "green" if seen.status.state is State.FINISHED else "bold"
    if name == "headroom" and seen.share is not None and seen.share > 1:
        return "bold red"
    return ""


def _event_style(event: Event) -> str:
    return "yellow" if event.kind in _ALARMS or event.text.startswith("cause: ") else ""
