"""The state of a run, from its files and its target; never a traceback, never more than the end of a log."""

import json
import os
import time

import pytest
from handmade import add_attempt, add_checkpoint, elsewhere, gone, make_run, me, step_line

from launcher.runs import figures, store
from launcher.runs.attempts import State, cancel_file, mark_cancelled
from launcher.runs.figures import tail_steps
from launcher.runs.status import status_json, status_of, status_text, statuses, table
from launcher.targets import local

LINES = "".join(step_line(step) for step in range(8))


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path)


@pytest.mark.parametrize(
    ("result", "state"),
    [
        ({"outcome": "finished", "code": 0}, "finished"),
        ({"outcome": "preempted", "code": 75}, "preempted"),
        ({"outcome": "overflow", "code": 76}, "overflow"),
        ({"outcome": "stalled", "code": 77}, "stalled"),
        ({"outcome": "config_refused", "code": 78}, "failed"),
        ({"outcome": "bad_node", "code": 79}, "failed"),
        ({"outcome": "trainer", "code": 134}, "failed"),
        ({"outcome": "something new"}, "damaged"),
        ({}, "damaged"),
    ],
)
def test_a_result_decides(run, result, state):
    add_attempt(run, handle=gone(), log=LINES, result={"reason": "why it ended", **result})
    assert status_of(run).state == state


def test_no_attempt_yet(run):
    status = status_of(run)
    assert (status.state, status.attempt, status.steps, status.last_step) == ("created", None, 20, None)
    assert f"resume {run.name}" in status.reason


@pytest.mark.parametrize(
    ("log", "state"),
    [
        ("", "starting"),
        ("importing\n", "starting"),
        ("importing\nI1129 1 max.py:1] Num_devices: 2, shape (1, 2)\n", "compiling"),
        ("I1129 1 max.py:1] Num_devices: 2, shape (1, 2)\n\nMemstats: After params initialized:\n", "running"),
        (LINES, "running"),
        (LINES[:70], "starting"),
    ],
)
def test_how_far_a_live_attempt_is(run, log, state):
    add_attempt(run, handle=me(), log=log)
    assert status_of(run).state == state


def test_a_worker_that_is_gone_without_a_result_has_died(run):
    add_attempt(run, handle=gone(), log=LINES)
    status = status_of(run)
    assert (status.state, status.last_step, status.eta_seconds) == ("died", 7, None)
    assert "left no result" in status.reason


def test_a_boot_ends_what_ran_before_it(run):
    add_attempt(run, handle={**me(), "boot": "another boot"})
    assert status_of(run).state == "died"


def test_a_run_of_another_host_is_not_judged(run):
    add_attempt(run, handle=elsewhere(), log=LINES)
    status = status_of(run)
    assert status.state == "unknown"
    assert "another-login-node" in status.reason
    assert status.last_step == 7


def test_an_attempt_started_by_hand_is_found_by_its_own_word(run):
    attempt = add_attempt(run, handle=me(), log=LINES)
    (attempt.path / "handle.json").unlink()
    assert status_of(run).state == "running"


def test_an_attempt_that_never_began(run):
    add_attempt(run)
    status = status_of(run)
    assert status.state == "died"
    assert "never began" in status.reason


def test_an_attempt_being_started_right_now(run):
    add_attempt(run)
    held, tell = os.pipe()
    enough, end = os.pipe()
    child = os.fork()
    if child == 0:
        with store.locked(run):
            os.write(tell, b"x")
            os.read(enough, 1)
        os._exit(0)
    os.read(held, 1)
    state = status_of(run).state
    os.write(end, b"x")
    os.waitpid(child, 0)
    assert state == "starting"


def test_cancelled_is_told_apart(run):
    attempt = add_attempt(run, handle=me(), log=LINES)
    mark_cancelled(attempt)
    assert status_of(run).state == "stopping"
    (attempt.path / "handle.json").write_text(json.dumps(gone()))
    assert status_of(run).state == "cancelled"
    attempt.result().write_text(json.dumps({"outcome": "preempted", "started": 1, "ended": 2}))
    assert status_of(run).state == "cancelled"
    attempt.result().write_text(json.dumps({"outcome": "finished", "started": 1, "ended": 2}))
    assert status_of(run).state == "finished"
    cancel_file(attempt).write_text("{")
    assert status_of(run).state == "finished", "what cancel said no longer matters"


def test_the_figures(run):
    add_attempt(run, handle=gone(), log=LINES, result={"outcome": "trainer", "reason": "rank 1 ended", "code": 1})
    lines = "".join(step_line(step, seconds=9 if step < 8 else 0.25, tokens=400) for step in range(5, 14))
    attempt = add_attempt(run, handle=me(), log=lines + step_line(14)[:60])
    add_checkpoint(run, 5)
    add_checkpoint(run, 10)
    (run.checkpoints() / "15.orbax-checkpoint-tmp").mkdir()
    status = status_of(run)
    assert (status.attempt, status.restarts, status.step_attempt) == (2, 1, 2)
    assert (status.last_step, status.steps, status.loss) == (13, 20, 6.87)
    assert (status.seconds_per_step, status.speed_steps) == (0.25, 6), "the first three steps of an attempt are junk"
    assert status.tokens_per_second_per_device == 400
    assert status.eta_seconds == pytest.approx(6 * 0.25)
    assert status.checkpoint == 10
    assert 0 <= status.checkpoint_age_seconds < 60
    assert status.log == str(attempt.rank_log(0))
    assert 9 < status.elapsed_seconds < 60


