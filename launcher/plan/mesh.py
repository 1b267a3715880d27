"""Mesh axes, nodes and NVLink domains: how many GPUs there are and which rank lies where.

MaxText gives every axis an ICI part (inside one NVLink domain) and a DCN part (between domains). JAX lays the ranks out
row by row: domain after domain, inside a domain the last axis of `AXES` fastest (jax.experimental.mesh_utils,
create_hybrid_device_mesh on GPU). So `rank = domain x GPUs per domain + row-major index of the ICI coordinates`.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from launcher.config.schema import Axes, Experiment
from launcher.issue import Issue, Severity
from launcher.plan import cures

AXES = (
    "data", "pipeline", "fsdp", "fsdp_transpose", "context", "tensor", "tensor_sequence", "expert", "autoregressive",
)  # fmt: skip
"""MaxText 0.2.5's mesh_axes, outermost first, by the name in their keys (`pipeline` is the axis `stage`)."""

MOST_GPUS = 1 << 17
"""Above this a mesh is taken for a slip of the finger; it bounds the time of the group-by-group proof."""


@dataclass(frozen=True)
class MeshPlan:
    """A mesh that fits its nodes. Sizes are numbers of ranks; one process (rank) a GPU.

    Attributes:
        ici, dcn: resolved size of every axis of `AXES`, in that order.
        expert_parallel: ranks of one expert-parallel (EP) group.
        expert_groups: number of EP groups.
        expert_nodes: nodes that one EP group spans, at most.
        experts_in_domain: every EP group lies in one NVLink domain (found by going through all groups).
        expert_statement: the same as a sentence with the numbers.
    """

    ici: Mapping[str, int]
    dcn: Mapping[str, int]
    gpus_per_node: int
    nodes: int
    domains: int
    expert_groups: int
    expert_nodes: int
    experts_in_domain: bool
    expert_statement: str

    @property
    def gpus(self) -> int:
        """GPUs of the job."""
        return math.prod(self.ici.values()) * math.prod(self.dcn.values())

    @property
    def processes(self) -> int:
        """Trainer processes: one a GPU."""
        return self.gpus

    @property
    def gpus_per_domain(self) -> int:
        """GPUs of one NVLink domain that this job uses."""
        return math.prod(self.ici.values())

    @property
    def nodes_per_domain(self) -> int:
        """Nodes of one NVLink domain that this job uses."""
        return self.nodes // self.domains

    def size(self, axis: str) -> int:
        """ICI x DCN part of one axis."""
        return self.ici[axis] * self.dcn[axis]

    @property
    def fsdp(self) -> int:
        """Ranks over which FSDP shards."""
        return self.size("fsdp")

    @property
    def expert_parallel(self) -> int:
        """Ranks of one expert-parallel group."""
        return self.size("expert")


def expert_groups(ici: Mapping[str, int], dcn: Mapping[str, int]) -> Iterator[tuple[int, ...]]:
    """The ranks of each expert-parallel group, group by group, in the order of their coordinates on the expert axis.

    >>> one = dict.fromkeys(AXES, 1)
    >>> list(expert_groups(one | {"fsdp": 2, "expert": 2}, one | {"fsdp": 2}))
    [(0, 1), (2, 3), (4, 5), (6, 7)]
    >>> list(expert_groups(one | {"fsdp": 2}, one | {"expert": 2}))
    [(0, 2), (1, 3)]
    """
    stride: dict[str, tuple[int, int]] = {}
    inner, outer = 1, math.prod(ici.values())
    for axis in reversed(AXES):
        stride[axis] = (inner, outer)
        inner, outer = inner * ici[axis], outer * dcn[axis]

    def offsets(axis: str) -> list[int]:
        inside, between = stride[axis]
        return [d * between + i * inside for d in range(dcn[axis]) for i in range(ici[axis])]

    members = offsets("expert")
    for start in itertools.product(*(offsets(axis) for axis in AXES if axis != "expert")):
        yield tuple(sum(start) + member for member in members)


