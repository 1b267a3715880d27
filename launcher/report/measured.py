"""One run's worth, as values: speed with its window, loss, memory, headroom, goodput, restarts, and where it comes from."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.node import marks as m
from launcher.node.layout import AttemptFolder
from launcher.node.trainer import MEMORY
from launcher.report.window import Profile, Window, window
from launcher.runs import events, first_step
from launcher.runs.attempts import Judged
from launcher.runs.goodput import Goodput, goodput
from launcher.runs.history import History
from launcher.runs.store import Run, read_object_if_there

GIB = 1 << 30
_TAIL = 1 << 16  # bytes of a rank's log in which the trainer's last lines stand
_PEAK = re.compile(rb"^%b.*\bpeak_bytes_in_use (\d+)" % re.escape(MEMORY.encode()), re.MULTILINE)


@dataclass(frozen=True)
class Asked:
    """What the run's plan says of one GPU. None = the plan does not say.

    flop: model FLOP of a step (MaxText's formula). tokens: of a step. peak: FLOP/s of the precision in use. expected, low,
    high: seconds a step, as predicted at the submission. memory, limit: bytes that the step needs, and that XLA may use.
    """

    gpus: int = 0
    nodes: int = 0
    hardware: str = ""
    model: str = ""
    flop: float | None = None
    tokens: float | None = None
    peak: float | None = None
    expected: float | None = None
    low: float | None = None
    high: float | None = None
    memory: float | None = None
    limit: float | None = None


@dataclass(frozen=True)
class Ended:
    """One attempt: its first and last step, how it ended, what followed, and the seconds of each piece of its start."""

    attempt: int
    first: int | None
    last: int | None
    outcome: str
    reason: str
    followed: str
    start: Mapping[str, float]


@dataclass(frozen=True)
class Report:
    """A run as it was measured. losses, headroom: (step, value), of a step that was trained twice the later value; headroom is
    the busiest rank's share of its MoE receive buffer. Memory in bytes: compiled: XLA's own estimate. peak: the allocator's,
    of the fullest device that told it, in the newest attempt that did.
    """

    run: str
    experiment: str
    state: str
    target: str
    steps: int
    last_step: int | None
    asked: Asked
    window: Window | None
    losses: Sequence[tuple[int, float]]
    headroom: Sequence[tuple[int, float]]
    compiled: float | None
    peak: int | None
    goodput: Goodput
    attempts: Sequence[Ended]
    adjusted: Sequence[Mapping[str, Any]]
    provenance: Mapping[str, Any]

    def tflops(self, seconds: float) -> float | None:
        """Model TFLOPS of a GPU at so many seconds a step."""
        return None if self.asked.flop is None else self.asked.flop / seconds / 1e12

    def mfu(self, seconds: float) -> float | None:
        """Of the GPU's peak in the precision in use."""
        if self.asked.flop is None or not self.asked.peak:
            return None
        return self.asked.flop / seconds / self.asked.peak

    def rate(self, seconds: float) -> float | None:
        """Tokens a second and GPU."""
        return None if self.asked.tokens is None else self.asked.tokens / seconds


def report(run: Run) -> Report:
    """The report of a run, now. Raises Damaged."""
    judged, told = events.read(run)
    plan = read_object_if_there(run.layout.bundle.path / "plan.json") or {}
    rows = {row.step: row for life in told.lives for row in life.rows}
    ordered = [rows[step] for step in sorted(rows)]
    return Report(
        run=run.name,
        experiment=str(run.record.get("experiment", "")),
        state=str(judged.state),
        target=run.target,
        steps=told.steps,
        last_step=max(rows, default=None),
        asked=_asked(plan),
        window=window(told, _profile(run)),
        losses=[(row.step, row.loss) for row in ordered if row.loss is not None],
        headroom=[(row.step, row.demand / row.capacity) for row in ordered if row.demand is not None and row.capacity],
        compiled=_compiled(told),
        peak=_peak(run, told),
        goodput=goodput(told),
        attempts=_attempts(judged, told),
        adjusted=(read_object_if_there(run.layout.adjust) or {}).get("history") or (),
        provenance=read_object_if_there(run.layout.provenance) or {},
    )


def _asked(plan: Mapping[str, Any]) -> Asked:
    numbers, mesh, batch = (plan.get(key) or {} for key in ("numbers", "mesh", "batch"))
    time, memory = numbers.get("time") or {}, numbers.get("memory") or {}
    tokens, each = batch.get("tokens_per_device"), numbers.get("flops_per_token")
    peak = time.get("peak_tflops")
    return Asked(
        gpus=int(mesh.get("gpus", 0)),
        nodes=int(mesh.get("nodes", 0)),
        hardware=str(plan.get("hardware", "")),
        model=str((plan.get("model") or {}).get("name", "")),
        flop=None if tokens is None or each is None else float(each) * float(tokens),
        tokens=None if tokens is None else float(tokens),
        peak=None if peak is None else float(peak) * 1e12,
        expected=time.get("expected_s"),
        low=time.get("low_s"),
        high=time.get("high_s"),
        memory=memory.get("total_bytes"),
        limit=memory.get("limit_bytes") or None,
    )


def _profile(run: Run) -> Profile:
    """The profiler's window, from MaxText's keys in the bundle; its defaults are MaxText 0.2.5's."""
    import yaml

    keys: dict[str, Any] = {}
    path = run.layout.bundle.maxtext
    if path.exists():
        keys = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    keys |= run.launch().get("arguments") or {}
    if not keys.get("profiler"):
        return Profile()
    return Profile(int(keys.get("skip_first_n_steps_for_profiler", 1)), int(keys.get("profiler_steps", 5)))


def _compiled(told: History) -> float | None:
    """What MaxText prints after compiling, "12.3 GB" of 1024^3 bytes; the newest attempt's."""
    said = [mark.text for life in told.lives for mark in life.marks if mark.kind == m.COMPILED]
    match = re.match(r"([\d.]+)", said[-1]) if said else None
    return float(match[1]) * GIB if match else None


def _peak(run: Run, told: History) -> int | None:
    """Over the ranks whose logs are here, of the newest attempt whose rank 0 came to its end."""
    for life in reversed(told.lives):
        attempt = run.layout.attempt(life.number)
        if _peaks(attempt.rank_log(0)):
            return max(peak for path in _rank_logs(attempt) for peak in _peaks(path))
    return None


def _rank_logs(attempt: AttemptFolder) -> list[Path]:
    return sorted(attempt.path.glob("rank*.log"))


def _peaks(log: Path) -> list[int]:
    """What trainer.py wrote after the end, a device each; nothing while it runs, on a CPU, or after a kill."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL))
            return [int(peak) for peak in _PEAK.findall(file.read())]
    except OSError:
        return []


def _attempts(judged: Judged, told: History) -> list[Ended]:
    found = []
    for life in told.lives:
        is_now = judged.is_live and life is told.lives[-1]
        decision = life.decision
        found.append(
            Ended(
                life.number,
                life.rows[0].step if life.rows else None,
                life.rows[-1].step if life.rows else None,
                "running" if is_now else life.outcome or "ended without a word",
                life.reason,
                "" if decision is None else f"{decision.action}: {decision.reason}",
                {name: round(value, 3) for name, value in first_step.seconds(life).items()},
            )
        )
    return found


def finite(value: float | None) -> float | None:
    """JSON knows no NaN and no infinity: None."""
    return value if value is not None and math.isfinite(value) else None
