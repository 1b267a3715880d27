"""What is the SLURM target's alone: reasons, refusals, requeues, lost answers; everything on a real scheduler."""

import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from bench import Bench, printed, result, submit_elsewhere, wait_until
from test_slurm_conformance import SlurmHarness

from launcher.issue import Refused
from launcher.node.record import write_json
from launcher.render.bundle import render
from launcher.runs import ending, starting, store
from launcher.runs.attempts import State, handle_file, judge_one
from launcher.runs.status import status_of, statuses
from launcher.targets import slurm, slurm_queue
from launcher.targets.base import Conditions
from launcher.targets.slurm_queue import Unanswered

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def bench(tmp_path, on_slurm):
    bench = Bench(tmp_path / "runs", SlurmHarness())
    yield bench
    on_slurm.start_controller()
    for run in store.all_runs(bench.root):
        if judge_one(run).is_live:
            ending.cancel_now(run, lambda _: None)


@pytest.fixture
def full(on_slurm):
    """No node takes jobs, so that what is submitted waits; until the end of the test."""
    on_slurm.run("scontrol", "update", "partitionname=main", "state=down")
    yield
    on_slurm.run("scontrol", "update", "partitionname=main", "state=up")


def job_of(run):
    return judge_one(run).handle["job"]


def with_words(bench, *words):
    """The bench with more overrides."""
    harness = SlurmHarness()
    harness.words = (*harness.words, *words)
    return Bench(bench.root, harness)


# Why it waits


def update(cluster, job, *words):
    cluster.run("scontrol", "update", f"jobid={job}", *words)


REASONS = {
    "partition down": (lambda *_: None, ["its partition does not start jobs now", "target.slurm.partition"]),
    "held by its user": (lambda cluster, job: cluster.run("scontrol", "uhold", job), ["held by its user", "release"]),
    "held by root": (lambda cluster, job: cluster.run("scontrol", "hold", job), ["held by an administrator"]),
    "later": (
        lambda cluster, job: update(cluster, job, "starttime=now+1hour"),
        ["may not start yet", "expects to start"],
    ),
}


@pytest.mark.parametrize("why", REASONS)
def test_a_pending_run_says_why_and_what_would_help(bench, on_slurm, full, why):
    do, parts = REASONS[why]
    run = bench.start()
    do(on_slurm, job_of(run))

    def is_told():
        status = status_of(run)
        return status.state is State.WAITING and all(part in status.reason for part in parts)

    wait_until(is_told, 20, lambda: status_of(run))


@pytest.mark.parametrize("words", [(), ("target.slurm.nodelist=n1",)], ids=["any", "named"])
def test_nodes_that_are_drained(bench, on_slurm, words):
    for node in on_slurm.settings.names:
        on_slurm.drain(node, "testing")
    try:
        run = with_words(bench, *words).start()
        wait_until(lambda: "sinfo -R" in status_of(run).reason, 20, lambda: status_of(run))
        assert status_of(run).state is State.WAITING
        assert "are down, drained" in status_of(run).reason
    finally:
        for node in on_slurm.settings.names:
            on_slurm.resume(node)
    bench.wait(run, State.FINISHED)


def test_runs_in_a_row(bench, on_slurm):
    first = bench.start("hold=2")
    bench.wait_for_step(first, 1)
    plan = bench.plan(env={"ONE": "1"})
    after = Conditions(after=judge_one(first).handle)
    second = starting.submit(bench.root, render(plan), plan, bench.environ, {}, conditions=after)
    assert f"(after job {job_of(first)})" in second.message
    alone = bench.plan(env={"TWO": "2"})
    third = starting.submit(bench.root, render(alone), alone, bench.environ, {}, conditions=Conditions(singleton=True))
    for run, word in ((second.run, f"afterany:{job_of(first)}"), (third.run, "singleton")):
        wait_until(lambda run=run, word=word: word in status_of(run).reason, 20, lambda run=run: status_of(run))
        assert status_of(run).state is State.WAITING
    bench.let_go(first)
    bench.wait(second.run, State.FINISHED)
    bench.wait(third.run, State.FINISHED)
    assert result(second.run)["started"] > result(first)["ended"]


