"""Nodes judged side by side, and asked over a real SLURM allocation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher.config.compose import Composer
from launcher.config.schema import Experiment
from launcher.node import health
from launcher.plan.plan import make
from launcher.preflight import node as nodes
from launcher.render.bundle import render
from launcher.render.folder import Bundle
from slurm.testbed.cluster import Cluster

H200 = (Path(__file__).parents[1] / "node" / "data" / "h200x2_health.txt").read_text()
"""What two H200s said of themselves."""


def report(name: str, *, tflops: float = 880, reduce: float = 220, level: str = "ok", **more: Any) -> dict[str, Any]:
    recorded = nodes.parse(H200)[0]
    findings = [*recorded["findings"], health.finding("ECC", level, "GPU 1: 2 uncorrected errors")]
    speeds = {"matmul_tflops": tflops, "all_reduce_gb_s": reduce}
    return {**recorded, "node": name, "findings": findings, "speeds": speeds, **more}


def experiment(name: str, *words: str) -> Experiment:
    composed = Composer().compose([f"+exp={name}", *words])
    assert composed.experiment is not None
    return composed.experiment


def test_what_h200s_said_is_a_pass() -> None:
    (node,) = nodes.judge(nodes.parse(f"srun: a banner\n{H200}launcher-health broken\n"))
    assert node.passed
    assert node.warnings == ("clock: not synchronized",)
    assert node.speeds["matmul_tflops"] > 500


def test_each_node_fails_for_its_own_reason() -> None:
    reports = [report(f"n{i}", tflops=880 + i, driver="580") for i in range(6)]
    reports += [
        report("n6", level="fail"),
        report("n7", tflops=700),
        report("n8", reduce=100),
        report("n9", driver="570"),
    ]
    verdict = {node.name: node for node in nodes.judge(reports, [f"n{i}" for i in range(11)])}
    assert {name for name, node in verdict.items() if not node.passed} == {"n6", "n7", "n8", "n10"}
    assert verdict["n6"].reasons == ("ECC: GPU 1: 2 uncorrected errors",)
    assert "matmul_tflops 700 against a median of 880" in verdict["n7"].reasons[0]
    assert "all_reduce_gb_s 100 against a median of 220, 55 % below" in verdict["n8"].reasons[0]
    assert verdict["n10"].reasons == ("it gave no answer",)
    assert any("driver 570, the others have 580" in warning for warning in verdict["n9"].warnings)


@pytest.mark.parametrize(
    ("speeds", "late"),
    [
        ([100, 100, 100, 100], []),
        ([100, 97, 99, 101], []),
        ([100, 100, 100, 94.9], [3]),
        ([100, 90, 110, 80], []),
        ([100, 90, 110, 105, 95, 20], [5]),
        ([100, 50], []),
        ([0, 0, 0], []),
    ],
)
def test_slow_is_far_below_the_median_and_not_within_its_scatter(speeds: list[float], late: list[int]) -> None:
    assert sorted(nodes.slow({str(i): value for i, value in enumerate(speeds)})) == [str(i) for i in late]


def test_racks_that_are_not_as_the_mesh_wants() -> None:
    mesh = make(experiment("dsv3_128gpu")).mesh
    assert mesh is not None
    assert mesh.nodes_per_domain == 16

    def racks(*counts: int) -> list[nodes.Node]:
        return [nodes.Node(f"n{r}-{i}", domain=f"rack{r}") for r, n in enumerate(counts) for i in range(n)]

    assert nodes.domains(racks(16, 16), mesh.nodes_per_domain) is None
    assert nodes.domains([nodes.Node("n1")], mesh.nodes_per_domain) is None
    issue = nodes.domains(racks(18, 14), mesh.nodes_per_domain)
    assert issue is not None
    assert "18 + 14, the mesh wants 16" in issue.message


def test_what_an_experiment_asks_of_a_node() -> None:
    words = nodes.questions(experiment("dsv3_128gpu"), "python3")
    assert words[:6] == ["--gpus", "4", "--gpu-name", "GB200", "--host-bytes", "960000000000"]
    assert "--imex" in words
    assert "--imex" not in nodes.questions(experiment("dsv3_128gpu", "hardware=h200_hgx"), "python3")
    assert "--gpus" not in nodes.questions(experiment("moe_tiny_cpu"), "python3", compute=False)


def test_in_the_container_of_the_experiment() -> None:
    asked = experiment("dsv3_128gpu", "container.mounts=[/lustre:/lustre]")
    words = nodes.srun(2, ["--gpus", "4"], nodes.inside(asked))
    assert words[4:6] == [
        "--container-image=ghcr.io#nvidia/jax:maxtext-2026-09-09",
        "--container-mounts=/lustre:/lustre",
    ]
    assert words[6:] == ["python3", "-", "--gpus", "4"]
    assert nodes.inside(experiment("moe_tiny_cpu")) == []


def rendered(name: str, *words: str) -> Bundle:
    return render(make(experiment(name.partition("=")[2], *words)))


def launcher(*words: str, cwd: Path, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [*prefix, sys.executable, "-m", "launcher", "preflight", "node", *words]
    return subprocess.run(command, cwd=cwd, env=dict(os.environ), capture_output=True, text=True, timeout=180)


def test_this_machine_alone(tmp_path: Path) -> None:
    done = launcher("+exp=moe_tiny_cpu", "--no-compute", "--json", cwd=tmp_path)
    (node,) = json.loads(done.stdout)["nodes"]
    assert (done.returncode, node["passed"]) == (0, True), done.stderr
    done = launcher("+exp=dsv3_128gpu", "--here", "--no-compute", cwd=tmp_path)
    assert done.returncode == 1
    assert "GPUs: " in done.stdout
    assert "0 of 1 nodes passed" in done.stdout


def test_without_an_allocation_it_says_which_two_commands_do_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    typed = ("+exp=dsv3_128gpu", "target.slurm.account=moe")
    done = launcher(*typed, cwd=tmp_path)
    assert (done.returncode, "NODE_NO_ALLOCATION" in done.stderr) == (1, True)
    assert (
        "python -m launcher submit +exp=dsv3_128gpu target.slurm.account=moe monitor.node_check=only\n" in done.stderr
    )
    assert f"python -m launcher preflight node {rendered(*typed, 'monitor.node_check=only').name}\n" in done.stderr
    assert "salloc --nodes=32 --account=moe" in done.stderr


def test_the_nodes_of_a_cluster_of_pods_are_asked_by_a_run(tmp_path: Path) -> None:
    typed = ("+exp=dsv3_128gpu", "target=kubernetes", "target.kubernetes.claim=runs")
    done = launcher(*typed, cwd=tmp_path)
    assert (done.returncode, "NODE_NO_ALLOCATION" in done.stderr) == (1, True)
    assert f"python -m launcher submit {' '.join(typed)} monitor.node_check=only\n" in done.stderr
    assert f"python -m launcher preflight node {rendered(*typed, 'monitor.node_check=only').name}\n" in done.stderr
    assert "SLURM" not in done.stderr


def test_every_node_of_an_allocation_is_asked(on_slurm: Cluster, tmp_path: Path) -> None:
    words = ("+exp=moe_tiny_cpu", "target=slurm", "--no-compute", "--json")
    done = launcher(*words, cwd=tmp_path, prefix=("salloc", "--quiet", "--nodes=3"))
    told = json.loads(done.stdout)["nodes"]
    assert (done.returncode, len(told), all(node["passed"] for node in told)) == (0, 3, True), done.stderr
    assert {node["name"] for node in told} <= set(on_slurm.states())
