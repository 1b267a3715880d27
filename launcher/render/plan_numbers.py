"""A plan's numbers as text with bars (plan.txt, `launcher plan`) and as JSON (plan.json)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from launcher.plan.memory import Memory
from launcher.plan.plan import Plan
from launcher.plan.throughput import Throughput
from launcher.plan.traffic import Traffic
from launcher.render.layout import WIDTH, fact_lines, packed

GIB = 1 << 30

MARKS = "#=+*o%@x~-."
"""One mark a piece of a bar, in order; neighbours differ without any colour."""

BAR = 72
"""Columns of a bar."""

ROOM = WIDTH - 11
"""Columns right of the names of the facts."""

SMALLEST = 0.005
"""A piece below this share of its bar is joined to the others."""

SECONDS_A_DAY = 86400


@dataclass(frozen=True)
class Piece:
    """One piece of a stacked bar."""

    name: str
    size: float


def significant(value: float, digits: int = 4) -> float:
    """Rounded to so many digits, so that a file holds no noise.

    >>> significant(6.50123), significant(0.000123456)
    (6.501, 0.0001235)
    """
    return float(f"{value:.{digits}g}")


def gib(size: float) -> str:
    """Bytes as GiB: 1.2, and tiny sizes as MiB.

    >>> gib(1.25 * 2**30), gib(2**20)
    ('1.2 GiB', '1.0 MiB')
    """
    return f"{size / GIB:,.1f} GiB" if size >= GIB / 20 or not size else f"{size / 2**20:,.1f} MiB"


def memory_pieces(memory: Memory) -> list[Piece]:
    """State, kept activations and what the step works with, as a bar shows them."""
    found = [
        Piece("state", memory.state_bytes),
        Piece("kept activations", memory.kept_bytes),
        *(Piece(part.name, part.bytes) for part in memory.working),
    ]
    return joined(found)


def joined(pieces: Sequence[Piece]) -> list[Piece]:
    """The pieces with the smallest put together."""
    total = sum(piece.size for piece in pieces)
    large = [piece for piece in pieces if piece.size >= SMALLEST * total and piece.size > 0]
    rest = total - sum(piece.size for piece in large)
    return [*large, Piece("other", rest)] if rest > SMALLEST * total else large


def time_pieces(time: Throughput) -> list[Piece]:
    """The terms of the expected time, the largest first."""
    return joined([Piece(name, value) for name, value in sorted(time.terms.items(), key=lambda t: -t[1])])


def bar(pieces: Sequence[Piece], whole: float, limit: float = 0.0) -> str:
    """A stacked bar of `BAR` columns for `whole`; `|` marks the limit.

    >>> bar([Piece("a", 1), Piece("b", 1)], 4, 3)
    '##################==================                  |'
    """
    cells: list[str] = []
    reached = 0.0
    for mark, piece in zip(MARKS, pieces, strict=False):
        reached += piece.size
        cells += mark * (round(reached / whole * BAR) - len(cells))
    if limit:
        at = min(round(limit / whole * BAR), BAR)
        cells += " " * (at - len(cells))
        cells.insert(at, "|")
    return "".join(cells)


def legend(pieces: Sequence[Piece], said: Mapping[str, str]) -> str:
    """What the marks of a bar mean."""
    return packed([f"{mark} {piece.name} {said[piece.name]}" for mark, piece in zip(MARKS, pieces, strict=False)], ROOM)


def _memory_facts(plan: Plan, memory: Memory) -> list[tuple[str, str]]:
    pieces = memory_pieces(memory)
    if memory.verdict is None:
        return [("memory", f"{gib(memory.total)} a device")]
    of = f"{memory.fraction:g} x {gib(plan.experiment.hardware.hbm_bytes)}"
    told = f"{memory.verdict}: {gib(memory.total)} a GPU (+-{memory.error:.0%}) of {gib(memory.limit)} that XLA may use ({of})"
    facts = [
        ("memory", told),
        ("", bar(pieces, max(memory.total, memory.limit), memory.limit)),
        ("", legend(pieces, {p.name: f"{p.size / GIB:,.1f}" for p in pieces})),
    ]
    if memory.kept:
        facts.append(("kept", packed([f"{part.name} {gib(part.bytes)}" for part in memory.kept], ROOM)))
    if memory.offloaded:
        names = ", ".join(f"{part.name} {gib(part.bytes)}" for part in memory.offloaded)
        total = f"{gib(memory.host_per_node)} of a node's {gib(plan.experiment.hardware.host_memory_bytes)}"
        facts.append(("host", f"{names} a process, {total}"))
    return facts


def _traffic_line(traffic: Traffic) -> str:
    axes = dict.fromkeys(flow.axis for flow in traffic.flows)
    parts = []
    for axis in axes:
        nvlink, network = traffic.of(axis)
        sizes = [f"{size / 1e9:,.1f} GB {by}" for size, by in ((nvlink, "NVLink"), (network, "network")) if size >= 5e7]
        if sizes:
            parts.append(f"{axis} {' + '.join(sizes)}")
    return packed([*parts, "received by a GPU in a step"], ROOM) if parts else "none worth a number"


def _time_facts(time: Throughput, gpus: int) -> list[tuple[str, str]]:
    pieces = time_pieces(time)
    shares = {p.name: f"{p.size / time.expected:.0%}" for p in pieces}
    by = (
        f", x {time.calibration:.3g} by {time.runs} run{'s' if time.runs > 1 else ''} of this cluster"
        if time.runs
        else ""
    )
    a_gpu = time.tokens / time.expected
    rates = f"{time.tflops(time.expected):,.0f} TFLOPS a GPU, MFU {time.mfu:.1%} of {time.peak / 1e12:,.0f}"
    band = f"{time.tflops(time.high):,.0f} to {time.tflops(time.low):,.0f}"
    return [
        (
            "step",
            f"{time.expected:.3g} s expected, {time.low:.3g} to {time.high:.3g} likely{by}; never below {time.floor:.3g} s",
        ),
        ("", bar(pieces, time.expected)),
        ("", legend(pieces, shares)),
        ("speed", f"{rates} ({band} TFLOPS likely); {a_gpu:,.0f} tokens/s a GPU"),
        ("a day", f"{a_gpu * gpus * SECONDS_A_DAY / 1e9:,.3g} billion tokens for {gpus * 24:,} GPU-hours"),
    ]


def numbers_lines(plan: Plan) -> list[str]:
    """The section of plan.txt; one line of reason where there are no numbers."""
    if plan.numbers is None:
        return [f"Numbers: none, {plan.no_numbers}"] if plan.no_numbers and plan.mesh else []
    numbers, gpus = plan.numbers, plan.mesh.gpus if plan.mesh else 0
    counted = numbers.parameters
    active = f" ({counted.active / 1e9:,.1f} a token)" if counted.active != counted.total else ""
    size = f"{counted.total / 1e9:,.1f} billion parameters{active}"
    each = f"{numbers.flops.total / 1e9:,.1f} GFLOP a token"
    if counted.total < 1e8:
        size, each = f"{counted.total:,} parameters", f"{numbers.flops.total / 1e6:,.3g} MFLOP a token"
    a_step = f", {numbers.throughput.flops / 1e12:,.0f} TFLOP a GPU and step" if numbers.throughput else ""
    facts = [("size", f"{size}, {each}{a_step}"), *_memory_facts(plan, numbers.memory)]
    if numbers.throughput is not None:
        facts += [("traffic", _traffic_line(numbers.traffic)), *_time_facts(numbers.throughput, gpus)]
    return ["Numbers (worked out, not measured; docs/plan.md says how well)", *fact_lines(facts)]


def cost_json(plan: Plan, price: float) -> dict[str, float]:
    """What a day, a billion tokens, and all steps cost in USD at a price a GPU and hour; empty without an expected time."""
    if plan.numbers is None or plan.numbers.throughput is None or plan.mesh is None or plan.settings is None:
        return {}
    time, steps = plan.numbers.throughput, plan.settings.keys.get("steps")
    hour, step = plan.mesh.gpus * price, time.expected / 3600
    found = {
        "usd_per_gpu_hour": price,
        "usd_per_day": hour * 24,
        "usd_per_billion_tokens": hour * step / (time.tokens * plan.mesh.gpus) * 1e9,
    }
    if isinstance(steps, int) and steps > 0:
        found |= {"steps": steps, "steps_hours": step * steps, "steps_usd": hour * step * steps}
    return {name: value if name == "steps" else significant(value) for name, value in found.items()}


def cost_line(plan: Plan, price: float) -> str:
    """The same in one line; empty without an expected time."""
    cost = cost_json(plan, price)
    if not cost:
        return ""
    told = f"{cost['usd_per_day']:,.0f} USD a day, {cost['usd_per_billion_tokens']:,.0f} USD a billion tokens"
    if "steps" in cost:
        told += f"; {cost['steps']:,} steps: {cost['steps_usd']:,.0f} USD in {cost['steps_hours']:,.1f} hours"
    return f"Price at {price:g} USD a GPU-hour: {told}"


def _time_json(time: Throughput, gpus: int) -> dict[str, object]:
    return {
        "floor_s": significant(time.floor),
        "expected_s": significant(time.expected),
        "low_s": significant(time.low),
        "high_s": significant(time.high),
        "terms_s": {name: significant(value) for name, value in time.terms.items()},
        "tflops_per_gpu": significant(time.tflops(time.expected)),
        "mfu": significant(time.mfu),
        "peak_tflops": significant(time.peak / 1e12),
        "tokens_per_s_per_gpu": significant(time.tokens / time.expected),
        "tokens_per_day": significant(time.tokens * gpus / time.expected * SECONDS_A_DAY),
        "gpu_hours_per_day": gpus * 24,
        "calibration": {"factor": significant(time.calibration), "runs": time.runs},
    }


def numbers_json(plan: Plan) -> dict[str, object] | None:
    """The numbers for a script: bytes and counts exact, times to four digits; null where there are none."""
    numbers = plan.numbers
    if numbers is None or plan.mesh is None:
        return None
    memory = numbers.memory
    return {
        "parameters": numbers.parameters.total,
        "active_parameters": numbers.parameters.active,
        "flops_per_token": significant(numbers.flops.total, 8),
        "memory": {
            "verdict": memory.verdict.value if memory.verdict else None,
            "total_bytes": memory.total,
            "limit_bytes": memory.limit,
            "relative_error": memory.error,
            "state": {part.name: part.bytes for part in memory.state},
            "kept": {part.name: part.bytes for part in memory.kept},
            "working": {part.name: part.bytes for part in memory.working},
            "receive_rows": memory.receive_rows,
            "host": {part.name: part.bytes for part in memory.offloaded},
            "host_bytes": memory.host,
            "host_bytes_per_node": memory.host_per_node,
        },
        "traffic": [
            {
                **{name: getattr(flow, name) for name in ("axis", "collective", "what", "calls")},
                "nvlink_bytes": flow.nvlink,
                "network_bytes": flow.network,
            }
            for flow in numbers.traffic.flows
        ],
        "kind": dataclasses.asdict(numbers.kind),
        "time": _time_json(numbers.throughput, plan.mesh.gpus) if numbers.throughput else None,
    }  # fmt: skip
