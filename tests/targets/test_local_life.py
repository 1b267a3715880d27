"""A run on one machine keeps itself alive: its supervisor restarts it, obeys, ends with everything it started, and is found again."""

import io
import json
import os
import signal
import threading

import pytest
from bench import Bench, printed, result, wait_until

from launcher.runs import ending, progress, starting, store
from launcher.runs.attempts import State, handle_file, judge_one, newest
from launcher.runs.decisions import decision_of
from launcher.runs.logs import print_logs
from launcher.runs.status import status_of
from launcher.targets import local, processes


class Harness:
    words = ("target=local", "monitor.restart_pause_seconds=0")


def with_words(bench, *words):
    harness = Harness()
    harness.words = (*Harness.words, *words)
    return Bench(bench.root, harness)


@pytest.fixture
def bench(tmp_path):
    bench = Bench(tmp_path / "runs", Harness())
    yield bench
    for run in store.all_runs(bench.root):
        if judge_one(run).is_live:
            ending.cancel_now(run, lambda _: None)


def left_over(run):
    return processes.marked(local.MARK, str(run.layout.attempt(1).path))


def nothing_is_left(run):
    wait_until(lambda: not left_over(run), 20, lambda: left_over(run))


def pid_of(run, attempt=1):
    return json.loads(run.layout.attempt(attempt).started().read_text())["pid"]


def decisions(run):
    found = [decision_of(run.layout.attempt(number)) for number in run.layout.attempt_numbers()]
    return [one.action if one else None for one in found]


def paused(bench, orders="mode=die at=2"):
    """A run in the pause before its second attempt."""
    run = with_words(bench, "monitor.restart_pause_seconds=600").start(orders)
    wait_until(lambda: decisions(run) == ["restart"], 60, lambda: status_of(run))
    return run


def test_a_failed_attempt_is_followed_by_another_from_its_checkpoint(bench):
    run = bench.start("mode=die at=6 attempt=1")
    bench.wait(run, State.FINISHED)
    assert (result(run)["code"], result(run, 2)["first_step"]) == (1, 5)
    wait_until(lambda: decisions(run) == ["restart", "stop"], 10, lambda: decisions(run))
    first = decision_of(run.layout.attempt(1))
    assert "once more on this machine (failures: 1 of 3; cause" in first.reason
    assert (status_of(run).attempt, status_of(run).restarts) == (2, 1)
    assert "attempt 1: restart: once more" in run.layout.supervisor_log.read_text()
    nothing_is_left(run)


def test_nothing_is_tried_for_ever(bench):
    run = with_words(bench, "monitor.max_failures=2").start("mode=die at=2")
    bench.wait(run, State.FAILED)
    assert decisions(run) == ["restart", "restart", "stop"]
    assert "failures: 3 of 2 allowed (monitor.max_failures)" in status_of(run).reason
    again = starting.resume(run)
    assert again.attempt == 4, "a person's resume begins with all budgets"
    bench.wait(run, State.FAILED)
    assert decisions(run)[3:] == ["restart", "restart", "stop"]


def test_an_overflow_is_healed_without_a_person(bench):
    run = bench.start("mode=overflow at=3")
    bench.wait(run, State.FINISHED)
    adjusted = json.loads(run.layout.adjust.read_text())
    assert (adjusted["maxtext"], adjusted["history"][0]["attempt"]) == ({"ragged_buffer_factor": 1.29}, 1)
    assert (result(run)["code"], result(run, 2)["first_step"]) == (76, 0)


def test_a_killed_worker_is_a_failure_like_another(bench):
    run = bench.start("hold=6 attempt=1")
    bench.wait_for_step(run, 5)
    bench.wait_for_checkpoint(run, 4)
    os.kill(pid_of(run), signal.SIGKILL)
    bench.wait(run, State.FINISHED)
    assert (result(run)["code"], result(run)["by"]) == (137, "supervisor")
    assert result(run)["reason"] == "the worker was killed by SIGKILL and left no result"
    assert (result(run)["last_step"], result(run, 2)["first_step"]) == (5, 5)


def test_what_a_killed_worker_leaves_is_gone_before_the_next_begins(bench):
    """Its trainers' own children, which no signal to a worker's child reaches."""
    run = bench.start("mode=grandchild hold=6 attempt=1")
    bench.wait_for_step(run, 5)
    log = run.layout.attempt(1).rank_log(0).read_text()
    child = int(log.split("GRANDCHILD ")[1].split()[0])
    os.kill(pid_of(run), signal.SIGKILL)
    wait_until(lambda: run.layout.attempt(2).started().exists(), 60, lambda: status_of(run))
    assert processes.start_ticks(child) is None
    bench.wait(run, State.FINISHED)


def test_nothing_outlives_a_killed_supervisor(bench):
    run = bench.start("hold=6 attempt=1")
    bench.wait_for_step(run, 5)
    os.kill(judge_one(run).handle["pid"], signal.SIGKILL)
    bench.wait(run, State.DIED)
    nothing_is_left(run)
    assert starting.resume(run).attempt == 2
    bench.wait(run, State.FINISHED)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_stop_signal_saves_ends_and_starts_nothing(bench, number):
    run = bench.start("hold=6")
    bench.wait_for_step(run, 5)
    os.kill(judge_one(run).handle["pid"], number)
    bench.wait(run, State.PREEMPTED)
    assert status_of(run).checkpoint == 6
    assert f"its supervisor was told to end ({signal.Signals(number).name})" in status_of(run).reason
    nothing_is_left(run)
    assert decisions(run) == ["stop"]


