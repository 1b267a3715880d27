"""`watch RUN`: a live view on a real terminal of any size, plain lines elsewhere, and the run is never touched."""

import fcntl
import io
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time

import pytest
from handmade import add_attempt, elsewhere, make_run, me, step_line
from rich.console import Console

from launcher.cli.main import main
from launcher.runs import live
from launcher.runs.view import curve, line, look

BEGIN = time.time() - 100
ENTER, LEAVE = b"\x1b[?1049h", b"\x1b[?1049l"


def log(begin, end):
    def stamp(step):
        return time.strftime("I%m%d %H:%M:%S", time.gmtime(BEGIN + 10 + step)) + ".000000"

    return "".join(step_line(step, stamp=stamp(step)) for step in range(begin, end))


def alive(root, steps=60, done=40, share=0.9):
    """A run whose worker lives (it is this process), with MoE figures of each step."""
    run = make_run(root, steps=steps)
    attempt = add_attempt(run, handle=me(), log=log(0, done))
    attempt.started().write_text(json.dumps({**me(), "started": BEGIN, "host": "here", "attempt": 1}))
    rows = [
        {
            "step": step,
            "learning/loss": 7 - step / 100,
            "learning/te_moe_max_total_recv_tokens": share * 1000,
            "learning/te_moe_recv_capacity_per_rank": 1000,
        }
        for step in range(done)
    ]
    attempt.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run, attempt


def end(attempt, outcome="finished", code=0):
    result = {"outcome": outcome, "code": code, "reason": "", "started": BEGIN, "ended": time.time()}
    decision = {"action": "stop", "reason": "it is over", "at": time.time()}
    (attempt.path / "decision.json").write_text(json.dumps(decision))
    attempt.result().write_text(json.dumps(result))


def test_once_shows_all_figures(tmp_path, capsys):
    run, _ = alive(tmp_path)
    assert main(["watch", run.name, "--runs", str(tmp_path), "--once"]) == 0
    out = capsys.readouterr().out
    shown = {text.split()[0]: text for text in out.splitlines()}
    for name, text in (
        ("state", "running, attempt 1"),
        ("step", "40 of 60"),
        ("loss", "6.610"),
        ("speed", "0.500 s/step, 100.0 tokens/s/device"),
        ("headroom", "10.0%"),
        ("restarts", "0"),
        ("goodput", "%"),
    ):
        assert text in shown[name]
    assert "first_step" in out
    assert not any(text.endswith(" ") for text in out.splitlines())


def test_without_a_terminal_events_and_figures_are_lines(tmp_path):
    run, attempt = alive(tmp_path)
    words = [sys.executable, "-m", "launcher", "watch", run.name, "--runs", str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as watching:
        told = [watching.stdout.readline() for _ in range(4)]
        assert any("attempt_started" in text for text in told)
        assert told[3].startswith("running  step 40/60  loss 6.610")
        with attempt.rank_log(0).open("a") as more:
            more.write(log(40, 60))
        end(attempt)
        rest, _ = watching.communicate(timeout=60)
    assert watching.returncode == 0
    assert "attempt_ended" in rest
    last = rest.splitlines()[-1]
    assert last.startswith("finished  step 60/60")
    assert "headroom 10.0%" in last
    assert "\x1b" not in "".join(told) + rest


class Terminal:
    """`watch` on a pseudo terminal, and all that it wrote there."""

    def __init__(self, run, root, size):
        self.master, slave = pty.openpty()
        self.resize(*size)
        self.written = b""
        words = [sys.executable, "-m", "launcher", "watch", run.name, "--runs", str(root)]
        environ = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        self.process = subprocess.Popen(
            words, stdin=slave, stdout=slave, stderr=slave, env={**environ, "TERM": "xterm"}, start_new_session=True
        )
        os.close(slave)

    def resize(self, rows, columns):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def until(self, condition, seconds=60.0):
        deadline = time.monotonic() + seconds
        while not condition(self.written):
            assert time.monotonic() < deadline, self.written[-2000:]
            if select.select([self.master], [], [], 0.1)[0]:
                try:
                    self.written += os.read(self.master, 1 << 16)
                except OSError:  # the other side is closed
                    assert condition(self.written), self.written[-2000:]

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.master)


@pytest.fixture
def terminal(tmp_path):
    run, attempt = alive(tmp_path)
    found = Terminal(run, tmp_path, (24, 100))
    found.run, found.attempt = run, attempt
    yield found
    found.close()


