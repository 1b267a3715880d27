"""A run that only examines its nodes (monitor.node_check=only), and `preflight node RUN`, on this machine and on both clusters."""

import json
import os

import pytest
from bench import HERE, Bench, files_of, result
from kube_harness import with_words as on_pods
from slurm_harness import with_words as on_slurm_with

from launcher.cli.main import main
from launcher.runs.attempts import State
from launcher.runs.status import status_of, status_text

NODES = 4
ONLY = "monitor.node_check=only"
SIZE = (f"nodes={NODES}", "hardware.gpus_per_node=1", f"hardware.domain_nodes={NODES}", "mesh.ici.expert=1")
SIZE = (*SIZE, f"mesh.ici.fsdp={NODES}", "monitor.max_failures=3", "monitor.max_bad_nodes=3", ONLY)
BAD = 2
BROKEN_JAX = f"""\
import os
if os.environ.get("JOB_COMPLETION_INDEX") == "{BAD}" or os.environ.get("SLURM_NODEID") == "{BAD}":
    raise RuntimeError("cuInit failed: CUDA_ERROR_SYSTEM_NOT_READY")
raise ModuleNotFoundError("no jax here")
"""


class Local:
    words = ("target=local", ONLY)


@pytest.fixture
def ask(capsys):
    """preflight node, as a person types it: exit code, what it said."""

    def typed(bench, *words):
        capsys.readouterr()
        code = main(["preflight", "node", *words, "--runs", str(bench.root)])
        out, err = capsys.readouterr()
        return code, out + err

    return typed


def with_a_bad_node(tmp_path):
    """Variables by which node BAD fails its computation, as a broken driver makes it; the others have nothing to compute with."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "jax.py").write_text(BROKEN_JAX)
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(HERE), str(HERE.parent / "node")])}


def check_the_bad_one_is_told(bench, run, ask):
    """One attempt alone, no trainer, the node's name with its reason, and the others passed."""
    assert run.layout.attempt_numbers() == [1], "nothing starts again"
    assert not [name for name in files_of(run.folder) if "rank" in name]
    status = status_text(status_of(run))
    assert f"1 of {NODES} nodes cannot train: " in status
    assert "cuInit failed: CUDA_ERROR_SYSTEM_NOT_READY" in status
    assert "steps" not in status
    code, said = ask(bench, run.name, "--json")
    nodes = json.loads(said)["nodes"]
    (failed,) = [node for node in nodes if not node["passed"]]
    assert (code, len(nodes)) == (1, NODES)
    assert failed["reasons"] == ["compute: RuntimeError: cuInit failed: CUDA_ERROR_SYSTEM_NOT_READY"]
    code, said = ask(bench, run.name)
    assert said.endswith(f"{NODES - 1} of {NODES} nodes passed\nleave out: {failed['name']}\n")
    return failed["name"]


def test_this_machine(tmp_path, ask):
    bench = Bench(tmp_path / "runs", Local())
    run = bench.finish()
    assert result(run)["reason"] == f"the node is fit; no trainer was started ({ONLY})"
    assert not list(run.layout.attempt(1).path.glob("rank*.log"))
    assert "the node is fit" in status_text(status_of(run))
    code, said = ask(bench, run.name)
    assert code == 0, said
    assert said.endswith("1 of 1 nodes passed\n")


def test_this_machine_when_it_cannot_compute(tmp_path, ask, monkeypatch, capsys):
    monkeypatch.setenv("SLURM_NODEID", str(BAD))
    bench = Bench(tmp_path / "runs", Local())
    run = bench.start(env=with_a_bad_node(tmp_path))
    bench.wait(run, State.FAILED)
    why = "1 of 1 nodes cannot train: "
    decision = json.loads((run.layout.attempt(1).path / "decision.json").read_text())
    assert (decision["action"], decision["exclude"]) == ("stop", []), "where most fail it is not the nodes' fault"
    assert decision["reason"].startswith(f"these nodes cannot run it: {why}")
    assert run.layout.attempt_numbers() == [1]
    assert status_of(run).reason.startswith(why)
    assert main(["events", run.name, "--json", "--runs", str(bench.root)]) == 0
    kinds = [json.loads(line)["kind"] for line in capsys.readouterr().out.splitlines()]
    assert kinds == ["submitted", "attempt_started", "attempt_ended", "decided_stop"], "its reason explains it"
    code, said = ask(bench, run.name)
    assert code == 1
    assert "0 of 1 nodes passed\nleave out: " in said


def test_a_run_whose_nodes_were_not_examined(tmp_path, ask):
    bench = Bench(tmp_path / "runs", Local())
    bench.harness.words = ("target=local",)
    run = bench.finish()
    code, said = ask(bench, run.name)
    assert code == 1
    assert "were not examined in attempt 1 [NODE_CHECK_NONE]" in said
    assert f"submit it with {ONLY}" in said


def test_the_nodes_of_a_job(slurm_bench, tmp_path, ask):
    bench = on_slurm_with(slurm_bench, *SIZE)
    run = bench.start(env=with_a_bad_node(tmp_path))
    bench.wait(run, State.FAILED)
    name = check_the_bad_one_is_told(bench, run, ask)
    decision = json.loads((run.layout.attempt(1).path / "decision.json").read_text())
    assert (decision["action"], decision["exclude"]) == ("stop", [name])


def test_the_nodes_of_a_jobset(kube_bench, tmp_path, ask):
    bench = on_pods(kube_bench, *SIZE)
    run = bench.start(env=with_a_bad_node(tmp_path))
    bench.wait(run, State.FAILED)
    check_the_bad_one_is_told(bench, run, ask)
