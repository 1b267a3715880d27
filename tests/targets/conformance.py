"""The suite that every target must pass. A target's own file gives it a harness and inherits `Conformance`.

What trains is a stand-in that says and does what MaxText does (conformance_trainer.py), so a case costs a second or two;
everything else is real: composing, rendering, the bundle, the worker, the target, the run's folder.
"""

import io
import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import pytest

from launcher.config.compose import Composer
from launcher.issue import Refused
from launcher.plan.plan import Plan, make
from launcher.render.bundle import Bundle, render
from launcher.runs import ending, progress, starting, store
from launcher.runs.attempts import State, judge_one
from launcher.runs.logs import print_logs
from launcher.runs.status import status_of

HERE = Path(__file__).resolve().parent
STEPS = 12
PERIOD = 4
RANKS = 2
AWKWARD = {
    "QUOTES": """it's "quoted" `twice`""",
    "NEWLINES": "one\ntwo\n",
    "DOLLAR": "$HOME ${PATH} $(id) \\ %s",
    "COMMAS": "a,b c=d;e#f",
    "SPACES": "  both ends  ",
    "EMPTY": "",
    "UNICODE": "Zürich 漢字",
}


class Harness(Protocol):
    """What a target's own test file provides."""

    words: list[str]
    """The overrides that choose the target."""

    def kill_worker(self, run: store.Run) -> None:
        """SIGKILL to the worker of the newest attempt on its first node, as when a node fails."""

    def preempt(self, run: store.Run) -> None:
        """The scheduler's notice, with no person having asked for it."""

    def left_over(self, run: store.Run) -> list[int]:
        """The processes of the newest attempt that still exist."""


@dataclass
class Bench:
    """One folder of runs on one target."""

    root: Path
    harness: Harness
    environ: dict[str, str] = field(default_factory=lambda: dict(os.environ))

    def plan(self, orders: str = "", env: dict[str, str] | None = None, secrets: tuple[str, ...] = ()) -> Plan:
        """The tiny experiment with the stand-in as its trainer. `orders`: see conformance_trainer.py."""
        words = ["+exp=moe_tiny_cpu", f"trainer.steps={STEPS}", f"checkpoint.checkpoint_period={PERIOD}"]
        words += ["trainer.module=conformance_trainer", "trainer.stop_grace_seconds=30", *self.harness.words]
        composed = Composer().compose(words)
        assert composed.experiment is not None, composed.issues
        path = os.pathsep.join([str(HERE), str(HERE.parent / "node")])
        composed.experiment.env.vars |= {"PYTHONPATH": path, "STANDIN": orders, **(env or {})}
        composed.experiment.env.secrets += secrets
        made = make(composed.experiment)
        assert not made.errors, made.errors
        return made

    def submit(self, plan: Plan) -> starting.Submitted:
        return starting.submit(self.root, render(plan), plan, self.environ, {"time": "now"})

    def start(self, orders: str = "", **more) -> store.Run:
        submitted = self.submit(self.plan(orders, **more))
        assert submitted.attempt == 1, submitted
        return submitted.run

    def finish(self, orders: str = "", **more) -> store.Run:
        run = self.start(orders, **more)
        self.wait(run, State.FINISHED)
        return run

    def wait(self, run: store.Run, *wanted: State, seconds: float = 60) -> None:
        """Until the run is in one of these states."""
        wait_until(lambda: status_of(run).state in wanted, seconds, lambda: status_of(run))

    def wait_for_step(self, run: store.Run, step: int, attempt: int = 1) -> None:
        def reached() -> bool:
            status = status_of(run)
            return status.step_attempt == attempt and status.last_step is not None and status.last_step >= step

        wait_until(reached, 60, lambda: status_of(run))


