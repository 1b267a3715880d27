"""Sweeps as job arrays, on a real scheduler: one submission, and every run lives as if its job were its own."""

import json
import re

import pytest
from bench import Bench, wait_until
from slurm_harness import SlurmHarness, job_of, noted_job, with_words
from test_slurm_life import counted

from launcher.issue import Refused
from launcher.render.bundle import render
from launcher.runs import ending, starting, store
from launcher.runs.attempts import State, handle_file
from launcher.runs.status import status_of, statuses
from launcher.runs.sweeps import Sweep
from launcher.targets import slurm, slurm_queue
from launcher.targets.base import Conditions


@pytest.fixture
def bench(slurm_bench):
    return slurm_bench


def submitted(bench, plans, told=None, **sweep):
    """What came of each point, in the points' order."""
    say = (lambda _: None) if told is None else told.append
    found = Sweep(bench.root, bench.environ, {"time": "now"}, say=say, **sweep).submit(
        [(plan, render(plan)) for plan in plans]
    )
    by_place = dict(found)
    return [by_place[place] for place in range(len(plans))]


def points(bench, *orders):
    return [bench.plan(order, env={"POINT": str(number)}) for number, order in enumerate(orders)]


def test_points_of_one_shape_are_one_array_and_the_other_is_a_job(bench, on_slurm):
    plans = points(bench, "", "", "", "hold=2 attempt=1")
    other = with_words(bench, "target.slurm.time_minutes=60").plan()
    told: list[str] = []
    runs = [each.run for each in submitted(bench, [plans[0], other, *plans[1:]], told)]
    jobs = [noted_job(run) for run in runs]
    array = jobs[0].partition("_")[0]
    assert [jobs[0], *jobs[2:]] == [f"{array}_{task}" for task in range(4)]
    assert jobs[1].isdecimal()
    (line,) = told
    script = bench.root / "sweeps" / line.rpartition("/sweeps/")[2]
    assert script.name == "array.sbatch"
    sent = on_slurm.run("scontrol", "write", "batch_script", jobs[4], "-").stdout
    assert sent.rstrip("\n") == script.read_text().rstrip("\n"), (
        "the text that lies there is the one that was submitted"
    )
    bench.wait_for_step(runs[4], 1)
    for run in runs[:4]:
        bench.wait(run, State.FINISHED)
    assert status_of(runs[4]).state is State.RUNNING
    bench.let_go(runs[4])
    bench.wait(runs[4], State.FINISHED)
    for run, job in zip(runs, jobs, strict=True):
        assert [log.name for log in run.folder.glob("slurm-*.log")] == [f"slurm-{job}.log"]
        log = (run.folder / f"slurm-{job}.log").read_text()
        assert "attempt 1 on 1 node" in log
        own = re.search(r"task (\S+) of its array, with a number of its own: (\d+)$", log, re.M)
        if own is None:
            assert job.isdecimal()
        else:
            assert (own[1], on_slurm.job(own[2], "ArrayTaskId")) == (job, job.partition("_")[2])
        assert json.loads((run.folder / "attempts/1/attempt.json").read_text())["job"] == job
    assert not [log for log in script.parent.glob("*.log") if log.read_text()]


def test_tasks_that_wait_are_told_apart_by_one_question(bench, on_slurm, full, monkeypatch, tmp_path):
    runs = [each.run for each in submitted(bench, points(bench, "", "", "", ""))]
    assert on_slurm.run("squeue", "--noheader", "--format=%i").stdout.split() == [
        f"{noted_job(runs[0]).partition('_')[0]}_[0-3]"
    ]
    calls = counted(tmp_path / "bin", monkeypatch)
    found = statuses(store.all_runs(bench.root))
    assert calls() == ["squeue"]
    assert sorted(status.job for status in found) == [noted_job(run) for run in runs]
    assert {status.state for status in found} == {State.WAITING}
    wait_until(lambda: "its partition does not start jobs now" in status_of(runs[1]).reason, 20)


