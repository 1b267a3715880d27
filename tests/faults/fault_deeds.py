"""What the rows of faults are written with."""

from typing import Any

from launcher.render.failure_table import own_signatures

EXAMPLE = {row.name: row.example for row in own_signatures()}
"""A line of each failure that is known, as it is printed."""

RESTARTED = ("restart failures", "stop")
TWICE = ("restart failures", "restart failures", "stop")
LONG = ("trainer.steps=40", "checkpoint.checkpoint_period=10")
"""More steps than the windows of the alarms want."""


def do(what: str, at: int | str, rank: int | None = None, **more: Any) -> dict[str, Any]:
    """One deed of fault_trainer.py."""
    return {"do": what, "at": at, "rank": rank, **more}
