"""A run read by another unix user, on a cluster that shows everybody's jobs and on one that hides them (PrivateData)."""

import json
import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from bench import Bench
from slurm_harness import SlurmHarness, job_of

from launcher.runs import ending
from launcher.runs.attempts import State
from launcher.runs.status import status_of

ROOT = Path(__file__).resolve().parents[2]
OTHER = "nobody"


@pytest.fixture(scope="session")
def session_private(start_cluster):
    return start_cluster("slurm-private", lines=("PrivateData=jobs",))


@pytest.fixture(params=[False, True], ids=["shown", "hidden"])
def hidden(request, monkeypatch):
    """Whether the cluster of this test hides jobs; this process is on its login node."""
    cluster = request.getfixturevalue("session_private" if request.param else "session_login")
    if not cluster.ready():
        cluster.reset()
    for name, value in cluster.environment().items():
        monkeypatch.setenv(name, value)
    return request.param


@pytest.fixture
def run(hidden, tmp_path):
    bench = Bench(tmp_path / "runs", SlurmHarness())
    run = bench.start("hold=3")
    bench.wait_for_step(run, 2)
    yield run
    ending.cancel_now(run, lambda _: None)


def as_other(run, *words):
    """The launcher as a user who may read every file (the tests' folders are root's own) but is nobody to SLURM."""
    if shutil.which("setpriv") is None:
        pytest.skip("no setpriv here (util-linux): no way to be another user")
    user = pwd.getpwnam(OTHER)
    become = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    reads = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    return subprocess.run(
        [*become, *reads, sys.executable, "-B", "-m", "launcher", *words, run.name, "--runs", str(run.folder.parent)],
        capture_output=True,
        text=True,
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(ROOT), "HOME": "/"},
        timeout=120,
    )


def test_what_another_user_sees(run, hidden):
    done = as_other(run, "status", "--json")
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert (seen["job"], seen["last_step"]) == (job_of(run), 2), (
        "the files say that much to everybody who may read them"
    )
    assert status_of(run).state is State.RUNNING
    if hidden:
        assert seen["state"] == "unknown"
        assert seen["reason"] == f"job {job_of(run)} is root's, and this cluster hides jobs of others (PrivateData)"
    else:
        assert seen["state"] == "running"


def test_another_user_does_not_end_it_or_start_a_second(run, hidden):
    for verb in ("cancel", "resume"):
        done = as_other(run, verb)
        assert done.returncode != 0
        assert "Traceback" not in done.stderr
        assert run.name in done.stdout + done.stderr
    assert status_of(run).state is State.RUNNING
    assert run.layout.attempt_numbers() == [1]