def test_cancel_of_one_leaves_the_others_and_its_resume_is_a_job_of_its_own(bench, on_slurm, full):
    runs = [each.run for each in submitted(bench, points(bench, "", "", ""))]
    assert ending.cancel(runs[1], lambda _: None) == 0
    assert [status_of(run).state for run in runs] == [State.WAITING, State.CANCELLED, State.WAITING]
    resumed = starting.resume(runs[1])
    assert re.search(r"submitted as job \d+$", resumed.message), resumed.message
    assert job_of(runs[1]).isdecimal()
    on_slurm.run("scontrol", "update", "partitionname=main", "state=up")
    for run in runs:
        bench.wait(run, State.FINISHED)
    assert [run.layout.attempt_numbers() for run in runs] == [[1], [1, 2], [1]]


def test_cancel_of_a_running_task_saves_and_ends_it_alone(bench, on_slurm):
    runs = [each.run for each in submitted(bench, points(bench, "hold=2", "hold=2"))]
    for run in runs:
        bench.wait_for_step(run, 1)
    assert ending.cancel(runs[0], lambda _: None) == 0
    assert status_of(runs[0]).state is State.CANCELLED
    assert status_of(runs[0]).checkpoint is not None
    assert status_of(runs[1]).state is State.RUNNING
    assert ending.cancel_now(runs[1], lambda _: None) == 0


def test_a_requeued_task_resumes(bench, on_slurm):
    again = with_words(bench, "monitor.max_preemptions=5")
    runs = [each.run for each in submitted(again, points(again, "", "hold=6 attempt=1"))]
    job = noted_job(runs[1])
    again.wait_for_step(runs[1], 5)
    on_slurm.run("scontrol", "requeue", job)
    again.wait(runs[1], State.WAITING)
    on_slurm.start_soon(job)
    for run in runs:
        again.wait(run, State.FINISHED)
    status = status_of(runs[1])
    assert (status.attempt, status.job, status_of(runs[0]).attempt) == (2, job, 1)
    assert [log.name for log in runs[1].folder.glob("slurm-*.log")] == [f"slurm-{job}.log"]
    assert on_slurm.job(job, "Restarts") == "1"


def test_a_task_that_leaves_a_node_out_leaves_it_to_the_others(bench, on_slurm):
    """Without spare nodes it is queued again; ExcNodeList is that task's alone."""
    pair = ("nodes=2", "hardware.domain_nodes=2", "mesh.ici.fsdp=2", "monitor.max_failures=2")
    fussy = with_words(bench, *pair, "monitor.restart_pause_seconds=0", "target.slurm.segment=false")
    runs = [each.run for each in submitted(fussy, points(fussy, "mode=die rank=1 at=2", "hold=1"))]
    jobs = [noted_job(run) for run in runs]
    decided = runs[0].folder / "attempts/2/decision.json"
    wait_until(decided.exists, 60, lambda: statuses(runs), 0.2)
    decision = json.loads(decided.read_text())
    assert decision["action"] == "requeue"
    (node,) = decision["exclude"]
    wait_until(lambda: on_slurm.job(jobs[0], "ExcNodeList") == node, 20)
    assert on_slurm.job(jobs[1], "ExcNodeList") == "(null)"
    for run in runs:
        ending.cancel_now(run, lambda _: None)


def test_a_task_whose_number_was_not_noted_is_found(bench, on_slurm, full):
    plans = points(bench, "", "")
    runs = [each.run for each in submitted(bench, plans)]
    job = noted_job(runs[1])
    handle_file(runs[1].layout.attempt(1)).unlink()
    assert slurm.find(runs[1].layout)["job"] == job
    again = bench.submit(plans[1])
    assert (again.attempt, again.state, job_of(runs[1])) == (None, State.WAITING, job)
    (there,) = slurm_queue.jobs_in(runs[1].folder / "bundle")
    assert there.number == job


