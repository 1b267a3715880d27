"""Every way an attempt can end, and the code it must get."""

import signal

import pytest

from launcher.node.codes import Code, Outcome, exit_code_of, outcome_of
from launcher.node.monitor import Stop
from launcher.node.observe import Observed
from launcher.node.verdict import Asked, RankEnd, judge

STOPPED = "I1129 train.py:1454] Training stopped: Job received termination signal (SIGTERM)."
STEP = "completed step: {}, seconds: 0.142, loss: 10.8"


def end(rank=0, returncode=0, steps=(), lines=(), killed=False):
    facts = Observed()
    for step in steps:
        facts.feed(STEP.format(step))
    for line in lines:
        facts.feed(line)
    return RankEnd(rank, returncode, killed, facts)


def asked(**changes):
    return Asked(**{"steps": 10, "checkpointing": True, "checkpoints": (), **changes})


def codes(verdict):
    return verdict.code, verdict.outcome


def test_finished():
    verdict = judge([end(steps=range(4, 10)), end(1, steps=range(4, 10))], asked(checkpoints=[4, 9]))
    assert codes(verdict) == (0, Outcome.FINISHED)
    assert (verdict.first_step, verdict.last_step, verdict.checkpoint) == (4, 9, 9)


def test_return_code_0_alone_is_not_finished():
    verdict = judge([end(steps=range(5))], asked())
    assert codes(verdict) == (1, Outcome.TRAINER)
    assert "the last completed step is 4 of 0..9: MaxText gave no reason" in verdict.reason


def test_a_crash_after_the_last_step_is_not_finished():
    verdict = judge([end(steps=range(10), returncode=1, lines=["ValueError: disk full"])], asked())
    assert codes(verdict) == (1, Outcome.TRAINER)
    assert verdict.reason == "rank 0 ended with return code 1: ValueError: disk full"


def test_already_done():
    line = "RuntimeError: Requested training up to step 10, but a checkpoint already exists at step 9 (which means"
    verdict = judge([end(returncode=1, lines=[line])], asked(checkpoints=[9]))
    assert codes(verdict) == (0, Outcome.FINISHED)


def test_target_loss_reached_is_finished():
    line = "Training stopped: Target loss self.config.target_eval_loss=3.2 is achieved."
    assert judge([end(steps=[0, 1], lines=[line])], asked()).code == 0


def test_preempted_with_a_checkpoint_ahead_of_the_log():
    verdict = judge([end(steps=range(5), lines=[STOPPED])], asked(checkpoints=[5], signal=signal.SIGTERM))
    assert codes(verdict) == (75, Outcome.PREEMPTED)
    assert verdict.reason == "stopped by SIGTERM after step 4; the checkpoint of step 5 holds everything"


def test_signal_to_the_trainer_alone_is_a_preemption_too():
    verdict = judge([end(steps=range(5), lines=[STOPPED])], asked(checkpoints=[5]))
    assert codes(verdict) == (75, Outcome.PREEMPTED)
    assert verdict.reason.startswith("stopped by a signal to the trainer after step 4")


def test_preempted_with_an_older_checkpoint_says_what_is_lost():
    verdict = judge([end(steps=range(3, 8), lines=[STOPPED])], asked(checkpoints=[2], signal=signal.SIGUSR1))
    assert verdict.code == 75
    assert verdict.reason.endswith("the newest checkpoint is of step 2: 5 step(s) will be trained again")


def test_stopped_without_any_checkpoint():
    verdict = judge([end(steps=range(5), lines=[STOPPED])], asked(signal=signal.SIGTERM))
    assert codes(verdict) == (1, Outcome.TRAINER)
    assert "there is no checkpoint: steps up to 4 are lost; enable_autocheckpoint=true saves" in verdict.reason


def test_killed_after_the_grace_time():
    ends = [end(0, -9, steps=range(5), killed=True), end(1, -9, steps=range(5), killed=True)]
    verdict = judge(ends, asked(checkpoints=[3], signal=signal.SIGTERM, why_killed="killed 60 s after SIGTERM"))
    assert verdict.code == 75
    assert (
        "stopped by SIGTERM after step 4 (killed 60 s after SIGTERM); the newest checkpoint is of step 3"
        in verdict.reason
    )


def test_stop_before_anything_ran():
    assert judge([], asked(signal=signal.SIGTERM)).code == 1
    assert judge([], asked(signal=signal.SIGTERM, checkpoints=[4])).code == 75


def test_signal_during_jax_start():
    ends = [end(1, -signal.SIGTERM), end(0, 1, lines=["RuntimeError: Unable to connect"])]
    assert judge(ends, asked(signal=signal.SIGTERM, checkpoints=[4])).code == 75


def test_a_failure_during_the_stop_is_the_trainers():
    ends = [end(0, 1, steps=range(5), lines=["OSError: No space left on device"])]
    verdict = judge(ends, asked(signal=signal.SIGTERM, checkpoints=[2]))
    assert codes(verdict) == (1, Outcome.TRAINER)
    assert "No space left" in verdict.reason