def wait_until(condition, seconds: float, describe=lambda: "") -> None:
    """Until `condition()` holds; a failure tells what was seen last."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {describe()}")
        time.sleep(0.03)


def printed(run: store.Run, **selection) -> str:
    out = io.StringIO()
    assert print_logs(run, out, **selection) == 0
    return out.getvalue()


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def result(run: store.Run, attempt: int = 1) -> dict:
    return json.loads(run.layout.attempt(attempt).result().read_text())


def submit_elsewhere(root: Path, bundle: Bundle, plan: Plan) -> tuple[int | None, str]:
    """In another process: one submission, and what it came to."""
    submitted = starting.submit(root, bundle, plan, os.environ, {"time": "now"})
    return submitted.attempt, submitted.message


class Conformance:
    @pytest.fixture
    def harness(self) -> Harness:
        raise NotImplementedError("the target's own class gives its harness")

    @pytest.fixture
    def bench(self, tmp_path, harness):
        bench = Bench(tmp_path / "runs", harness)
        yield bench
        for run in store.all_runs(bench.root):
            if not run.damage and judge_one(run).is_live:
                ending.cancel_now(run, lambda text: None)

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
        assert "'pgle' not in" in status_of(run).reason
        assert progress.exit_code(judge_one(run)) == 1

    def test_an_overflow_is_told_as_one(self, bench):
        run = bench.start("mode=overflow at=3")
        bench.wait(run, State.OVERFLOW)
        assert result(run)["code"] == 76
        assert "demand 101120" in status_of(run).reason
        assert progress.exit_code(judge_one(run)) == 2

    def test_a_preempted_run_resumes_from_its_checkpoint(self, bench):
        run = bench.start("pause=0.1")
        bench.wait_for_step(run, 5)
        bench.harness.preempt(run)
        bench.wait(run, State.PREEMPTED)
        saved = status_of(run).checkpoint
        assert result(run)["code"] == 75
        assert saved is not None and saved >= 5
        resumed = starting.resume(run)
        assert (resumed.attempt, resumed.exit_code) == (2, 0)
        assert f"attempt 2 resumes from the checkpoint of step {saved}" in resumed.message
        bench.wait(run, State.FINISHED)
        assert (result(run, 2)["first_step"], result(run, 2)["last_step"]) == (saved + 1, STEPS - 1)

    def test_a_killed_worker_is_seen_and_the_run_resumes(self, bench):
        run = bench.start("pause=0.1")
        bench.wait_for_step(run, PERIOD + 1)
        bench.harness.kill_worker(run)
        bench.wait(run, State.DIED)
        wait_until(lambda: not bench.harness.left_over(run), 20, lambda: bench.harness.left_over(run))
        died = status_of(run)
        assert died.eta_seconds is None
        assert died.last_step is not None and died.last_step > PERIOD
        submitted = bench.submit(bench.plan("pause=0.1"))
        assert submitted.attempt == 2
        assert "attempt 1 died: " in submitted.message
        bench.wait(run, State.FINISHED)
        first = result(run, 2)["first_step"]
        assert died.last_step - (first - 1) <= PERIOD, "more was lost than the checkpoint period"
        assert (status_of(run).restarts, status_of(run).last_step) == (1, STEPS - 1)

    # Ending a run by hand

    def test_cancel_saves_first(self, bench):
        run = bench.start("pause=0.1")
        bench.wait_for_step(run, 1)
        told = []
        assert ending.cancel(run, told.append) == 0
        status = status_of(run)
        assert status.state is State.CANCELLED
        assert status.checkpoint is not None and status.checkpoint >= 1
        assert f"newest checkpoint: step {status.checkpoint}" in told[-1]
        assert not bench.harness.left_over(run)

    def test_cancel_has_a_bound_and_now_kills(self, bench):
        run = bench.start("mode=deaf pause=0.2")
        bench.wait_for_step(run, 1)
        told = []
        assert ending.cancel(run, told.append, wait_seconds=0.5) == 2
        assert status_of(run).state is State.STOPPING
        assert "cancel " in told[-1] and "--now" in told[-1]
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
        run = bench.start("pause=0.1")
        bench.wait_for_step(run, 1)
        ending.cancel(run, lambda text: None)
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
        assert merged.count("[0] I1129") == merged.count("[1] I1129") > STEPS
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
        run = bench.start("pause=0.2")
        bench.wait(run, State.RUNNING)
        bench.wait_for_step(run, 5)
        status = status_of(run)
        assert status.state is State.RUNNING
        assert status.seconds_per_step == pytest.approx(0.142)
        assert status.eta_seconds == pytest.approx((STEPS - 1 - status.last_step) * 0.142)
        assert status.checkpoint == PERIOD

    def test_a_fresh_process_reads_the_same_state(self, bench):
        run = bench.start("pause=0.2")
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
        run = bench.start("pause=0.2")
        again = bench.submit(bench.plan("pause=0.2"))
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
        plan = bench.plan("pause=0.2")
        with multiprocessing.get_context("spawn").Pool(3) as pool:
            came = pool.starmap(submit_elsewhere, [(bench.root, render(plan), plan)] * 3, chunksize=1)
        assert sorted(attempt or 0 for attempt, _ in came) == [0, 0, 1], came
        (run,) = store.all_runs(bench.root)
        assert run.layout.attempt_numbers() == [1]
        # Those processes are gone, the attempt is not.
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
