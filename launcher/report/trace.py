"""Where the time of a profile went: kernels by kind, what ran beside what, and what stood still. Pure.

A device's span is the time from the first to the last event of all devices. Each moment of it is given to one kind, so that
the shares sum up to the span: to the first of what runs, in the order of kinds.Kind (computing before communication before
copies), and to IDLE when nothing does. Sums over kernels are another thing: kernels that run side by side count each.
"""

from __future__ import annotations

import math
import statistics
from array import array
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from launcher.report.kinds import COMMUNICATION, COMPUTE, Kind, Row, fabric_of, kind_of

LATENCIES = (Kind.GROUPED_GEMM, Kind.DISPATCH, Kind.COMBINE, Kind.ALL_TO_ALL)
"""Kinds whose single calls are listed. Without Transformer Engine, tokens travel by an all-to-all that no scope names."""

_KINDS = tuple(Kind)


@dataclass(frozen=True)
class Key:
    """What a kernel is known by. detail: of a copy, from where to where."""

    name: str
    op: str = ""
    scopes: str = ""
    detail: str = ""
    stream: str = ""

    @property
    def place(self) -> str:
        """Where in the program: the path of scopes without what each has, else the operation."""
        parts = [
            part for part in self.scopes.split("/") if part and not part.startswith(("jit(", "pjit", "while", "body"))
        ]
        return "/".join(parts) or self.op or self.name


@dataclass(frozen=True)
class Events:
    """All kernels and copies of one device. start, end: ns. key: index in `keys`. call: kernels of one call, -1 = alone."""

    device: str
    keys: Sequence[Key]
    start: array[int]
    end: array[int]
    key: array[int]
    call: array[int]


@dataclass(frozen=True)
class Trace:
    """A profile as it was read. source: its file. steps: the training steps that began in it."""

    source: str
    devices: Sequence[Events]
    steps: Sequence[int]


@dataclass(frozen=True)
class Part:
    """One kind on one device, seconds. kernels: their sum. active: at least one ran. alone: no computing ran beside it.

    span: what it is given of the span. calls: kernels.
    """

    kernels: float
    active: float
    alone: float
    span: float
    calls: int


@dataclass(frozen=True)
class Device:
    """One device's time, seconds. streams: name -> kind -> sum over its kernels. fabrics: way -> sum over communication.
    others: the longest kernels that no row of the table knows, (name, seconds, calls).
    """

    name: str
    span: float
    parts: Mapping[Kind, Part]
    streams: Mapping[str, Mapping[Kind, float]]
    fabrics: Mapping[str, float]
    others: Sequence[tuple[str, float, int]]

    def active(self, kinds: Sequence[Kind]) -> float:
        """Of the span, given to any of these."""
        return sum(self.parts[kind].span for kind in kinds if kind in self.parts)

    def kernels(self, kinds: Sequence[Kind]) -> float:
        """The sum over kernels of these kinds."""
        return sum(self.parts[kind].kernels for kind in kinds if kind in self.parts)

    @property
    def communication(self) -> float | None:
        """The share of all kernels' accumulated time that is communication, as the article counts it. None: no kernel."""
        everything = self.kernels((*COMPUTE, *COMMUNICATION))
        return self.kernels(COMMUNICATION) / everything if everything else None


@dataclass(frozen=True)
class Calls:
    """The calls of one place in the program over all devices, seconds. per_step: on one device; None = no step seen."""

    kind: Kind
    place: str
    count: int
    median: float
    p95: float
    total: float
    per_step: float | None


@dataclass(frozen=True)
class Breakdown:
    """A profile, judged. source: its file. steps: how many began in it."""

    source: str
    devices: Sequence[Device]
    steps: int
    calls: Sequence[Calls]


def breakdown(trace: Trace, rows: Sequence[Row], single: bool = False) -> Breakdown:
    """The time of every device. rows: of the table of kernels. single: the run has one NVLink domain."""
    times = [(min(one.start), max(one.end)) for one in trace.devices if len(one.start)]
    if not times:
        return Breakdown(trace.source, (), len(trace.steps), ())
    window = min(start for start, _ in times), max(end for _, end in times)
    devices, calls = [], _Calls()
    for one in trace.devices:
        if not len(one.start):
            continue  # another process's GPU, which this one's profile names and knows nothing of
        kinds = [kind_of(rows, key.name, f"{key.op} {key.scopes}") for key in one.keys]
        devices.append(_device(one, kinds, window, single))
        calls.add(one, kinds)
    return Breakdown(trace.source, devices, len(trace.steps), calls.done(len(trace.steps) * len(times)))


