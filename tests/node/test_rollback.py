"""After numbers that went wrong: the clean checkpoint, other data, and no way round in circles."""

import importlib.util
import json
import subprocess
import sys
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.node import rollback
from launcher.node.alarms import Alarm
from launcher.node.checkpoints import committed_steps
from launcher.node.codes import Outcome, outcome_of
from launcher.node.layout import RunFolder
from launcher.node.policy import Policy
from launcher.node.verdict import Verdict

ALL = Policy(nan="rollback", loss_spike="rollback", grad_spike="rollback", imbalance="rollback")


@dataclass
class Launched:
    """What act reads of launch.json."""

    policy: Policy = ALL
    checkpoint_period: int = 4
    checkpointing: bool = True
    data_seed: int | None = 0


@dataclass
class Bench:
    """A run's folder whose attempts end with an alarm."""

    run: RunFolder
    launch: Launched = field(default_factory=Launched)
    remote: bool = False

    @property
    def checkpoints(self):
        return self.run.path / "checkpoints"

    def save(self, *steps):
        for step in steps:
            (self.checkpoints / str(step)).mkdir(parents=True)
            (self.checkpoints / str(step) / "commit_success.txt").write_text(str(step))

    def act(self, step, since=None, *, attempt=1, code=74, kind="nan", last=None):
        self.run.attempt(attempt).path.mkdir(parents=True, exist_ok=True)
        alarm = Alarm(kind, step, None, f"{kind} at step {step}", step if since is None else since)
        newest = max(committed_steps(self.checkpoints), default=None)
        return rollback.act(
            Verdict(code, outcome_of(code), "it ended", 0, step if last is None else last, newest),
            alarm,
            launch=self.launch,
            run=self.run,
            attempt=self.run.attempt(attempt),
            checkpoints=None if self.remote else self.checkpoints,
        )

    @property
    def adjusted(self):
        return json.loads(self.run.adjust.read_text()) if self.run.adjust.exists() else {}

    @property
    def history(self):
        return [(entry["attempt"], entry["key"], entry["new"]) for entry in self.adjusted.get("history", ())]


@pytest.fixture
def bench(tmp_path):
    return Bench(RunFolder(tmp_path))


def test_checkpoints_that_may_hold_it_are_set_aside_and_other_data_comes(bench):
    bench.save(4, 8, 12)
    verdict = bench.act(13, since=12, attempt=2)
    assert (verdict.code, verdict.outcome, verdict.checkpoint) == (74, Outcome.DIVERGED, 8)
    assert committed_steps(bench.checkpoints) == [4, 8]
    aside = bench.run.path / "checkpoints.rollback" / "12.attempt2"
    assert (aside / "commit_success.txt").read_text() == "12"
    (entry,) = bench.adjusted["history"]
    assert bench.adjusted["maxtext"] == {"data_shuffle_seed": 1}
    assert (entry["attempt"], entry["step"], entry["kind"], entry["new"], entry["moved"]) == (
        2,
        13,
        "nan",
        8,
        [str(aside)],
    )
    assert verdict.reason == (
        "nan at step 13; it ended; back to the checkpoint of step 8, with other data (data_shuffle_seed 0 -> 1); "
        f"set aside: {aside}"
    )


def test_each_rollback_takes_another_seed_and_what_else_was_adjusted_stays(bench):
    bench.run.adjust.write_text(
        json.dumps({"maxtext": {"ragged_buffer_factor": 1.3}, "history": [{"attempt": 0, "key": "x", "new": 4}]})
    )
    bench.save(4, 8)
    bench.act(9)
    bench.save(12)
    bench.act(14, attempt=2)
    assert bench.adjusted["maxtext"] == {"ragged_buffer_factor": 1.3, "data_shuffle_seed": 2}
    assert bench.history[1:] == [(1, "rollback", 8), (2, "rollback", 12)]


def test_where_no_seed_brings_other_data_that_is_said(bench):
    bench.launch.data_seed = None
    bench.save(4)
    assert "back to the checkpoint of step 4, with the same data" in bench.act(6).reason
    assert bench.adjusted["maxtext"] == {}


def test_the_same_checkpoint_is_not_gone_back_to_twice(bench):
    bench.save(4, 8)
    assert bench.act(10).checkpoint == 8
    assert bench.act(10, attempt=2).checkpoint == 4
    assert bench.act(10, attempt=3).checkpoint is None
    assert committed_steps(bench.checkpoints) == []
    bench.save(4, 8)  # the fourth attempt began at the start
    last = bench.act(10, attempt=4)
    assert (last.code, "there is no checkpoint before that" in last.reason) == (74, True)
    assert [new for _, _, new in bench.history] == [8, 4, None]
    assert committed_steps(bench.checkpoints) == [4, 8]


def test_the_start_is_no_place_to_go_back_to_when_old_checkpoints_were_removed(bench):
    bench.save(4000, 4004)  # of many, two are kept
    assert [bench.act(4006, attempt=attempt).checkpoint for attempt in (1, 2)] == [4004, 4000]
    verdict = bench.act(4006, attempt=3)
    assert "an earlier rollback went on from step 4000 already" in verdict.reason
    assert (verdict.code, len(bench.history), committed_steps(bench.checkpoints)) == (74, 2, [4000])


