"""This node's place in the job: which of how many, and where the coordinator listens.

Sources, first that applies: the command line; a SLURM step (SLURM_STEP_NODELIST, so only under srun: a batch script or
an ssh shell has other SLURM variables left over); a Kubernetes indexed Job (JOB_COMPLETION_INDEX, set by its
controller); this machine alone.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from .codes import refused

LOOPBACK = "127.0.0.1"
# Below Linux's ephemeral ports (net.ipv4.ip_local_port_range, 32768 up), so that no client socket can hold the port,
# and below Kubernetes' NodePorts (30000 up), for pods on the host's network.
FIRST_PORT, PORTS = 20000, 10000
_PORT_STRIDE = 7919  # prime to PORTS: attempts that follow each other never share a port

EXPLICIT, SLURM, JOBSET, LOCAL = "command line", "SLURM", "Kubernetes", "local"


@dataclass(frozen=True)
class Place:
    """Node `node` of `nodes`, counted from 0. `coordinator`, `port`: where rank 0 listens. `source`: who said so."""

    source: str
    nodes: int
    node: int
    coordinator: str
    port: int

    @property
    def address(self) -> str:
        """host:port of the coordinator."""
        return f"{self.coordinator}:{self.port}"


@dataclass(frozen=True)
class Asked:
    """What the worker's command line says about the place; None = not said."""

    nodes: int | None = None
    node: int | None = None
    coordinator: str | None = None
    port: int | None = None


def find_place(asked: Asked, environ: Mapping[str, str], nodes: int, attempt: int, run: str) -> Place:
    """The place of this node in a job of `nodes` nodes; refuses (78) what contradicts itself.

    `attempt` and `run` (the run's name) go into the port when several nodes must agree on it without talking.
    """
    if asked.nodes is not None or asked.node is not None or asked.coordinator is not None:
        source, count, node, coordinator, job = _explicit(asked, run)
    elif "SLURM_STEP_NODELIST" in environ:
        source, count, node, coordinator, job = _slurm(environ)
    elif "JOB_COMPLETION_INDEX" in environ:
        source, count, node, coordinator, job = _jobset(environ, nodes, run)
    else:
        source, count, node, coordinator, job = LOCAL, 1, 0, LOOPBACK, run
    if count != nodes:
        raise refused(f"launch.json wants {nodes} node(s), {source} gives {count}: {_cure(source, nodes)}")
    if not 0 <= node < count:
        raise refused(f"this is node {node} by {source}, of {count} node(s): indexes run from 0 to {count - 1}")
    if asked.port is not None:
        port = asked.port
    elif count == 1:
        port = free_port(os.getpid() + attempt)
    else:
        port = agreed_port(job, attempt)
    return Place(source, count, node, coordinator, port)


def _cure(source: str, nodes: int) -> str:
    if source == SLURM:
        return f"start the step with srun --nodes={nodes} --ntasks-per-node=1, or render for the nodes that you have"
    if source == LOCAL:
        return (
            f"start it under srun --nodes={nodes} --ntasks-per-node=1, as an indexed Job of {nodes} pods, or on each "
            f"node with --nodes {nodes} --node-rank I --coordinator HOST"
        )
    return f"say --nodes {nodes}, or render for the nodes that you have"


def _explicit(asked: Asked, run: str) -> tuple[str, int, int, str, str]:
    count = 1 if asked.nodes is None else asked.nodes
    if count < 1:
        raise refused(f"--nodes {count}: wanted 1 or more")
    if count > 1 and (asked.node is None or asked.coordinator is None):
        missing = "--node-rank" if asked.node is None else "--coordinator"
        raise refused(f"--nodes {count} without {missing}: give --nodes N --node-rank I --coordinator HOST")
    coordinator = asked.coordinator or LOOPBACK
    return EXPLICIT, count, asked.node or 0, coordinator, f"{run}@{coordinator}"


