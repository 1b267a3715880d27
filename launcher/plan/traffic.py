"""Bytes that one GPU receives in a step, by mesh axis and fabric (NVLink inside a domain, network between domains).

A collective over an axis of `members` ranks a domain and `domains` domains goes in two steps: each member fetches its share of
what lies outside over the network, and the members exchange over NVLink (NCCL's own hierarchy). Held against the collectives
of XLA's compiled step (docs/plan.md). Recomputation by XLA itself under memory pressure repeats all-gathers on top of this.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from launcher.plan import activations, memory, params
from launcher.plan.case import Case
from launcher.plan.mesh import MeshPlan

PASSES = 4
"""Times that the tokens cross the expert axis: dispatch and combine, and the gradients of both."""


@dataclass(frozen=True)
class Flow:
    """One kind of collective: `calls` a step, bytes that a GPU receives in all of them, by fabric."""

    axis: str
    collective: str
    what: str
    calls: int
    nvlink: int
    network: int


@dataclass(frozen=True)
class Traffic:
    """All flows of a step; sums in bytes a GPU."""

    flows: tuple[Flow, ...]

    def of(self, *axes: str) -> tuple[int, int]:
        """NVLink and network bytes of these axes."""
        chosen = [flow for flow in self.flows if flow.axis in axes]
        return sum(f.nvlink for f in chosen), sum(f.network for f in chosen)

    @property
    def nvlink(self) -> int:
        """Bytes inside NVLink domains."""
        return sum(flow.nvlink for flow in self.flows)

    @property
    def network(self) -> int:
        """Bytes between domains."""
        return sum(flow.network for flow in self.flows)


def split(total: float, members: int, domains: int) -> tuple[float, float]:
    """Bytes received over NVLink and network when `total` is gathered from (or scattered to) all ranks of an axis.

    >>> split(16.0, 8, 2)
    (14.0, 1.0)
    """
    return total * (members - 1) / members, total / members * (domains - 1) / domains


def exchanged(tokens: float, top_k: int, width: float, members: int, domains: int) -> tuple[float, float]:
    """Bytes received over NVLink and network in one pass of the tokens over an expert axis.

    A token goes to each expert's rank over NVLink, and once to each other domain that holds one of its experts.
    """
    ranks = members * domains
    if domains == 1:
        return tokens * top_k * width * (ranks - 1) / ranks, 0.0
    reached = domains * (1 - (1 - 1 / domains) ** top_k)
    return tokens * top_k * width * (members - 1) / members, tokens * width * reached * (domains - 1) / domains


def _flow(axis: str, collective: str, what: str, calls: float, pair: tuple[float, float]) -> Flow:
    return Flow(axis, collective, what, round(calls), round(pair[0]), round(pair[1]))


def replayed(case: Case) -> bool:
    """Is the experts' forward pass computed again in the backward pass?"""
    kept = activations.places(case)
    if case.values.text("remat_policy") in ("none", ""):
        return False
    return case.te or not any(name in kept for name in ("mlpwi_0", "moe_mlpwi_0"))


def passes(case: Case) -> int:
    """Times that the tokens cross the expert axis in one layer: replaying the experts dispatches once more."""
    return PASSES + replayed(case)


def _group(mesh: MeshPlan, axes: Iterable[str]) -> tuple[int, int]:
    """Members in one domain, and domains, of a group over these axes."""
    names = tuple(axes)
    return math.prod(mesh.ici[a] for a in names), math.prod(mesh.dcn[a] for a in names)


def _expert_flows(case: Case, mesh: MeshPlan, micro: int) -> Iterator[Flow]:
    shape = case.shape
    if not shape.moe or mesh.expert_parallel == 1:
        return
    sent = 1.0
    if memory.path(case) == "capacity":
        # Every slot of the experts' buffers is sent, filled or not.
        factor = case.values.number("capacity_factor", -1.0)
        sent = factor if factor > 0 else shape.experts / shape.experts_per_token
    calls = (shape.moe_layers + shape.mtp) * micro * passes(case)
    width = shape.moe_in * activations.width(case)
    pair = exchanged(activations.local_tokens(case), shape.experts_per_token, width, *_group(mesh, ("expert",)))
    yield _flow("expert", "all-to-all", "tokens", calls, (pair[0] * sent * calls, pair[1] * sent * calls))


