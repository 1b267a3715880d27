"""What node 0 does about what the steps say: told, or the attempt's end, by the policy's word."""

import json
import math

import pytest
import recorded
from test_alarms import DAY, recorded_rows, stretched

from launcher.node.codes import Code
from launcher.node.numbers import Numbers, word_of
from launcher.node.policy import WORDS, Policy
from launcher.node.rows import LiveRows
from launcher.node.table import Row

ABORTED = "I1129 17:35:53.415048 1 metric_logger.py:349] Aborting training due to NaN loss."


class Watched:
    """Numbers over made steps; `told` are its alarms with the policy's word, `said` the journal's lines."""

    def __init__(self, tmp_path, before=(), **policy):
        self.metrics = tmp_path / "metrics.jsonl"
        self.told, self.said, self.rows = [], [], []
        self.numbers = Numbers(
            LiveRows(2, self.metrics, 1795973700.0),
            Policy(**policy),
            self.said.append,
            on_row=self.rows.append,
            on_alarm=lambda alarm, word: self.told.append((alarm.kind, alarm.step, word)),
            before=before,
        )
        self.now = 0.0

    def step(self, step, loss=9.0, seconds=0.5, **metrics):
        self.numbers.line(
            0, f"completed step: {step}, seconds: 0.142, total_weights: 32768, loss: {loss:.3f}", self.now
        )
        with self.metrics.open("a") as file:
            file.write(json.dumps({"step": step, "learning/loss": loss, **metrics}) + "\n")
        self.now += seconds
        return self.numbers.look(self.now)


@pytest.fixture
def watched(tmp_path):
    return lambda **more: Watched(tmp_path, **more)


@pytest.mark.parametrize("word", WORDS["nan"])
def test_the_policy_decides_what_a_nan_does(watched, word):
    seen = watched(nan=word)
    stops = [seen.step(step, math.nan if step >= 3 else 9.0) for step in range(6)]
    assert seen.told == [("nan", 3, word)]
    assert seen.said == ["nan: the loss is nan at step 3"]
    assert stops[:3] == [None] * 3
    if word == "warn":
        assert stops[3:] == [None] * 3
        assert seen.numbers.found is None
    else:
        assert {(stop.code, stop.reason) for stop in stops[3:]} == {(Code.DIVERGED, "the loss is nan at step 3")}
        assert (seen.numbers.found.step, seen.numbers.found.since) == (3, 2)


@pytest.mark.parametrize("kind", ["loss_spike", "grad_spike", "imbalance"])
@pytest.mark.parametrize("word", WORDS["loss_spike"])
def test_each_kind_has_a_word_of_its_own(watched, kind, word):
    seen = watched(**{kind: word, "nan": "warn"})
    stops = []
    for step in range(80):
        is_late = step >= 60
        stops.append(
            seen.step(
                step,
                9.0 + 9.0 * (is_late and kind == "loss_spike"),
                **{
                    "learning/raw_grad_norm": 1.0 + 9.0 * (is_late and kind == "grad_spike"),
                    "learning/te_moe_max_total_recv_tokens": 100.0 + 90 * (is_late and kind == "imbalance"),
                    "learning/te_moe_recv_capacity_per_rank": 400.0,
                },
            )
        )
    assert [(told[0], told[2]) for told in seen.told] == [(kind, word)]
    assert any(stops) == (word != "warn")
    assert word_of(Policy(**{kind: word}), kind) == word


def test_what_nothing_follows_from_is_told(watched):
    seen = watched()
    capacity = {"learning/te_moe_recv_capacity_per_rank": 100.0}
    for step in range(20):
        assert seen.step(step, **capacity, **{"learning/te_moe_max_total_recv_tokens": 90.0 + step}) is None
    assert ("overflowing", 11, "warn") in seen.told


def test_a_step_after_a_checkpoint_may_take_long(tmp_path):
    for pause in ("", "I1129 17:35:53.4 1 checkpointing.py:795] Started an asynchronous checkpoint save for step 30"):
        (tmp_path / str(bool(pause))).mkdir()
        seen = Watched(tmp_path / str(bool(pause)))
        for step in range(40):
            if step == 30 and pause:
                seen.numbers.line(0, pause, seen.now)
            stamp = f"I1129 17:{35 + (step >= 30):02d}:{step:02d}.500000 1 metric_logger.py:265] "
            seen.numbers.line(0, f"{stamp}completed step: {step}, seconds: 1.000, loss: 9.0", seen.now)
            seen.now += 1
            seen.numbers.look(seen.now)
        seen.numbers.close()
        assert [kind for kind, *_ in seen.told] == ([] if pause else ["slow_step"])


def test_maxtexts_own_abort_is_a_nan_also_when_its_line_was_cut(watched):
    seen = watched(nan="rollback")
    for step in range(4):
        assert seen.step(step) is None
    seen.numbers.line(0, "completed step: 4, seconds: 0.1", seen.now)
    seen.numbers.line(0, ABORTED, seen.now)
    seen.numbers.close()
    assert [(kind, word) for kind, _, word in seen.told] == [("nan", "rollback")]
    assert seen.numbers.found.since == 4


def test_the_abort_and_its_loss_are_told_once(watched):
    seen = watched(nan="rollback")
    seen.step(0)
    seen.numbers.line(0, "completed step: 1, seconds: 0.1, loss: nan", seen.now)
    seen.numbers.line(0, ABORTED, seen.now)
    seen.numbers.close()
    assert seen.told == [("nan", 1, "rollback")]


def test_other_ranks_are_not_listened_to(watched):
    seen = watched(nan="stop")
    seen.numbers.line(1, "completed step: 1, seconds: 0.1, loss: nan", 0.0)
    seen.numbers.line(1, ABORTED, 0.0)
    seen.numbers.close()
    assert (seen.told, seen.rows) == ([], [])


def test_a_spike_right_after_a_restart_is_judged_by_the_steps_before(watched):
    spiked = [Row(1, step, loss=20.0 if step >= 60 else 9.0) for step in range(80)]
    seen = watched(before=spiked, loss_spike="rollback")
    assert seen.step(60) is None
    assert seen.step(61, loss=20.0).code == Code.DIVERGED
    assert seen.told == [("loss_spike", 61, "rollback")]


@pytest.mark.parametrize("name", recorded.CLEAN)
def test_a_day_of_a_clean_run_raises_no_alarm_live(tmp_path, name):
    """As the worker reads it: lines with stamps, checkpoints in between, and the metrics that come with them."""
    seen = Watched(tmp_path, nan="stop", loss_spike="stop", grad_spike="stop", imbalance="stop")
    day = stretched(recorded_rows(name), DAY)
    for row in day:
        line = f"completed step: {row.step}, seconds: 9.9, loss: {row.loss:.3f}"
        seen.numbers.line(0, line, row.at)
        assert seen.numbers.look(row.at) is None
    seen.numbers.close()
    assert (seen.told, len(seen.rows)) == ([], len(day))
