"""What launcher/node/health.py is told to expect of a node."""

from __future__ import annotations

from launcher.config.schema import Experiment
from launcher.plan.kubernetes import spans_nodes, wants_domain
from launcher.plan.mesh import MeshPlan

SECONDS = {"quick": 120.0, "full": 400.0, "only": 400.0}
"""What the check gets before training goes on without it: health.py's own bounds (three questions of 30 s; and 240 s)."""


def expected(experiment: Experiment, gpus: int, imex: bool) -> list[str]:
    """Words for health.py. `gpus` of a node; `imex`: NVLink spans nodes, so that it needs a channel."""
    hardware = experiment.hardware
    if hardware.platform != "gpu":
        return []
    words = ["--gpus", str(gpus), "--gpu-name", hardware.gpu, "--host-bytes", str(hardware.host_memory_bytes)]
    return [*words, "--imex"] if imex else words


def node_check(experiment: Experiment, mesh: MeshPlan) -> dict[str, object] | None:
    """launch.json's `node_check`; None = the trainers start unasked. Disks and Python are the worker's to add.

    Alone, it is also made on CPUs: memory, disk, clock and the computation are all there is to ask.
    """
    kind, target = experiment.monitor.node_check, experiment.target.kind
    if kind not in SECONDS or (experiment.hardware.platform != "gpu" and kind != "only"):
        return None
    imex = wants_domain(experiment, mesh) if target == "kubernetes" else spans_nodes(mesh, experiment)
    words = expected(experiment, mesh.processes // mesh.nodes, imex)
    words += ["--no-compute"] if kind == "quick" else []
    check: dict[str, object] = {"words": words, "timeout_seconds": SECONDS[kind]}
    return {**check, "only": True} if kind == "only" else check
