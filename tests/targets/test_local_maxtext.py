"""Real MaxText on the local target: killed in the middle, it goes on from its last checkpoint and finishes."""

import importlib.util
import json
import os
import signal
import struct
import sys

import pytest
from bench import wait_until

from launcher.config.compose import Composer
from launcher.node.steps import parse_step
from launcher.plan.plan import make
from launcher.render.bundle import render
from launcher.runs import ending, starting, store
from launcher.runs.attempts import State, judge_one
from launcher.runs.status import status_of
from launcher.targets import local, processes

STEPS, PERIOD = 40, 10
MINUTES = 60

pytestmark = [
    pytest.mark.maxtext,
    pytest.mark.skipif(
        importlib.util.find_spec("maxtext") is None, reason="MaxText is not installed: pip install '.[local]'"
    ),
]


@pytest.fixture
def submit(tmp_path):
    """Submits the tiny MoE (2 processes, expert parallelism 2) on this Python."""
    words = ["+exp=moe_tiny_cpu", f"trainer.steps={STEPS}", f"checkpoint.checkpoint_period={PERIOD}"]
    words.append("monitor.enable_tensorboard=true")
    plan = make(Composer().compose(words).experiment)
    environ = {**os.environ, local.PYTHON: sys.executable}

    def go():
        return starting.submit(tmp_path / "runs", render(plan), plan, environ, {})

    yield go
    for run in store.all_runs(tmp_path / "runs"):
        ending.cancel_now(run, lambda _: None)


def steps_of(run, attempt):
    lines = run.layout.attempt(attempt).rank_log(0).read_text(errors="replace").splitlines()
    return [step for step in map(parse_step, lines) if step is not None]


def scalars(run, name):
    """What TensorBoard would draw: step -> value, from the event files (TFRecords: length, its CRC, an Event, its CRC)."""
    from tensorboardX.proto.event_pb2 import Event

    found = {}
    for path in sorted((run.layout.output / run.name / "tensorboard").rglob("events.out.tfevents.*")):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack_from("<Q", data)
            event = Event.FromString(data[12 : 12 + length])
            for value in event.summary.value:
                if value.tag == name:
                    found[event.step] = value.simple_value
            data = data[12 + length + 4 :]
    return found


def test_a_killed_run_resumes_and_finishes(submit):
    run = submit().run

    def saved():
        state = judge_one(run).state
        assert state in (State.STARTING, State.COMPILING, State.RUNNING), status_of(run)
        return (status_of(run).checkpoint or 0) >= PERIOD

    wait_until(saved, 10 * MINUTES, lambda: status_of(run))
    os.kill(judge_one(run).handle["pid"], signal.SIGKILL)
    wait_until(lambda: status_of(run).state is State.DIED, MINUTES, lambda: status_of(run))
    folder = str(run.layout.attempt(1).path)
    wait_until(lambda: not processes.marked(local.MARK, folder), MINUTES, lambda: processes.marked(local.MARK, folder))
    died = status_of(run)
    assert died.last_step < STEPS - 1, "it was killed too late to show anything"

    resumed = submit()
    assert resumed.attempt == 2
    assert f"resumes from the checkpoint of step {died.checkpoint}" in resumed.message
    wait_until(lambda: not judge_one(run).is_live, 10 * MINUTES, lambda: status_of(run))
    finished = status_of(run)
    assert finished.state is State.FINISHED, finished
    assert (finished.last_step, finished.checkpoint, finished.restarts) == (STEPS - 1, STEPS - 1, 1)

    before, after = steps_of(run, 1), steps_of(run, 2)
    assert [step.step for step in after] == list(range(died.checkpoint + 1, STEPS))
    assert 0 <= before[-1].step - died.checkpoint <= PERIOD, "more was lost than the checkpoint period"
    # The steps that were trained twice gave the same loss: the state is the one that was saved.
    losses = {step.step: step.loss for step in before}
    for step in after:
        if step.step in losses:
            assert step.loss == pytest.approx(losses[step.step], rel=2e-3)
    assert after[-1].loss < before[0].loss
    drawn = scalars(run, "learning/loss")
    assert {step.step: pytest.approx(step.loss, abs=1e-3) for step in after} == {s.step: drawn[s.step] for s in after}
    ranks = json.loads(run.layout.attempt(2).result().read_text())["ranks"]
    assert ranks == [{"rank": 0, "returncode": 0}, {"rank": 1, "returncode": 0}]

    again = submit()
    assert (again.attempt, again.exit_code, again.state) == (None, 0, State.FINISHED)