def test_a_signal_to_the_trainers_alone_is_no_end(bench):
    run = bench.start("hold=6 attempt=1")
    bench.wait_for_step(run, 5)
    os.kill(pid_of(run), signal.SIGTERM)  # the worker's, and not its supervisor's
    bench.wait(run, State.FINISHED)
    assert (result(run)["code"], decision_of(run.layout.attempt(1)).action) == (75, "restart")
    assert result(run, 2)["first_step"] == 7


@pytest.mark.parametrize("end", [ending.cancel, ending.cancel_now])
def test_cancel_between_two_attempts(bench, end):
    run = paused(bench)
    assert status_of(run).state is State.RESTARTING
    assert status_of(run).reason.startswith(("in 600 s", "in 59"))
    told = []
    assert end(run, told.append) == 0
    assert status_of(run).state is State.CANCELLED
    nothing_is_left(run)
    assert run.layout.attempt_numbers() == [1]
    assert starting.resume(run).attempt == 2


def test_a_stop_signal_between_two_attempts(bench):
    run = paused(bench)
    os.kill(judge_one(run).handle["pid"], signal.SIGTERM)
    bench.wait(run, State.FAILED)
    assert decision_of(run.layout.attempt(1)).reason.startswith("its supervisor was told to end (SIGTERM): rank")


def test_cancel_of_a_later_attempt(bench):
    run = bench.start("mode=deaf hold=2")
    bench.wait_for_step(run, 1)
    os.kill(pid_of(run), signal.SIGKILL)
    bench.wait_for_step(run, 1, attempt=2)
    told = []
    assert ending.cancel_now(run, told.append) == 0
    nothing_is_left(run)
    assert status_of(run).state is State.CANCELLED


def test_submit_and_resume_leave_a_restarting_run_alone(bench):
    run = paused(bench)
    assert starting.resume(run).attempt is None
    assert run.layout.attempt_numbers() == [1]


@pytest.mark.parametrize("attempt", [1, 2])
def test_a_lost_handle_is_found_again(bench, attempt):
    """The launcher ended before it had noted what it started."""
    run = bench.start("hold=3")
    supervisor = judge_one(run).handle["pid"]
    bench.wait_for_step(run, 2)
    if attempt == 2:
        os.kill(pid_of(run), signal.SIGKILL)
        bench.wait_for_step(run, 2, attempt=2)
    handle_file(run.layout.attempt(1)).unlink()
    found = judge_one(run)
    assert (found.handle["pid"], found.is_live, newest(run).number) == (supervisor, True, attempt)
    assert ending.cancel_now(run, lambda _: None) == 0
    nothing_is_left(run)


def test_the_foreground_goes_on_with_the_next_attempt(bench):
    run = bench.start("mode=die at=6 attempt=1 pause=0.05")
    out = io.StringIO()
    assert progress.follow(run, 1, out) == 0
    told = out.getvalue().splitlines()
    assert any(line.startswith("attempt 1: steps 0..5 of 0..11, ") and "once more" in line for line in told), told
    assert told[-1].startswith("finished: steps 5..11 of 0..11")


def test_following_the_logs_goes_on_with_the_next_attempt(bench):
    run = bench.start("mode=die at=6 attempt=1 pause=0.05")
    out = io.StringIO()
    reader = threading.Thread(target=print_logs, args=(run, out), kwargs={"follow": True, "rank": 0}, daemon=True)
    reader.start()
    bench.wait(run, State.FINISHED)
    reader.join(30)
    assert not reader.is_alive()
    assert out.getvalue().endswith(printed(run, rank=0))
    assert "ValueError: NCCL operation failed" in out.getvalue()


def test_a_bundle_that_cannot_be_read_says_so(bench):
    run = bench.finish()
    run.layout.bundle.failures.write_text("{}")
    attempt = run.layout.attempt(2)
    attempt.path.mkdir()
    handle = local.start(run.layout, 2, run.record["options"])
    wait_until(lambda: local.look([handle])[0].presence == "gone", 30)
    assert result(run, 2)["code"] == 78
    assert "failures.json is no table of failures" in result(run, 2)["reason"]


def test_a_job_of_slurm_around_it_changes_nothing(bench, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-4]")
    assert result(bench.finish())["outcome"] == "finished"


def test_a_disk_that_takes_nothing_more_is_told_in_the_supervisors_log(bench):
    """What it must write cannot be written, as on a full or read-only disk."""
    run = bench.start("hold=3 attempt=1")
    bench.wait_for_step(run, 2)
    in_the_way = run.layout.attempt(1).result()
    in_the_way.mkdir()
    os.kill(pid_of(run), signal.SIGKILL)
    wait_until(lambda: "cannot go on" in run.layout.supervisor_log.read_text(), 30)
    nothing_is_left(run)
    in_the_way.rmdir()
    bench.wait(run, State.DIED)
    assert starting.resume(run).attempt == 2
    bench.wait(run, State.FINISHED)
