"""Whose fault it was, when several nodes fail."""

import time

import pytest

from launcher.node.codes import Code, Outcome
from launcher.node.layout import AttemptFolder
from launcher.node.peers import PAUSE, Failure, Peers, blame
from launcher.node.verdict import Verdict

FAILURE = Failure(7, "n7", 139, "rank 28 was killed by SIGSEGV: Fatal Python error", 1000.0)


def verdict(code, outcome, reason="stopped by SIGTERM"):
    return Verdict(code, outcome, reason, 0, 5, 4)


def peers(tmp_path, node, nodes=2, started=None):
    return Peers(AttemptFolder(tmp_path), node, nodes, time.time() if started is None else started)


def test_the_first_report_is_believed(tmp_path):
    peers(tmp_path, 1).report(verdict(139, Outcome.TRAINER, "segfault"))
    peers(tmp_path, 0).report(verdict(134, Outcome.TRAINER, "heartbeat"))
    failure = peers(tmp_path, 0).first_failure()
    assert (failure.node, failure.code, failure.reason) == (1, 139, "segfault")
    assert peers(tmp_path, 1).first_failure() is None, "its own"


def test_no_file_half_a_file_and_an_old_file(tmp_path):
    assert peers(tmp_path, 0).first_failure() is None
    AttemptFolder(tmp_path).failure.write_text('{"node": 1, "ho')
    assert peers(tmp_path, 0).first_failure() is None
    AttemptFolder(tmp_path).failure.unlink()
    peers(tmp_path, 1).report(verdict(139, Outcome.TRAINER))
    assert peers(tmp_path, 0, started=time.time() + 1000).first_failure() is None


def named(tmp_path, node, start, started=None):
    return Peers(AttemptFolder(tmp_path), node, 3, time.time() if started is None else started, start)


def test_a_pod_that_begins_late_sees_an_early_failure_of_its_own_start(tmp_path):
    named(tmp_path, 1, "u/0").report(verdict(139, Outcome.TRAINER, "segfault"))
    late = time.time() + 1000
    assert named(tmp_path, 0, "u/0", started=late).first_failure().reason == "segfault"


def test_a_failure_of_another_start_is_neither_believed_nor_in_the_way(tmp_path):
    named(tmp_path, 1, "u/0").report(verdict(139, Outcome.TRAINER, "segfault"))
    assert named(tmp_path, 0, "v/0").first_failure() is None
    assert peers(tmp_path, 0).first_failure() is None, "starts without a name are another submission's too"
    named(tmp_path, 2, "v/0").report(verdict(134, Outcome.TRAINER, "heartbeat"))
    named(tmp_path, 1, "v/0").report(verdict(1, Outcome.TRAINER, "too late"))
    failure = named(tmp_path, 0, "v/0").first_failure()
    assert (failure.node, failure.reason) == (2, "heartbeat")
    assert [path.name for path in tmp_path.iterdir()] == ["failure.json"]


def test_a_pod_that_begins_again_leaves_failures_from_before_alone(tmp_path):
    named(tmp_path, 1, "u/0").report(verdict(139, Outcome.TRAINER, "segfault"))
    again = Peers(AttemptFolder(tmp_path), 0, 3, time.time() + 0.001, "u/0", again=True)
    assert again.first_failure() is None
    later = Peers(AttemptFolder(tmp_path), 2, 3, time.time() + 0.001, "u/0", again=True)
    time.sleep(0.01)
    later.report(verdict(134, Outcome.TRAINER, "heartbeat"))
    assert again.first_failure().reason == "heartbeat"


def test_one_node_alone_neither_writes_nor_looks(tmp_path):
    peers(tmp_path, 0, nodes=1).report(verdict(1, Outcome.TRAINER))
    assert list(tmp_path.iterdir()) == []
    assert peers(tmp_path, 0, nodes=1).look(1e9) is None


def test_looks_are_rare(tmp_path):
    mine = peers(tmp_path, 0)
    assert mine.look(1000) is None
    peers(tmp_path, 1).report(verdict(139, Outcome.TRAINER))
    assert mine.look(1000 + PAUSE / 2) is None
    assert mine.look(1000 + PAUSE).node == 1


@pytest.mark.parametrize(
    ("own", "code", "outcome"),
    [
        (verdict(Code.PREEMPTED, Outcome.PREEMPTED), 139, Outcome.TRAINER),
        (verdict(134, Outcome.TRAINER), 139, Outcome.TRAINER),
        (verdict(Code.FINISHED, Outcome.FINISHED), 0, Outcome.FINISHED),
        (verdict(Code.OVERFLOW, Outcome.OVERFLOW), 76, Outcome.OVERFLOW),
        (verdict(Code.CONFIG_REFUSED, Outcome.CONFIG_REFUSED), 78, Outcome.CONFIG_REFUSED),
    ],
)
def test_blame(own, code, outcome):
    judged = blame(own, FAILURE)
    assert (judged.code, judged.outcome) == (code, outcome)
    assert judged.reason.startswith("node 7 (n7) failed first: rank 28") == (code == 139)
    assert (judged.last_step, judged.checkpoint) == (5, 4)
    assert blame(own, None) == own
