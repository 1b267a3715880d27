"""The bounds on time without a step: what is a stall, and what only looks like one."""

import itertools
import json

import pytest
import recorded
from hypothesis import given, settings
from hypothesis import strategies as st
from launches import LAUNCH

from launcher.node.clock import Clock as LogClock
from launcher.node.hang import past_first_steps, schedule_of
from launcher.node.launch import read_launch
from launcher.node.layout import RunFolder
from launcher.node.scan import read_piece
from launcher.node.stall import LEAST_SECONDS, PAUSE_SECONDS, Bounds, Clock, Schedule

STEP = "I1129 17:35:53.415048 1406 metric_logger.py:265] {more}completed step: {step}, seconds: 0.142, loss: 9.1"
DAY = 86400.0
TICK = 0.2


def said(step, more=""):
    return STEP.format(step=step, more=more)


class Trainer:
    """Ranks that make steps at times of our choosing, and a clock that is asked as the worker asks it."""

    def __init__(self, ranks=1, first=3600.0, step=None, **schedule):
        self.now = 1000.0
        self.ranks = range(ranks)
        self.step = 0
        self.clock = Clock(self.ranks, Bounds(first, step), Schedule(**{"steps": 10**9, **schedule}), self.now)

    def wait(self, seconds, looks=40):
        """The first stall within that time, or None; asked about 40 times, and never less often than every ten seconds."""
        end = self.now + seconds
        pause = min(10.0, max(TICK, seconds / looks))
        while self.now < end:
            self.now = min(end, self.now + pause)
            stalled = self.clock.look(self.now)
            if stalled is not None:
                return stalled
        return None

    def make(self, steps, seconds, ranks=None, more=""):
        """So many steps of so many seconds; raises where one of them looks like a stall."""
        for _ in range(steps):
            assert self.wait(seconds, looks=3) is None
            for rank in self.ranks if ranks is None else ranks:
                self.clock.line(rank, said(self.step, more), self.now)
            self.step += 1
        return self


def test_a_start_may_take_as_long_as_asked_and_no_longer():
    trainer = Trainer(first=3600)
    assert trainer.wait(3590) is None
    stalled = trainer.wait(30)
    assert stalled.last == {0: None}
    assert stalled.text.startswith("no step for 36")
    assert "since the start (bound: 3600 s, to the first step)" in stalled.text


@pytest.mark.parametrize(("first", "bound"), [(3600.0, 900.0), (14400.0, 3600.0), (120.0, 120.0)])
def test_a_first_step_that_is_compiled_and_under_way_gets_less(first, bound):
    trainer = Trainer(ranks=2, first=first)
    assert trainer.wait(100) is None
    for rank in trainer.ranks:
        trainer.clock.line(rank, "Memstats: After params initialized:", trainer.now)
        trainer.clock.line(rank, "\tUsing (GB) 6.96 / 123.03 (5.657157%) on cuda:0", trainer.now)
    assert trainer.wait(bound - 12) is None
    stalled = trainer.wait(30)
    assert f"since the start (bound: {bound:.0f} s, for the first step, which was compiled)" in stalled.text


def test_a_rank_that_still_compiles_keeps_its_time():
    trainer = Trainer(ranks=2, first=3600)
    trainer.clock.line(0, "Memstats: After params initialized:", trainer.now)
    assert trainer.wait(880) is None
    assert trainer.wait(30).bound == 900
    alone = Trainer(first=3600)
    assert alone.wait(3500) is None


@pytest.mark.parametrize(
    ("took", "bound"),
    [(0.2, 300.0), (6.0, 300.0), (40.0, 400.0), (600.0, 6000.0)],
    ids=["fast", "usual", "slow", "huge"],
)
def test_between_steps_the_bound_follows_what_was_seen(took, bound):
    trainer = Trainer().make(20, took)
    assert trainer.wait(bound - 12) is None
    stalled = trainer.wait(40)
    assert stalled.bound == pytest.approx(bound, rel=0.01)
    assert f"after step 19 (bound: {bound:.0f} s, the median step took {took:.2f} s)" in stalled.text


def test_seconds_that_were_asked_for_count_from_the_first_step_on():
    trainer = Trainer(step=7).make(1, 100)
    assert trainer.wait(6) is None
    assert "as monitor.stall_seconds says" in trainer.wait(3).text


def test_the_first_steps_say_nothing_about_those_to_come():
    trainer = Trainer(first=1000).make(3, 0.02)
    assert trainer.wait(900) is None
    assert "few steps have been seen" in trainer.wait(200).text


def test_one_rank_that_stays_behind_is_seen_and_named():
    trainer = Trainer(ranks=4, step=60).make(10, 5)
    for _ in range(20):
        stalled = trainer.wait(5)
        if stalled is not None:
            break
        for rank in (0, 1, 3):
            trainer.clock.line(rank, said(trainer.step), trainer.now)
        trainer.step += 1
    assert "rank(s) 2 reached only step 9" in stalled.text


def test_a_rank_that_prints_no_steps_at_all_is_no_stall():
    trainer = Trainer(ranks=2, first=30).make(200, 5, ranks=[0])
    assert trainer.wait(1000).last == {0: 199, 1: None}


PAUSES = {
    "checkpoint": {"checkpoint_period": 50},
    "evaluation": {"eval_interval": 50},
    "the end": {"checkpoint_period": 1000, "steps": 102},
    "profile": {"profile": range(100, 106)},
}