def _weight_flows(case: Case, mesh: MeshPlan, micro: int) -> Iterator[Flow]:
    """Weights gathered for the forward and again for the backward pass, gradients scattered back; by the axes that cut them."""
    counted = params.count(case)
    assert counted is not None
    gathers = 1 if case.values.text("remat_policy") in ("none", "") else 2
    sizes: dict[tuple[bool, tuple[str, ...]], float] = {}
    for weight in counted.weights:
        stays = {"tensor", "tensor_sequence"} | ({"expert"} if weight.expert else set())
        axes = tuple(axis for axis in mesh.ici if axis in dict(weight.axes) and axis not in stays)
        if axes:
            key = weight.expert, axes
            sizes[key] = sizes.get(key, 0.0) + weight.total / weight.shards * math.prod(_group(mesh, axes))
    for (expert, axes), elements in sizes.items():
        what = "experts' weights" if expert else "other weights"
        layers = (case.shape.moe_layers if expert else case.shape.layers) * micro
        # Gathered in the type that multiplies (bfloat16): TE quantises after the gather.
        nvlink, network = split(elements * activations.width(case), *_group(mesh, axes))
        name = " x ".join(axes)
        times = gathers * micro
        yield _flow(name, "all-gather", what, layers * gathers, (nvlink * times, network * times))
        yield _flow(name, "reduce-scatter", f"gradients of {what}", layers, (nvlink * micro, network * micro))


def _data_flows(case: Case, mesh: MeshPlan) -> Iterator[Flow]:
    """One all-reduce of the gradients over the copies of the model."""
    if mesh.size("data") > 1:
        weight = activations.BYTES.get(case.values.text("weight_dtype"), 4)
        pair = split(memory.state_elements(case) * weight, *_group(mesh, ("data",)))
        yield _flow("data", "all-reduce", "gradients", 1, (2 * pair[0], 2 * pair[1]))


def _layer_flows(case: Case, mesh: MeshPlan, micro: int) -> Iterator[Flow]:
    """Activations that tensor and context parallelism exchange: four all-reduces, two gathers of key and value a layer."""
    shape, layers = case.shape, case.shape.layers * micro
    tokens, dt = activations.local_tokens(case), activations.width(case)
    for axis in ("tensor", "tensor_sequence"):
        if mesh.size(axis) > 1:
            pair = split(tokens * shape.emb * dt, *_group(mesh, (axis,)))
            yield _flow(axis, "all-reduce", "activations", 4 * layers, (8 * layers * pair[0], 8 * layers * pair[1]))
    if mesh.size("context") > 1:
        heads = shape.heads if shape.mla else shape.kv_heads
        size = tokens * mesh.size("context") * heads * (shape.query_head + shape.value_head) * dt
        pair = split(size, *_group(mesh, ("context",)))
        yield _flow(
            "context", "all-gather", "keys and values", 2 * layers, (2 * layers * pair[0], 2 * layers * pair[1])
        )


@functools.lru_cache(maxsize=64)
def estimate(case: Case) -> Traffic | None:
    """The traffic of a case; None when `memory.missing` says why there is no estimate."""
    if case.mesh is None or memory.missing(case) is not None:
        return None
    micro = max(case.values.whole("gradient_accumulation_steps", 1), 1)
    flows = (
        *_expert_flows(case, case.mesh, micro),
        *_weight_flows(case, case.mesh, micro),
        *_data_flows(case, case.mesh),
        *_layer_flows(case, case.mesh, micro),
    )
    return Traffic(tuple(flow for flow in flows if flow.nvlink or flow.network))