def test_before_the_first_checkpoint_the_run_begins_anew_once(bench):
    verdict = bench.act(2)
    assert (verdict.code, verdict.checkpoint) == (74, None)
    assert "back to the start" in verdict.reason
    assert "went on from the start already" in bench.act(2, attempt=2).reason
    assert len(bench.history) == 1


@given(
    saved=st.sets(st.integers(0, 40), max_size=8),
    since=st.integers(0, 45),
    ends=st.integers(1, 12),
    period=st.sampled_from([1, 4, 100]),
)
def test_no_update_that_may_be_bad_is_kept_and_it_ends(tmp_path_factory, saved, since, ends, period):
    """Whatever is on disk: what the next attempt goes on from is clean, is never taken twice, and the rollbacks end."""
    bench = Bench(RunFolder(tmp_path_factory.mktemp("run")), Launched(checkpoint_period=period))
    bench.save(*saved)
    been = []
    for attempt in range(1, ends + 1):
        verdict = bench.act(since, attempt=attempt)
        if len(bench.history) < attempt:  # a person is asked
            assert verdict.code == 74
            break
        left = committed_steps(bench.checkpoints)
        assert verdict.checkpoint == max(left, default=None)
        assert all(step < since for step in left)
        assert verdict.checkpoint not in been
        been.append(verdict.checkpoint)
    assert len(been) <= len(saved) + 1


@pytest.mark.parametrize("kind", ["nan", "loss_spike", "grad_spike", "imbalance"])
def test_stop_leaves_all_as_it_is(bench, kind):
    bench.launch.policy = Policy(**{kind: "stop"})
    bench.save(4, 8)
    verdict = bench.act(6, kind=kind)
    assert (verdict.code, bench.adjusted, committed_steps(bench.checkpoints)) == (74, {}, [4, 8])
    assert f"monitor.{kind}=stop" in verdict.reason
    assert f"monitor.{kind}=rollback" in verdict.reason


@pytest.mark.parametrize(
    ("code", "becomes"),
    [(1, 74), (134, 74), (74, 74), (75, 75), (76, 76), (77, 77), (79, 79)],
)
def test_whoever_ended_the_attempt_the_tainted_checkpoint_goes(bench, code, becomes):
    """MaxText aborts by itself (1), a signal came at the same time (75), a node broke (79)."""
    bench.save(4, 8)
    assert bench.act(7, code=code).code == becomes
    assert committed_steps(bench.checkpoints) == [4]


@pytest.mark.parametrize("code", [0, 78])
def test_a_run_that_is_over_is_left_alone(bench, code):
    bench.save(4, 8)
    assert bench.act(7, code=code).code == code
    assert (bench.adjusted, committed_steps(bench.checkpoints)) == ({}, [4, 8])


def test_without_an_alarm_nothing_is_touched(bench):
    verdict = Verdict(1, Outcome.TRAINER, "x", 0, 3, None)
    same = rollback.act(
        verdict, None, launch=bench.launch, run=bench.run, attempt=bench.run.attempt(1), checkpoints=bench.checkpoints
    )
    assert same == verdict


@pytest.mark.parametrize(
    ("since", "last", "words"),
    [
        (8, 8, "a checkpoint of step 8 may hold"),
        (7, 7, "a checkpoint of step 8 may hold"),  # it was saved while the line of step 7 was printed
        (9, 10, "back to the checkpoint of step 8"),
        (3, 2, "back to the checkpoint of step 0"),
        (0, 0, "a checkpoint of step 0 may hold"),
    ],
)
def test_on_remote_storage_what_cannot_be_moved_is_told(bench, since, last, words):
    bench.remote = True
    verdict = bench.act(since, last=last)
    assert (verdict.code, words in verdict.reason) == (74, True)
    assert len(bench.history) == ("may hold" not in words)
    assert "already" in bench.act(since, last=last, attempt=2).reason or "may hold" in words


def test_a_file_system_that_refuses_is_an_error(bench, monkeypatch):
    bench.save(4)

    def refuse(*_):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("launcher.node.checkpoints.os.rename", refuse)
    with pytest.raises(OSError, match="Read-only"):
        bench.act(3)
    assert bench.adjusted == {}


GRAIN = """
import grain.python as grain
from maxtext.input_pipeline.grain_data_processing import _apply_mapdataset_transforms as transformed

def begin(seed, shuffled=True):
    return iter(transformed(grain.MapDataset.source(range(1000)), shuffled, seed, None, 0, 1, 1, 1))

for shuffled in (True, False):
    first = begin(0, shuffled)
    for _ in range(20):
        next(first)
    kept = first.get_state()  # what MaxText saves beside the weights
    wanted = [next(first) for _ in range(20)]
    for seed in (0, 1):
        again = begin(seed, shuffled)
        again.set_state(kept)
        print("GRAIN", shuffled, seed, [next(again) for _ in range(20)] == wanted)
"""


@pytest.mark.maxtext
@pytest.mark.skipif(
    importlib.util.find_spec("maxtext") is None, reason="maxtext is not installed: pip install .[local]"
)
def test_another_seed_brings_other_data_from_the_position_in_the_checkpoint():
    """What data_seed and the documentation say, by MaxText's own pipeline."""
    done = subprocess.run([sys.executable, "-c", GRAIN], capture_output=True, text=True, timeout=200, check=False)
    found = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("GRAIN")]
    assert found == [
        ["True", "0", "True"],
        ["True", "1", "False"],
        ["False", "0", "True"],
        ["False", "1", "True"],
    ], done.stderr[-2000:]