@pytest.mark.parametrize("schedule", PAUSES.values(), ids=PAUSES)
def test_a_planned_pause_may_take_longer_and_is_bounded_too(schedule):
    trainer = Trainer(**schedule).make(49, 2)
    trainer.make(2, 2).make(1, 2).make(49 - 1, 2)  # through the first pause, which was short
    assert trainer.step == 100
    assert trainer.wait(PAUSE_SECONDS - 20) is None
    assert f"bound: {PAUSE_SECONDS:.0f} s" in trainer.wait(60).text


@pytest.mark.parametrize(
    "line",
    [
        "Started an asynchronous checkpoint save for step 30",
        "Saved a checkpoint at step 30.",
        "Completed eval after train step 29, val_loss=3.2",
        "Step 30: MoE ragged buffer overflow detected in 3 layer(s)! Replaying step with dropless buffer...",
    ],
)
def test_a_pause_that_the_log_announces_needs_no_plan(line):
    trainer = Trainer().make(30, 2)
    trainer.clock.line(0, line, trainer.now)
    assert trainer.wait(PAUSE_SECONDS - 20) is None
    assert trainer.wait(60) is not None


def test_a_ramp_up_compiles_again_and_again():
    trainer = Trainer().make(30, 2, more="[Rampup Batch Size Phase] ")
    assert trainer.wait(PAUSE_SECONDS - 20) is None


def test_pauses_do_not_move_the_bound_of_other_steps():
    trainer = Trainer(checkpoint_period=10)
    while trainer.step < 64:
        trainer.make(1, 1500 if trainer.step % 10 == 0 else 2)
    assert trainer.wait(LEAST_SECONDS - 10) is None
    assert "the median step took 2.00 s" in trainer.wait(60).text


def test_who_asks_for_longer_than_a_pause_gets_it_in_pauses_too():
    trainer = Trainer(step=7200, checkpoint_period=1).make(20, 30)
    assert trainer.wait(7100) is None
    assert trainer.wait(200) is not None


def test_time_in_which_the_worker_was_suspended_does_not_count():
    trainer = Trainer(step=60).make(10, 5)
    trainer.now += 5000
    assert trainer.wait(50) is None
    assert trainer.wait(30) is not None


def test_time_that_is_excused_does_not_count():
    trainer = Trainer(step=60).make(10, 5)
    assert trainer.wait(100) is not None
    trainer.clock.excuse(60)
    assert trainer.clock.look(trainer.now) is None


def test_a_new_step_ends_the_stall():
    trainer = Trainer(step=60).make(10, 5)
    before = trainer.clock.moved
    assert trainer.wait(70) is not None
    trainer.clock.line(0, said(10), trainer.now)
    assert trainer.clock.look(trainer.now) is None
    assert trainer.clock.moved > before


@settings(max_examples=60, deadline=None)
@given(st.floats(0.01, 60.0), st.lists(st.floats(0.3, 4.0), min_size=30, max_size=80), st.sampled_from([0, 7, 50]))
def test_steps_that_vary_fourfold_are_no_stall(took, factors, period):
    trainer = Trainer(checkpoint_period=period)
    for factor in factors:
        trainer.make(1, took * factor)


@pytest.mark.parametrize("name", recorded.CLEAN)
def test_a_recorded_run_does_not_stall_and_neither_does_a_day_of_it(name):
    raw = (recorded.FOLDER / name).read_bytes()
    times = [at for _, at in read_piece(raw, LogClock(1795973700.0))[0] if at is not None]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    stretch = max(1.0, 10.0 / (sum(gaps) / len(gaps)))  # to steps of some ten seconds
    trainer, begun = Trainer(checkpoint_period=500), 1000.0
    for gap in itertools.cycle(gaps):
        trainer.make(1, stretch * gap)
        if trainer.now > begun + DAY:
            break
    for took in gaps[2:]:
        trainer.make(1, took)


def launch_of(tmp_path, **changes):
    path = tmp_path / "launch.json"
    path.write_text(json.dumps({**LAUNCH, **changes}))
    return read_launch(path)


def test_the_plan_of_pauses_comes_from_launch_json_and_maxtexts_file(tmp_path):
    launch = launch_of(tmp_path, steps=100, checkpoint_period=20, arguments={"eval_interval": 30})
    yml = tmp_path / "maxtext.yml"
    yml.write_text('profiler: "xplane"\nskip_first_n_steps_for_profiler: 4\nprofiler_steps: 2\neval_interval: -1\n')
    assert schedule_of(launch, yml) == Schedule(100, 20, 30, 0, range(4, 7))
    yml.write_text("profiler: ''\neval_interval: -1\n")
    assert schedule_of(launch_of(tmp_path, checkpointing=False), yml) == Schedule(8)
    assert schedule_of(launch, tmp_path / "none.yml") == Schedule(100, 20, 30)


def test_earlier_attempts_say_how_long_the_first_step_takes(tmp_path):
    run = RunFolder(tmp_path)
    for number, minute in ((1, "17:45"), (2, None), (3, "17:36")):
        attempt = run.attempt(number)
        attempt.path.mkdir(parents=True)
        attempt.started().write_text('{"started": 1795973700.0}')  # 2026-11-29 17:35:00 UTC
        begin = "I1129 17:35:01.000000 1406 max_utils.py:1] Num_devices: 8\n"
        first = f"I1129 {minute}:30.000000 1406 m.py:1] completed step: 0, loss: 1.0\n" if minute else ""
        attempt.rank_log(0).write_text(begin + first)
    assert past_first_steps(run, 4) == [630.0, 90.0]
    assert past_first_steps(run, 1) == []
    run.adjust.write_text('{"maxtext": {"ragged_buffer_factor": 1.29}}')
    assert past_first_steps(run, 4) == []
