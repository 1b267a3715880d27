"""Stragglers: which nodes hold the others up. Each node samples its GPUs; node 0 compares those of all nodes.

Training is synchronous: every rank completes a step when the slowest has. So the steps alone name nobody, but a GPU that
runs at a lower clock than the others at the same work, or that its board slows down, is told by the driver. Lateness is
known between the ranks of one node alone: clocks of different nodes differ by more than what counts.

pace-node<i>.json: {"node", "host", "at", "gpus": [{"gpu", "samples", "clock": MHz, "slowed": share of the samples, "by"}],
"late": {rank: share of a step behind the node's first}, "found": [{"node", "host", "at", "why"}] (node 0's alone)}.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional, TypeVar

from .ending import read_object
from .layout import AttemptFolder

FIELDS = ("index", "clocks.sm", "power.draw", "temperature.gpu", "utilization.gpu", "clocks_event_reasons.active")
"""What nvidia-smi is asked for (MHz, W, degrees Celsius, %, a mask), read on an H200 with driver 580.159.04."""

REASONS = {0x08: "hardware slowdown", 0x20: "heat (driver)", 0x40: "heat (hardware)", 0x80: "power brake"}
"""Bits of the mask that tell of trouble (nvml.h, nvmlClocksEventReason*). A power cap (0x4) is usual under full load."""

BUSY = 50.0
"""Utilisation in % from which a sample counts: during a checkpoint or an evaluation on the CPU clocks say nothing (guess)."""

LEAST_SAMPLES = 5
SLOWED = 0.5
"""Share of the samples in which a board slows its GPU down, from which that is a state and no moment (guess)."""

LATE = 0.05
"""Share of a step by which a rank is behind its node's first: by less, ranks differ that print when it is their turn."""

SPREAD, LEAST, FEWEST = 5.0, 0.05, 3
"""Far below: by this many robust standard deviations (1.4826 x median absolute deviation) and by this share of the median,
of at least so many values."""

_FILE = re.compile(r"pace-node(\d{1,6})\.json")
_KEYS = {"gpu", "samples", "clock", "slowed", "by"}
_Key = TypeVar("_Key", bound=Hashable)


def far_below(values: Mapping[_Key, float]) -> dict[_Key, float]:
    """Those that are far below the median of all -> that median.

    >>> far_below({"a": 100, "b": 101, "c": 99, "d": 60})
    {'d': 99.5}
    """
    if len(values) < FEWEST:
        return {}
    median = statistics.median(values.values())
    spread = 1.4826 * statistics.median(abs(value - median) for value in values.values())
    limit = median - max(SPREAD * spread, LEAST * median)
    return {key: median for key, value in values.items() if value < limit}


class Sample(NamedTuple):
    """One GPU at one moment. clock: MHz; mask: why it is not faster; busy: utilisation in %."""

    gpu: str
    clock: float
    mask: int
    busy: float


def parse(text: str, fields: Sequence[str] = FIELDS) -> list[Sample]:
    """nvidia-smi's csv (noheader, nounits); a GPU whose clock it does not tell is left out.

    >>> parse("0, 1980, 652.1, 61, 100, 0x0000000000000044")
    [Sample(gpu='0', clock=1980.0, mask=68, busy=100.0)]
    """
    found = []
    for line in text.splitlines():
        row = dict(zip(fields, (part.strip() for part in line.split(","))))
        try:
            mask = int(row.get("clocks_event_reasons.active", "0"), 16)
        except ValueError:
            mask = 0
        try:
            found.append(Sample(row["index"], float(row["clocks.sm"]), mask, float(row.get("utilization.gpu", BUSY))))
        except (KeyError, ValueError):
            continue
    return found


def summary(samples: Sequence[Sequence[Sample]]) -> list[dict[str, Any]]:
    """One object a GPU (see above) of what was seen while it was busy, from the newest samples."""
    by_gpu: dict[str, list[Sample]] = {}
    for sample in (one for row in samples for one in row if one.busy >= BUSY):
        by_gpu.setdefault(sample.gpu, []).append(sample)
    found = []
    for gpu, seen in by_gpu.items():
        slowed = [sample.mask for sample in seen if any(sample.mask & bit for bit in REASONS)]
        by = [name for bit, name in REASONS.items() if any(mask & bit for mask in slowed)]
        clock = statistics.median(sample.clock for sample in seen)
        found.append(
            {"gpu": gpu, "samples": len(seen), "clock": clock, "slowed": round(len(slowed) / len(seen), 3), "by": by}
        )
    return found