def test_more_nodes_than_there_are_is_pending_with_a_reason_or_refused(bench, old_cluster, monkeypatch):
    """22.05 takes such a job and lets it wait for ever; 24.11 refuses it."""
    too_many = with_words(bench, "target.slurm.spare_nodes=8")
    with pytest.raises(Refused) as refused:
        too_many.start()
    assert "Requested node configuration is not available" in str(refused.value)
    for name, value in old_cluster.environment().items():
        monkeypatch.setenv(name, value)
    run = too_many.start()
    wait_until(lambda: "more nodes than its partition has" in status_of(run).reason, 20, lambda: status_of(run))
    assert status_of(run).state is State.WAITING
    assert ending.cancel(run, lambda _: None) == 0


# Refused, unanswered, lost


def test_a_refusal_of_sbatch_is_shown_whole_and_blocks_nothing(bench, on_slurm, monkeypatch):
    monkeypatch.setenv("SBATCH_ACCOUNT", "mine")
    wrong = with_words(bench, "target.slurm.partition=nowhere")
    for _ in range(2):
        with pytest.raises(Refused) as refused:
            wrong.start()
        (issue,) = refused.value.issues
        assert issue.code == "SBATCH_REFUSED"
        assert "invalid partition specified: nowhere" in issue.message
        script = issue.hint.partition("submitted: ")[2]
        assert str(wrong.root) in script
        assert "SBATCH_ACCOUNT" in issue.hint
    (run,) = store.all_runs(wrong.root)
    assert (run.folder / "bundle" / "job.sbatch").is_file()
    assert (status_of(run).state, run.layout.attempt_numbers()) == (State.CREATED, [])
    assert on_slurm.run("squeue", "--noheader", "--user=root", "--format=%Z").stdout.count(run.name) == 0


def test_a_machine_without_slurm_or_submitit_is_told_what_to_do(bench, monkeypatch, tmp_path):
    (tmp_path / "bin").mkdir()
    for tool in ("env", "git"):
        if shutil.which(tool):
            (tmp_path / "bin" / tool).symlink_to(shutil.which(tool))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(Refused) as refused:
        bench.start()
    assert [issue.code for issue in refused.value.issues] == ["SLURM_MISSING"]
    assert "sbatch, squeue, scancel, scontrol, srun" in refused.value.issues[0].message
    assert not store.all_runs(bench.root)


def test_the_controller_goes_away_and_comes_back(bench, on_slurm):
    run = bench.start("hold=2")
    bench.wait_for_step(run, 1)
    other = bench.plan(env={"OTHER": "1"})
    on_slurm.stop_controller()
    failed = []

    def submit():
        try:
            bench.submit(other)
        except Unanswered as error:
            failed.append(str(error))

    submitting = threading.Thread(target=submit)  # squeue and sbatch each try for many seconds
    submitting.start()
    status = status_of(run)
    submitting.join(120)
    assert status.state is State.UNKNOWN
    assert "controller does not answer" in status.reason
    assert (status.last_step, status.job) == (1, judge_job(run))
    assert failed
    assert "controller" in failed[0]
    on_slurm.start_controller()
    bench.wait(run, State.RUNNING)
    bench.let_go(run)
    bench.wait(run, State.FINISHED)
    submitted = bench.submit(other)
    assert submitted.attempt == 1, "the failed submission is in nobody's way"
    bench.wait(submitted.run, State.FINISHED)


def judge_job(run):
    return json.loads(handle_file(run.layout.attempt(1)).read_text())["job"]


def test_a_job_whose_number_was_not_noted_is_found_and_not_doubled(bench, on_slurm, full):
    plan = bench.plan()
    run = bench.submit(plan).run
    job = job_of(run)
    handle_file(run.layout.attempt(1)).unlink()  # the launcher was killed between sbatch and its note
    assert status_of(run).state is State.DIED
    again = bench.submit(plan)
    assert (again.attempt, again.state) == (None, State.WAITING)
    assert job_of(run) == job
    assert len(slurm_queue.jobs_in(run.folder / "bundle", "root")) == 1


