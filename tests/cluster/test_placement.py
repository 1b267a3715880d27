"""The large meshes on racks of 18 nodes: each process sees the coordinator, rank, device and domain that the mesh says."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from life import Site, wait_for

from launcher.config.compose import Composer
from launcher.plan.mesh import MeshPlan, expert_groups
from launcher.plan.plan import make
from launcher.runs.attempts import State
from slurm.testbed.cluster import Cluster

Start = Callable[..., Cluster]
HERE = Path(__file__).resolve().parent
GPUS = 4


def mesh_of(experiment: str) -> MeshPlan:
    composed = Composer().compose([f"+exp={experiment}"])
    assert composed.experiment is not None
    mesh = make(composed.experiment).mesh
    assert mesh is not None
    return mesh


def run(cluster: Cluster, home: Path, monkeypatch: pytest.MonkeyPatch, experiment: str, limit_s: float) -> Path:
    """Runs the experiment with the trainer that says where it is. Gives the bundle's sibling folders' parent: the run."""
    site = Site(cluster, home)
    for name in ("SLURM_CONF", "PATH"):
        monkeypatch.setenv(name, site.environ[name])
    # The image's own values, which must lose against ours.
    image = next((cluster.folder / "images").iterdir())
    with image.open("a") as file:
        file.write("CUDA_DEVICE_MAX_CONNECTIONS=1\nNNODES=1\nNODE_RANK=0\nXLA_FLAGS=--from-the-image\n")
    words = [f"+exp={experiment}", "target=testbed", "trainer.module=placement_trainer"]
    words.append("monitor.node_check=none")  # the GPUs are pretended, and the check would say so
    life = site.submit(*words, f"+env.vars.PYTHONPATH='{HERE}'")
    life.wait_finished(limit_s)
    assert life.status().last_step == 14
    assert life.status().state is State.FINISHED
    wait_for(lambda: set(cluster.states().values()) == {"idle"}, 120)
    life.assert_nothing_left()
    return life.run.folder


def seen_by(folder: Path, processes: int) -> list[dict[str, Any]]:
    """What each process has written, by rank."""
    names = {path.name for path in (folder / "output" / "seen").iterdir()}
    assert names == {"callers.json", *(f"{rank}.json" for rank in range(processes))}
    return [json.loads((folder / "output" / "seen" / f"{rank}.json").read_text()) for rank in range(processes)]


def check(folder: Path, mesh: MeshPlan) -> None:
    seen = seen_by(folder, mesh.processes)
    env = [process["env"] for process in seen]
    first = json.loads((folder / "attempts" / "1" / "attempt.json").read_text())
    # One coordinator: the first node's, by its name; every other process has called it.
    assert {(e["JAX_COORDINATOR_IP"], e["JAX_COORDINATOR_PORT"]) for e in env} == {
        tuple(first["coordinator"].split(":"))
    }
    assert seen[0]["host"] == env[0]["JAX_COORDINATOR_IP"] == first["host"]
    callers = json.loads((folder / "output" / "seen" / "callers.json").read_text())
    assert callers == list(range(1, mesh.processes))
    # Ranks, nodes and devices: GPUS consecutive ranks on each node, in the order of the allocation.
    assert {e["NNODES"] for e in env} == {str(mesh.processes)}
    assert [int(e["NODE_RANK"]) for e in env] == list(range(mesh.processes))
    assert [int(e["JAX_LOCAL_DEVICE_IDS"]) for e in env] == [rank % GPUS for rank in range(mesh.processes)]
    assert [int(e["SLURM_NODEID"]) for e in env] == [rank // GPUS for rank in range(mesh.processes)]
    hosts = [process["host"] for process in seen]
    assert all(len(set(hosts[node * GPUS : (node + 1) * GPUS])) == 1 for node in range(mesh.nodes))
    assert len(set(hosts)) == mesh.nodes
    assert not any({"CUDA_VISIBLE_DEVICES", "SLURM_STEP_GPUS"} & e.keys() for e in env), (
        "a mask would shift the ordinals"
    )
    # Domains: each of the mesh's is one rack, and each expert group lies in one.
    racks = [e["SLURM_TOPOLOGY_ADDR"].partition(".")[0] for e in env]
    share = mesh.gpus_per_domain
    domains = [set(racks[start : start + share]) for start in range(0, mesh.processes, share)]
    assert [len(domain) for domain in domains] == [1] * mesh.domains
    assert len(set.union(*domains)) == mesh.domains, "two domains in one rack"
    groups = list(expert_groups(mesh.ici, mesh.dcn))
    assert len(groups) == mesh.expert_groups > 1
    assert all(len({racks[rank] for rank in group}) == 1 for group in groups)
    # The same program for all, and the metrics of one.
    assert {tuple(process["argv"]) for process in seen} == {tuple(seen[0]["argv"])}
    flags = (folder / "bundle" / "xla_flags").read_text().split()
    assert {tuple(e["XLA_FLAGS"].split()) for e in env} == {tuple(flags)}
    assert {e["CUDA_DEVICE_MAX_CONNECTIONS"] for e in env} == {"16"}, "the image's value won"
    assert [rank for rank, e in enumerate(env) if "M_METRICS_FILE" in e] == [0]


def test_128_processes_in_two_racks(racks: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = mesh_of("dsv3_128gpu")
    assert (mesh.nodes, mesh.domains, mesh.nodes_per_domain, mesh.processes) == (32, 2, 16, 128)
    folder = run(racks, racks.folder / "shared" / tmp_path.name, monkeypatch, "dsv3_128gpu", 120)
    check(folder, mesh)


def test_1024_processes_find_a_place_on_powered_down_racks(racks: Cluster, tmp_path: Path) -> None:
    site = Site(racks, racks.folder / "shared" / tmp_path.name)
    site.launcher("render", "+exp=dsv3_1024gpu", "target=testbed", "target.slurm.partition=cloud", "--out", "bundle")
    words = ("sbatch", "--test-only", "job.sbatch")
    told = racks.run(*words, cwd=site.home / "bundle").stderr
    assert "to start at" in told
    assert "on 256 nodes" in told or "c[" in told


@pytest.mark.slow
def test_1024_processes_in_16_racks(start_cluster: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = mesh_of("dsv3_1024gpu")
    assert (mesh.nodes, mesh.domains, mesh.nodes_per_domain, mesh.processes) == (256, 16, 16, 1024)
    # Slurm's own patience with silent nodes: a thousand processes that start at once keep few cores busy for a minute.
    full = start_cluster("slurm-288-run", nodes=288, racks=16, lines=())
    try:
        folder = run(full, full.folder / "shared" / tmp_path.name, monkeypatch, "dsv3_1024gpu", 900)
    finally:
        full.stop()
    check(folder, mesh)
