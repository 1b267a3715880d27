"""How the SLURM target submits: reasons for waiting, refusals, lost answers; everything on a real scheduler."""

import json
import multiprocessing
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from bench import result, submit_elsewhere, wait_until
from slurm_harness import job_of, noted_job, with_words

from launcher.issue import Refused
from launcher.render.bundle import render
from launcher.runs import chains, ending, starting, store
from launcher.runs.attempts import State, handle_file, judge_one
from launcher.runs.status import status_of
from launcher.targets import slurm, slurm_queue
from launcher.targets.base import Conditions
from launcher.targets.slurm_queue import Unanswered

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def bench(slurm_bench):
    return slurm_bench


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


def follower(bench, run, **more):
    """A run that starts after another, as `--after RUN` submits it."""
    plan = bench.plan(env={"FOLLOWER": run.name})
    after = Conditions(after=chains.waited_for(run, judge_one(run).handle), **more)
    return starting.submit(bench.root, render(plan), plan, bench.environ, {}, conditions=after).run


def test_after_a_run_is_after_its_live_job(bench, on_slurm, full):
    first = bench.start()
    ending.cancel(first, lambda _: None)
    starting.resume(first)
    behind = follower(bench, first)
    assert job_of(first) != noted_job(first)
    assert on_slurm.job(job_of(behind), "Dependency") == f"afterany:{job_of(first)}(unfulfilled)"


def test_what_waits_for_a_run_waits_for_its_next_job_too(bench, on_slurm, full):
    first, other = bench.start(), bench.start(env={"OTHER": "1"})
    behind = follower(bench, first, singleton=True)
    ending.cancel(first, lambda _: None)
    resumed = starting.resume(first)
    job = job_of(first)
    assert f"{behind.name}: starts after {first.name}: now after its job {job}" in resumed.message
    left = on_slurm.job(job_of(behind), "Dependency").replace("(unfulfilled)", "")
    assert set(left.split(",")) == {f"afterany:{job}", "singleton"}
    assert status_of(behind).state is State.WAITING
    for run in (behind, first, other):
        ending.cancel(run, lambda _: None)
    assert behind.name not in starting.resume(first).message


def test_a_follower_that_has_begun_is_told_of(bench, on_slurm):
    first = bench.start("mode=die at=2 attempt=1")
    behind = bench.plan("hold=1")
    after = Conditions(after=chains.waited_for(first, judge_one(first).handle))
    behind = starting.submit(bench.root, render(behind), behind, bench.environ, {}, conditions=after).run
    bench.wait_for_step(behind, 0)
    resumed = starting.resume(first)
    assert f"{behind.name}: was to start after {first.name}, but does not wait" in resumed.message
    assert "it has begun already" in resumed.message
    bench.wait(first, State.FINISHED)


def test_more_nodes_than_there_are_are_refused(bench, on_slurm):
    if on_slurm.settings.version == "22.05":
        pytest.skip("22.05 takes the job: the next test")
    with pytest.raises(Refused, match="Requested node configuration is not available"):
        with_words(bench, "target.slurm.spare_nodes=8").start()


def test_an_older_slurm_lets_a_job_of_too_many_nodes_wait(bench, old_cluster, monkeypatch):
    for name, value in old_cluster.environment().items():
        monkeypatch.setenv(name, value)
    run = with_words(bench, "target.slurm.spare_nodes=8").start()
    wait_until(lambda: "more nodes than its partition has" in status_of(run).reason, 20, lambda: status_of(run))
    assert status_of(run).state is State.WAITING
    assert ending.cancel(run, lambda _: None) == 0


def test_a_dry_run_asks_the_controller_and_submits_nothing(bench, on_slurm):
    plan = bench.plan()
    said = slurm.rehearse(plan, {})
    assert "to start at" in said[0], said
    plan.experiment.target.slurm.partition = "nowhere"
    with pytest.raises(Refused, match=r"nowhere|partition"):
        slurm.rehearse(plan, {})
    assert not on_slurm.run("squeue", "--noheader").stdout.strip()


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
    assert (status.last_step, status.job) == (1, noted_job(run))
    assert failed
    assert "controller" in failed[0]
    on_slurm.start_controller()
    bench.wait(run, State.RUNNING)
    bench.let_go(run)
    bench.wait(run, State.FINISHED)
    submitted = bench.submit(other)
    assert submitted.attempt == 1, "the failed submission is in nobody's way"
    bench.wait(submitted.run, State.FINISHED)


def test_a_job_whose_number_was_not_noted_is_found_and_not_doubled(bench, on_slurm, full):
    plan = bench.plan()
    run = bench.submit(plan).run
    job = job_of(run)
    handle_file(run.layout.attempt(1)).unlink()  # the launcher was killed between sbatch and its note
    assert status_of(run).state is State.DIED
    again = bench.submit(plan)
    assert (again.attempt, again.state) == (None, State.WAITING)
    assert job_of(run) == job
    assert len(slurm_queue.jobs_in(run.folder / "bundle")) == 1


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
    assert len(slurm_queue.jobs_in(run.folder / "bundle")) == 1


def test_another_login_node_reads_the_same(bench, on_slurm, full):
    run = bench.start()
    command = f"hostname elsewhere && exec {sys.executable} -m launcher status {run.name} --json --runs {bench.root}"
    done = subprocess.run(["unshare", "--uts", "sh", "-c", command], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    read = json.loads(done.stdout)
    assert (read["state"], read["job"]) == ("waiting", job_of(run))
    assert "its partition does not start jobs now" in read["reason"]


@pytest.mark.parametrize("verb", ["status", "logs", "cancel"])
def test_looking_at_a_run_of_slurm_loads_nothing_heavy(bench, on_slurm, full, verb):
    run = bench.start()
    program = (
        "import sys; from launcher.cli.main import main\n"
        f"main([{verb!r}, {run.name!r}, '--runs', {str(bench.root)!r}])\n"
        "print({'submitit', 'hydra', 'omegaconf', 'yaml'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


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
    damaged = {**ours, "job": "12; rm"}
    seen = [sight.presence.value for sight in slurm.look([damaged, ours, mistaken])]
    assert seen == ["unknown", "waiting", "gone"]
    slurm.stop(mistaken)
    slurm.kill(mistaken)
    assert on_slurm.job(stranger, "JobState") == "PENDING"
    on_slurm.run("scancel", stranger)
