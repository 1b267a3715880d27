"""The state of a run whose job starts its own attempts: what the files say, what the scheduler sees, and both together."""

import json
import time

import pytest
from handmade import add_attempt, gone, make_run, me, step_line

from launcher.runs import attempts, store, watch
from launcher.runs.attempts import State, by_files, by_sight, judge_one, mark_cancelled, must_ask
from launcher.runs.decisions import suspects
from launcher.runs.status import describe, status_of
from launcher.runs.watch import Watch
from launcher.targets import local
from launcher.targets.base import Presence, Sight

HANDLE = {"kind": "slurm", "job": "12", "cluster": "alps", "user": "ada", "folder": "/runs/demo-0a1b2c3d/bundle"}
FAILED = {"outcome": "trainer", "reason": "rank 1 ended", "code": 1}
ALIVE, WAITING, GONE = (
    Sight(Presence.ALIVE),
    Sight(Presence.WAITING, "in the queue"),
    Sight(Presence.GONE, "it is over"),
)
LINES = "".join(step_line(step) for step in range(8))


@pytest.fixture
def run(tmp_path):
    run = make_run(tmp_path)
    run.layout.run.write_text(json.dumps({**run.record, "target": "slurm"}))
    return store.load(run.folder)


def decide(attempt, action, reason="once more (failures: 1 of 3): rank 1 ended", **more):
    data = {"action": action, "reason": reason, "pause_seconds": 0, "exclude": [], "at": time.time(), **more}
    (attempt.path / "decision.json").write_text(json.dumps(data))


def judged(run, sight):
    files = by_files(run)
    assert must_ask(files), files
    return by_sight(files, sight)


def test_between_an_end_and_its_decision(run):
    add_attempt(run, handle=HANDLE, log=LINES, result=FAILED)
    found = judged(run, ALIVE)
    assert found.state is State.RESTARTING
    assert found.reason == "attempt 1 has ended: rank 1 ended; what follows is being decided"
    assert judged(run, WAITING).reason == "in the queue; attempt 1 ended: rank 1 ended"
    found = judged(run, GONE)
    assert (found.state, found.reason) == (State.FAILED, "rank 1 ended; it is over")
    found = judged(run, Sight(Presence.UNKNOWN, "no controller"))
    assert (found.state, found.reason) == (State.UNKNOWN, "no controller; attempt 1 ended: rank 1 ended")


@pytest.mark.parametrize("action", ["restart", "requeue"])
@pytest.mark.parametrize(("sight", "state"), [(ALIVE, "restarting"), (WAITING, "waiting"), (GONE, "failed")])
def test_a_decision_to_go_on_is_believed_while_the_job_is_there(run, action, sight, state):
    attempt = add_attempt(run, handle=HANDLE, log=LINES, result=FAILED)
    decide(attempt, action, pause_seconds=40)
    found = judged(run, sight)
    assert found.state == state
    assert "rank 1 ended" in found.reason
    assert found.is_live == (state != "failed")
    if sight is ALIVE:
        assert found.reason.startswith(("in 40 s", "in 39 s"))


def test_a_decision_to_stop_needs_no_scheduler(run):
    attempt = add_attempt(run, handle=HANDLE, log=LINES, result=FAILED)
    decide(attempt, "stop", "failures: 4 of 3 allowed (monitor.max_failures), no further start; rank 1 ended")
    found = by_files(run)
    assert found.state is State.FAILED
    assert found.reason == "rank 1 ended; failures: 4 of 3 allowed (monitor.max_failures), no further start"
    assert found.handle == HANDLE
    attempt.result().unlink()
    found = by_files(run)
    assert (found.state, found.reason.startswith("failures: 4 of 3")) == (State.DIED, True)
    mark_cancelled(attempt)
    assert by_files(run).state is State.CANCELLED


@pytest.mark.parametrize(("outcome", "state"), [("finished", "finished"), ("trainer", "cancelled")])
def test_finished_and_cancelled_need_no_decision(run, outcome, state):
    attempt = add_attempt(run, handle=HANDLE, log=LINES, result={**FAILED, "outcome": outcome})
    if state == "cancelled":
        mark_cancelled(attempt)
    assert by_files(run).state == state


