"""What is the local target's alone: its refusals, and whom it takes for its own process."""

import os
import signal
import stat
import subprocess
import sys

import pytest
from bench import ONE_ATTEMPT, Bench, result, wait_until

from launcher.issue import Refused
from launcher.render.bundle import render
from launcher.runs import lifecycle, starting, store
from launcher.runs.attempts import State, judge_one
from launcher.runs.status import status_of
from launcher.targets import base, local, processes
from launcher.targets.base import Presence


class Harness:
    words = ("target=local", *ONE_ATTEMPT)


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path / "runs", Harness())


@pytest.fixture
def plan(bench):
    return bench.plan()


def codes(plan, options=None):
    return [issue.code for issue in local.refusals(plan, options or local.options(os.environ))]


def replace_mesh(plan, **changes):
    from dataclasses import replace

    return replace(plan, mesh=replace(plan.mesh, **changes))


def test_a_sound_plan_is_not_refused(plan):
    assert codes(plan) == []


def test_more_than_one_node(plan):
    (issue,) = local.refusals(replace_mesh(plan, nodes=2), local.options(os.environ))
    assert (issue.code, issue.field) == ("LOCAL_NODES", "target")
    assert "2 nodes" in issue.message


@pytest.mark.parametrize(("listed", "refused"), [(None, True), (1, True), (2, False)])
def test_gpus_are_counted(plan, tmp_path, monkeypatch, listed, refused):
    monkeypatch.setenv("PATH", str(tmp_path))
    if listed is not None:
        tool = tmp_path / "nvidia-smi"
        lines = "".join(f"echo 'GPU {number}: NVIDIA GB200 (UUID: GPU-{number})'\n" for number in range(listed))
        tool.write_text(f'#!/bin/sh\n[ "$1" = -L ] || exit 1\n{lines}')
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    plan.experiment.hardware.platform = "gpu"
    issues = [issue for issue in local.refusals(plan, local.options(os.environ)) if issue.code == "LOCAL_GPUS"]
    assert bool(issues) == refused
    if refused:
        assert f"2 GPU(s) wanted on this machine, nvidia-smi -L lists {listed or 0}" in issues[0].message


def test_a_python_without_the_trainer(plan):
    plan.experiment.trainer.module = "maxtext_of_nobody.train"
    (issue,) = local.refusals(plan, local.options(os.environ))
    assert (issue.code, issue.field) == ("TRAINER_MISSING", "trainer.module")
    assert sys.executable in issue.message
    assert "PYTHONPATH" in issue.hint


def test_a_python_without_maxtext_is_told_how_to_get_it(plan, tmp_path):
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # -S: no site-packages
    bare.chmod(0o755)
    plan.experiment.trainer.module = "maxtext.trainers.pre_train.train"
    plan.experiment.env.vars = {}
    (issue,) = local.refusals(plan, local.options({local.PYTHON: str(bare)}))
    assert issue.code == "TRAINER_MISSING"
    assert "pip install 'launcher[local]'" in issue.hint
    assert "Python >= 3.12" in issue.hint


@pytest.mark.parametrize("python", ["/nowhere/python3", "/bin/false"])
def test_a_python_that_does_not_run(plan, python):
    (issue,) = local.refusals(plan, local.options({local.PYTHON: python}))
    assert issue.code == "LOCAL_PYTHON"
    assert python in issue.message
    assert local.PYTHON in issue.hint


def test_all_refusals_come_at_once(plan, monkeypatch):
    monkeypatch.delenv("WANTED", raising=False)
    plan.experiment.env.secrets = ["WANTED"]
    plan.experiment.trainer.module = "nobody"
    assert codes(replace_mesh(plan, nodes=3)) == ["LOCAL_NODES", "SECRET_MISSING", "TRAINER_MISSING"]


def test_a_resume_is_refused_for_what_the_machine_has_lost(bench, monkeypatch):
    run = bench.start("mode=die at=2 attempt=1")
    bench.wait(run, State.FAILED)
    options = {"python": "/nowhere/python3"}
    broken = store.Run(run.layout, {**run.record, "options": options})
    with pytest.raises(Refused, match="/nowhere/python3"):
        starting.resume(broken)
    assert run.layout.attempt_numbers() == [1], "a refused start leaves no attempt behind"


def test_the_python_is_the_one_that_was_named_at_submission(bench, tmp_path):
    marked = tmp_path / "my-python"
    marked.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    marked.chmod(0o755)
    bench.environ[local.PYTHON] = str(marked)
    run = bench.finish()
    assert run.record["options"] == {"python": str(marked)}
    assert str(marked) in run.layout.attempt(1).started().read_text()


