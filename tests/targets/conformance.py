"""The suite that every target must pass. A target's own file gives it a harness and inherits `Conformance`.

What trains is a stand-in that says and does what MaxText does (conformance_trainer.py), so a case costs a second or two;
everything else is real: composing, rendering, the bundle, the worker, the target, the run's folder.
"""

import io
import multiprocessing
import re
import subprocess
import sys
import threading

import pytest
from bench import AWKWARD, PERIOD, RANKS, STEPS, Bench, files_of, printed, result, submit_elsewhere, wait_until

from launcher.issue import Refused
from launcher.render.bundle import render, seal
from launcher.render.folder import hashes_of, worker_of
from launcher.runs import ending, progress, starting, store
from launcher.runs.attempts import State, judge_one
from launcher.runs.diff import diff
from launcher.runs.logs import print_logs
from launcher.runs.status import status_of


class Conformance:
    """Collected through a target's class alone, whose fixture `harness` is a bench.Harness of that target."""

    @pytest.fixture
    def bench(self, tmp_path, harness):
        bench = Bench(tmp_path / "runs", harness)
        yield bench
        for run in store.all_runs(bench.root):
            if not run.damage and judge_one(run).is_live:
                ending.cancel_now(run, lambda _: None)

    # How a run ends

    def test_finishes(self, bench):
        run = bench.finish()
        status = status_of(run)
        assert (status.last_step, status.steps, status.attempt, status.restarts) == (STEPS - 1, STEPS, 1, 0)
        assert (status.checkpoint, status.loss, status.eta_seconds) == (STEPS - 1, pytest.approx(9.89), None)
        assert result(run)["ranks"] == [{"rank": rank, "returncode": 0} for rank in range(RANKS)]

    def test_a_failing_trainer_fails_the_run_with_its_own_code(self, bench):
        run = bench.start("mode=die at=6 rank=1")
        bench.wait(run, State.FAILED)
        status = status_of(run)
        assert result(run)["code"] == 1
        assert status.reason.startswith("rank 1 ended with return code 1: ValueError: NCCL operation failed")
        assert status.log == str(run.layout.attempt(1).rank_log(1))
        assert (status.last_step, status.checkpoint) == (5, PERIOD)
        assert not bench.harness.left_over(run)

    def test_a_refused_configuration_is_the_users_mistake(self, bench):
        run = bench.start("mode=config")
        bench.wait(run, State.FAILED)
        assert (result(run)["code"], result(run)["outcome"]) == (78, "config_refused")
        assert "'pgle'" in status_of(run).reason
        assert progress.exit_code(judge_one(run)) == 1

    def test_an_overflow_is_told_as_one(self, bench):
        run = bench.start("mode=overflow at=3")
        bench.wait(run, State.OVERFLOW)
        assert result(run)["code"] == 76
        assert "demand 101120" in status_of(run).reason
        assert progress.exit_code(judge_one(run)) == 2

    def test_a_preempted_run_resumes_from_its_checkpoint(self, bench):
        run = bench.start("hold=6 attempt=1")
        bench.wait_for_step(run, 5)
        bench.harness.preempt(run)
        bench.wait(run, State.PREEMPTED)
        saved = status_of(run).checkpoint
        assert result(run)["code"] == 75
        assert saved == 6
        resumed = starting.resume(run)
        assert (resumed.attempt, resumed.exit_code) == (2, 0)
        assert f"attempt 2 resumes from the checkpoint of step {saved}" in resumed.message
        bench.wait(run, State.FINISHED)
        assert (result(run, 2)["first_step"], result(run, 2)["last_step"]) == (saved + 1, STEPS - 1)

    def test_a_killed_worker_is_seen_and_the_run_resumes(self, bench):
        orders = f"hold={PERIOD + 2} attempt=1"
        run = bench.start(orders)
        bench.wait_for_step(run, PERIOD + 1)
        bench.wait_for_checkpoint(run, PERIOD)
        bench.harness.kill_worker(run)
        bench.wait(run, State.DIED)
        wait_until(lambda: not bench.harness.left_over(run), 20, lambda: bench.harness.left_over(run))
        died = status_of(run)
        assert died.eta_seconds is None
        assert (died.last_step, died.checkpoint) == (PERIOD + 1, PERIOD)
        submitted = bench.submit(bench.plan(orders))
        assert submitted.attempt == 2
        assert "attempt 1 died: " in submitted.message
        bench.wait(run, State.FINISHED)
        assert result(run, 2)["first_step"] == PERIOD + 1, "it goes on behind the checkpoint"
        assert (status_of(run).restarts, status_of(run).last_step) == (1, STEPS - 1)

    # Ending a run by hand

    def test_cancel_saves_first(self, bench):
        run = bench.start("hold=2")
        bench.wait_for_step(run, 1)
        told = []
        assert ending.cancel(run, told.append) == 0
        status = status_of(run)
        assert status.state is State.CANCELLED
        assert status.checkpoint == 2
        assert "newest checkpoint: step 2" in told[-1]
        assert not bench.harness.left_over(run)

    def test_cancel_has_a_bound_and_now_kills(self, bench):
        run = bench.start("mode=deaf hold=2")
        bench.wait_for_step(run, 1)
        told = []
        assert ending.cancel(run, told.append, wait_seconds=0.5) == 2
        assert status_of(run).state is State.STOPPING
        assert f"cancel {run.name} --now" in told[-1]
        assert ending.cancel_now(run, told.append) == 0
        assert status_of(run).state is State.CANCELLED
        assert not bench.harness.left_over(run)

    def test_cancel_of_an_ended_run_says_so(self, bench):
        run = bench.finish()
        for cancel in (ending.cancel, ending.cancel_now):
            told = []
            assert cancel(run, told.append) == 0
            assert told == [f"{run.name}: is not running: finished (attempt 1)"]
        assert status_of(run).state is State.FINISHED

    def test_a_cancelled_run_goes_on_when_it_is_resumed(self, bench):
        run = bench.start("hold=2 attempt=1")
        bench.wait_for_step(run, 1)
        ending.cancel(run, lambda _: None)
        assert starting.resume(run).attempt == 2
        bench.wait(run, State.FINISHED)

    # Logs

    def test_the_logs_of_every_rank(self, bench):
        run = bench.finish()
        for rank in range(RANKS):
            lines = printed(run, rank=rank).splitlines()
            assert sum("completed step:" in line for line in lines) == STEPS
            assert all(line.startswith("I") for line in lines)
        merged = printed(run)
        stamped = [len(re.findall(rf"^\[{rank}\] I\d{{4}} ", merged, re.MULTILINE)) for rank in range(RANKS)]
        assert stamped[0] == stamped[1] > STEPS
        with pytest.raises(store.RunsError, match="no rank 7, it has 0, 1"):
            printed(run, rank=7)

    def test_following_ends_with_the_run_and_misses_nothing(self, bench):
        run = bench.start("pause=0.05")
        out = io.StringIO()
        reader = threading.Thread(target=print_logs, args=(run, out), kwargs={"follow": True, "rank": 1}, daemon=True)
        reader.start()
        bench.wait(run, State.FINISHED)
        reader.join(20)
        assert not reader.is_alive()
        assert out.getvalue() == run.layout.attempt(1).rank_log(1).read_text()

    def test_attempts_keep_their_logs_apart(self, bench):
        run = bench.start("mode=die at=6 attempt=1")
        bench.wait(run, State.FAILED)
        before = files_of(run.layout.attempt(1).path)
        starting.resume(run)
        bench.wait(run, State.FINISHED)
        assert files_of(run.layout.attempt(1).path) == before
        assert "completed step: 3," in printed(run, attempt=1)
        assert "completed step: 3," not in printed(run)
        assert printed(run) == printed(run, attempt=2)

    # The truth at every stage

    def test_status_before_the_first_step(self, bench):
        run = bench.start("mode=early rank=0")
        bench.wait(run, State.COMPILING)
        status = status_of(run)
        assert (status.last_step, status.seconds_per_step, status.checkpoint) == (None, None, None)
        assert status.steps == STEPS

    def test_status_while_running(self, bench):
        run = bench.start("hold=6")
        bench.wait_for_step(run, 5)
        bench.wait_for_checkpoint(run, PERIOD)
        status = status_of(run)
        assert (status.state, status.last_step, status.checkpoint) == (State.RUNNING, 5, PERIOD)
        assert status.seconds_per_step == pytest.approx(0.142)
        assert status.eta_seconds == pytest.approx((STEPS - 1 - 5) * 0.142)
        bench.let_go(run)
        bench.wait(run, State.FINISHED)

    def test_a_fresh_process_reads_the_same_state(self, bench):
        run = bench.start("hold=2")
        bench.wait_for_step(run, 1)
        program = (
            "import sys; from pathlib import Path; from launcher.runs import store, status\n"
            "print(status.status_of(store.open_run(Path(sys.argv[1]), sys.argv[2])).state)"
        )
        command = [sys.executable, "-c", program, str(bench.root), run.name[:-2]]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "running"
        bench.harness.kill_worker(run)
        bench.wait(run, State.DIED)
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "died"

    def test_a_damaged_file_is_reported_as_one(self, bench):
        run = bench.finish()
        path = run.layout.attempt(1).result()
        path.write_text(path.read_text()[:20])
        status = status_of(run)
        assert status.state is State.DAMAGED
        assert str(path) in status.reason
        with pytest.raises(store.RunsError, match=r"result\.json"):
            starting.resume(run)

    # Submitting again

    def test_a_second_submit_of_a_running_run_starts_nothing(self, bench):
        run = bench.start("hold=2")
        again = bench.submit(bench.plan("hold=2"))
        assert (again.run.name, again.attempt, again.exit_code) == (run.name, None, 1)
        assert f"logs {run.name} -f" in again.message
        assert run.layout.attempt_numbers() == [1]

    def test_a_finished_run_is_not_started_again(self, bench):
        run = bench.finish()
        again = bench.submit(bench.plan())
        assert (again.attempt, again.exit_code, again.state) == (None, 0, State.FINISHED)
        for part in (f"last step {STEPS - 1}", "loss 9.890", str(run.folder)):
            assert part in again.message
        resumed = starting.resume(run)
        assert (resumed.attempt, resumed.exit_code) == (None, 1)
        assert "trainer.steps" in resumed.message
        assert run.layout.attempt_numbers() == [1]

    def test_of_submits_that_race_one_starts(self, bench):
        plan = bench.plan("hold=2")
        with multiprocessing.get_context("spawn").Pool(3) as pool:
            came = pool.starmap(submit_elsewhere, [(bench.root, render(plan), plan)] * 3, chunksize=1)
        assert sorted(attempt or 0 for attempt, _ in came) == [0, 0, 1], came
        (run,) = store.all_runs(bench.root)
        assert run.layout.attempt_numbers() == [1]
        # Those processes are gone, the attempt is not.
        bench.wait_for_step(run, 1)
        bench.let_go(run)
        bench.wait(run, State.FINISHED)

    def test_an_edited_bundle_is_refused(self, bench):
        run = bench.start("mode=die at=6 attempt=1")
        bench.wait(run, State.FAILED)
        with open(run.layout.bundle.maxtext, "a") as file:
            file.write("learning_rate: 1\n")
        with pytest.raises(Refused) as refused:
            starting.resume(run)
        assert [issue.field for issue in refused.value.issues] == ["maxtext.yml"]
        assert run.layout.attempt_numbers() == [1]

    def test_a_newer_launcher_goes_on_with_the_runs_own_worker(self, bench):
        plan = bench.plan("mode=die at=6 attempt=1")
        newer = render(plan)
        files = {name: data for name, data in newer.files.items() if name != "manifest.json"}
        older = seal(plan.experiment.name, {**files, "node/older.py": b"# of an older launcher\n"})
        run = starting.submit(bench.root, older, plan, bench.environ, {"time": "now"}).run
        bench.wait(run, State.FAILED)
        again = bench.submit(plan)
        assert (again.run.name, again.attempt) == (run.name, 2)
        own, new = (worker_of(hashes_of(bundle.files)) for bundle in (older, newer))
        assert f"that one's worker ({own}); this launcher's is {new}" in again.message
        bench.wait(run, State.FINISHED)
        assert files_of(run.layout.bundle.path) == dict(older.files)
        differs = diff(run.layout.bundle.path, newer)
        assert [(d["section"], d["key"]) for d in differs["differences"]] == [("files", "node/older.py")]

    # What arrives

    def test_what_was_previewed_is_what_runs(self, bench):
        plan = bench.plan()
        bundle = render(plan)
        run = bench.submit(plan).run
        bench.wait(run, State.FINISHED)
        assert files_of(run.layout.bundle.path) == dict(bundle.files)
        assert run.name == bundle.name

    def test_awkward_values_arrive_unchanged(self, bench, tmp_path):
        seen = tmp_path / "environ"
        bench.finish(f"environ={seen}", env=AWKWARD)
        arrived = dict(entry.split("=", 1) for entry in seen.read_bytes().decode().split("\0") if entry)
        assert {name: arrived.get(name) for name in AWKWARD} == AWKWARD

    def test_a_secret_arrives_and_is_written_nowhere(self, bench, tmp_path, monkeypatch):
        secret = "hf_correct-horse-battery"
        monkeypatch.setenv("HF_TOKEN", secret)
        seen = tmp_path / "environ"
        run = bench.finish(f"environ={seen}", secrets=("HF_TOKEN",))
        assert f"HF_TOKEN={secret}".encode() in seen.read_bytes().split(b"\0")
        leaks = [name for name, data in files_of(run.folder).items() if secret.encode() in data]
        assert not leaks

    def test_a_missing_secret_is_refused_before_anything_is_written(self, bench, monkeypatch):
        monkeypatch.delenv("HF_TOKEN", raising=False)
        with pytest.raises(Refused) as refused:
            bench.submit(bench.plan(secrets=("HF_TOKEN",)))
        assert [issue.code for issue in refused.value.issues] == ["SECRET_MISSING"]
        assert not store.all_runs(bench.root)