def test_a_result_that_the_supervisor_wrote_says_that_the_worker_died(run):
    attempt = add_attempt(run, handle=HANDLE, log=LINES, result={**FAILED, "by": "supervisor"})
    decide(attempt, "stop", "no further start; rank 1 ended")
    assert by_files(run).state is State.DIED
    attempt.result().write_text(json.dumps({"outcome": "preempted", "by": "supervisor", "started": 1, "ended": 2}))
    assert by_files(run).state is State.PREEMPTED


def test_later_attempts_are_of_the_same_job(run):
    decide(add_attempt(run, handle=HANDLE, log=LINES, result=FAILED), "restart")
    add_attempt(run)
    found = judged(run, ALIVE)
    assert (found.state, found.handle, found.attempt.number) == (State.STARTING, HANDLE, 2)
    assert judged(run, GONE).reason == "it never began: it is over"


def test_a_job_that_the_scheduler_started_anew(run):
    add_attempt(run, handle=HANDLE, log=LINES)  # began ten seconds ago
    assert judged(run, Sight(Presence.ALIVE, "", time.time() - 11)).state is State.STARTING
    found = judged(run, Sight(Presence.ALIVE, "", time.time()))
    assert (found.state, found.reason) == (State.RESTARTING, "SLURM started job 12 anew; attempt 2 is about to begin")
    assert describe(found).state is State.RESTARTING, "the old attempt's steps do not make it running"


def test_a_pending_first_start(run):
    attempt = add_attempt(run)
    (attempt.path / "handle.json").write_text(json.dumps(HANDLE))
    assert judged(run, WAITING).state is State.WAITING
    mark_cancelled(attempt)
    found = judged(run, GONE)
    assert (found.state, found.reason) == (State.CANCELLED, "cancelled before it began")


def test_a_start_that_nobody_noted(run):
    add_attempt(run)
    found = by_files(run)
    assert found.state is State.DIED
    assert "`resume` finds it" in found.reason


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"action": "dance"}', '{"action": "stop", "pause_seconds": "soon"}'])
def test_a_damaged_decision_is_told_with_the_file(run, text):
    attempt = add_attempt(run, handle=HANDLE, log=LINES, result=FAILED)
    (attempt.path / "decision.json").write_text(text)
    found = by_files(run)
    assert found.state is State.DAMAGED
    assert "decision.json" in found.reason


def test_suspects_of_all_attempts_together(run):
    decide(add_attempt(run, handle=HANDLE, result=FAILED), "restart", exclude=["n3"])
    decide(add_attempt(run, result=FAILED), "stop", exclude=["n1", "n3"])
    add_attempt(run)
    assert suspects(run) == ("n1", "n3")


def test_the_job_is_in_the_status(run):
    decide(add_attempt(run, handle=HANDLE, log=LINES, result=FAILED), "stop")
    assert status_of(run).job == "12"


def test_an_end_of_which_no_supervisor_is_left_needs_no_decision(tmp_path):
    run = make_run(tmp_path, "local-00000000")
    add_attempt(run, handle=gone(), log=LINES, result=FAILED)
    assert judge_one(run).state is State.FAILED
    decide(add_attempt(run, handle=gone(), log=LINES, result=FAILED), "restart", pause_seconds=40)
    assert judge_one(run).state is State.FAILED


def test_a_local_supervisor_decides_and_waits(tmp_path):
    run = make_run(tmp_path, "local-00000000")
    attempt = add_attempt(run, handle=me(), log=LINES, result=FAILED)
    assert judge_one(run).state is State.RESTARTING
    decide(attempt, "restart", pause_seconds=40)
    assert judge_one(run).reason.startswith(("in 40 s, once more", "in 39 s, once more"))
    decide(attempt, "stop")
    assert by_files(run).state is State.FAILED


def test_a_scheduler_is_asked_less_and_less_often(monkeypatch, tmp_path):
    pauses = watch.pauses("slurm")
    assert [next(pauses) for _ in range(8)] == [0.5, 1, 2, 4, 8, 15, 15, 15]
    run = make_run(tmp_path, "demo-00000000")
    attempt = add_attempt(run, handle=me(), log=LINES)
    asked = []
    look = local.look
    monkeypatch.setattr(local, "look", lambda handles: asked.append(1) or look(handles))
    monkeypatch.setattr(attempts.base, "CLUSTERS", frozenset({"local"}))
    watched = Watch(run)
    states = {watched.look().state for _ in range(50)}
    assert states == {State.STARTING}
    assert len(asked) == 1
    attempt.started().unlink()  # the files show another stage: ask again
    watched.look()
    assert len(asked) == 2
