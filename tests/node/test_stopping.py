"""When trainers are told to stop and when they are killed, on a clock that the test moves."""

import signal

from launcher.node.stopping import Act, Stopping


def test_first_signal_is_forwarded_once_and_bounded():
    stopping = Stopping(60, checkpointing=True)
    assert not stopping.is_due(1e9)
    assert stopping.on_signal(signal.SIGTERM, 100) is Act.FORWARD
    assert stopping.signal == signal.SIGTERM
    assert not stopping.is_due(159.9)
    assert stopping.is_due(160)
    assert stopping.why == "killed 60 s after SIGTERM"


def test_an_echo_of_the_signal_does_not_kill():
    stopping = Stopping(60, checkpointing=True)
    stopping.on_signal(signal.SIGTERM, 100)
    assert stopping.on_signal(signal.SIGTERM, 100.5) is Act.NOTHING
    assert not stopping.is_due(101)


def test_second_signal_kills():
    stopping = Stopping(60, checkpointing=True)
    stopping.on_signal(signal.SIGINT, 100)
    assert stopping.on_signal(signal.SIGINT, 102) is Act.KILL
    assert stopping.is_due(102)
    assert stopping.why == "killed by a second SIGINT"


def test_slurms_warning_and_then_its_sigterm_leave_the_time_to_save():
    stopping = Stopping(60, checkpointing=True)
    assert stopping.on_signal(signal.SIGUSR1, 100) is Act.FORWARD
    assert stopping.on_signal(signal.SIGUSR2, 110) is Act.NOTHING
    assert stopping.on_signal(signal.SIGTERM, 130) is Act.NOTHING
    assert not stopping.is_due(159)
    assert stopping.on_signal(signal.SIGTERM, 140) is Act.KILL


def test_without_checkpointing_nobody_waits_long():
    stopping = Stopping(600, checkpointing=False)
    stopping.on_signal(signal.SIGTERM, 100)
    assert stopping.is_due(105)


def test_a_failed_rank_gives_the_others_10_seconds():
    stopping = Stopping(600, checkpointing=True)
    stopping.on_exit(3, 1, 50)
    assert not stopping.is_due(59)
    assert stopping.is_due(60)
    assert stopping.why == "killed 10 s after rank 3 failed"
    stopping.on_exit(2, 1, 55)
    assert stopping.is_due(60)
    assert stopping.why == "killed 10 s after rank 3 failed"


def test_a_rank_that_is_done_gives_the_others_300_seconds():
    stopping = Stopping(600, checkpointing=True)
    stopping.on_exit(0, 0, 50)
    assert not stopping.is_due(349)
    assert stopping.is_due(350)
    stopping.on_exit(1, -6, 60)
    assert stopping.is_due(70)


def test_a_failure_on_another_node_gives_10_seconds_too():
    stopping = Stopping(600, checkpointing=True)
    stopping.on_peer_failure(7, 50)
    assert not stopping.is_due(59)
    assert stopping.is_due(60)
    assert stopping.why == "killed 10 s after node 7 failed"


def test_a_stall_elsewhere_leaves_time_for_evidence_and_ends_nothing_by_itself_before():
    stopping = Stopping(60, checkpointing=True)
    stopping.on_peer_stall(3, 100)
    assert not stopping.is_ending
    assert not stopping.is_due(219)
    assert stopping.is_due(220)
    assert stopping.why == "killed 120 s after node 3 saw a stall"
    stopping.on_peer_failure(3, 110)
    assert stopping.is_ending
    assert stopping.is_due(120)


def test_whatever_ends_the_training_is_known():
    for begin in (
        lambda stopping: stopping.on_signal(signal.SIGTERM, 1),
        lambda stopping: stopping.on_exit(0, 0, 1),
        lambda stopping: stopping.on_exit(0, 1, 1),
        lambda stopping: stopping.on_peer_failure(1, 1),
    ):
        stopping = Stopping(60, checkpointing=True)
        assert not stopping.is_ending
        begin(stopping)
        assert stopping.is_ending
