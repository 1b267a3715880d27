"""A profile's breakdown for a terminal, for scripts, and as a plot."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from launcher.report.kinds import COMMUNICATION, COMPUTE, COPIES, Kind, shown
from launcher.report.text import rounded
from launcher.report.trace import Breakdown, Calls, Device

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ARTICLE = 0.84
"""Communication's share of accumulated kernel time in the article's baseline (DeepSeek-V3, 128 GB200)."""

_PLACES = 8  # places of a kind that are listed in the terminal; JSON has all
_OTHERS = 5  # unknown kernels listed
_LONGEST = 90  # characters of a name

_COLOURS: Mapping[Kind, str] = {
    Kind.GROUPED_GEMM: "#1a7f37",
    Kind.GEMM: "#57ab5a",
    Kind.ATTENTION: "#8ddb8c",
    Kind.QUANTIZE: "#b4e0b4",
    Kind.PERMUTE: "#c9d1a0",
    Kind.OTHER: "#dcdccc",
    Kind.DISPATCH: "#c44536",
    Kind.COMBINE: "#e2711d",
    Kind.ALL_TO_ALL: "#ee9b4b",
    Kind.ALL_GATHER: "#1b6ca8",
    Kind.REDUCE_SCATTER: "#5b9bd5",
    Kind.ALL_REDUCE: "#9d4edd",
    Kind.SEND_RECV: "#c77dff",
    Kind.OTHER_COLLECTIVE: "#d9b8f0",
    Kind.COPY_TO_HOST: "#555555",
    Kind.COPY_TO_DEVICE: "#7a7a7a",
    Kind.COPY: "#a0a0a0",
    Kind.IDLE: "#eeeeee",
}


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 3]}..."


def _time(seconds: float) -> str:
    """Milliseconds, or microseconds below one of them."""
    return f"{seconds * 1e3:,.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:,.1f} us"


def _device_lines(device: Device, steps: int) -> list[str]:
    idle = device.active((Kind.IDLE,))
    each = f", {_time(device.span / steps)} a step" if steps else ""
    busy = device.span - idle
    lines = [f"{device.name}: {_time(device.span)}{each}; busy {busy / device.span:.1%}, idle {idle / device.span:.1%}"]
    lines.append(f"  {'kind':<18}{'of span':>9}{'kernels':>13}{'exposed':>13}{'overlapped':>13}{'calls':>9}")
    for kind in Kind:
        part = device.parts.get(kind)
        if part is None:
            continue
        beside = kind in COMMUNICATION or kind in COPIES
        exposed = _time(part.alone) if beside else ""
        overlapped = _time(part.active - part.alone) if beside else ""
        kernels = "" if kind is Kind.IDLE else _time(part.kernels)
        calls = "" if kind is Kind.IDLE else str(part.calls)
        share = part.span / device.span
        lines.append(f"  {shown(kind):<18}{share:>9.1%}{kernels:>13}{exposed:>13}{overlapped:>13}{calls:>9}".rstrip())
    return lines + _detail_lines(device)


def _detail_lines(device: Device) -> list[str]:
    lines = []
    if device.communication is not None:
        ways = ", ".join(f"{way} {_time(seconds)}" for way, seconds in sorted(device.fabrics.items()))
        lines.append(
            f"  communication is {device.communication:.1%} of the kernels' accumulated time"
            f" (the article's baseline: {ARTICLE:.0%}){'; by fabric: ' + ways if ways else ''}"
        )
    for stream, kinds in device.streams.items():
        told = sorted(kinds.items(), key=lambda pair: -pair[1])
        parts = ", ".join(f"{shown(kind)} {_time(seconds)}" for kind, seconds in told if seconds)
        lines.append(f"  {stream.partition('(')[0]:<18}{parts}")
    for name, seconds, many in device.others[:_OTHERS]:
        lines.append(f"  other: {_time(seconds):>12} in {many:>5} calls  {_short(name)}")
    return lines


def _calls_lines(calls: Sequence[Calls]) -> list[str]:
    lines: list[str] = []
    for kind in dict.fromkeys(each.kind for each in calls):
        found = [each for each in calls if each.kind is kind]
        for each in found[:_PLACES]:
            rate = "" if each.per_step is None else f", {each.per_step:.4g} a step"
            told = f"median {_time(each.median)}, p95 {_time(each.p95)}, {each.count} calls{rate}"
            lines.append(f"  {shown(kind):<14}{told}  {_short(each.place)}")
        if len(found) > _PLACES:
            lines.append(f"  {shown(kind):<14}and {len(found) - _PLACES} more: --json has all")
    return ["one call", *lines] if lines else []


def trace_text(found: Breakdown) -> str:
    """The lines of `report --trace`."""
    steps = f"{found.steps} training step{'s' * (found.steps != 1)}" if found.steps else "no training step annotated"
    lines = [f"profile      {found.source}: {len(found.devices)} device(s), {steps}", ""]
    for device in found.devices:
        lines += _device_lines(device, found.steps)
    return "\n".join(lines + _calls_lines(found.calls))


def trace_json(found: Breakdown) -> dict[str, Any]:
    """Everything, in seconds."""
    return {
        "source": found.source,
        "steps": found.steps,
        "devices": [_device_json(device) for device in found.devices],
        "calls": [
            {
                "kind": each.kind.value,
                "place": each.place,
                "count": each.count,
                "per_step": rounded(each.per_step),
                "median_s": rounded(each.median),
                "p95_s": rounded(each.p95),
                "total_s": rounded(each.total),
            }
            for each in found.calls
        ],
    }


def _device_json(device: Device) -> dict[str, Any]:
    return {
        "device": device.name,
        "span_s": device.span,
        "kinds": {
            kind.value: {
                "span_s": part.span,
                "kernels_s": part.kernels,
                "active_s": part.active,
                "exposed_s": part.alone if kind not in (*COMPUTE, Kind.IDLE) else None,
                "calls": part.calls,
            }
            for kind, part in sorted(device.parts.items(), key=lambda pair: tuple(Kind).index(pair[0]))
        },
        "communication_share_of_kernels": rounded(device.communication),
        "streams": {
            stream: {kind.value: seconds for kind, seconds in sorted(kinds.items(), key=lambda pair: pair[0].value)}
            for stream, kinds in device.streams.items()
        },
        "fabrics": dict(sorted(device.fabrics.items())),
        "others": [{"kernel": name, "seconds": seconds, "calls": many} for name, seconds, many in device.others],
    }


def trace_plot(found: Breakdown) -> tuple[float, Callable[[Axes], None]]:
    """Height in inches, and what draws every device's span by kind."""

    def draw(axes: Axes) -> None:
        names = [device.name for device in found.devices]
        for kind, colour in _COLOURS.items():
            widths = [device.active((kind,)) / device.span for device in found.devices]
            before = [
                sum(device.active((other,)) for other in list(_COLOURS)[: list(_COLOURS).index(kind)]) / device.span
                for device in found.devices
            ]
            if any(widths):
                axes.barh(names, widths, left=before, color=colour, label=shown(kind))
        axes.set_xlim(0, 1)
        axes.set_xlabel("share of the span")
        axes.invert_yaxis()
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.35), ncols=6, fontsize=8, frameon=False)

    return 1.8 + 0.3 * len(found.devices), draw
