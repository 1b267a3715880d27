"""What one finished run says about the speed of its cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from launcher.plan.numbers import Kind
from launcher.runs.attempts import State
from launcher.runs.calibration import Measured
from launcher.runs.status import Status
from launcher.runs.store import Run, read_object_if_there

FEWEST_STEPS = 5
"""Steps, the first three not counted, below which a run says nothing about its speed."""

SENSIBLE = (0.2, 20.0)
"""Measured / expected outside of this is a run of something else (a wrong hardware file), not of a slow cluster."""


def measure(run: Run, status: Status) -> Measured | str:
    """What a run measured, or why it says nothing."""
    if status.state is not State.FINISHED:
        return f"{status.state}, not finished"
    if status.seconds_per_step is None or status.speed_steps < FEWEST_STEPS:
        return f"{status.speed_steps} steps to measure, at least {FEWEST_STEPS} are wanted"
    plan = read_object_if_there(run.layout.bundle.path / "plan.json") or {}
    numbers: Mapping[str, Any] = plan.get("numbers") or {}
    kind, time = numbers.get("kind"), numbers.get("time")
    if not kind or not time:
        return "its plan expects no step time"
    found = Measured(
        run.name, Kind(kind["cluster"], kind["container"], kind["model"]), status.seconds_per_step, time["expected_s"]
    )
    if not SENSIBLE[0] <= found.factor <= SENSIBLE[1]:
        return f"measured / expected = {found.factor:.3g}: is the hardware file the right one?"
    return found
