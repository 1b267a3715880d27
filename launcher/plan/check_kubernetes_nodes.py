"""Do the pods lie together, does NVLink reach them, is there host memory for one? Silent for other targets than Kubernetes."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.issue import Issue
from launcher.plan.case import Case, Rule, error, note, warning
from launcher.plan.check_kubernetes import K, on_kubernetes
from launcher.plan.kubernetes import GIB, POOL_VARIABLE, layout, memory, placement, spans_nodes, wants_domain

MOST_PODS = 100_000
"""Of an indexed Job (k8s.io/kubernetes, pkg/apis/batch/validation)."""

DEPENDABLE_NODES = 16
"""Of a rack's 18: with fewer spare, one broken tray keeps a job waiting (marin issue 7225; NVIDIA's and Google's recipes take 16)."""


def topology(case: Case) -> Iterator[Issue]:
    """Nodes of one NVLink domain have to lie in one rack; the scheduler does not know that by itself."""
    wanted, mesh = case.experiment.target.kubernetes, case.mesh
    if not on_kubernetes(case) or mesh is None:
        return
    field, share = f"{K}.topology", mesh.nodes_per_domain
    if wanted.layout == "job_per_domain":
        if wanted.topology is None:
            message = (
                f"{K}.layout=job_per_domain gives each Job a domain of its own, and the label of a domain is not named"
            )
            yield error("KUBERNETES_TOPOLOGY", field, message, f"type {field}=nvidia.com/gpu.clique")
        if wanted.queue is not None:
            message = f"JobSet places the Jobs, and queue {wanted.queue} would too if its flavors have a topology: pods then wait for both"
            yield warning(
                "KUBERNETES_LAYOUT_QUEUE", f"{K}.queue", message, f"type {K}.queue=null, or {K}.layout=one_job"
            )
        return
    if wanted.topology is not None and wanted.topology == wanted.topology_block:
        message = (
            f"{K}.topology and {K}.topology_block are both {wanted.topology}: a block is a level above the domains"
        )
        yield error("KUBERNETES_TOPOLOGY", f"{K}.topology_block", message, f"type {K}.topology_block=null")
    placed = [key for key in placement(case.experiment, mesh) if "required" in key]
    if not spans_nodes(mesh, case.experiment) or placed:
        return
    message = f"each NVLink domain of the mesh is {share} nodes, and nothing makes the scheduler place them in one rack"
    if wanted.queue is None:
        hint = f"type {K}.queue=NAME (Kueue with a topology), or {K}.layout=job_per_domain"
        yield warning("KUBERNETES_PLACEMENT", f"{K}.queue", message, hint)
    elif wanted.topology is None:
        yield warning("KUBERNETES_PLACEMENT", field, message, f"type {field}=nvidia.com/gpu.clique")


def compute_domain(case: Case) -> Iterator[Issue]:
    """IMEX: the domain's own number of nodes, and two domains in one rack."""
    wanted, mesh = case.experiment.target.kubernetes, case.mesh
    if not on_kubernetes(case) or mesh is None or not spans_nodes(mesh, case.experiment):
        return
    field = f"{K}.compute_domain_nodes"
    if not wants_domain(case.experiment, mesh):
        message = f"{K}.compute_domain=false: NVLink between the {mesh.nodes_per_domain} nodes of a domain needs IMEX from elsewhere"
        yield note(
            "KUBERNETES_IMEX",
            f"{K}.compute_domain",
            message,
            f"type {K}.compute_domain=true where NVIDIA's DRA driver is",
        )
        return
    if wanted.compute_domain_nodes > 0 and wanted.compute_domain_nodes != mesh.nodes:
        message = (
            f"{field}={wanted.compute_domain_nodes}, but the job has {mesh.nodes} nodes: its pods would wait for ever"
        )
        yield error(
            "KUBERNETES_DOMAIN_NODES", field, message, f"type {field}=0 (driver 25.8 or newer), or {field}={mesh.nodes}"
        )
    if mesh.nodes_per_domain < DEPENDABLE_NODES <= case.experiment.hardware.domain_nodes:
        message = (
            f"{mesh.nodes_per_domain} nodes are less than a rack, and two ComputeDomains in one NVLink domain disturb each other "
            "(CUDA_ERROR_NOT_SUPPORTED; NVIDIA's DRA driver, issue 892)"
        )
        yield note(
            "KUBERNETES_DOMAIN_SHARED",
            f"{K}.compute_domain",
            message,
            "let nobody else's multi-node job into that rack",
        )


def full_racks(case: Case) -> Iterator[Issue]:
    """A job that needs every tray of a rack waits for the last one."""
    mesh = case.mesh
    if not on_kubernetes(case) or mesh is None or not spans_nodes(mesh, case.experiment):
        return
    if mesh.nodes_per_domain > DEPENDABLE_NODES:
        message = f"{mesh.nodes_per_domain} nodes a rack: one that is broken keeps the job waiting, {DEPENDABLE_NODES} can be had as a rule"
        yield note("KUBERNETES_FULL_RACK", "mesh.ici", message, f"use {DEPENDABLE_NODES} nodes of each rack")


def counts(case: Case) -> Iterator[Issue]:
    """More pods than a Job takes."""
    if on_kubernetes(case) and case.mesh is not None:
        pods = layout(case.experiment, case.mesh).pods
        if pods > MOST_PODS:
            message = f"{pods} pods in one Job, Kubernetes takes {MOST_PODS}"
            yield error("KUBERNETES_PODS", "nodes", message, f"type {K}.layout=job_per_domain, or a smaller mesh")


def host_memory(case: Case) -> Iterator[Issue]:
    """What a pod's processes take of the host, against what it asks for and what a node has."""
    wanted, mesh = case.experiment.target.kubernetes, case.mesh
    needed = memory(case.experiment, mesh) if on_kubernetes(case) and mesh is not None else None
    if needed is None or needed.shm < 1:
        return
    field, node = f"{K}.memory_gib", case.experiment.hardware.host_memory_bytes // GIB
    asked = needed.needed if wanted.memory_gib is None else wanted.memory_gib
    if node and asked > node:
        seen = needed.text if wanted.memory_gib is None else f"{field}={asked}"
        message = f"{seen}, but a node of {case.experiment.hardware.name} has {node} GiB: its pods would wait for ever"
        less = (node - needed.shm) // needed.processes - (
            needed.needed - needed.shm - needed.processes * needed.pool
        ) // needed.processes
        cure = f"env.vars.{POOL_VARIABLE}={max(less, 1)}" if wanted.memory_gib is None else f"{field}=null"
        yield error("KUBERNETES_MEMORY", field, message, f"type {cure}, or {field}={node * 9 // 10}")
    elif wanted.memory_gib is not None and wanted.memory_gib < needed.needed:
        message = f"{field}={wanted.memory_gib}, but {needed.text}: beyond the limit the kernel kills the trainers"
        yield warning("KUBERNETES_MEMORY_SHORT", field, message, f"type {field}=null, or {field}={needed.needed}")


RULES: tuple[Rule, ...] = (topology, compute_domain, full_racks, counts, host_memory)
