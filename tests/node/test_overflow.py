"""After an overflow of the receive buffers: the next factor, the clean checkpoint, and a run that heals itself."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.node import overflow
from launcher.node.checkpoints import committed_steps
from launcher.node.codes import Code, Outcome
from launcher.node.layout import RunFolder
from launcher.node.observe import Buffers, Observed, Overflow
from launcher.node.verdict import RankEnd, Verdict

# Two H200 with a router off balance, factor 1 (maxtext 0.2.5, TE 2.20).
LOG = Path(__file__).parent / "data" / "h200_overflow.log"
H200 = Buffers(ep=2, experts=64, tokens=16384)
SEEN = Overflow(0, 3, 101120, 98304, 1.0)


def ceil128(rows):
    return math.ceil(rows / 128) * 128


def capacity(factor, buffers, chosen):
    """TE 2.20's get_moe_recv_capacity_per_rank, as its documentation gives it."""
    local = buffers.experts // buffers.ep
    tokens = buffers.ep * buffers.tokens
    worst = min(local * ceil128(tokens), ceil128(tokens * min(chosen, local) + 127 * local))
    if factor <= 0:
        return worst
    return min(worst, ceil128(factor * local * ceil128(math.ceil(buffers.tokens * chosen / local))))


def recorded():
    observed = Observed()
    for line in LOG.read_text().splitlines():
        observed.feed(line)
    return observed


def test_the_recorded_log_tells_all_that_is_needed():
    observed = recorded()
    assert observed.overflow == SEEN
    assert observed.buffers == H200
    found = overflow.cure(observed.overflow, observed.buffers)
    assert found.factor == 1.29
    assert found.held == pytest.approx(1.0286, abs=1e-4)
    assert capacity(found.factor, H200, chosen=6) >= 1.25 * SEEN.demand


def test_a_router_that_sends_all_to_one_rank_gets_the_worst_case():
    assert overflow.cure(Overflow(0, 3, 196608, 98304, 1.0), H200).factor == -1
    assert overflow.cure(Overflow(0, 3, 196608, 98304, 1.0), None).factor == 2.5  # TE itself caps it


@given(
    local=st.sampled_from([1, 2, 4, 8, 32, 64]),
    ep=st.sampled_from([2, 4, 8, 16, 64]),
    tokens=st.integers(128, 40960),
    chosen=st.integers(1, 8),
    factor=st.sampled_from([1.0, 1.05, 1.29, 1.5, 2.0, 3.7]),
    more=st.floats(0.001, 1.0),
)
def test_the_factor_holds_the_demand_and_its_margin(*, local, ep, tokens, chosen, factor, more):
    buffers = Buffers(ep, ep * local, tokens)
    there, worst = capacity(factor, buffers, chosen), capacity(-1, buffers, chosen)
    demand = there + ceil128(more * (worst - there))
    if not there < demand <= worst:
        return
    seen = Overflow(4, 19, demand, there, factor)
    for sizes in (buffers, None):
        new = overflow.cure(seen, sizes).factor
        assert new == -1 or new > factor
        assert capacity(new, buffers, chosen) >= min(worst, overflow.MARGIN * demand)


def ends(*lines, returncode=1):
    observed = Observed()
    for line in lines:
        observed.feed(line)
    return [RankEnd(0, returncode, False, observed)]


VERDICT = Verdict(Code.OVERFLOW, Outcome.OVERFLOW, SEEN.text, 0, 3, None)


class Launched:
    """What act reads of launch.json."""

    def __init__(self, mode="act", period=2, largest=None):
        self.overflow, self.checkpoint_period, self.checkpointing = mode, period, True
        self.largest_factor = largest


def text(step=5, check=8, demand=101120, there=98304, factor="1.0"):
    return (
        f"RuntimeError: TE MoE receive capacity overflow at training step {step} (detected at the 4-step check ending at "
        f"step {check}): observed padded receive demand {demand} exceeds recv_capacity_per_rank {there} "
        f"(ragged_buffer_factor={factor}). The optimizer update was skipped;"
    )


def act(tmp_path, line, *, attempt=1, checkpoints="checkpoints", launch=None):
    run = RunFolder(tmp_path)
    run.attempt(attempt).path.mkdir(parents=True, exist_ok=True)
    return overflow.act(
        VERDICT,
        ends(line),
        launch=launch or Launched(),
        run=run,
        attempt=run.attempt(attempt),
        checkpoints=None if checkpoints is None else tmp_path / checkpoints,
    )


