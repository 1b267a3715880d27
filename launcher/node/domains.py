"""NVLink domains: which nodes of a job share one, told by each node (`python3 domains.py`) and judged by pure functions.

A mesh's ICI axes, and with them every expert group, must lie inside one domain: over its edge there is no NVLink, and
TE's expert-parallel kernels do not start. Run as a script it prints one line of JSON about this node.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

IMEX_CHANNELS = "/dev/nvidia-caps-imex-channels"  # the driver's device files: channel0, ...
_NO_CLUSTER = re.compile(r"[0-]*|N/A")  # what nvidia-smi says of a GPU outside an NVLink fabric
_SMI_SECONDS = 60


@dataclass(frozen=True)
class Node:
    """One node. host: its name in SLURM. block: its block in topology/block. fabric: its GPUs' cluster UUID and clique.

    An empty text means unknown. imex: whether an IMEX channel device is there.
    """

    host: str
    block: str = ""
    fabric: str = ""
    imex: bool = False


def block_of(address: str, pattern: str) -> str:
    """The block of a node from SLURM_TOPOLOGY_ADDR and its pattern; a tree's switches say nothing about NVLink.

    >>> block_of("rack0.n3", "block.node"), block_of("s1.s4.n3", "switch.switch.node"), block_of("n3", "node")
    ('rack0', '', '')
    """
    kinds, names = pattern.split("."), address.split(".")
    if len(names) < len(kinds):
        return ""
    # A host name may hold dots; it comes last.
    return ".".join(name for kind, name in zip(kinds, names) if kind == "block")


def fabric_of(smi: str) -> str:
    """The NVLink fabric of a node's GPUs from `nvidia-smi -q`: cluster UUID and clique; empty when they have none."""
    uuids = re.findall(r"^\s*ClusterUUID\s*:\s*(\S+)", smi, re.MULTILINE)
    cliques = re.findall(r"^\s*CliqueId\s*:\s*(\S+)", smi, re.MULTILINE)
    if not uuids or any(_NO_CLUSTER.fullmatch(uuid) for uuid in uuids):
        return ""
    cliques = cliques if len(cliques) == len(uuids) else [""] * len(uuids)
    return "+".join(sorted({f"{uuid}/{clique}" for uuid, clique in zip(uuids, cliques)}))


def read_nodes(text: str) -> list[Node]:
    """The nodes in a step's output, in the order of the lines; other lines (a prolog's, srun's) are passed over."""
    nodes = []
    for line in text.splitlines():
        try:
            nodes.append(Node(**json.loads(line[line.index("{") :])))
        except (ValueError, TypeError):
            continue
    return nodes


def spans(nodes: Sequence[Node]) -> bool:
    """Whether these nodes lie in more than one domain, as far as it is known."""
    return any(len({value for value in values if value}) > 1 for values in _known(nodes))


def _known(nodes: Sequence[Node]) -> tuple[list[str], list[str]]:
    return [node.block for node in nodes], [node.fabric for node in nodes]


def choose(nodes: Sequence[Node], wanted: int, size: int) -> list[Node]:
    """`wanted` of these nodes, in their order, in runs of `size` of one domain; the first ones when there is no such choice.

    What cannot be had is for `misplaced` to say.
    """
    domains: dict[tuple[str, str], list[Node]] = {}
    for node in nodes:
        domains.setdefault((node.block, node.fabric), []).append(node)
    whole = {node.host for members in domains.values() for node in members[: len(members) // size * size]}
    chosen = [node for node in nodes if node.host in whole]
    return chosen[:wanted] if len(chosen) >= wanted else list(nodes[:wanted])


def misplaced(nodes: Sequence[Node], size: int, expert: int = 1) -> str:
    """Why the mesh does not fit these nodes, naming them; empty when each run of `size` nodes is one domain.

    expert: the nodes that one expert group spans, for the text.
    """
    for start in range(0, len(nodes), size):
        group = nodes[start : start + size]
        if not spans(group):
            continue
        parts: dict[str, list[str]] = {}
        for node in group:
            parts.setdefault(node.block or node.fabric or "unknown", []).append(node.host)
        if len(parts) == 1:  # one block by SLURM's topology, several fabrics by the GPUs
            parts = {}
            for node in group:
                parts.setdefault(node.fabric or "unknown", []).append(node.host)
        where = "; ".join(f"{domain}: {folded(hosts)}" for domain, hosts in parts.items())
        experts = f" (an expert group spans {expert})" if expert > 1 else ""
        return (
            f"nodes {start} to {start + len(group) - 1} of {len(nodes)} must share one NVLink domain{experts}, but lie in "
            f"{len(parts)}: {where}; submit with --segment={size}, or leave out nodes with target.slurm.exclude"
        )
    return ""


def without_imex(nodes: Sequence[Node], size: int) -> list[str]:
    """Nodes in an NVLink fabric without an IMEX channel, where a mesh domain spans nodes: they cannot map peers' memory."""
    return [node.host for node in nodes if size > 1 and node.fabric and not node.imex]


def folded(hosts: Sequence[str]) -> str:
    """Host names as SLURM writes them, in the order given.

    >>> folded(["n0", "n1", "n2", "n18", "m3"])
    'n[0-2,18],m3'
    """
    runs: list[tuple[str, list[list[str]]]] = []
    for host in hosts:
        match = re.fullmatch(r"(.*?)(\d+)", host)
        stem, number = match.groups() if match else (host, "")
        if not runs or runs[-1][0] != stem or not number:
            runs.append((stem, [[number, number]]))
        elif _follows(runs[-1][1][-1][1], number):
            runs[-1][1][-1][1] = number
        else:
            runs[-1][1].append([number, number])
    return ",".join(_fold_one(stem, ranges) for stem, ranges in runs)


def _follows(last: str, number: str) -> bool:
    """Whether `number` is the next one in SLURM's writing: 9 then 10, 09 then 10, but not 9 then 010."""
    return last != "" and number == str(int(last) + 1).zfill(len(last))


def _fold_one(stem: str, ranges: Sequence[Sequence[str]]) -> str:
    text = ",".join(first if first == last else f"{first}-{last}" for first, last in ranges)
    return f"{stem}[{text}]" if "-" in text or "," in text else f"{stem}{text}"


def collect(environ: Mapping[str, str]) -> Node:
    """This node, asked under srun."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "-q"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=_SMI_SECONDS, check=False
        )
        smi = done.stdout.decode("utf-8", errors="replace")
    except (OSError, subprocess.SubprocessError):
        smi = ""
    return Node(
        host=environ.get("SLURMD_NODENAME") or os.uname().nodename,
        block=block_of(environ.get("SLURM_TOPOLOGY_ADDR", ""), environ.get("SLURM_TOPOLOGY_ADDR_PATTERN", "")),
        fabric=fabric_of(smi),
        imex=any(Path(IMEX_CHANNELS).glob("channel*")),
    )


if __name__ == "__main__":
    # One write: 256 nodes print into one pipe.
    os.write(1, (json.dumps(asdict(collect(os.environ))) + "\n").encode())
