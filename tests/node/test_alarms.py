"""Alarms that come when they must, and none over clean runs, also when those last a day."""

import itertools
import math

import pytest
import recorded
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.node import alarms
from launcher.node.alarms import Alarms
from launcher.node.clock import Clock
from launcher.node.scan import read_piece
from launcher.node.table import Row

DAY = 86400.0


def fed(rows):
    watch = Alarms()
    return [alarm for row in rows for alarm in watch.feed(row)]


def told(rows):
    return [(alarm.kind, alarm.step) for alarm in fed(rows)]


def run_of(losses, took=2.0, **more):
    return [Row(1, step, 1000.0 + took * step, took, loss=loss, **more) for step, loss in enumerate(losses)]


def recorded_rows(name):
    steps, _ = read_piece((recorded.FOLDER / name).read_bytes(), Clock(1795973700.0))
    return [Row(1, step.step, at, step.seconds, loss=step.loss) for step, at in steps]


def stretched(rows, seconds):
    """The same steps over a longer time, and as many more of them as that takes: the log there and back, without a seam.

    A run that is turned round falls as far as it rose, with the noise that it really had.
    """
    there = rows[3:]
    cycle = there + there[-2:0:-1]
    gaps = [later.at - earlier.at for earlier, later in itertools.pairwise(rows[2:])]
    factor = max(1.0, 10.0 / (sum(gaps) / len(gaps)))  # the articles' steps take some ten seconds
    at, step, found = 0.0, 0, []
    while at < seconds:
        row = cycle[step % len(cycle)]
        at += factor * gaps[step % len(gaps)]
        found.append(row._replace(step=step, at=at, seconds=None))
        step += 1
    return found


@pytest.mark.parametrize("name", recorded.CLEAN)
def test_a_clean_run_raises_no_alarm_and_neither_does_a_day_of_it(name):
    rows = recorded_rows(name)
    assert fed(rows) == []
    day = stretched(rows, DAY)
    assert day[-1].at >= DAY
    assert fed(day) == []


def test_a_loss_that_is_no_number_is_told_once():
    assert told(run_of([9.0, 8.0, math.nan, math.nan, math.inf, 8.0, math.nan])) == [("nan", 2), ("nan", 6)]


@pytest.mark.parametrize("height", [1.0, 5.0, 100.0])
def test_a_spike_is_told_and_what_it_stood_out_from(height):
    losses = [3.0 - step / 1000 + (step % 3) / 200 for step in range(200)]
    losses[150] += height
    (alarm,) = fed(run_of(losses))
    assert (alarm.kind, alarm.step) == ("loss_spike", 150)
    assert f"{losses[150]:.3f}" in alarm.text


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(-0.04, 0.04), min_size=50, max_size=300), st.floats(1.0, 12.0))
def test_noise_of_less_than_a_twentieth_is_no_spike(noise, level):
    assert told(run_of([level * (1 + share / 2) for share in noise])) == []


def test_a_plateau_after_a_jump_is_told_once():
    assert told(run_of([3.0] * 40 + [5.0] * 200)) == [("loss_spike", 40)]


def filled(shares, capacity=98304):
    return [Row(1, step, float(step), demand=share * capacity, capacity=capacity) for step, share in enumerate(shares)]


def test_headroom_is_told_when_it_is_small_and_shrinks():
    (alarm, late) = fed(filled([0.80 + 0.001 * step for step in range(210)]))
    assert alarm.kind == "headroom"
    assert 100 <= alarm.step <= 101
    assert "in about 100 steps" in alarm.text or "in about 99 steps" in alarm.text
    assert (late.kind, late.step) == ("overflowing", 201)


@pytest.mark.parametrize(
    "shares",
    [
        [0.95] * 300,
        [0.97 - 0.0001 * step for step in range(300)],
        [0.5 + 0.001 * step for step in range(300)],
        [0.91 + 0.00001 * (step % 7) for step in range(300)],
        [0.8] * 100 + [0.99] + [0.8] * 100,
    ],
    ids=["full but steady", "full and falling", "rising but far", "full, noise", "one step"],
)
def test_headroom_that_lasts_is_not_told(shares):
    assert told(filled(shares)) == []


def test_headroom_is_told_again_after_it_was_large():
    rise = [0.80 + 0.001 * step for step in range(150)]
    assert [kind for kind, _ in told(filled(rise + [0.7] * 60 + rise))] == ["headroom", "headroom"]


def test_a_slow_step_is_told_unless_something_excuses_it():
    rows = run_of([3.0] * 60)
    late = [row._replace(at=row.at + (9.0 if row.step >= 40 else 0.0)) for row in rows]
    assert told(late) == [("slow_step", 40)]
    watch = Alarms()
    assert [alarm for row in late for alarm in watch.feed(row, excused=row.step == 40)] == []


def test_the_first_steps_of_an_attempt_and_its_pause_are_not_slow():
    first = run_of([3.0] * 40)
    second = [row._replace(attempt=2, at=row.at + 5000 + (30 if row.step else 0)) for row in first]
    assert told(first + second) == []


def test_a_fast_run_that_jitters_by_half_a_second_is_not_slow():
    rows = run_of([3.0] * 60, took=0.2)
    assert told([row._replace(at=row.at + (1.0 if row.step >= 40 else 0.0)) for row in rows]) == []
    assert alarms.SLOW_SECONDS > 1
