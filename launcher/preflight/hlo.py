"""What a compiled module does beyond its own GPU: collectives and custom calls, read from XLA's text of it.

An instruction in the body of a loop counts as often as the loop turns (XLA writes `known_trip_count`); a loop whose
count it does not know is counted once. Sizes are bytes on one GPU.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "ragged-all-to-all", "collective-permute")

Groups = tuple[tuple[int, ...], ...]

_COMMENT = re.compile(r"/\*.*?\*/")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_COLLECTIVE = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*?) (" + "|".join(KINDS) + r")(-start)?\(")
_CUSTOM = re.compile(r'custom_call_target="([^"]+)"')
_CALLED = re.compile(r"\b(?:calls|to_apply|body|true_computation|false_computation)=%?([\w.\-]+)")
_CALLED_LIST = re.compile(r"\b(?:branch_computations|called_computations)=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_SHAPE = re.compile(r"([a-z]+)(\d*)\w*\[([0-9,<=]*)\]")
_MESH_GROUPS = re.compile(r"replica_groups=mesh\[([^\]]*)\] ?\{([^}]*)\}")
_IOTA_GROUPS = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_LIST_GROUPS = re.compile(r"replica_groups=\{((?:\{[\d,]*\},?)*)\}")
_PAIRS = re.compile(r"source_target_pairs=\{((?:\{\d+,\d+\},?)+)\}")


@dataclass(frozen=True)
class Collective:
    """One instruction.

    Attributes:
        name: XLA's; `.remat` in it means that XLA repeats the instruction instead of keeping its result.
        kind: one of KINDS.
        groups: the devices of each group, as numbers in the mesh's row-major order; () where XLA says none (= all devices).
        result_bytes: of the result, on one GPU.
        calls: times a step.
    """

    name: str
    kind: str
    groups: Groups
    result_bytes: int
    calls: int

    @property
    def repeated(self) -> bool:
        """Whether XLA's own rematerialization made it a second time to save memory."""
        return ".remat" in self.name