def adjusted(tmp_path):
    return json.loads((tmp_path / "adjust.json").read_text())


def save(folder, *steps):
    for step in steps:
        (folder / str(step)).mkdir(parents=True)
        (folder / str(step) / "commit_success.txt").write_text(str(step))


def test_checkpoints_with_the_overflowing_update_are_set_aside_and_none_is_deleted(tmp_path):
    save(tmp_path / "checkpoints", 2, 4, 5, 6, 8)
    verdict = act(tmp_path, text(step=5, check=8), attempt=3)
    assert (verdict.code, verdict.checkpoint) == (76, 4)
    assert committed_steps(tmp_path / "checkpoints") == [2, 4]
    aside = tmp_path / "checkpoints.overflow"
    assert {path.name for path in aside.iterdir()} == {"5.attempt3", "6.attempt3", "8.attempt3"}
    assert (aside / "6.attempt3" / "commit_success.txt").read_text() == "6"
    data = adjusted(tmp_path)
    assert data["maxtext"] == {"ragged_buffer_factor": 1.29}
    (entry,) = data["history"]
    assert (entry["attempt"], entry["step"], entry["old"], entry["new"]) == (3, 5, 1.0, 1.29)
    assert entry["moved"] == [str(aside / f"{step}.attempt3") for step in (5, 6, 8)]
    assert "ragged_buffer_factor 1 -> 1.29 for the next attempt (1.029 would have held)" in verdict.reason
    assert str(aside / "6.attempt3") in verdict.reason


def test_what_else_was_adjusted_stays_and_each_overflow_is_noted(tmp_path):
    (tmp_path / "adjust.json").write_text(json.dumps({"maxtext": {"steps": 9}, "other": 1}))
    act(tmp_path, text())
    act(tmp_path, text(demand=200000, there=126848, factor="1.29"), attempt=2)
    data = adjusted(tmp_path)
    assert (data["maxtext"], data["other"]) == ({"steps": 9, "ragged_buffer_factor": 2.55}, 1)
    assert [(entry["attempt"], entry["old"], entry["new"]) for entry in data["history"]] == [
        (1, 1, 1.29),
        (2, 1.29, 2.55),
    ]


def test_the_same_factor_is_not_tried_twice(tmp_path):
    act(tmp_path, text())
    before = adjusted(tmp_path)
    save(tmp_path / "checkpoints", 6)
    verdict = act(tmp_path, text(), attempt=2)  # as if MaxText had not taken it
    assert (verdict.code, verdict.outcome) == (78, Outcome.CONFIG_REFUSED)
    assert "ragged_buffer_factor=1.29 is wanted, but attempt 1 set it and it did not help" in verdict.reason
    assert adjusted(tmp_path) == before
    assert committed_steps(tmp_path / "checkpoints") == [6]


def test_at_the_worst_case_nothing_is_left_to_do(tmp_path):
    verdict = act(tmp_path, text(factor="-1.0"))
    assert verdict.code == 78
    assert "is the worst case already" in verdict.reason
    assert not (tmp_path / "adjust.json").exists()


def test_stop_leaves_it_to_a_person_and_says_what_would_help(tmp_path):
    save(tmp_path / "checkpoints", 6)
    verdict = act(tmp_path, text(), launch=Launched("stop"))
    assert verdict.code == 76
    assert (
        "set moe.ragged_buffer_factor=1.29, or monitor.overflow=act; the checkpoint(s) of step 6 hold it"
        in verdict.reason
    )
    assert not (tmp_path / "adjust.json").exists()
    assert committed_steps(tmp_path / "checkpoints") == [6]


def test_warn_changes_no_factor_and_goes_on_from_the_clean_checkpoint(tmp_path):
    save(tmp_path / "checkpoints", 4, 6)
    verdict = act(tmp_path, text(step=5), launch=Launched("warn"))
    assert (verdict.code, verdict.checkpoint) == (76, 4)
    assert "set moe.ragged_buffer_factor=1.29; monitor.overflow=warn starts again as it was" in verdict.reason
    assert not (tmp_path / "adjust.json").exists()
    assert committed_steps(tmp_path / "checkpoints") == [4]


