"""Override lines that would make a mesh fit: each is checked to fit before it is offered."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from launcher.config.schema import Experiment

PREFERRED = ("fsdp", "data", "context", "tensor", "expert")
"""Axes in the order in which a cure resizes them: FSDP takes any size, EP and tensor sizes are chosen for a reason."""

MOST_OFFERED = 3


@dataclass(frozen=True)
class _Shape:
    """Axis sizes, nodes (None: they follow) and the hardware's two numbers: GPUs a node, nodes a domain at most."""

    ici: Mapping[str, int]
    dcn: Mapping[str, int]
    nodes: int | None
    gpus_per_node: int
    domain_nodes: int

    def fits(self) -> bool:
        share, domains = math.prod(self.ici.values()), math.prod(self.dcn.values())
        if (
            min(*self.ici.values(), *self.dcn.values()) < 1
            or share % self.gpus_per_node
            or share > self.domain_nodes * self.gpus_per_node
        ):
            return False
        return self.nodes is None or self.nodes * self.gpus_per_node == share * domains


def factors(part: str, sizes: Mapping[str, int]) -> str:
    """The factors of one part and their product.

    >>> factors("ici", {"data": 1, "fsdp": 8, "expert": 16})
    'ici: fsdp 8 x expert 16 = 128'
    >>> factors("dcn", {"data": 1, "fsdp": 1})
    'dcn: all axes 1 = 1'
    """
    named = " x ".join(f"{axis} {n}" for axis, n in sizes.items() if n != 1)
    return f"{part}: {named or 'all axes 1'} = {math.prod(sizes.values())}"


