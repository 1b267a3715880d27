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
from launcher.node.scan import metrics, read_piece
from launcher.node.table import Row, joined

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


def test_the_gradients_of_a_real_run_raise_no_alarm_and_neither_does_a_day_of_its_end():
    """Two attempts of maxtext 0.2.5 on CPUs that learn one batch by heart: the norm falls from 0.6 to 0.002."""
    rows = [
        joined(1, int(entry["step"]), None, None, entry)
        for entry in metrics((recorded.FOLDER / "cpu_tiny_metrics.jsonl").read_bytes())
    ]
    numbers = [row._replace(seconds=None) for row in rows]  # it had one core for all its ranks: its steps did stop
    assert (len(rows), fed(numbers)) == (239, [])
    cycle = numbers[-60:] + numbers[-2:-60:-1]
    assert fed([cycle[step % len(cycle)]._replace(step=step) for step in range(8640)]) == []


def gradients(norms):
    return [Row(1, step, 1000.0 + 2 * step, 2.0, loss=3.0, grad_norm=norm) for step, norm in enumerate(norms)]


@pytest.mark.parametrize(
    ("height", "kinds"), [(1.9, []), (4.0, ["grad_spike"]), (1e6, ["grad_spike"]), (math.inf, ["nan"])]
)
def test_a_gradient_that_is_many_times_the_usual_is_told(height, kinds):
    norms = [1.0 + (step % 5) / 20 for step in range(200)]
    norms[150] *= height
    found = fed(gradients(norms))
    assert [(alarm.kind, alarm.step, alarm.since) for alarm in found] == [(kind, 150, 150) for kind in kinds]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0.5, 1.4), min_size=50, max_size=300), st.floats(1e-6, 1e6))
def test_gradients_that_vary_by_a_factor_of_two_are_no_spikes(norms, level):
    assert told(gradients([level * norm for norm in norms])) == []


def loads(values, **more):
    return [Row(1, step, demand=value, capacity=1e9, **more) for step, value in enumerate(values)]


def test_a_router_that_leaves_its_balance_is_told_once_and_when_that_began():
    usual = [100.0 + step % 3 for step in range(200)]
    (alarm,) = fed(loads([*usual, *[170.0] * 100]))
    assert (alarm.kind, alarm.since) == ("imbalance", alarm.step - alarms.LOAD_STEPS + 1)
    assert 200 <= alarm.step <= 200 + alarms.LOAD_STEPS
    again = told(loads([*usual, *[170.0] * 40, *usual, *[170.0] * 40]))
    assert [kind for kind, _ in again] == ["imbalance", "imbalance"]


@pytest.mark.parametrize(
    "values",
    [[100.0] * 300, [300.0] * 300, [100.0, 190.0] * 150, [100.0] * 150 + [400.0] * 7 + [100.0] * 150, [100.0] * 20 + [200.0] * 10],
    ids=["balanced", "never was", "restless", "a few steps", "too young"],
)  # fmt: skip
def test_a_router_that_is_as_it_was_is_not_told(values):
    assert told(loads(values)) == []


def test_maxtexts_own_load_ratio_counts_where_it_is_printed():
    ratios = [1.1] * 150 + [2.0] * 40
    rows = [Row(1, step, demand=5.0, others=f'{{"moe_max_load_ratio": {ratio}}}') for step, ratio in enumerate(ratios)]
    assert [kind for kind, _ in told(rows)] == ["imbalance"]


@pytest.mark.parametrize(("norm", "since"), [(None, 2), (1.0, 3)])
def test_the_update_before_a_nan_is_clean_only_when_its_gradient_was_a_number(norm, since):
    rows = run_of([9.0, 9.0, 9.0, math.nan], grad_norm=norm)
    (alarm,) = fed([*rows[:3], rows[3]._replace(grad_norm=math.nan)])
    assert (alarm.kind, alarm.step, alarm.since) == ("nan", 3, since)


def test_a_nan_is_told_again_in_the_next_attempt_and_a_spike_is_judged_by_what_counts():
    bad = [9.0] * 40 + [math.nan]
    assert told([*run_of(bad), *(row._replace(attempt=2) for row in run_of(bad)[30:])]) == [("nan", 40), ("nan", 40)]
    jump = [9.0] * 40 + [20.0] * 5
    assert told([*run_of(jump), *(row._replace(attempt=2) for row in run_of(jump)[30:])]) == [
        ("loss_spike", 40),
        ("loss_spike", 40),
    ]


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