@pytest.mark.parametrize(
    ("largest", "code", "factor"),
    [
        (None, 76, 1.29),  # not known
        (-1, 76, 1.29),  # even the worst case fits
        (1.29, 76, 1.29),
        (1.28, 76, 1.28),  # less of a margin
        (1.09, 76, 1.09),
        (1.08, 78, None),  # 1.029 would have held, with nearly no margin
        (1.0, 78, None),
    ],
)
def test_the_factor_stays_within_what_the_gpus_memory_takes_by_the_plan(tmp_path, largest, code, factor):
    save(tmp_path / "checkpoints", 6)
    verdict = act(tmp_path, text(), launch=Launched(largest=largest))
    assert verdict.code == code
    if factor is None:
        assert (
            f"a GPU's memory takes at most {largest:g}: type a smaller trainer.per_device_batch_size" in verdict.reason
        )
        assert not (tmp_path / "adjust.json").exists()
        assert committed_steps(tmp_path / "checkpoints") == [6]
    else:
        assert adjusted(tmp_path)["maxtext"] == {"ragged_buffer_factor": factor}


@pytest.mark.parametrize(("largest", "code"), [(-1, 76), (None, 76), (3.0, 76), (2.5, 76), (2.05, 78)])
def test_the_worst_case_is_taken_only_where_it_fits(tmp_path, largest, code):
    """All tokens of two ranks go to one: 2.0 would have held, 2.5 with the margin is the worst case."""
    sizes = (
        "Bootstrapping TE MoE EP: world=2 rank=0 ep=2 num_experts=64 max_tokens_per_rank=16384 recv_capacity_per_rank=1"
    )
    run = RunFolder(tmp_path)
    seen = Verdict(Code.OVERFLOW, Outcome.OVERFLOW, "it overflowed", 0, 3, None)
    verdict = overflow.act(
        seen,
        ends(sizes, text(demand=196608)),
        launch=Launched(largest=largest),
        run=run,
        attempt=run.attempt(1),
        checkpoints=tmp_path / "checkpoints",
    )
    assert verdict.code == code
    if code == 76:
        assert adjusted(tmp_path)["maxtext"]["ragged_buffer_factor"] == (-1 if largest in (-1, None) else largest)
    else:
        assert "ragged_buffer_factor=the worst case (-1) is wanted (2.000 would have held)" in verdict.reason


@pytest.mark.parametrize(
    ("period", "code", "words"),
    [
        (100, 76, "1 -> 1.29"),
        (4, 78, "a checkpoint of step 8 may hold"),
        (5, 78, "of step 5 may hold"),
        (9, 76, "1.29"),
    ],
)
def test_a_tainted_checkpoint_on_remote_storage_stops_the_run(tmp_path, period, code, words):
    verdict = act(tmp_path, text(step=5, check=8), checkpoints=None, launch=Launched(period=period))
    assert verdict.code == code
    assert words in verdict.reason


def test_other_ends_are_not_touched(tmp_path):
    verdict = Verdict(1, Outcome.TRAINER, "x", 0, 3, None)
    run = RunFolder(tmp_path)
    same = overflow.act(verdict, ends(text()), launch=Launched(), run=run, attempt=run.attempt(1), checkpoints=tmp_path)
    assert same == verdict


def test_an_overflow_is_healed_by_the_next_attempt(run):
    """The worker end to end: the update of step 5 overflows, that of step 4 is saved and clean, that of step 6 is not."""
    run.write({"overflow": "act", "steps": 12}, mode="overflow", at=5, checkpoint_period=2)
    assert run.worker().returncode == 76
    saved = run.path / "output/demo-0a1b2c3d"
    assert committed_steps(saved / "checkpoints") == [2, 4]
    assert [path.name for path in (saved / "checkpoints.overflow").iterdir()] == ["6.attempt1"]
    assert run.result()["checkpoint"] == 4
    healed = run.worker(attempt=2)
    assert healed.returncode == 0, healed.stdout
    assert "ragged_buffer_factor=1.29" in run.json("attempt.json", 2)["command"]
    assert (run.result(2)["first_step"], run.result(2)["outcome"]) == (5, "finished")


def test_a_trainer_that_overflows_whatever_the_factor_is_refused(run):
    run.write({"overflow": "act", "steps": 12}, mode="overflow", at=5, always=1)
    assert run.worker().returncode == 76
    assert run.worker(attempt=2).returncode == 78
    assert "attempt 1 set it and it did not help" in run.result(2)["reason"]