def test_an_attempt_without_a_line_shows_the_steps_of_the_one_before(run):
    add_attempt(run, handle=gone(), log=LINES)
    add_attempt(run, handle=me(), log="importing\n")
    status = status_of(run)
    assert (status.state, status.attempt, status.last_step, status.step_attempt) == ("starting", 2, 7, 1)
    assert "in attempt 1" in status_text(status)
    assert status.eta_seconds is None


def test_the_log_is_that_of_the_rank_that_failed(run):
    result = {"outcome": "trainer", "code": 1, "reason": "rank 3 was killed by SIGABRT: out of memory"}
    attempt = add_attempt(run, handle=gone(), log=LINES, result=result, rank_logs={3: "out of memory\n"})
    assert status_of(run).log == str(attempt.rank_log(3))
    attempt.rank_log(3).unlink()
    assert status_of(run).log == str(attempt.rank_log(0))
    attempt.rank_log(0).unlink()
    assert status_of(run).log == str(attempt.worker_log())


@pytest.mark.parametrize("name", ["result.json", "handle.json", "attempt.json", "cancel.json"])
@pytest.mark.parametrize("damage", [b"", b"{", b"null", b"\xff\xfe", b'{"outcome": '])
def test_damage_anywhere_is_told_with_the_file(run, name, damage):
    attempt = add_attempt(run, handle=me(), log=LINES)
    (attempt.path / name).write_bytes(damage)
    status = status_of(run)
    assert status.state == "damaged"
    assert name in status.reason
    assert "Traceback" not in status_text(status)


def test_a_handle_without_its_fields_is_not_believed(run):
    attempt = add_attempt(run, handle=me())
    (attempt.path / "handle.json").write_text('{"kind": "local"}')
    assert status_of(run).state in (State.UNKNOWN, State.DAMAGED)


def test_a_target_that_this_launcher_does_not_have(run):
    add_attempt(run, handle=me(), log=LINES)
    run.layout.run.write_text(json.dumps({**run.record, "target": "abacus"}))
    status = status_of(store.load(run.folder))
    assert status.state == "unknown"
    assert "abacus" in status.reason


def test_only_the_end_of_a_huge_log_is_read(tmp_path, monkeypatch):
    log = tmp_path / "rank0.log"
    with open(log, "wb") as file:
        file.seek(8 << 30)  # a hole: 8 GB that take no disk
        file.write(b"\n" + "".join(step_line(step) for step in range(100, 140)).encode())
    read = []
    really = open

    class Counting:
        def __init__(self, *words):
            self.file = really(*words)

        def __enter__(self):
            return self

        def __exit__(self, *words):
            self.file.close()

        def seek(self, *words):
            return self.file.seek(*words)

        def read(self, size):
            read.append(size)
            return self.file.read(size)

    monkeypatch.setattr(figures, "open", Counting, raising=False)
    steps, from_start = tail_steps(log)
    assert (steps[-1].step, from_start) == (139, False)
    assert sum(read) < 1 << 20


def test_step_lines_far_from_the_end_are_still_found(tmp_path):
    log = tmp_path / "rank0.log"
    log.write_text(step_line(7) + "W1129 a warning that floods the log\n" * 20_000)
    steps, from_start = tail_steps(log)
    assert ([step.step for step in steps], from_start) == ([7], True)


def test_two_hundred_runs_ask_the_target_once(tmp_path, monkeypatch):
    for number in range(200):
        run = make_run(tmp_path, f"demo-{number:08x}")
        add_attempt(run, handle=me(), log=LINES)
    asked = []
    look = local.look
    monkeypatch.setattr(local, "look", lambda handles: asked.append(len(handles)) or look(handles))
    found = statuses(store.all_runs(tmp_path))
    assert asked == [200]
    assert {status.state for status in found} == {State.RUNNING}


def test_the_text(run):
    lines = "".join(step_line(step, seconds=0.25, tokens=400) for step in range(14))
    add_attempt(run, handle=me(), log=lines)
    add_checkpoint(run, 10)
    os.utime(run.checkpoints() / "10", (time.time() - 125, time.time() - 125))
    text = status_text(status_of(run)).splitlines()
    told = {line.split("  ", 1)[0]: line.split("  ", 1)[1].strip() for line in text}
    assert told["run"] == f"{run.name} on local"
    assert told["state"].startswith("running, attempt 1, 1")
    assert told["steps"] == "14 of 20 done, last is step 13"
    assert told["loss"] == "6.870"
    assert told["speed"] == "0.250 s/step, 400.0 tokens/s/device (median of 11 steps)"
    assert told["left"] == "about 2 s"
    assert told["checkpoint"].startswith("step 10, 2 min ")
    assert told["path"] == str(run.folder)
    head, row = table([status_of(run)]).splitlines()
    assert head.split()[:4] == ["RUN", "STATE", "ATTEMPT", "STEPS"]
    assert row.split()[:6] == [run.name, "running", "1", "14/20", "6.870", "0.250"]


def test_the_json_is_json(run):
    add_attempt(run, handle=me(), log=LINES)
    read = json.loads(json.dumps(status_json(status_of(run))))
    assert (read["state"], read["last_step"], read["steps"]) == ("running", 7, 20)


def test_one_damaged_handle_does_not_hide_the_others(tmp_path):
    sound, broken = make_run(tmp_path, "sound-00000000"), make_run(tmp_path, "broken-00000000")
    add_attempt(sound, handle=me(), log=LINES)
    attempt = add_attempt(broken, handle=me(), log=LINES)
    (attempt.path / "handle.json").write_text('{"kind": "local"}')
    states = {status.run: status.state for status in statuses(store.all_runs(tmp_path))}
    assert states == {sound.name: "running", broken.name: "unknown"}