def _device(events: Events, kinds: Sequence[Kind], window: tuple[int, int], single: bool) -> Device:
    active, alone, span = _sweep(events, [_KINDS.index(kind) for kind in kinds], window)
    each = array("q", bytes(8 * len(events.keys)))
    count: Counter[int] = Counter(events.key)
    for start, end, key in zip(events.start, events.end, events.key, strict=True):
        each[key] += end - start
    sums: defaultdict[Kind, float] = defaultdict(float)
    calls: Counter[Kind] = Counter()
    streams: defaultdict[str, defaultdict[Kind, float]] = defaultdict(lambda: defaultdict(float))
    fabrics: defaultdict[str, float] = defaultdict(float)
    others: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
    for number, (known, kind) in enumerate(zip(events.keys, kinds, strict=True)):
        seconds = each[number] / 1e9
        sums[kind] += seconds
        calls[kind] += count[number]
        streams[known.stream][kind] += seconds
        if kind in COMMUNICATION:
            fabrics[fabric_of(known.name, single)] += seconds
        if kind is Kind.OTHER:
            others[known.name][0] += each[number]
            others[known.name][1] += count[number]
    parts = {
        kind: Part(sums[kind], active[index] / 1e9, alone[index] / 1e9, span[index] / 1e9, calls[kind])
        for index, kind in enumerate(_KINDS)
        if span[index] or calls[kind]
    }
    longest = sorted(((name, total / 1e9, many) for name, (total, many) in others.items()), key=lambda o: (-o[1], o[0]))
    return Device(events.device, (window[1] - window[0]) / 1e9, parts, streams, fabrics, longest[:10])


def _sweep(events: Events, kinds: Sequence[int], window: tuple[int, int]) -> tuple[list[int], list[int], list[int]]:
    """Per kind, ns: in which at least one ran, in which no computing did besides, and which it is given."""
    width = 2 * len(_KINDS)
    bounds = [start * width + 2 * kinds[key] + 1 for start, key in zip(events.start, events.key, strict=True)]
    bounds += [end * width + 2 * kinds[key] for end, key in zip(events.end, events.key, strict=True)]
    bounds.sort()
    running, active, alone, span = ([0] * len(_KINDS) for _ in range(4))
    computing, idle = len(COMPUTE), len(_KINDS) - 1
    now = window[0]
    for bound in bounds:
        at, what = divmod(bound, width)
        if at > now:
            present = [kind for kind in range(idle) if running[kind]]
            span[present[0] if present else idle] += at - now
            is_alone = not present or present[0] >= computing
            for kind in present:
                active[kind] += at - now
                if is_alone:
                    alone[kind] += at - now
            now = at
        running[what >> 1] += 1 if what & 1 else -1
    span[idle] += window[1] - now
    return active, alone, span


class _Calls:
    """Calls of the kinds of LATENCIES, by place. A call lasts from its first kernel's start to its last one's end."""

    def __init__(self) -> None:
        self._found: defaultdict[tuple[Kind, str], list[int]] = defaultdict(list)

    def add(self, events: Events, kinds: Sequence[Kind]) -> None:
        wanted = {number: (kind, events.keys[number].place) for number, kind in enumerate(kinds) if kind in LATENCIES}
        together: dict[tuple[Kind, str, int], tuple[int, int]] = {}
        for start, end, key, call in zip(events.start, events.end, events.key, events.call, strict=True):
            if key not in wanted:
                continue
            kind, place = wanted[key]
            if call < 0:
                self._found[kind, place].append(end - start)
            else:
                first, last = together.get((kind, place, call), (start, end))
                together[kind, place, call] = min(first, start), max(last, end)
        for (kind, place, _), (first, last) in together.items():
            self._found[kind, place].append(last - first)

    def done(self, steps: int) -> list[Calls]:
        """steps: over all devices. The longest in sum first, kind by kind."""
        found = [
            Calls(
                kind,
                place,
                len(times),
                statistics.median(times) / 1e9,
                sorted(times)[math.ceil(0.95 * len(times)) - 1] / 1e9,
                sum(times) / 1e9,
                len(times) / steps if steps else None,
            )
            for (kind, place), times in self._found.items()
        ]
        return sorted(found, key=lambda calls: (_KINDS.index(calls.kind), -calls.total, calls.place))
