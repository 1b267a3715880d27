"""A run's life on SLURM and what it costs to look at it, and the command line; everything on a real scheduler."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from bench import printed, wait_until
from slurm_harness import job_of, noted_job, with_words

from launcher.node.record import write_json
from launcher.runs import ending, starting, store
from launcher.runs.attempts import State, judge_one
from launcher.runs.status import status_of, statuses

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def bench(slurm_bench):
    return slurm_bench


# Its life


def test_a_pending_run_is_cancelled_outright(bench, on_slurm, full):
    run = bench.start()
    wait_until(lambda: status_of(run).state is State.WAITING, 10)
    told = []
    assert ending.cancel(run, told.append) == 0
    status = status_of(run)
    assert (status.state, status.reason) == (State.CANCELLED, "cancelled before it began")
    assert "nothing of it is running" in told[0]
    assert on_slurm.job(noted_job(run), "JobState") == "CANCELLED"


def test_a_requeue_keeps_one_run_and_one_job(bench, on_slurm):
    bench = with_words(bench, "monitor.max_preemptions=5")
    run = bench.start("hold=6 attempt=1")
    bench.wait_for_step(run, 5)
    job = job_of(run)
    on_slurm.run("scontrol", "requeue", job)
    bench.wait(run, State.WAITING)
    assert "may not start yet" in status_of(run).reason
    on_slurm.start_soon(job)
    bench.wait(run, State.FINISHED)
    status = status_of(run)
    assert (status.attempt, status.restarts, status.job) == (2, 1, job)
    assert len(store.all_runs(bench.root)) == 1
    assert "completed step: 5," in printed(run, attempt=1)
    assert printed(run) == printed(run, attempt=2)
    assert len(list(run.folder.glob("slurm-*.log"))) == 1


def test_a_failure_is_followed_by_a_restart_in_the_same_job(bench, on_slurm):
    again = with_words(bench, "monitor.max_failures=2", "monitor.restart_pause_seconds=2")
    run = again.start("mode=overflow at=3 attempt=1")
    seen = set()

    def note():
        status = status_of(run)
        seen.add((status.state.value, "failures: 1 of 2" in status.reason))
        return status.state is State.FINISHED

    wait_until(note, 60, lambda: status_of(run), 0.1)
    assert ("restarting", True) in seen
    assert not {state for state, _ in seen} & {"failed", "overflow", "died", "unknown", "damaged"}
    assert status_of(run).restarts == 1
    assert on_slurm.job(job_of(run), "Restarts") == "0"


def test_cancel_between_two_attempts(bench, on_slurm):
    again = with_words(bench, "monitor.max_failures=2", "monitor.restart_pause_seconds=60")
    run = again.start("mode=overflow at=3")
    again.wait(run, State.RESTARTING)
    assert ending.cancel(run, lambda _: None) == 0
    assert status_of(run).state is State.CANCELLED
    wait_until(lambda: on_slurm.job(noted_job(run), "JobState") in ("CANCELLED", "FAILED", "COMPLETED"), 20)
    assert run.layout.attempt_numbers() == [1]


def test_suspects_are_left_out_of_the_next_job(bench, on_slurm):
    fussy = with_words(bench, "target.slurm.exclude=n3")
    run = fussy.start("mode=die at=2 attempt=1")
    fussy.wait(run, State.FAILED)
    decision = run.layout.attempt(1).path / "decision.json"
    write_json(decision, {**json.loads(decision.read_text()), "exclude": ["n1", "n0"]})
    resumed = starting.resume(run)
    assert "not on n0, n1" in resumed.message
    assert on_slurm.job(job_of(run), "ExcNodeList") == "n[0-1,3]"
    fussy.wait(run, State.FINISHED)


# Gentle, and without accounting


def counted(folder, monkeypatch):
    """Wrappers on the PATH that note each call of SLURM's commands."""
    folder.mkdir()
    log = folder / "calls"
    log.touch()
    for name in ("squeue", "scontrol", "sacct", "scancel", "sbatch", "sinfo"):
        real = shutil.which(name)
        wrapper = folder / name
        wrapper.write_text(f'#!/bin/sh\necho {name} >> {log}\nexec {real} "$@"\n')
        wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return lambda: log.read_text().split()


def test_two_hundred_runs_cost_one_question(bench, on_slurm, full, monkeypatch, tmp_path):
    run = bench.start()
    handle = judge_one(run).handle
    for number in range(199):
        copy = bench.root / f"demo-{number:08x}"
        (copy / "attempts/1").mkdir(parents=True)
        (copy / "bundle").mkdir()
        shutil.copy(run.layout.bundle.launch, copy / "bundle")
        write_json(copy / "run.json", {**run.record, "run": copy.name})
        write_json(copy / "attempts/1/handle.json", {**handle, "job": str(900_000 + number), "folder": str(copy)})
    calls = counted(tmp_path / "bin", monkeypatch)
    found = statuses(store.all_runs(bench.root))
    assert calls() == ["squeue", "scontrol"], "the second only because SLURM does not know some of them"
    assert sorted(status.state.value for status in found) == ["died"] * 199 + ["waiting"]
    for number in range(199):
        shutil.rmtree(bench.root / f"demo-{number:08x}")
    status_of(run)
    assert calls()[2:] == ["squeue"]


