"""What the tests of the clusters' targets share."""

import pytest
import yaml
from bench import Bench
from kube_harness import KubeHarness
from slurm_harness import SlurmHarness

from launcher.cli.main import main
from launcher.runs import ending, store
from launcher.runs.attempts import judge_one


@pytest.fixture
def slurm_bench(tmp_path, on_slurm):
    """A folder of runs on a cluster; what still runs at the end of the test is killed."""
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


@pytest.fixture
def on_kubernetes(kube_cluster, tmp_path, monkeypatch):
    """A login machine of a cluster: its kubeconfig's current context is the cluster's namespace."""
    config = yaml.safe_load(kube_cluster.server.kubeconfig.read_text())
    for context in config["contexts"]:
        context["context"]["namespace"] = kube_cluster.namespace
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(path))
    return kube_cluster


@pytest.fixture
def kube_bench(tmp_path, on_kubernetes):
    """A folder of runs on a Kubernetes cluster; what still runs at the end of the test is killed."""
    bench = Bench(tmp_path / "runs", KubeHarness(on_kubernetes))
    yield bench
    for run in store.all_runs(bench.root):
        if judge_one(run).is_live:
            ending.cancel_now(run, lambda _: None)


@pytest.fixture
def type_(kube_bench, capsys):
    """A command as a person types it: exit code, stdout, stderr."""

    def run(*words):
        capsys.readouterr()
        code = main([*words, "--runs", str(kube_bench.root)])
        out, err = capsys.readouterr()
        return code, out, err

    return run