def _slurm(environ: Mapping[str, str]) -> tuple[str, int, int, str, str]:
    count = _number(environ, "SLURM_STEP_NUM_NODES" if "SLURM_STEP_NUM_NODES" in environ else "SLURM_NNODES")
    node = _number(environ, "SLURM_NODEID")
    tasks = _number(environ, "SLURM_STEP_NUM_TASKS") if "SLURM_STEP_NUM_TASKS" in environ else count
    if tasks != count:
        raise refused(
            f"srun started {tasks} tasks on {count} node(s), wanted one a node (the worker itself starts a process a "
            "device): srun --ntasks-per-node=1"
        )
    return SLURM, count, node, first_host(environ["SLURM_STEP_NODELIST"]), environ.get("SLURM_JOB_ID", "")


def _jobset(environ: Mapping[str, str], nodes: int, run: str) -> tuple[str, int, int, str, str]:
    node = _pod_index(environ)
    count = _number(environ, "LAUNCHER_NODES") if "LAUNCHER_NODES" in environ else nodes
    coordinator = environ.get("LAUNCHER_COORDINATOR", "")
    if not coordinator:
        if count > 1:
            raise refused(
                f"JOB_COMPLETION_INDEX is set and launch.json wants {nodes} nodes, but LAUNCHER_COORDINATOR is not: "
                "set it in the pod template to the DNS name of pod 0, <jobset>-<job>-0-0.<jobset>"
            )
        coordinator = LOOPBACK
    return JOBSET, count, node, coordinator, f"{run}@{coordinator}"


def _pod_index(environ: Mapping[str, str]) -> int:
    """A pod's node: its index in the Job; with one Job per NVLink domain, counted on over the Jobs before its own."""
    index = _number(environ, "JOB_COMPLETION_INDEX")
    names = ("LAUNCHER_JOB_INDEX", "LAUNCHER_NODES_PER_JOB")
    given = [name for name in names if environ.get(name)]
    if not given:
        return index
    if len(given) == 1:
        raise refused(f"{given[0]} is set without {(set(names) - set(given)).pop()}: render the bundle again")
    job, size = _number(environ, names[0]), _number(environ, names[1])
    if index >= size:
        raise refused(
            f"JOB_COMPLETION_INDEX is {index}, but each Job has {names[1]}={size} pods: the Job's completions must be {size}"
        )
    return job * size + index


def host_name() -> str:
    """This node's name as its cluster's commands take it; a pod's own name says nothing about where it ran."""
    in_pod = "JOB_COMPLETION_INDEX" in os.environ
    return (os.environ.get("NODE_NAME") if in_pod else None) or socket.gethostname()


def _number(environ: Mapping[str, str], name: str) -> int:
    return whole_number(environ, name, "start the worker under srun or in an indexed Job")


def whole_number(environ: Mapping[str, str], name: str, cure: str) -> int:
    """A variable's number; refuses (78) anything else, with the cure."""
    text = environ.get(name)
    if text is None or not (text.isascii() and text.isdecimal()):
        seen = "not set" if text is None else repr(text)
        raise refused(f"{name} is {seen}, wanted a whole number: {cure}")
    return int(text)


def first_host(nodelist: str) -> str:
    """The first host of a SLURM node list, as `scontrol show hostnames` would print it first.

    >>> first_host("n[008-013,18],m3")
    'n008'
    """
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])+", nodelist.strip())
    if first is None:
        raise refused(f"SLURM_STEP_NODELIST is {nodelist!r}, wanted host names such as n[0-13,18-35],m3")
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", first.group())


def agreed_port(job: str, attempt: int) -> int:
    """A port that all nodes of a job work out alike, another one for each attempt, in 20000..29999."""
    base = int.from_bytes(hashlib.sha256(job.encode()).digest()[:4], "big")
    return FIRST_PORT + (base + attempt * _PORT_STRIDE) % PORTS


def free_port(seed: int) -> int:
    """A port in 20000..29999 on which nobody listens on this machine now; `seed` says where the search begins."""
    for attempt in range(PORTS):
        port = agreed_port(str(seed), attempt)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise refused(f"no free TCP port from {FIRST_PORT} to {FIRST_PORT + PORTS - 1} here: name one with --port")