def standing_out(reports: Mapping[int, Mapping[str, Any]]) -> dict[int, str]:
    """Node -> why it holds the others up. `reports`: pace-node<i>.json by node. Half of the nodes or more never stand out."""
    clocks: dict[tuple[int, str], float] = {}
    why: dict[int, list[str]] = {}
    for node, report in sorted(reports.items()):
        for gpu in report.get("gpus") or ():
            if gpu["samples"] < LEAST_SAMPLES:
                continue
            clocks[node, gpu["gpu"]] = gpu["clock"]
            if gpu["slowed"] >= SLOWED:
                cause = " and ".join(gpu["by"])
                why.setdefault(node, []).append(f"GPU {gpu['gpu']} is slowed down by {cause} most of the time")
        for rank, share in (report.get("late") or {}).items():
            if share >= LATE:
                why.setdefault(node, []).append(f"rank {rank} is the last by {share:.0%} of a step".replace("%", " %"))
    for (node, gpu_name), median in far_below(clocks).items():
        clock = clocks[node, gpu_name]
        below = f"{clock:.0f} MHz against a median of {median:.0f}, {1 - clock / median:.0%} below".replace("%", " %")
        why.setdefault(node, []).append(f"GPU {gpu_name} at {below}")
    if not why or 2 * len(why) >= len(reports):
        return {}
    return {node: "; ".join(texts[:4]) for node, texts in sorted(why.items())}


def read(attempt: AttemptFolder) -> dict[int, dict[str, Any]]:
    """Every node's report in an attempt's folder; what cannot be read is left out."""
    try:
        names = sorted(path.name for path in attempt.path.iterdir())
    except OSError:
        return {}
    found: dict[int, dict[str, Any]] = {}
    for match in map(_FILE.fullmatch, names):
        report = read_object(Path(attempt.path) / match[0]) if match else None
        if match and report is not None and all(gpu.keys() >= _KEYS for gpu in report.get("gpus") or ()):
            found[int(match[1])] = report
    return found


def found_in(attempt: AttemptFolder) -> list[dict[str, Any]]:
    """What node 0 has found: {"node", "host", "at": Unix seconds, "why"}, once for each node."""
    told = (read_object(attempt.pace(0)) or {}).get("found")
    rows = told if isinstance(told, list) else []
    return [one for one in rows if isinstance(one, dict) and {"node", "host", "at", "why"} <= one.keys()]


def suspects(attempt: AttemptFolder) -> tuple[int, ...]:
    """The nodes that were found to hold the others up and still did when last seen."""
    told = {one["node"] for one in found_in(attempt)}
    return tuple(sorted(told & set(standing_out(read(attempt))))) if told else ()


class Lateness:
    """How far each rank of this node is behind the node's first, in shares of a step; a median over the newest steps."""

    KEPT = 64

    def __init__(self, ranks: Sequence[int]) -> None:
        self._ranks = frozenset(ranks)
        self._step: Optional[int] = None
        self._seen: dict[int, float] = {}
        self._last_first: Optional[float] = None
        self._behind: list[dict[int, float]] = []

    def feed(self, rank: int, step: int, now: float) -> None:
        """A rank completed a step at `now`, in seconds of a clock that does not jump."""
        if step != self._step:
            self._step, self._seen = step, {}
        self._seen.setdefault(rank, now)
        if self._seen.keys() == self._ranks:
            first = min(self._seen.values())
            if self._last_first is not None and first > self._last_first:
                length = first - self._last_first
                self._behind.append({one: (at - first) / length for one, at in self._seen.items()})
                del self._behind[: -self.KEPT]
            self._last_first = first
            self._seen = {}

    def shares(self) -> dict[str, float]:
        """Rank -> share of a step behind; empty for one rank, or before there is enough to say."""
        if len(self._ranks) < FEWEST or len(self._behind) < LEAST_SAMPLES:
            return {}
        medians = {rank: statistics.median(one[rank] for one in self._behind) for rank in self._ranks}
        usual = statistics.median(medians.values())
        return {str(rank): round(share - usual, 4) for rank, share in sorted(medians.items()) if share - usual >= LATE}