@pytest.fixture
def sleeper():
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], env={**os.environ, local.MARK: "/x"}
    )
    yield child
    child.kill()
    child.wait()


def handle_of(child):
    return {
        "kind": "local",
        "host": os.uname().nodename,
        "boot": processes.boot_id(),
        "pid": child.pid,
        "process_start": processes.start_ticks(child.pid),
        "attempt_folder": "/x",
    }


def presences(*handles):
    return [sight.presence for sight in local.look(handles)]


def test_only_that_very_process_is_taken_for_it(sleeper):
    handle = handle_of(sleeper)
    later = {**handle, "process_start": handle["process_start"] + 1}
    other_boot = {**handle, "boot": "another"}
    adopted = local.adopt(handle, "/x")
    other_host = {**handle, "host": "elsewhere"}
    seen = presences(handle, later, other_boot, adopted, other_host)
    assert seen == [Presence.ALIVE, Presence.GONE, Presence.GONE, Presence.ALIVE, Presence.UNKNOWN]
    for stranger in (later, other_boot, other_host):
        local.stop(stranger)
    assert sleeper.poll() is None
    assert processes.start_ticks(sleeper.pid) is not None, "a stranger's process was touched"


def test_kill_ends_what_outlived_its_worker(sleeper):
    worker_is_gone = {**handle_of(sleeper), "pid": 1 << 22, "process_start": 5}
    assert presences(worker_is_gone) == [Presence.GONE]
    local.kill(worker_is_gone)
    assert sleeper.wait(20) == -signal.SIGKILL
    local.kill(worker_is_gone)  # once more does no harm


def test_a_kernel_without_pidfds(sleeper, monkeypatch):
    def missing(*words):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", missing)
    handle = handle_of(sleeper)
    assert not processes.send(handle["pid"], handle["process_start"] + 1, signal.SIGKILL)
    assert processes.send(handle["pid"], handle["process_start"], signal.SIGKILL)
    assert sleeper.wait(20) == -signal.SIGKILL
    assert not processes.send(handle["pid"], handle["process_start"], signal.SIGKILL)


def test_a_zombie_counts_as_gone():
    child = subprocess.Popen([sys.executable, "-c", ""])
    handle = handle_of(child)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert presences(handle) == [Presence.GONE]
    child.wait()


def test_an_attempt_of_run_sh_is_a_runs_attempt(bench):
    """By hand in the run's folder: status, and the next submit, know of it."""
    run = bench.start("mode=die at=2 attempt=1")
    bench.wait(run, State.FAILED)
    by_hand = subprocess.Popen(
        ["sh", str(run.layout.bundle.path / "run.sh"), "--quiet"], env={**os.environ, "PYTHON": sys.executable}
    )
    wait_until(lambda: judge_one(run).attempt.number == 2, 30)
    assert by_hand.wait(60) == 0
    assert judge_one(run).state is State.FINISHED


def test_the_bundle_holds_no_bytecode_after_a_run(bench):
    run = bench.finish()
    assert not list(run.layout.bundle.path.rglob("*.pyc"))


def test_an_unknown_kind_names_the_legal_ones():
    with pytest.raises(Refused, match="'abacus'") as refused:
        base.get("abacus")
    assert refused.value.issues[0].hint == "type target=local|slurm|kubernetes"


def test_the_points_of_a_sweep_run_one_after_the_other(bench, capfd):
    plans = [bench.plan(orders, env={"POINT": str(n)}) for n, orders in enumerate(["", "mode=die at=2", ""])]
    introduced = []
    code = lifecycle.sweep([(plan, render(plan)) for plan in plans], introduced.append, runs=str(bench.root), at_once=1)
    assert code == 2
    assert introduced == [0, 1, 2]
    assert not (bench.root / "sweeps").exists()
    runs = [store.load(bench.root / render(plan).name) for plan in plans]
    assert [status_of(run).state for run in runs] == [State.FINISHED, State.FAILED, State.FINISHED]
    times = [(result(run)["started"], result(run)["ended"]) for run in runs]
    assert times[0][1] <= times[1][0]
    assert times[1][1] <= times[2][0]
    told = capfd.readouterr().out
    assert [told.count(f"{run.name}: started") for run in runs] == [1, 1, 1]
    assert "they run on by themselves" not in told
