"""What a supervisor decided after an attempt's end (attempts/<n>/decision.json, written by launcher/node/supervise.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.node.layout import AttemptFolder
from launcher.runs.store import Damaged, Run, read_object_if_there

STOP, RESTART, REQUEUE = "stop", "restart", "requeue"


@dataclass(frozen=True)
class Decision:
    """action: stop, restart (in the same allocation, after the pause) or requeue. reason: one line, how the attempt ended
    in it. exclude: nodes under suspicion. at: Unix seconds."""

    action: str
    reason: str
    pause_seconds: float = 0.0
    exclude: tuple[str, ...] = ()
    at: float = 0.0

    @property
    def goes_on(self) -> bool:
        """Whether another attempt shall follow by itself."""
        return self.action != STOP

    def added(self, reason: str) -> str:
        """What the decision's reason says beyond the attempt's own."""
        return self.reason.removesuffix(reason).rstrip(" ;:")


def decision_file(attempt: AttemptFolder) -> Path:
    """Where the supervisor writes what follows the attempt's end."""
    return attempt.path / "decision.json"


def decision_of(attempt: AttemptFolder) -> Decision | None:
    """What was decided; None as long as nothing is, or without a supervisor. Raises Damaged."""
    data = read_object_if_there(decision_file(attempt))
    return None if data is None else _read(data, decision_file(attempt))


def _read(data: Mapping[str, Any], path: Path) -> Decision:
    try:
        found = Decision(
            str(data["action"]),
            str(data.get("reason", "")),
            float(data.get("pause_seconds") or 0),
            tuple(str(node) for node in data.get("exclude") or ()),
            float(data.get("at") or 0),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(path, f"is damaged: {error!r}") from error
    if found.action not in (STOP, RESTART, REQUEUE):
        raise Damaged(path, f"has the action {found.action!r}, wanted {STOP}, {RESTART} or {REQUEUE}")
    return found


def suspects(run: Run) -> tuple[str, ...]:
    """All nodes that a supervisor of this run wanted to do without, sorted. Raises Damaged."""
    found: set[str] = set()
    for number in run.layout.attempt_numbers():
        decision = decision_of(run.layout.attempt(number))
        found |= set(decision.exclude) if decision else set()
    return tuple(sorted(found))
