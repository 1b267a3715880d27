"""The foreground: the live line, Ctrl-C, the report line and the exit code."""

import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from handmade import add_attempt, add_checkpoint, gone, make_run, step_line

from launcher.node.steps import StepLine
from launcher.runs import ending, progress, store
from launcher.runs.attempts import judge_one
from launcher.runs.status import status_of

TARGETS = Path(__file__).resolve().parent.parent / "targets"
FOREGROUND = """
import sys
from pathlib import Path
sys.path.insert(0, {targets!r})
from bench import Bench
from launcher.render.bundle import render
from launcher.runs import lifecycle

class Harness:
    words = ["target=local", "monitor.max_failures=0"]

root, orders = sys.argv[1:]
plan = Bench(Path(root), Harness()).plan(orders)
sys.exit(lifecycle.submit(plan, render(plan), runs=root))
"""


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path):
    """A run that a failed test leaves behind would train for ever."""
    yield
    for run in store.all_runs(tmp_path):
        if judge_one(run).is_live:
            ending.cancel_now(run, lambda _: None)


def foreground(root, orders, **popen):
    """`submit` in the foreground, as a process of its own."""
    command = [sys.executable, "-c", FOREGROUND.format(targets=str(TARGETS)), str(root), orders]
    return subprocess.Popen(command, text=True, start_new_session=True, **popen)


class Reader:
    """What a process prints, with a bound on the wait."""

    def __init__(self, descriptor):
        self.descriptor = descriptor
        self.seen = ""

    def until(self, text, seconds=60):
        deadline = time.monotonic() + seconds
        while text not in self.seen:
            assert time.monotonic() < deadline, f"{text!r} never came: {self.seen}"
            if select.select([self.descriptor], [], [], 0.1)[0]:
                try:
                    data = os.read(self.descriptor, 1 << 16)
                except OSError:  # the terminal's other side is closed
                    break
                if not data:
                    break
                self.seen += data.decode()
        assert text in self.seen, self.seen


def test_to_the_end(tmp_path):
    done = foreground(tmp_path, "pause=0.05", stdout=subprocess.PIPE)
    out, _ = done.communicate(timeout=60)
    run = store.open_run(tmp_path, "moe")
    assert done.returncode == 0, out
    assert out.startswith(f"{run.name}: started\n")
    report = out.splitlines()[-1]
    assert report.startswith(
        "finished: steps 0..11 of 0..11, loss 10.000 -> 9.890, 0.142 s/step (median of steps 3..11), "
    )
    assert "115047.3 tokens/s/device" in report
    assert report.endswith(f"checkpoint step 11, {run.folder}")


@pytest.mark.parametrize(
    ("orders", "code", "outcome"), [("mode=config", 1, "failed"), ("mode=overflow at=3", 2, "overflow")]
)
def test_an_end_that_is_no_success_says_why_and_where(tmp_path, orders, code, outcome):
    done = foreground(tmp_path, orders, stdout=subprocess.PIPE)
    out, _ = done.communicate(timeout=60)
    run = store.open_run(tmp_path, "moe")
    assert done.returncode == code, out
    told = dict(line.split(":", 1) for line in out.splitlines() if ":" in line)
    assert told[outcome].endswith(str(run.folder))
    assert told["reason"].strip().startswith(json.loads(run.layout.attempt(1).result().read_text())["reason"])
    assert told["log"].strip() == str(run.layout.attempt(1).rank_log(0))
    assert told["go on"].strip() == f"python -m launcher resume {run.name}"


def test_ctrl_c_saves_and_waits_for_the_end(tmp_path):
    shown = foreground(tmp_path, "hold=2", stdout=subprocess.PIPE)
    reader = Reader(shown.stdout.fileno())
    reader.until("step 2/12")
    os.kill(shown.pid, signal.SIGINT)
    reader.until("asked MaxText to save a checkpoint and end; waiting for it. Ctrl-C again kills")
    reader.until("cancelled: ")
    assert shown.wait(30) == 1
    run = store.open_run(tmp_path, "moe")
    assert status_of(run).checkpoint == 2


