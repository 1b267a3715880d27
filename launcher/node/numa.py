"""Which NUMA node each of a node's processes belongs to: a process far from its GPU's memory and PCIe root is slow.

`numactl` binds CPUs and memory; where it is missing or not allowed to (a container's seccomp filter forbids set_mempolicy),
only the CPUs are bound. What cannot be bound runs unbound, with a word about it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

SYSTEM = Path("/sys/devices/system/node")
_PROBE_SECONDS = 30


@dataclass(frozen=True)
class Binding:
    """How one process starts: `prefix` words before its command, `cpus` that it may use (empty: any)."""

    prefix: tuple[str, ...] = ()
    cpus: frozenset[int] = frozenset()


def parse_cpus(text: str) -> frozenset[int]:
    """A kernel's list of CPUs (cpulist, sysfs(5)).

    >>> sorted(parse_cpus("0-2,8\\n"))
    [0, 1, 2, 8]
    """
    cpus: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def bindings(processes: int, per_node: int | None, system: Path = SYSTEM) -> tuple[list[Binding], list[str]]:
    """One binding for each local process, in order, and what there is to say.

    per_node: GPUs, and so processes, of one NUMA node; None = no binding. Process i belongs to NUMA node i // per_node.
    """
    if per_node is None:
        return [Binding()] * processes, []
    numactl = shutil.which("numactl")
    found: dict[int, Binding] = {}
    said: list[str] = []
    for node in sorted({index // per_node for index in range(processes)}):
        found[node], words = _binding(node, system, numactl)
        said.append(f"NUMA node {node}: process(es) {_members(node, per_node, processes)} {words}")
    return [found[index // per_node] for index in range(processes)], said


def _members(node: int, per_node: int, processes: int) -> str:
    first, last = node * per_node, min(processes, (node + 1) * per_node) - 1
    return str(first) if first == last else f"{first} to {last}"


def _binding(node: int, system: Path, numactl: str | None) -> tuple[Binding, str]:
    try:
        cpus = parse_cpus((system / f"node{node}" / "cpulist").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return Binding(), "are not bound: this machine has no such node"
    cpus &= os.sched_getaffinity(0)
    if not cpus:
        return Binding(), "are not bound: none of its CPUs may be used here"
    if numactl is not None:
        prefix = (numactl, f"--cpunodebind={node}", f"--membind={node}")
        if _works(prefix):
            return Binding(prefix), f"are bound to its CPUs and memory by {numactl}"
    why = "there is no numactl" if numactl is None else f"{numactl} may not bind here"
    return Binding(cpus=cpus), f"are bound to its {len(cpus)} CPUs, not to its memory: {why}"


def _works(prefix: Sequence[str]) -> bool:
    try:
        done = subprocess.run(
            [*prefix, "true"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=_PROBE_SECONDS, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


def apply(cpus: Iterable[int]) -> None:
    """Binds the calling process to these CPUs; between fork and exec, so that the trainer never runs elsewhere."""
    try:
        os.sched_setaffinity(0, cpus)
    except OSError:  # taken away since: it runs unbound
        return