def _prove(experiment: Experiment, ici: Mapping[str, int], dcn: Mapping[str, int]) -> tuple[int, int, bool, str]:
    """Number of EP groups, nodes of one, whether each lies in one domain, and the sentence; every group is looked at."""
    size, domain, per_node = ici["expert"] * dcn["expert"], math.prod(ici.values()), experiment.hardware.gpus_per_node
    count, crossing, nodes, consecutive = 0, 0, 0, True
    for group in expert_groups(ici, dcn):
        count += 1
        crossing += len({rank // domain for rank in group}) > 1
        nodes = max(nodes, len({rank // per_node for rank in group}))
        consecutive &= group[-1] - group[0] == size - 1
    if size == 1:
        return count, nodes, True, "no expert parallelism: every rank holds all experts"
    groups = f"{count} expert group{'s' if count > 1 else ''} of {size} {'consecutive ' if consecutive else ''}ranks"
    ranks = f"{groups} on {nodes} node{'s' if nodes > 1 else ''}"
    if crossing:
        return count, nodes, False, f"{ranks}, {crossing} of them cross NVLink domains"
    kind, device = ("domain", "CPU devices") if experiment.hardware.platform == "cpu" else ("NVLink domain", "GPUs")
    return count, nodes, True, f"{ranks}, {'each ' if count > 1 else ''}inside one {kind} of {domain} {device}"


def _error(code: str, field: str, message: str, hint: str) -> Issue:
    return Issue(code, Severity.ERROR, field, message, hint)


def _sizes(axes: Axes) -> dict[str, int]:
    return {axis: getattr(axes, axis) for axis in AXES}


def _check_sizes(part: str, axes: Axes) -> list[Issue]:
    """What is wrong with the sizes of one part, before anything is computed from them."""
    issues = []
    for axis, size in dataclasses.asdict(axes).items():
        field = f"mesh.{part}.{axis}"
        if size != -1 and not 1 <= size <= MOST_GPUS:
            message = f"{field}={size}: an axis has 1 to {MOST_GPUS} ranks; -1 = what is left"
            issues.append(_error("MESH_AXIS_SIZE", field, message, f"type {field}=1"))
    free = [axis for axis in AXES if getattr(axes, axis) == -1]
    if len(free) > 1:
        kept = "fsdp" if "fsdp" in free else free[0]
        typed = " ".join(f"mesh.{part}.{axis}=1" for axis in free if axis != kept)
        message = f"mesh.{part}: {' and '.join(free)} are -1 at once; only one axis can take what is left"
        issues.append(_error("MESH_TWO_FREE_AXES", f"mesh.{part}", message, f"type {typed}"))
    return issues


def _check_nodes(experiment: Experiment) -> list[Issue]:
    hardware, issues = experiment.hardware, []
    for field, value in (
        ("hardware.gpus_per_node", hardware.gpus_per_node),
        ("hardware.domain_nodes", hardware.domain_nodes),
    ):
        if not 1 <= value <= MOST_GPUS:
            issues.append(
                _error(
                    "HARDWARE_SIZE",
                    field,
                    f"{field}={value}, wanted 1 to {MOST_GPUS}",
                    f"type {field}=1, or choose hardware=NAME",
                )
            )
    if experiment.nodes is not None and not 1 <= experiment.nodes <= MOST_GPUS:
        message = f"nodes={experiment.nodes}, wanted 1 to {MOST_GPUS}"
        issues.append(_error("NODES", "nodes", message, "type nodes=1, or nodes=null to let it follow from the mesh"))
    return issues


def _domains(experiment: Experiment, ici: Mapping[str, int], dcn: Mapping[str, int]) -> int | None:
    """Number of domains; None when a free DCN axis cannot be computed. `-1` in DCN = as many domains as the nodes fill."""
    fixed = math.prod(n for n in dcn.values() if n != -1)
    if -1 not in dcn.values():
        return fixed
    nodes, hardware = experiment.nodes, experiment.hardware
    if nodes is None:
        return None
    if -1 not in ici.values():
        whole, left = divmod(nodes * hardware.gpus_per_node, math.prod(ici.values()))
        return whole if whole and not left and whole % fixed == 0 else None
    fewest = range(fixed, nodes + 1, fixed)
    return next((k for k in fewest if nodes % k == 0 and nodes // k <= hardware.domain_nodes), None)


def _fill(sizes: Mapping[str, int], total: int) -> dict[str, int] | None:
    """The sizes with -1 replaced so that their product is `total`; None when it does not divide."""
    fixed = math.prod(n for n in sizes.values() if n != -1)
    whole, left = divmod(total, fixed)
    return (
        None if -1 in sizes.values() and (left or not whole) else {a: whole if n == -1 else n for a, n in sizes.items()}
    )


def _unresolved(experiment: Experiment, ici: Mapping[str, int], dcn: Mapping[str, int]) -> Issue:
    """The issue for sizes that leave -1 or the number of nodes open."""
    nodes, gpus = experiment.nodes, experiment.hardware.gpus_per_node
    part = "dcn" if -1 in dcn.values() else "ici"
    sizes = dcn if part == "dcn" else ici
    axis = next(a for a, n in sizes.items() if n == -1)
    field = f"mesh.{part}.{axis}"
    if math.prod(n for n in (*ici.values(), *dcn.values()) if n != -1) > MOST_GPUS:
        return _too_large(ici, dcn)  # no number of nodes would help
    if nodes is None:
        example = cures.example_nodes(experiment, ici, dcn)
        return _error(
            "NODES_UNKNOWN",
            "nodes",
            f"{field}=-1 takes what the nodes leave, but nodes is not given",
            f"type the number of nodes, e.g. nodes={example}",
        )
    fixed = cures.factors(part, {a: n for a, n in sizes.items() if n != -1})
    if part == "dcn":
        message = f"{field}=-1: {nodes} nodes x {gpus} GPUs are no whole number of domains for {cures.factors('ici', ici)} and {fixed}"
    else:
        domains = math.prod(dcn.values())
        message = f"{field}=-1: {nodes} nodes x {gpus} GPUs in {domains} domain{'s' if domains > 1 else ''} is not divisible by {fixed}"
    return _error("MESH_FREE_AXIS", field, message, cures.hint(experiment, ici, dcn))


def _too_large(ici: Mapping[str, int], dcn: Mapping[str, int]) -> Issue:
    parts = [{axis: n for axis, n in part.items() if n != -1} for part in (ici, dcn)]
    gpus = math.prod(n for part in parts for n in part.values())
    least = f"{gpus} GPUs{' or more' if -1 in (*ici.values(), *dcn.values()) else ''}"
    message = (
        f"{cures.factors('ici', parts[0])}, {cures.factors('dcn', parts[1])}: {least}, at most {MOST_GPUS} are laid out"
    )
    most, axis = max(
        (n, f"mesh.{name}.{axis}") for name, part in zip(("ici", "dcn"), parts, strict=True) for axis, n in part.items()
    )
    return _error(
        "MESH_TOO_LARGE", "mesh", message, f"correct the axis that is too large: {axis}={most} is the largest"
    )


def _misfit(experiment: Experiment, ici: dict[str, int], dcn: dict[str, int]) -> Issue | None:
    """The first reason why resolved sizes do not fit nodes and domains. `experiment.nodes` is given or follows."""
    gpus, name = experiment.hardware.gpus_per_node, experiment.hardware.name
    largest = experiment.hardware.domain_nodes
    share, domains = math.prod(ici.values()), math.prod(dcn.values())
    nodes = experiment.nodes
    if share * domains > MOST_GPUS:
        return _too_large(ici, dcn)
    if nodes is not None and nodes % domains:
        message = f"{cures.factors('dcn', dcn)} domains, but {nodes} nodes do not split into {domains} equal domains"
        return _error("MESH_DCN_DOMAINS", "mesh.dcn", message, cures.hint(experiment, ici, dcn))
    if nodes is not None and share != nodes // domains * gpus:
        left = nodes // domains * gpus
        plural = f"{domains} domains" if domains > 1 else "one domain"
        message = f"{cures.factors('ici', ici)} GPUs a domain, but {nodes} nodes x {gpus} GPUs in {plural} leave {left}"
        if share > left and share <= largest * gpus and nodes * gpus % share == 0:
            held = f"{nodes * gpus // share} domains of {share} ({cures.factors('ici', ici)})"
            message = f"{cures.factors('dcn', dcn)} domains, but {nodes} nodes x {gpus} GPUs hold {held}"
            return _error("MESH_DCN_DOMAINS", "mesh.dcn", message, cures.hint(experiment, ici, dcn))
        return _error("MESH_ICI_GPUS", "mesh.ici", message, cures.hint(experiment, ici, dcn))
    if share % gpus:
        message = f"{cures.factors('ici', ici)} GPUs a domain, but a node of {name} has {gpus} and is not split between domains"
        return _error("MESH_NODE_SPLIT", "mesh.ici", message, cures.hint(experiment, ici, dcn))
    if share > largest * gpus:
        has = f"an NVLink domain of {name} has {largest} node{'s' if largest > 1 else ''} x {gpus} GPUs = {largest * gpus}"
        message = f"{cures.factors('ici', ici)} GPUs a domain, but {has}"
        return _error("MESH_DOMAIN_SIZE", "mesh.ici", message, cures.hint(experiment, ici, dcn))
    return None


def lay_out(experiment: Experiment) -> tuple[MeshPlan | None, list[Issue]]:
    """The mesh of an experiment, or every reason why there is none.

    `nodes: null` follows from the mesh. A free axis (-1) takes what the nodes leave.
    """
    issues = (
        _check_nodes(experiment) + _check_sizes("ici", experiment.mesh.ici) + _check_sizes("dcn", experiment.mesh.dcn)
    )
    if issues:
        return None, issues
    ici, dcn, gpus = _sizes(experiment.mesh.ici), _sizes(experiment.mesh.dcn), experiment.hardware.gpus_per_node
    domains = _domains(experiment, ici, dcn)
    filled_dcn = None if domains is None else _fill(dcn, domains)
    if domains is None or filled_dcn is None:
        return None, [_unresolved(experiment, ici, dcn)]
    filled_ici: dict[str, int] | None = ici
    if -1 in ici.values():
        filled_ici = (
            None
            if experiment.nodes is None or experiment.nodes % domains
            else _fill(ici, experiment.nodes * gpus // domains)
        )
    if filled_ici is None:
        return None, [_unresolved(experiment, ici, filled_dcn)]
    misfit = _misfit(experiment, filled_ici, filled_dcn)
    if misfit:
        return None, [misfit]
    count, spanned, inside, statement = _prove(experiment, filled_ici, filled_dcn)
    nodes = math.prod(filled_ici.values()) * domains // gpus
    return MeshPlan(filled_ici, filled_dcn, gpus, nodes, domains, count, spanned, inside, statement), []