def size(shape: str) -> int:
    """Bytes of every array in a type.

    >>> size("(bf16[2,3]{1,0}, f8e4m3fn[16], pred[], s4[3])")
    31
    """
    total = 0
    for word, digits, dimensions in _SHAPE.findall(shape):
        bits = int(digits) if digits else {"pred": 8}.get(word, 0)
        elements = math.prod(int(n.lstrip("<=")) for n in dimensions.split(",") if n)
        total += -(-bits * elements // 8)
    return total


def _parts(shape: str) -> list[str]:
    """The elements of a tuple's type; of any other type, itself.

    >>> _parts("((a[1,2]{1,0}, b[1]), c[2])")
    ['(a[1,2]{1,0}, b[1])', 'c[2]']
    """
    if not shape.startswith("("):
        return [shape]
    parts, depth = [""], 0
    for character in shape[1:-1]:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def _result(shape: str, kind: str, started: bool) -> int:
    """Bytes of the result: of `-start`, whose type is (operands, results, ...), the second part."""
    parts = _parts(shape)
    if started and len(parts) > 1 and (kind != "all-reduce" or parts[0].startswith("(")):
        return size(parts[1])
    return size(shape)


def _mesh_groups(mesh: str, axes: str) -> Groups:
    """`mesh['a'=2,'b'=8] {'b'}`; an axis may be split, `'b':(2)4` = the part of size 4 that lies below the first 2."""
    sizes = {name: int(n) for name, n in re.findall(r"'([^']+)'=(\d+)", mesh)}
    taken: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for name, before, part in re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", axes):
        taken[name].append((int(before or 1), int(part or sizes[name])))
    pieces: list[tuple[int, bool]] = []
    for name, n in sizes.items():
        at = 1
        for before, part in sorted(taken[name]):
            pieces += [(before // at, False), (part, True)]
            at = before * part
        pieces.append((n // at, False))
    return _grouped([n for n, _ in pieces], [inside for _, inside in pieces])


def _grouped(sizes: Sequence[int], inside: Sequence[bool]) -> Groups:
    """Groups of row-major numbers over the dimensions that are `inside`, in the order of the others."""
    groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for number, place in enumerate(itertools.product(*(range(n) for n in sizes))):
        groups[tuple(i for i, within in zip(place, inside, strict=True) if not within)].append(number)
    return tuple(tuple(group) for group in groups.values())


def _iota_groups(shape: Sequence[int], reshape: Sequence[int], order: Sequence[int]) -> Groups:
    """`[groups,each]<=[reshape]T(order)`: the numbers 0.. in that shape, transposed, cut into groups."""
    strides = [math.prod(reshape[i + 1 :]) for i in range(len(reshape))]
    ranges = [range(0, reshape[axis] * strides[axis], strides[axis]) for axis in order]
    numbers = [sum(place) for place in itertools.product(*ranges)]
    each = math.prod(shape[1:])
    return tuple(tuple(numbers[i : i + each]) for i in range(0, len(numbers), each))


def groups(line: str) -> Groups:
    """The groups that an instruction names, in any of XLA's ways to write them; () when it names none.

    >>> groups("replica_groups=[2,2]<=[2,2]T(1,0)") == groups("replica_groups={{0,2},{1,3}}")
    True
    >>> groups("replica_groups=mesh['x'=2,'y'=2] {'x'}")
    ((0, 2), (1, 3))
    """
    if found := _MESH_GROUPS.search(line):
        return _mesh_groups(found[1], found[2])
    if found := _IOTA_GROUPS.search(line):
        shape, reshape = ([int(n) for n in found[i].split(",")] for i in (1, 2))
        order = [int(n) for n in found[3].split(",")] if found[3] else list(range(len(reshape)))
        return _iota_groups(shape, reshape, order)
    if found := _LIST_GROUPS.search(line) or _PAIRS.search(line):
        return tuple(tuple(int(n) for n in each.split(",") if n) for each in re.findall(r"\{([\d,]+)\}", found[1]))
    return ()


def _computations(text: str) -> tuple[str, dict[str, list[str]]]:
    """The entry's name, and the instructions of every computation."""
    entry, current = "", ""
    found: dict[str, list[str]] = {}
    for raw in text.splitlines():
        line = _COMMENT.sub("", raw)
        if header := _COMPUTATION.match(line):
            current = header[2]
            found[current] = []
            entry = current if header[1] else entry
        elif current and line.startswith(" "):
            found[current].append(line)
    return entry, found


def _calls(line: str) -> Iterator[tuple[str, int]]:
    """The computations that an instruction runs, and how often each time."""
    trips = _TRIPS.search(line)
    for name in _CALLED.findall(line):
        yield name, int(trips[1]) if trips else 1
    for names in _CALLED_LIST.findall(line):
        for name in names.split(","):
            yield name.strip().lstrip("%"), 1


def _times(entry: str, computations: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """How often a step runs each computation."""
    callers: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for caller, lines in computations.items():
        for line in lines:
            for name, times in _calls(line):
                callers[name].append((caller, times))
    known = {entry: 1}

    def of(name: str) -> int:
        if name not in known:
            known[name] = 0  # nothing calls itself; a broken text shall not loop
            known[name] = sum(of(caller) * times for caller, times in callers[name])
        return known[name]

    return {name: of(name) for name in computations}


def read(text: str) -> tuple[list[Collective], dict[str, int]]:
    """The collectives of a compiled module, and how often a step makes each custom call (target -> times)."""
    entry, computations = _computations(text)
    times = _times(entry, computations)
    collectives, custom = [], dict[str, int]()
    for name, lines in computations.items():
        for line in lines:
            if times[name] and (found := _COLLECTIVE.match(line)):
                collectives.append(
                    Collective(
                        found[1], found[3], groups(line), _result(found[2], found[3], bool(found[4])), times[name]
                    )
                )
            elif times[name] and (target := _CUSTOM.search(line)):
                custom[target[1]] = custom.get(target[1], 0) + times[name]
    return collectives, custom
