"""What Kubernetes will be asked for: the names of its objects, how pods lie together, and the host memory of one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from launcher.config.schema import Experiment
from launcher.plan.mesh import MeshPlan

LAYOUTS = ("one_job", "job_per_domain")
"""One Job for all nodes, placed by Kueue; or one Job a NVLink domain, placed by JobSet's exclusive topology."""

JOB = "w"
"""The replicated job of the JobSet. One letter: it is part of every pod's name."""

CONTAINER = "trainer"

BUNDLE = "/etc/launcher/bundle"
"""Where a pod finds what it needs of the bundle, read-only."""

DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
"""RFC 1035, which JobSet's webhook holds the names of its Jobs and pods against: a letter first, 63 characters at most."""

LONGEST_LABEL = 63

POD_SUFFIX = "-abcde"
"""A pod's name ends in five random characters; its hostname, which the DNS name is made of, does not."""

HASH = 8
"""Hex digits of the content that end a JobSet's name."""

GIB = 1 << 30

POOL_VARIABLE = "XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB"
POOL_GIB = 64
"""XLA's pinned host pool of one process without that variable; it counts in GiB (xla/pjrt, GetGpuHostAllocator)."""

PROCESS_GIB = 8
"""Host memory of one trainer process beside the pool: Python, XLA's programs and caches, input data. An allowance, not measured."""

KILL_MARGIN_SECONDS = 60
"""From the end of the trainers' grace to the pod's: the worker kills what is left, and says how the attempt ended."""


@dataclass(frozen=True)
class Names:
    """The objects of one run. All are derived from the JobSet's; `files` also from what lies in it."""

    jobset: str
    files: str

    @property
    def domain(self) -> str:
        """The ComputeDomain, and the claim template that its controller makes; one name, so that kustomize renames both."""
        return self.jobset


@dataclass(frozen=True)
class Layout:
    """How the nodes are split into Jobs: `jobs` alike ones of `pods` pods each."""

    jobs: int
    pods: int


def base_name(experiment: str) -> str:
    """An experiment's name as Kubernetes spells it.

    >>> base_name("dsv3_128gpu")
    'dsv3-128gpu'
    """
    return experiment.lower().replace("_", "-").strip("-")


def named(base: str, content: str, files: str) -> Names:
    """The names for a content hash and a hash of the files' data (hex digits)."""
    jobset = f"{base}-{content[:HASH]}"
    return Names(jobset, f"{jobset}-files-{files[:HASH]}")


def layout(experiment: Experiment, mesh: MeshPlan) -> Layout:
    """The Jobs of the JobSet."""
    if experiment.target.kubernetes.layout == "job_per_domain":
        return Layout(mesh.domains, mesh.nodes_per_domain)
    return Layout(1, mesh.nodes)


def longest_pod(jobset: str, jobs: int, pods: int) -> str:
    """The longest pod name of a JobSet, which must not exceed 63 characters (the Job controller would cut it).

    >>> longest_pod("dsv3-128gpu-01234567", 1, 32)
    'dsv3-128gpu-01234567-w-0-31-abcde'
    """
    return f"{jobset}-{JOB}-{jobs - 1}-{pods - 1}{POD_SUFFIX}"


def room_for_name(jobs: int, pods: int) -> int:
    """Characters that the experiment's own name may have."""
    return LONGEST_LABEL - len(longest_pod("", jobs, pods)) - 1 - HASH


def spans_nodes(mesh: MeshPlan, experiment: Experiment) -> bool:
    """NVLink joins several nodes of this job: pods then have to lie in one rack, and IMEX has to be set up."""
    return experiment.hardware.platform == "gpu" and mesh.nodes_per_domain > 1


def wants_domain(experiment: Experiment, mesh: MeshPlan) -> bool:
    """A ComputeDomain belongs to this job."""
    return experiment.target.kubernetes.compute_domain and spans_nodes(mesh, experiment)


def placement(experiment: Experiment, mesh: MeshPlan) -> dict[str, str]:
    """Annotations of the pod template for Kueue's topology-aware scheduling; empty when nothing is to be said.

    One domain: all pods inside it. Several: slices of a domain's share, filled in the order of the pods' indexes, so that
    each ICI block of the mesh lies in one rack; above the racks a block is preferred.
    """
    wanted, prefix = experiment.target.kubernetes, "kueue.x-k8s.io/podset-"
    if wanted.queue is None or wanted.layout != "one_job":
        return {}
    found = {}
    rack = wanted.topology if spans_nodes(mesh, experiment) else None
    if rack is not None and mesh.domains == 1:
        return {f"{prefix}required-topology": rack}
    if wanted.topology_block is not None and mesh.nodes > 1 and experiment.hardware.platform == "gpu":
        found[f"{prefix}preferred-topology"] = wanted.topology_block
    if rack is not None:
        found[f"{prefix}slice-required-topology"] = rack
        found[f"{prefix}slice-size"] = str(mesh.nodes_per_domain)
    return found


@dataclass(frozen=True)
class Memory:
    """Host memory of a pod in GiB: pinned pools and allowance of its processes, and /dev/shm, which is memory too."""

    processes: int
    pool: int
    shm: int

    @property
    def needed(self) -> int:
        """All of it."""
        return self.processes * (self.pool + PROCESS_GIB) + self.shm

    @property
    def text(self) -> str:
        """The sum, as a person reads it."""
        return f"{self.processes} x ({self.pool} GiB pinned pool + {PROCESS_GIB} GiB) + {self.shm} GiB /dev/shm = {self.needed} GiB"


def pool_gib(variables: Mapping[str, object]) -> int:
    """XLA's pinned host pool of one process, GiB; its default when the variable is not set, or is no number."""
    text = str(variables.get(POOL_VARIABLE, POOL_GIB))
    return int(text) if text.isascii() and text.isdigit() else POOL_GIB


def memory(experiment: Experiment, mesh: MeshPlan) -> Memory | None:
    """What a pod's processes may take of the host; None on the CPU, where nothing is known of it."""
    if experiment.hardware.platform != "gpu":
        return None
    pool = pool_gib({**experiment.fabric.vars, **experiment.env.vars})
    return Memory(mesh.processes // mesh.nodes, pool, experiment.target.kubernetes.shm_gib)


def grace_seconds(experiment: Experiment) -> int:
    """terminationGracePeriodSeconds: time for a checkpoint, and to say so."""
    return experiment.trainer.stop_grace_seconds + KILL_MARGIN_SECONDS