def test_a_terminal_is_drawn_anew_and_left_as_it_was(terminal):
    wide = "░".encode() * 13
    terminal.until(lambda written: b"40 of 60" in written)
    assert ENTER in terminal.written
    assert wide in terminal.written
    before = {path: path.read_bytes() for path in terminal.attempt.path.iterdir()}
    terminal.written = b""
    terminal.resize(24, 50)  # no room for a bar of forty
    terminal.until(lambda written: b"40 of 60" in written and wide not in written[-len(written) // 2 :])
    with terminal.attempt.rank_log(0).open("a") as more:
        more.write(log(40, 50))
    terminal.until(lambda written: b"50 of 60" in written)
    terminal.process.send_signal(signal.SIGINT)
    terminal.until(lambda written: LEAVE in written and b"goes on" in written)
    assert terminal.process.wait(20) == 0
    assert b"\x1b[?25h" in terminal.written  # the cursor is back
    left = terminal.written[terminal.written.index(LEAVE) :]
    assert b"50 of 60" in left
    before[terminal.attempt.rank_log(0)] = terminal.attempt.rank_log(0).read_bytes()
    assert {path: path.read_bytes() for path in terminal.attempt.path.iterdir()} == before


def test_the_end_of_the_run_ends_the_showing(terminal):
    terminal.until(lambda written: b"40 of 60" in written)
    end(terminal.attempt, "trainer", 1)
    terminal.until(lambda written: LEAVE in written)
    assert terminal.process.wait(20) == 0
    terminal.until(lambda written: b"attempt_ended" in written[written.index(LEAVE) :])
    assert b"goes on" not in terminal.written


@pytest.mark.parametrize("width", [20, 40, 80, 200])
@pytest.mark.parametrize("events", [-3, 0, 1, 30])
def test_a_picture_is_no_wider_than_its_terminal(tmp_path, width, events):
    run, _ = alive(tmp_path, share=1.2)
    console = Console(width=width, record=True, file=io.StringIO())
    seen = look(run)
    console.print(live._picture(seen, width, events))
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= width
    assert len([text for text in lines if text.startswith(time.strftime("20"))]) == max(
        0, min(events, len(seen.events))
    )


@pytest.mark.parametrize(
    "make",
    [
        make_run,
        lambda root: add_attempt_of(make_run(root), handle=elsewhere()),
        lambda root: add_attempt_of(make_run(root), handle=me()),
        lambda root: add_attempt_of(make_run(root), handle=me(), log=step_line(0, loss=float("nan"))),
    ],
    ids=["no attempt", "another host", "no log", "one step, no number"],
)
def test_what_there_is_little_of_is_shown_too(tmp_path, capsys, make):
    run = make(tmp_path)
    assert main(["watch", run.name, "--runs", str(tmp_path), "--once"]) == 0
    assert run.name in capsys.readouterr().out
    assert str(look(run).status.state) in line(look(run))


def add_attempt_of(run, **more):
    add_attempt(run, **more)
    return run


def test_a_damaged_run_is_told_as_such(tmp_path, capsys):
    run, attempt = alive(tmp_path)
    attempt.result().write_text("{")
    assert main(["watch", run.name, "--runs", str(tmp_path), "--once"]) == 1
    assert "result.json" in capsys.readouterr().err


def test_a_reader_that_leaves_ends_the_showing(tmp_path):
    run, attempt = alive(tmp_path)
    words = [sys.executable, "-m", "launcher", "watch", run.name, "--runs", str(tmp_path)]
    watching = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    watching.stdout.readline()
    watching.stdout.close()
    timer = threading.Timer(1.0, lambda: end(attempt))
    timer.start()
    assert watching.wait(60) == 0
    assert "Traceback" not in watching.stderr.read()
    watching.stderr.close()


def test_a_locale_without_the_bars_is_no_reason_to_fail(tmp_path):
    run, _ = alive(tmp_path)
    words = [sys.executable, "-m", "launcher", "watch", run.name, "--runs", str(tmp_path), "--once"]
    environ = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(words, capture_output=True, env=environ)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"40 of 60" in done.stdout


def test_a_curve_has_a_bar_for_each_piece():
    assert curve([], 10) == ""
    assert curve([1, 1, 1], 10) == "▁▁▁"
    assert curve(list(range(1000)), 8) == "▁▂▃▄▅▆▇█"
    assert curve([1, float("inf"), 2], 3) == "▁!█"