def test_a_follower_looks_seldom(bench, on_slurm, monkeypatch, tmp_path):
    run = bench.start("hold=3")
    bench.wait_for_step(run, 2)
    calls = counted(tmp_path / "bin", monkeypatch)
    follower = threading.Thread(target=printed, args=(run,), kwargs={"follow": True})
    begun = time.monotonic()
    follower.start()
    time.sleep(4)
    bench.let_go(run)
    follower.join(30)
    assert not follower.is_alive()
    assert set(calls()) == {"squeue"}
    assert len(calls()) <= 2 + (time.monotonic() - begun), "files every 0.2 s, the scheduler after 0.5, 1, 2, 4 s"


def test_a_cluster_without_accounting(bench, on_slurm, monkeypatch):
    """No sacct at all on the PATH: none of the test bed's, and Slurm's own says that it is disabled."""
    bare = os.pathsep.join(p for p in os.environ["PATH"].split(os.pathsep) if p != f"{on_slurm.folder}/bin")
    monkeypatch.setenv("PATH", bare)
    assert subprocess.run(["sacct"], capture_output=True).returncode != 0
    run = bench.finish()
    assert status_of(run).state is State.FINISHED
    died = bench.start("hold=1", env={"OTHER": "1"})
    bench.wait_for_step(died, 0)
    on_slurm.run("scancel", job_of(died))
    bench.wait(died, State.PREEMPTED, State.FAILED, State.DIED)


# As a person types it


def launcher(bench, *words):
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests/targets"), str(ROOT / "tests/node")])
    environment = {k: v for k, v in os.environ.items() if not k.startswith("LAUNCHER_")}
    return subprocess.run(
        [sys.executable, "-m", "launcher", *words, "--runs", str(bench.root)],
        capture_output=True,
        text=True,
        env=environment | {"PYTHONPATH": path},
        cwd=bench.root.parent,
        timeout=120,
    )


def typed(*more):
    path = os.pathsep.join([str(ROOT / "tests/targets"), str(ROOT / "tests/node")])
    return [
        "+exp=moe_tiny_cpu",
        "target=slurm",
        "trainer.module=conformance_trainer",
        f"+env.vars.PYTHONPATH={path}",
        *more,
    ]


def test_submit_returns_at_once_and_says_how_to_follow(bench, on_slurm, full):
    done = launcher(bench, *typed("trainer.steps=5"))
    assert done.returncode == 0, done.stderr
    (run,) = store.all_runs(bench.root)
    for part in (f"{run.name}: submitted as job {job_of(run)}", f"status {run.name}", f"logs {run.name} -f"):
        assert part in done.stdout
    behind = launcher(bench, *typed("trainer.steps=6", "--after", run.name[:-2], "--singleton"))
    assert behind.returncode == 0, behind.stderr
    assert f"after job {job_of(run)}, not beside another of its name" in behind.stdout
    shown = launcher(bench, "status", run.name)
    assert "its partition does not start jobs now" in shown.stdout
    assert shown.stdout.splitlines()[2].split() == ["job", job_of(run)]
    for each in store.all_runs(bench.root):
        assert launcher(bench, "cancel", each.name).returncode == 0


def test_a_sweep_submits_its_points_as_an_array_and_returns(bench, on_slurm, full):
    done = launcher(bench, "-m", *typed("trainer.steps=5,6", "target.slurm.time_minutes=60,120"), "--at-once", "1")
    assert done.returncode == 0, done.stderr
    runs = store.all_runs(bench.root)
    assert sorted(status.steps for status in statuses(runs)) == [5, 5, 6, 6]
    jobs = {job_of(run) for run in runs}
    assert len({job.partition("_")[0] for job in jobs}) == 2
    assert {job.partition("_")[2] for job in jobs} == {"0", "1"}
    for run in runs:
        assert f"{run.name}: submitted as job {job_of(run)}" in done.stdout
    scripts = sorted((bench.root / "sweeps").glob("*/array.sbatch"))
    assert len(scripts) == 2
    for script in scripts:
        assert f"2 runs of one shape as one job array: {script}" in done.stdout
    assert done.stdout.count("[1/4] ") == 1
    table = launcher(bench, "runs").stdout
    assert table.count(" waiting ") == 4
    again = launcher(bench, "-m", *typed("trainer.steps=5,6", "target.slurm.time_minutes=60,120"))
    assert again.returncode == 1
    assert again.stdout.count("is there already (waiting)") == 4


def test_order_is_a_clusters_word(bench):
    done = launcher(bench, "+exp=moe_tiny_cpu", "--singleton")
    assert done.returncode == 1
    assert "this machine has no queue" in done.stderr
    assert "target=slurm" in done.stderr
    assert not store.all_runs(bench.root)


@pytest.mark.parametrize("words", [["--at-once", "2"], ["-m", "--at-once", "0", "trainer.steps=5,6"]])
def test_a_bound_wants_a_sweep_and_a_number(bench, words):
    done = launcher(bench, "+exp=moe_tiny_cpu", "target=slurm", *words)
    assert (done.returncode, "AT_ONCE" in done.stderr) == (1, True), done.stderr
    assert not store.all_runs(bench.root)


def test_doctor_sees_the_cluster(bench, on_slurm):
    found = {f["name"]: f for f in json.loads(launcher(bench, "doctor", "--json").stdout)}
    assert found["SLURM"]["ok"]
    assert on_slurm.settings.version in found["SLURM"]["seen"]
    assert "testbed" in found["SLURM"]["seen"]
    assert found["submitit"]["ok"]
