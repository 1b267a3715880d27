"""`watch` on the clusters: the same view as on this machine, of a run that trains and of one that is over."""

import subprocess
import sys

import pytest

from launcher.cli.main import main
from launcher.runs.attempts import State


@pytest.fixture(params=["slurm_bench", "kube_bench"])
def bench(request):
    return request.getfixturevalue(request.param)


def test_a_run_on_a_cluster_is_watched_until_its_end(bench, capsys):
    run = bench.start("hold=8")
    bench.wait_for_step(run, 7)
    assert main(["watch", run.name, "--runs", str(bench.root), "--once"]) == 0
    shown = {text.split()[0]: text for text in capsys.readouterr().out.splitlines()}
    assert f"on {run.target}" in shown["run"]
    assert "running, attempt 1" in shown["state"]
    assert "8 of 12" in shown["step"]
    words = [sys.executable, "-m", "launcher", "watch", run.name, "--runs", str(bench.root)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        first = watching.stdout.readline()
        bench.let_go(run)
        rest, err = watching.communicate(timeout=120)
    assert (watching.returncode, err) == (0, "")
    assert "submitted" in first
    assert rest.splitlines()[-1].startswith("finished  step 12/12")
    assert "attempt_ended" in rest
    bench.wait(run, State.FINISHED)