def test_a_second_ctrl_c_kills(tmp_path):
    shown = foreground(tmp_path, "mode=deaf hold=2", stdout=subprocess.PIPE)
    reader = Reader(shown.stdout.fileno())
    reader.until("step 2/12")
    os.kill(shown.pid, signal.SIGINT)
    reader.until("asked MaxText to save")
    os.kill(shown.pid, signal.SIGINT)
    reader.until("Ctrl-C again: killed")
    reader.until("cancelled: ")
    assert shown.wait(30) == 1
    assert status_of(store.open_run(tmp_path, "moe")).last_step < 11


def test_a_terminal_that_goes_away_leaves_the_run_alone(tmp_path):
    shown = foreground(tmp_path, "hold=2", stdout=subprocess.PIPE)
    Reader(shown.stdout.fileno()).until("step 2/12")
    os.kill(shown.pid, signal.SIGKILL)
    shown.wait(30)
    run = store.open_run(tmp_path, "moe")
    assert status_of(run).state == "running"
    assert ending.cancel_now(run, lambda _: None) == 0


def test_on_a_terminal_one_line_is_rewritten(tmp_path):
    controller, terminal = pty.openpty()
    shown = foreground(tmp_path, "pause=0.1", stdout=terminal)
    os.close(terminal)
    reader = Reader(controller)
    reader.until("finished: ")
    reader.until("checkpoint step 11, ")
    assert shown.wait(30) == 0
    live = [part for part in reader.seen.split("\r\x1b[K") if part.startswith("step ")]
    assert live
    assert all("\n" not in part for part in live)
    os.close(controller)


def figures_of(steps, first=0, count=8, **more):
    figures = progress.Figures(steps)
    for step in range(first, first + count):
        figures.feed(
            StepLine(step, seconds=0.5 if step >= first + 3 else 90.0, tokens=100.0, loss=7 - step / 10, **more)
        )
    return figures


def test_the_figures_leave_the_first_three_steps_out():
    figures = figures_of(20)
    assert figures.live() == "step 8/20  loss 6.300  0.500 s/step  100.0 tokens/s/device  6 s left"
    assert figures.summary() == [
        "steps 0..7 of 0..19",
        "loss 7.000 -> 6.300",
        "0.500 s/step (median of steps 3..7)",
        "100.0 tokens/s/device",
    ]
    assert figures_of(20, first=10).window == (13, 17)


def test_figures_of_few_or_bare_lines():
    assert progress.Figures(20).summary() == ["no step"]
    assert figures_of(20, count=2).live() == "step 2/20  loss 6.900"
    figures = progress.Figures(5)
    for step in range(5):
        figures.feed(StepLine(step))
    assert (figures.live(), figures.summary()) == ("step 5/5", ["steps 0..4 of 0..4"])


def test_an_attempt_that_is_over_is_reported_at_once(tmp_path):
    run = make_run(tmp_path, steps=8)
    lines = "".join(step_line(step) for step in range(8))
    add_attempt(run, handle=gone(), log=lines, result={"outcome": "finished", "code": 0, "reason": ""})
    add_checkpoint(run, 7)
    out = io.StringIO()
    assert progress.follow(run, 1, out) == 0
    assert out.getvalue() == (
        "finished: steps 0..7 of 0..7, loss 7.000 -> 6.930, 0.500 s/step (median of steps 3..7), 100.0 tokens/s/device, "
        f"1 min 0 s, checkpoint step 7, {run.folder}\n"
    )


def test_exit_code_of_a_worker_that_died(tmp_path):
    run = make_run(tmp_path)
    add_attempt(run, handle=gone())
    out = io.StringIO()
    assert progress.follow(run, 1, out) == 2
    assert "died: no step" in out.getvalue()


def test_without_a_terminal_a_line_now_and_then(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    out = io.StringIO()
    line = progress.Line(out)
    for tick in range(100):
        now[0] = 100 + tick / 10
        line.show(f"step {tick}", True)
    assert out.getvalue().split("\n")[:3] == ["step 0", "step 20", "step 40"]