def test_a_running_job_whose_number_was_not_noted_is_found_by_its_own_word(bench, on_slurm):
    run = bench.start("hold=2")
    bench.wait_for_step(run, 1)
    handle_file(run.layout.attempt(1)).unlink()
    assert status_of(run).state is State.RUNNING
    assert ending.cancel(run, lambda _: None) == 0
    assert status_of(run).state is State.CANCELLED


def test_of_submits_that_race_one_job_comes(bench, on_slurm, full):
    plan = bench.plan()
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        came = pool.starmap(submit_elsewhere, [(bench.root, render(plan), plan)] * 2, chunksize=1)
    assert sorted(attempt or 0 for attempt, _ in came) == [0, 1], came
    (run,) = store.all_runs(bench.root)
    assert len(slurm_queue.jobs_in(run.folder / "bundle", "root")) == 1


def test_another_login_node_reads_the_same(bench, on_slurm, full):
    run = bench.start()
    command = f"hostname elsewhere && exec {sys.executable} -m launcher status {run.name} --json --runs {bench.root}"
    done = subprocess.run(["unshare", "--uts", "sh", "-c", command], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    read = json.loads(done.stdout)
    assert (read["state"], read["job"]) == ("waiting", job_of(run))
    assert "its partition does not start jobs now" in read["reason"]


def test_a_job_that_was_submitted_by_hand_is_not_joined_by_another(bench, on_slurm, full):
    run = bench.start()
    ending.cancel(run, lambda _: None)
    job = on_slurm.submit("job.sbatch", "2", cwd=run.folder / "bundle")
    with pytest.raises(Refused) as refused:
        starting.resume(run)
    assert [issue.code for issue in refused.value.issues] == ["SLURM_JOB_THERE"]
    assert f"scancel {job}" in refused.value.issues[0].hint
    on_slurm.run("scancel", job)


def test_a_number_that_is_another_job_now_is_not_taken_for_ours(bench, on_slurm, full, tmp_path):
    run = bench.start()
    stranger = on_slurm.submit("-N1", "--wrap=sleep 60", cwd=tmp_path)
    ours = judge_one(run).handle
    mistaken = {**ours, "job": stranger}
    assert [sight.presence.value for sight in slurm.look([ours, mistaken])] == ["waiting", "gone"]
    slurm.stop(mistaken)
    slurm.kill(mistaken)
    assert on_slurm.job(stranger, "JobState") == "PENDING"
    on_slurm.run("scancel", stranger)


# Its life


def test_a_pending_run_is_cancelled_outright(bench, on_slurm, full):
    run = bench.start()
    wait_until(lambda: status_of(run).state is State.WAITING, 10)
    told = []
    assert ending.cancel(run, told.append) == 0
    status = status_of(run)
    assert (status.state, status.reason) == (State.CANCELLED, "cancelled before it began")
    assert "nothing of it is running" in told[0]
    assert on_slurm.job(judge_job(run), "JobState") == "CANCELLED"


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
    wait_until(lambda: on_slurm.job(judge_job(run), "JobState") in ("CANCELLED", "FAILED", "COMPLETED"), 20)
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


def test_a_sweep_submits_each_point_and_returns(bench, on_slurm, full):
    done = launcher(bench, "-m", *typed("trainer.steps=5,6"))
    assert done.returncode == 0, done.stderr
    runs = store.all_runs(bench.root)
    assert sorted(status.steps for status in statuses(runs)) == [5, 6]
    assert len({job_of(run) for run in runs}) == 2
    assert done.stdout.count("submitted as job") == 2
    table = launcher(bench, "runs").stdout
    assert table.count(" waiting ") == 2


def test_order_is_a_clusters_word(bench):
    done = launcher(bench, "+exp=moe_tiny_cpu", "--singleton")
    assert done.returncode == 1
    assert "this machine has no queue" in done.stderr
    assert "target=slurm" in done.stderr
    assert not store.all_runs(bench.root)


def test_doctor_sees_the_cluster(bench, on_slurm, monkeypatch):
    found = {f["name"]: f for f in json.loads(launcher(bench, "doctor", "--json").stdout)}
    assert found["SLURM"]["ok"]
    assert "24.11" in found["SLURM"]["seen"]
    assert "testbed" in found["SLURM"]["seen"]
    assert found["submitit"]["ok"]