def test_signal_at_the_very_end():
    done = judge([end(steps=range(10), lines=[STOPPED])], asked(checkpoints=[9], signal=signal.SIGTERM))
    assert done.code == 0
    unlogged = judge([end(steps=range(9), lines=[STOPPED])], asked(checkpoints=[9], signal=signal.SIGTERM))
    assert unlogged.code == 0
    unsaved = judge([end(steps=range(10), lines=[STOPPED])], asked(checkpoints=[5], signal=signal.SIGTERM))
    assert unsaved.code == 75


def test_remote_checkpoints_are_believed_but_said():
    verdict = judge([end(steps=range(5), lines=[STOPPED])], asked(checkpoints=None, signal=signal.SIGTERM))
    assert verdict.code == 75
    assert "not checked from here" in verdict.reason


OVERFLOW = (
    "RuntimeError: TE MoE receive capacity overflow at training step 2 (detected at the 4-step check ending at step 3): "
    "observed padded receive demand 101120 exceeds recv_capacity_per_rank 98304 (ragged_buffer_factor=1.25). The"
)


def test_overflow_wins_over_who_was_killed():
    verdict = judge([end(0, -9, steps=range(4), killed=True), end(1, 1, steps=range(4), lines=[OVERFLOW])], asked())
    assert codes(verdict) == (76, Outcome.OVERFLOW)
    assert "demand 101120 rows, capacity 98304 at ragged_buffer_factor=1.25" in verdict.reason


def test_refusal_counts_before_the_first_step_only():
    line = "AssertionError: Number of devices per slice 2 does not match the product of the ICI parallelism 4"
    assert codes(judge([end(0, 1, lines=[line])], asked())) == (78, Outcome.CONFIG_REFUSED)
    assert judge([end(0, 1, steps=[0], lines=[line])], asked()).outcome is Outcome.TRAINER


def test_the_first_rank_that_failed_by_itself_is_named():
    ends = [
        end(2, -11, lines=["Fatal Python error: Segmentation fault"]),
        end(0, -6, lines=["F1129 16:10:00.000000 77 client.h:86] Task 2 heartbeat timeout"]),
        end(1, -9, killed=True),
    ]
    verdict = judge(ends, asked())
    assert codes(verdict) == (139, Outcome.TRAINER)
    assert verdict.reason == "rank 2 was killed by SIGSEGV: Fatal Python error: Segmentation fault"


def test_hung_at_exit_with_everything_saved():
    ends = [end(0, 0, steps=range(10)), end(1, -9, steps=range(10), killed=True)]
    why = "killed 300 s after rank 0 ended with return code 0"
    assert judge(ends, asked(checkpoints=[9], why_killed=why)).code == 0
    verdict = judge(ends, asked(checkpoints=[5], why_killed=why))
    assert codes(verdict) == (1, Outcome.TRAINER)
    assert verdict.reason == f"rank(s) 1 had to be killed: {why}"


def test_a_trainer_cannot_speak_with_our_codes():
    assert judge([end(0, 76, lines=["odd"])], asked()).code == 1


@pytest.mark.parametrize(("returncode", "code"), [(0, 0), (3, 3), (-9, 137), (-15, 143)])
def test_exit_code_of(returncode, code):
    assert exit_code_of(returncode) == code


def test_outcomes():
    assert [outcome_of(code).value for code in (0, 75, 76, 77, 78, 79, 1, 139)] == [
        "finished",
        "preempted",
        "overflow",
        "stalled",
        "config_refused",
        "bad_node",
        "trainer",
        "trainer",
    ]


@pytest.mark.parametrize("code", [Code.STALLED, Code.DIVERGED])
def test_what_the_monitor_asked_for_is_the_verdict(code):
    ends = [end(steps=range(5), returncode=-9, killed=True), end(1, steps=range(4), returncode=-9, killed=True)]
    verdict = judge(ends, asked(stop=Stop(code, "as the monitor saw it"), why_killed="as the monitor saw it"))
    assert codes(verdict) == (code, outcome_of(code))
    assert (verdict.reason, verdict.last_step) == ("as the monitor saw it", 4)


def test_a_rank_that_failed_in_the_moment_before_explains_more_than_the_monitor():
    ends = [
        end(steps=range(5), returncode=1, lines=["ValueError: disk full"]),
        end(1, steps=range(5), returncode=-9, killed=True),
    ]
    assert (
        judge(ends, asked(stop=Stop(77, "no step"))).reason == "rank 0 ended with return code 1: ValueError: disk full"
    )


def test_a_finished_training_that_was_stopped_as_it_ended_is_finished():
    ends = [end(steps=range(10)), end(1, steps=range(10), returncode=-9, killed=True)]
    assert judge(ends, asked(stop=Stop(77, "no step"), checkpoints=[9])).code == Code.FINISHED