def test_a_task_is_known_without_the_sweeps_own_list(bench, on_slurm, full):
    runs = [each.run for each in submitted(bench, points(bench, "", ""))]
    for file in (bench.root / "sweeps").glob("*/sweep.json"):
        file.unlink()
    assert [status_of(run).state for run in runs] == [State.WAITING] * 2


def test_a_larger_sweep_takes_only_what_is_new(bench, on_slurm, full):
    first = submitted(bench, points(bench, "", ""))
    told: list[str] = []
    second = submitted(bench, points(bench, "", "", "", ""), told, at_once=1)
    assert [each.attempt for each in second] == [None, None, 1, 1]
    assert [each.run.name for each in second[:2]] == [each.run.name for each in first]
    assert len(told) == 1
    assert told[0].startswith("2 runs of one shape")
    array = noted_job(second[2].run).partition("_")[0]
    assert array != noted_job(first[0].run).partition("_")[0]
    assert on_slurm.job(array, "ArrayTaskThrottle") == "1"


def test_singleton_points_and_equal_ones_are_jobs_of_their_own(bench, on_slurm, full):
    alone = submitted(bench, points(bench, "", ""), conditions=Conditions(singleton=True))
    assert all(noted_job(each.run).isdecimal() for each in alone)
    twice = bench.plan(env={"POINT": "twice"})
    one, other = submitted(bench, [twice, twice])
    assert (one.attempt, other.attempt) == (1, None)
    assert noted_job(one.run).isdecimal()


def test_a_refused_array_leaves_no_attempt_and_is_in_nobodys_way(bench, on_slurm, full, monkeypatch):
    wrong = with_words(bench, "target.slurm.partition=nowhere")
    for _ in range(2):
        with pytest.raises(Refused) as refused:
            submitted(wrong, points(wrong, "", ""))
        assert [issue.code for issue in refused.value.issues] == ["SBATCH_REFUSED"]
        assert "array.sbatch" in refused.value.issues[0].hint
    runs = store.all_runs(wrong.root)
    assert [(status_of(run).state, run.layout.attempt_numbers()) for run in runs] == [(State.CREATED, [])] * 2


def test_an_array_is_no_larger_than_the_cluster_allows(start_cluster, tmp_path, monkeypatch):
    cluster = start_cluster("slurm-small-arrays", nodes=1, lines=("MaxArraySize=2",))
    for name, value in cluster.environment().items():
        monkeypatch.setenv(name, value)
    cluster.run("scontrol", "update", "partitionname=main", "state=down")
    bench = Bench(tmp_path / "runs", SlurmHarness())
    jobs = [noted_job(each.run) for each in submitted(bench, points(bench, "", "", "", "", ""))]
    arrays = [job.partition("_")[0] for job in jobs]
    assert [job.partition("_")[2] for job in jobs] == ["0", "1", "0", "1", ""]
    assert len(set(arrays)) == 3
    assert cluster.run("squeue", "--noheader", "--format=%i").stdout.split().count(f"{arrays[0]}_[0-1]") == 1


def test_a_secret_reaches_every_task_and_none_starts_without_it(bench, on_slurm, monkeypatch, tmp_path):
    plans = [bench.plan(f"environ={tmp_path}/{n}", env={"N": str(n)}, secrets=("HF_TOKEN",)) for n in range(2)]
    wrong = [
        with_words(bench, "target.slurm.partition=nowhere").plan(secrets=("HF_TOKEN",), env={"N": n}) for n in "34"
    ]
    monkeypatch.setenv("HF_TOKEN", "hf_correct-horse-battery")
    runs = [each.run for each in submitted(bench, plans)]
    with pytest.raises(Refused, match="nowhere"):
        submitted(bench, wrong)  # these runs exist from now on
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(Refused) as refused:
        submitted(bench, wrong)
    assert [issue.code for issue in refused.value.issues] == ["SECRET_MISSING"]
    for number, run in enumerate(runs):
        bench.wait(run, State.FINISHED)
        assert b"HF_TOKEN=hf_correct-horse-battery" in (tmp_path / str(number)).read_bytes().split(b"\0")