def _resized(sizes: Mapping[str, int], product: int, free: str | None) -> Iterator[dict[str, int]]:
    """The sizes with one axis changed so that the product is right: the free axis if there is one, else each in turn."""
    order = [free] if free else [*PREFERRED, *(a for a in sizes if a not in PREFERRED)]
    for axis in order:
        rest = math.prod(n for a, n in sizes.items() if a != axis)
        if product % rest == 0 and product // rest >= 1:
            yield {**sizes, axis: product // rest}


def _shrunk(sizes: Mapping[str, int], product: int, free: str) -> Iterator[dict[str, int]]:
    """Sizes whose free axis can take a whole rest again, because another axis was made smaller."""
    for axis in reversed(PREFERRED):
        for smaller in range(sizes.get(axis, 1) - 1, 0, -1):
            if axis != free and product % math.prod({**sizes, axis: smaller}.values()) == 0:
                yield from _resized({**sizes, axis: smaller}, product, free)
                break


def _moved(shape: _Shape) -> Iterator[_Shape]:
    """A factor of an axis moved from inside the domain to between the domains, the smallest that fits."""
    for axis in PREFERRED[:-1]:
        for factor in range(2, shape.ici[axis] + 1):
            if shape.ici[axis] % factor == 0:
                moved = replace(
                    shape,
                    ici={**shape.ici, axis: shape.ici[axis] // factor},
                    dcn={**shape.dcn, axis: shape.dcn[axis] * factor},
                )
                if moved.fits():
                    yield moved
                    break


def _candidates(shape: _Shape, free_ici: str | None, free_dcn: str | None) -> Iterator[_Shape]:
    """Shapes that may fit, the least intrusive first."""
    share, domains, gpus = math.prod(shape.ici.values()), math.prod(shape.dcn.values()), shape.gpus_per_node
    if shape.nodes is not None:
        total = shape.nodes * gpus
        wanted = total // domains if shape.nodes % domains == 0 else 0
        ici_cures = [replace(shape, ici=s) for s in _resized(shape.ici, wanted, free_ici)] if wanted else []
        if wanted and free_ici:
            ici_cures += [replace(shape, ici=s) for s in _shrunk(shape.ici, wanted, free_ici)]
        dcn_cures = (
            [replace(shape, dcn=s) for s in _resized(shape.dcn, total // share, free_dcn)] if total % share == 0 else []
        )
        # Too many GPUs in a domain of a size that exists: rather the number of domains is wrong.
        dcn_first = bool(wanted) and share > wanted
        yield from (dcn_cures[:1] + ici_cures if dcn_first else ici_cures[:1] + dcn_cures[:1] + ici_cures[1:])
    if share % gpus == 0:
        yield replace(shape, nodes=share * domains // gpus)
    yield from _moved(shape)
    if shape.nodes is None:
        for product in sorted(range(gpus, shape.domain_nodes * gpus + 1, gpus), key=lambda p: abs(p - share))[:64]:
            yield from (replace(shape, ici=s) for s in _resized(shape.ici, product, "fsdp"))
        return
    for count in (k for k in range(1, shape.nodes + 1) if shape.nodes % k == 0):
        for ici in _resized(shape.ici, shape.nodes // count * gpus, free_ici):
            yield from (replace(shape, ici=ici, dcn=dcn) for dcn in _resized(shape.dcn, count, free_dcn))
    ones = dict.fromkeys(shape.ici, 1)
    for count in (k for k in range(1, shape.nodes + 1) if shape.nodes % k == 0):
        yield replace(
            shape, ici={**ones, "fsdp": shape.nodes // count * gpus}, dcn={**dict.fromkeys(shape.dcn, 1), "fsdp": count}
        )


def example_nodes(experiment: Experiment, ici: Mapping[str, int], dcn: Mapping[str, int]) -> int:
    """A number of nodes that a mesh with a free axis (-1) could have: whole domains, a power of two of nodes in each."""
    gpus, largest = experiment.hardware.gpus_per_node, experiment.hardware.domain_nodes
    share, domains = (math.prod(n for n in sizes.values() if n != -1) for sizes in (ici, dcn))
    if -1 not in ici.values():
        return max(share // gpus, 1) * domains
    powers = [1 << k for k in range(largest.bit_length()) if (1 << k) <= largest]
    return domains * next((n for n in reversed(powers) if n * gpus % share == 0), powers[-1])


def _typed(was: _Shape, now: _Shape) -> str:
    """The override words of a cure; a part that changes is typed whole, so that the line says what will be."""
    words = []
    for part, before, after in (("ici", was.ici, now.ici), ("dcn", was.dcn, now.dcn)):
        if after != before:
            words += [f"mesh.{part}.{axis}={n}" for axis, n in after.items() if n != 1 or before[axis] != 1]
    return " ".join(words if now.nodes == was.nodes else [*words, f"nodes={now.nodes}"])


def hint(experiment: Experiment, ici: Mapping[str, int], dcn: Mapping[str, int]) -> str:
    """What to type so that sizes fit nodes and domains; axes that are -1 stay free and are named with their value.

    Never empty: where nothing fits, it names the numbers that have to agree.
    """
    hardware = experiment.hardware
    free_ici, free_dcn = (next((a for a, n in sizes.items() if n == -1), None) for sizes in (ici, dcn))
    shape = _Shape(
        {a: abs(n) for a, n in ici.items()}, {a: abs(n) for a, n in dcn.items()},
        experiment.nodes, hardware.gpus_per_node, hardware.domain_nodes,
    )  # fmt: skip
    # A free axis is 1 for the arithmetic, but what is typed has to replace the -1.
    was = replace(shape, ici=ici, dcn=dcn)
    lines: list[str] = []
    for candidate in _candidates(shape, free_ici, free_dcn):
        line = _typed(was, candidate)
        if candidate.fits() and line and line not in lines:
            lines.append(line)
        if len(lines) == MOST_OFFERED:
            break
    if lines:
        return "type " + ", or ".join(lines)
    return "choose ici sizes whose product is GPUs per domain, dcn sizes whose product is the number of domains, and nodes x GPUs = both"
