"""The foreground: a live line while an attempt runs, and one line at its end that says what it was worth."""

from __future__ import annotations

import shutil
import signal
import statistics
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import TextIO

from launcher.node.codes import Outcome
from launcher.node.steps import JUNK_STEPS, StepLine, parse_step
from launcher.runs.attempts import POLL_SECONDS, Judged, State, judge_one, mark_cancelled
from launcher.runs.decisions import decision_of
from launcher.runs.figures import WINDOW, duration
from launcher.runs.follow import GrowingFile
from launcher.runs.status import checkpoint_text, log_of, status_of
from launcher.runs.store import Run
from launcher.targets import base

_PLAIN_SECONDS = 2.0  # between two lines where lines cannot be rewritten
_QUIET_SECONDS = 15.0  # between two such lines as long as no step comes


@dataclass
class Figures:
    """What the step lines of one attempt add up to. Memory: one number a step and column."""

    steps: int
    first: StepLine | None = None
    last: StepLine | None = None
    first_loss: float | None = None
    last_loss: float | None = None
    seconds: list[float] = field(default_factory=list)
    tokens: list[float] = field(default_factory=list)
    window: tuple[int, int] | None = None
    _count: int = 0

    def feed(self, step: StepLine) -> None:
        """Take in the next step line; the attempt's first three count for the loss only."""
        self.first = self.first or step
        self.last = step
        self._count += 1
        if step.loss is not None:
            self.first_loss = step.loss if self.first_loss is None else self.first_loss
            self.last_loss = step.loss
        if self._count > JUNK_STEPS and step.seconds is not None:
            self.window = (self.window[0] if self.window else step.step, step.step)
            self.seconds.append(step.seconds)
            if step.tokens is not None:
                self.tokens.append(step.tokens)

    def live(self) -> str:
        """step/steps, loss, speed and the time left, over the newest steps."""
        assert self.last is not None
        parts = [f"step {self.last.step + 1}/{self.steps}"]
        if self.last_loss is not None:
            parts.append(f"loss {self.last_loss:.3f}")
        if self.seconds:
            pace = statistics.median(self.seconds[-WINDOW:])
            parts.append(f"{pace:.3f} s/step")
            if self.tokens:
                parts.append(f"{statistics.median(self.tokens[-WINDOW:]):.1f} tokens/s/device")
            parts.append(f"{duration(pace * (self.steps - 1 - self.last.step))} left")
        return "  ".join(parts)

    def summary(self) -> list[str]:
        """Steps, loss first -> last, median speed with its window."""
        if self.first is None or self.last is None:
            return ["no step"]
        parts = [f"steps {self.first.step}..{self.last.step} of 0..{self.steps - 1}"]
        if self.first_loss is not None and self.last_loss is not None:
            parts.append(f"loss {self.first_loss:.3f} -> {self.last_loss:.3f}")
        if self.window is not None:
            parts.append(
                f"{statistics.median(self.seconds):.3f} s/step (median of steps {self.window[0]}..{self.window[1]})"
            )
            if self.tokens:
                parts.append(f"{statistics.median(self.tokens):.1f} tokens/s/device")
        return parts


