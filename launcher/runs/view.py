"""What `watch` shows of a run: one look at it as values, as named rows for a terminal, and as one line."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from launcher.node.table import Row
from launcher.runs.attempts import State
from launcher.runs.events import Event, events, read
from launcher.runs.figures import duration
from launcher.runs.goodput import Goodput, Kind, goodput
from launcher.runs.status import Status, checkpoint_text, describe
from launcher.runs.store import Run

CURVE_STEPS = 2000
"""The newest steps whose losses are drawn."""

_LEAST_TFLOPS = 0.1  # below it (on CPUs) there is nothing to read
_BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Look:
    """A run at one moment. row: the newest step of the newest attempt that has one. losses: the newest ones, in order of
    attempts and steps. share: of the busiest rank's MoE receive buffer that is in use, None where TE does not say it."""

    status: Status
    goodput: Goodput
    events: Sequence[Event]
    is_live: bool
    row: Row | None = None
    losses: Sequence[float] = ()
    share: float | None = None


def look(run: Run) -> Look:
    """The run as it is now. Raises Damaged, Refused (a table of failures of the user's)."""
    judged, known = read(run)
    rows = [row for life in known.lives for row in life.rows[-CURVE_STEPS:]]
    measured = next((row for row in reversed(rows) if row.demand is not None and row.capacity), None)
    return Look(
        status=describe(judged),
        goodput=goodput(known),
        events=events(known, run),
        is_live=judged.is_live,
        row=rows[-1] if rows else None,
        losses=[row.loss for row in rows[-CURVE_STEPS:] if row.loss is not None],
        share=measured.demand / measured.capacity if measured and measured.demand and measured.capacity else None,
    )


def rows(seen: Look, width: int) -> list[tuple[str, str]]:
    """Name and text of each row that a terminal shows; width: columns for the text."""
    status = seen.status
    attempt = "" if status.attempt is None else f", attempt {status.attempt}"
    since = "" if status.elapsed_seconds is None else f", {duration(status.elapsed_seconds)}"
    found = [
        ("run", f"{status.run} on {status.target or 'an unknown target'}{f', {status.job}' if status.job else ''}"),
        ("state", f"{status.state}{attempt}{since}"),
        ("reason", status.reason),
        ("step", _steps(status, width)),
        ("loss", _loss(seen, width)),
        ("speed", _speed(seen)),
        ("headroom", "" if seen.share is None else _headroom(seen.share)),
        ("checkpoint", checkpoint_text(status) if status.state is not State.DAMAGED else ""),
        ("restarts", str(status.restarts)),
        ("goodput", seen.goodput.line()),
    ]
    return [(name, text) for name, text in found if text]


def line(seen: Look) -> str:
    """The same in one line, for a log or a pipe."""
    status = seen.status
    parts = [str(status.state)]
    if status.last_step is not None:
        parts.append(f"step {status.last_step + 1}/{status.steps}")
    if status.loss is not None:
        parts.append(f"loss {status.loss:.3f}")
    if status.seconds_per_step is not None:
        parts.append(f"{status.seconds_per_step:.3f} s/step")
    if status.tokens_per_second_per_device is not None:
        parts.append(f"{status.tokens_per_second_per_device:.1f} tokens/s/device")
    if seen.share is not None:
        parts.append(f"headroom {1 - seen.share:.1%}")
    if seen.goodput.wall:
        parts.append(f"goodput {seen.goodput.share(Kind.PRODUCTIVE):.1%}")
    if status.restarts:
        parts.append(f"restarts {status.restarts}")
    return "  ".join(parts)


def curve(values: Sequence[float], width: int) -> str:
    """The values as bars, at most `width` of them: each the mean of as many values; what is no number is a `!`.

    >>> curve([4, 3, float("nan"), 1], 8)
    '█▆!▁'
    """
    count = min(width, len(values))
    if count < 1:
        return ""
    cuts = [len(values) * index // count for index in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(cuts)]
    sound = [mean for mean in means if math.isfinite(mean)]
    low, high = min(sound, default=0.0), max(sound, default=0.0)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((mean - low) * scale)] if math.isfinite(mean) else "!" for mean in means)


def _steps(status: Status, width: int) -> str:
    if status.steps is None:
        return ""
    done = 0 if status.last_step is None else status.last_step + 1
    earlier = "" if status.step_attempt in (None, status.attempt) else f" (in attempt {status.step_attempt})"
    left = "" if status.eta_seconds is None else f", about {duration(status.eta_seconds)} left"
    said = f"{done} of {status.steps} ({done / status.steps:.0%}){earlier}{left}"
    room = min(40, width - len(said) - 2)
    full = round(room * min(1.0, done / status.steps))
    return f"{'█' * full}{'░' * (room - full)}  {said}" if room >= 10 else said


def _loss(seen: Look, width: int) -> str:
    if seen.status.loss is None:
        return ""
    norm = seen.row.grad_norm if seen.row is not None else None
    said = f"{seen.status.loss:.3f}{'' if norm is None else f', gradient norm {norm:.3g}'}"
    return f"{said}  {curve(seen.losses, width - len(said) - 2)}".rstrip()


def _speed(seen: Look) -> str:
    status = seen.status
    if status.seconds_per_step is None:
        return ""
    parts = [f"{status.seconds_per_step:.3f} s/step"]
    if status.tokens_per_second_per_device is not None:
        parts.append(f"{status.tokens_per_second_per_device:.1f} tokens/s/device")
    tflops = seen.row.tflops if seen.row is not None else None
    last = f"; the last one {tflops:.1f} TFLOP/s/device" if tflops is not None and tflops >= _LEAST_TFLOPS else ""
    return f"{', '.join(parts)} (median of {status.speed_steps} steps){last}"


def _headroom(share: float) -> str:
    if share > 1:
        return f"none: the busiest rank wants {share:.1%} of its MoE receive buffer, tokens are dropped"
    return f"{1 - share:.1%} of the busiest rank's MoE receive buffer is free"
