"""Collectives of a compiled step as flows: which mesh axes each runs over, and what of it crosses between NVLink domains."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from launcher.plan.mesh import MeshPlan
from launcher.plan.traffic import split
from launcher.preflight.hlo import Collective

TOKEN_PASSES = ("te_ep_dispatch_ffi", "te_ep_combine_ffi", "te_ep_combine_bwd_ffi", "te_ep_dispatch_bwd_ffi")
"""TE's expert exchange is no collective of XLA's: custom calls, each of which carries every token to its experts or back."""

SCALED_WIDTH = 2
"""Bytes of a number that the exchange carries: bfloat16 is all that TE 2.20 dispatches (ep_bootstrap refuses others)."""


@dataclass(frozen=True)
class Flow:
    """All collectives of one kind over the same mesh axes: calls a step, bytes on one GPU.

    Attributes:
        axes: MaxText's axis names; () for groups that are no axes of the mesh.
        result: bytes of the results, as XLA allocates them.
        nvlink, network: bytes that a GPU receives inside its domain, and from others.
        repeated: instructions that XLA's own rematerialization added; repeated_calls, repeated_bytes: what they do in a step.
    """

    kind: str
    axes: tuple[str, ...]
    calls: int
    result: int
    nvlink: int
    network: int
    repeated: int = 0
    repeated_calls: int = 0
    repeated_bytes: int = 0


@dataclass(frozen=True)
class Layout:
    """The mesh that was compiled for: `sizes` by MaxText's axis names, in their order; `ici` = the part inside a domain."""

    sizes: Mapping[str, int]
    ici: Mapping[str, int]

    def coordinates(self, device: int) -> tuple[int, ...]:
        """Of a device's number in row-major order."""
        found = []
        for n in reversed(list(self.sizes.values())):
            device, at = divmod(device, n)
            found.append(at)
        return tuple(reversed(found))

    def domain(self, device: int) -> tuple[int, ...]:
        """Which NVLink domain: the DCN part of every coordinate (mesh axis = DCN part x ICI part)."""
        return tuple(
            at // self.ici.get(name, n)
            for at, (name, n) in zip(self.coordinates(device), self.sizes.items(), strict=True)
        )

    def axes(self, group: Iterable[int]) -> tuple[str, ...]:
        """The axes along which the members of a group differ; () when they are not all the points of those axes."""
        places = [self.coordinates(device) for device in group]
        differ = [i for i in range(len(self.sizes)) if len({place[i] for place in places}) > 1]
        names = list(self.sizes)
        whole = math.prod(self.sizes[names[i]] for i in differ) == len(places)
        return tuple(names[i] for i in differ) if whole else ()


def layout(sizes: Mapping[str, int], mesh: MeshPlan) -> Layout:
    """MaxText's axes (`stage` is the key's `pipeline`) with the plan's ICI parts."""
    ici = {("stage" if name == "pipeline" else name): n for name, n in mesh.ici.items()}
    return Layout(sizes, {name: ici.get(name, n) for name, n in sizes.items()})


def received(kind: str, result: int, members: int, domains: int) -> tuple[float, float]:
    """Bytes that a GPU receives over NVLink and network in one call, `members` ranks in each of `domains` domains.

    In two steps where a group spans domains (plan.traffic.split): shares over the network first, then inside the domain.

    >>> received("all-gather", 1600, 8, 2)
    (1400.0, 100.0)
    """
    ranks = members * domains
    if kind == "all-to-all":
        return result * (members - 1) / ranks, result * (ranks - members) / ranks
    if kind == "collective-permute":
        return (float(result), 0.0) if domains == 1 else (0.0, float(result))
    inside, between = split(result * (ranks if kind == "reduce-scatter" else 1), members, domains)
    return (2 * inside, 2 * between) if kind == "all-reduce" else (inside, between)


def flows(collectives: Iterable[Collective], where: Layout) -> list[Flow]:
    """Collectives of more than one GPU, summed by kind and axes, the largest first."""
    everyone = (tuple(range(math.prod(where.sizes.values()))),)
    rows = []
    for each in collectives:
        groups = each.groups or everyone
        group = max(groups, key=len)
        domains = len({where.domain(device) for device in group})
        if len(group) < 2:
            continue
        nvlink, network = received(each.kind.removeprefix("ragged-"), each.result_bytes, len(group) // domains, domains)
        again = each.calls if each.repeated else 0
        rows.append(
            Flow(
                each.kind, where.axes(group), each.calls, each.calls * each.result_bytes, round(each.calls * nvlink),
                round(each.calls * network), int(each.repeated), again, again * each.result_bytes,
            )
        )  # fmt: skip
    return _summed(rows)


def _summed(rows: list[Flow]) -> list[Flow]:
    rows.sort(key=lambda flow: (flow.kind, flow.axes))
    found = []
    for (kind, axes), same in itertools.groupby(rows, key=lambda flow: (flow.kind, flow.axes)):
        numbers = [
            (f.calls, f.result, f.nvlink, f.network, f.repeated, f.repeated_calls, f.repeated_bytes) for f in same
        ]
        found.append(Flow(kind, axes, *(sum(column) for column in zip(*numbers, strict=True))))
    return sorted(found, key=lambda flow: -(flow.nvlink + flow.network))


def exchange(custom: Mapping[str, int], sizes: Mapping[str, int] | None, where: Layout) -> Flow | None:
    """TE's expert exchange as a flow, for balanced experts: each pass carries tokens x top-k x width; None without one."""
    calls = sum(custom.get(name, 0) for name in TOKEN_PASSES)
    if not calls or not sizes:
        return None
    ranks = sizes["ep_size"]
    members = where.ici.get("expert", ranks)
    whole = sizes["max_tokens_per_rank"] * sizes["top_k"] * sizes["hidden_dim"] * SCALED_WIDTH
    nvlink, network = received("all-to-all", whole, members, ranks // members)
    result = calls * sizes["recv_capacity_per_rank"] * sizes["hidden_dim"] * SCALED_WIDTH
    return Flow("expert exchange", ("expert",), calls, result, round(calls * nvlink), round(calls * network))