class Line:
    """One line that is rewritten on a terminal; elsewhere a plain line now and then."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._rewrites = out.isatty()
        self._shown = ""
        self._last = 0.0

    def show(self, text: str, is_step: bool) -> None:
        """The newest state; `is_step`: it reports a step, and is worth a plain line sooner."""
        if self._rewrites:
            width = shutil.get_terminal_size().columns - 1
            if text != self._shown:
                self._write(f"\r\x1b[K{text[:width]}")
                self._shown = text
            return
        now = time.monotonic()
        if text != self._shown and now - self._last >= (_PLAIN_SECONDS if is_step else _QUIET_SECONDS):
            self._write(text + "\n")
            self._shown, self._last = text, now

    def say(self, text: str) -> None:
        """A line that stays."""
        self._write(("\r\x1b[K" if self._rewrites and self._shown else "") + text + "\n")
        self._shown = ""

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


def follow(run: Run, number: int, out: TextIO) -> int:
    """Show attempt `number` and those that its supervisor starts after it, then the last one's report line; the exit code.

    Ctrl-C asks for a checkpoint and goes on showing; a second Ctrl-C kills. Ends, too, when the launcher is killed: the
    attempt then runs on by itself.
    """
    shown = _Shown(run, number)
    line = Line(out)
    begun = time.monotonic()
    handled = 0
    with _interrupts() as pressed:
        while True:
            judged = judge_one(run)  # before the log is read: what is written before the end is then never missed
            if judged.attempt is not None and judged.attempt.number > shown.number:
                shown.read_to_the_end()
                line.say(_next_text(run, shown))
                shown = _Shown(run, judged.attempt.number)
            if not judged.is_live:
                break
            shown.read()
            if len(pressed) > handled:
                handled = len(pressed)
                _interrupt(judged, handled, line)
            line.show(*_live(judged, shown.figures, time.monotonic() - begun))
            time.sleep(POLL_SECONDS)
    shown.read_to_the_end()
    line.say(report_line(judged, shown.figures))
    return exit_code(judged)


class _Shown:
    """The attempt that is shown: its log, and what its steps add up to."""

    def __init__(self, run: Run, number: int) -> None:
        self.number = number
        self.figures = Figures(int(run.launch()["steps"]))
        self._log = GrowingFile(run.layout.attempt(number).rank_log(0))

    def read(self) -> None:
        """Takes in what was printed since the last time."""
        self._feed(self._log.lines())

    def read_to_the_end(self) -> None:
        """Takes in the rest; to be called once."""
        self._feed(self._log.close())

    def _feed(self, texts: Iterable[str]) -> None:
        for text in texts:
            step = parse_step(text)
            if step is not None:
                self.figures.feed(step)


def _next_text(run: Run, shown: _Shown) -> str:
    """What an attempt came to that another one follows."""
    decision = decision_of(run.layout.attempt(shown.number))
    why = "" if decision is None else f": {decision.reason}"
    return f"attempt {shown.number}: {', '.join(shown.figures.summary())}{why}"


def _live(judged: Judged, figures: Figures, elapsed: float) -> tuple[str, bool]:
    ending = "  (saving, then ending)" if judged.state is State.STOPPING else ""
    if judged.state is State.RESTARTING:
        return f"{judged.state}: {judged.reason}", False
    if figures.last is not None:
        return figures.live() + ending, True
    return f"{judged.state}... {duration(elapsed)}{ending}", False


@contextmanager
def _interrupts() -> Iterator[list[float]]:
    """Ctrl-C collected as times, not raised in the middle of something. Only in the main thread."""
    pressed: list[float] = []

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        pressed.append(time.monotonic())

    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)


def _interrupt(judged: Judged, times: int, line: Line) -> None:
    if judged.attempt is None or judged.handle is None:
        line.say("the attempt is being started; press Ctrl-C again in a moment")
        return
    target = base.get(judged.run.target)
    if times == 1 and judged.state is not State.STOPPING:
        mark_cancelled(judged.attempt)
        target.stop(judged.handle)
        line.say("Ctrl-C: asked MaxText to save a checkpoint and end; waiting for it. Ctrl-C again kills at once")
    else:
        mark_cancelled(judged.attempt)
        target.kill(judged.handle)
        line.say("Ctrl-C again: killed")


def report_line(judged: Judged, figures: Figures) -> str:
    """The outcome, what it was worth, and where it lies; for anything but success also why, and what to read and type."""
    status = status_of(judged.run)
    if status.steps is None and judged.state is not State.DAMAGED:  # its nodes were examined, nothing was to be trained
        verdict = f"verdict: python -m launcher preflight node {judged.run.name}"
        return f"{judged.state}: {judged.reason}, {judged.run.folder}\n{verdict}"
    parts = figures.summary()
    if judged.result is not None:
        parts.append(duration(float(judged.result["ended"]) - float(judged.result["started"])))
    parts.append(f"checkpoint {checkpoint_text(status).partition(',')[0]}")
    lines = [f"{judged.state}: {', '.join(parts)}, {judged.run.folder}"]
    if judged.state is not State.FINISHED:
        lines.append(f"reason: {judged.reason}")
        lines += [f"{name:<8}{text}" for name, text in (("cause:", status.cause), ("next:", status.advice)) if text]
        if judged.attempt is not None:
            lines.append(f"log:    {log_of(judged)}")
        lines.append(f"go on:  python -m launcher resume {judged.run.name}")
    return "\n".join(lines)


def exit_code(judged: Judged) -> int:
    """0 finished; 1 the user's: refused configuration, cancelled; 2 all else: the system's."""
    if judged.state is State.FINISHED:
        return 0
    refused = judged.result is not None and judged.result.get("outcome") == Outcome.CONFIG_REFUSED.value
    return 1 if refused or judged.state is State.CANCELLED else 2
