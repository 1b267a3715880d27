"""What the attempts of a submission have used up and brought, kept in their folders: the supervisor itself is killed often.

decision.json: {"action": "restart|requeue|stop", "reason": one line, "pause_seconds", "exclude": [nodes], "at": Unix seconds,
"charged": the budget or null, "host": the node that failed first or "", "spent": {budget: used so far}, "cause": null, or
{"name": of the failure table or "" for an unknown failure, "kind", "action", "cause", "who", "line"}}.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Optional, Union

from .budgets import BUDGETS, Action, Decision, Spent, plus
from .codes import outcome_of
from .ending import End, read_object, srun_log
from .failures import Finding
from .layout import AttemptFolder, RunFolder
from .record import write_json

CANCEL = "cancel.json"


def decision_file(attempt: AttemptFolder) -> Path:
    """What the supervisor decided after an attempt; absent while it runs, or when the job was ended from outside."""
    return attempt.path / "decision.json"


def was_used(attempt: AttemptFolder) -> bool:
    """Whether an attempt of this number was begun; a folder made by submit holds only the target's handle."""
    files = (attempt.started(), attempt.result(), decision_file(attempt), srun_log(attempt))
    return any(path.exists() for path in files)


def is_cancelled(run: RunFolder, first: int) -> bool:
    """Whether a person asked for the end of one of the attempts since `first`; it may have been asked of an older one."""
    return any((run.attempt(number).path / CANCEL).exists() for number in run.attempt_numbers() if number >= first)


@dataclass(frozen=True)
class Past:
    """The submission so far. excluded: nodes given up. hosts: those that failed first, one for each failure.

    checkpoint, step: the best of all attempts of the run, -1 before the first.
    """

    spent: Spent = field(default_factory=dict)
    excluded: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    checkpoint: int = -1
    step: int = -1

    def progressed(self, checkpoint: Optional[int], step: Optional[int]) -> bool:
        """Whether an attempt that came to this got further than every one before it."""
        return (checkpoint is not None and checkpoint > self.checkpoint) or (step is not None and step > self.step)


def read_past(run: RunFolder, first: int, before: int) -> Past:
    """What is known of the attempts before `before`; those since `first` have used up this submission's budgets."""
    past = Past()
    for number in run.attempt_numbers():
        if number >= before:
            break
        attempt = run.attempt(number)
        result = read_object(attempt.result()) or {}
        past = replace(
            past,
            checkpoint=max(past.checkpoint, _whole(result.get("checkpoint"))),
            step=max(past.step, _whole(result.get("last_step"))),
        )
        decision = read_object(decision_file(attempt))
        if number < first or decision is None:
            continue
        past = replace(past, spent=plus(past.spent, decision.get("charged")))
        host = str(decision.get("host") or "")
        past = replace(
            past,
            excluded=tuple(sorted({*past.excluded, *decision.get("exclude", ())})),
            hosts=(*past.hosts, host) if host else past.hosts,
        )
    return past


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else -1


def write_decision(
    attempt: AttemptFolder,
    decision: Decision,
    host: str,
    spent: Spent,
    cause: Union[Finding, Mapping[str, Any], None] = None,
) -> None:
    """decision.json. host: the node that failed first. spent: by the attempts before. cause: found, or as it was written."""
    write_json(
        decision_file(attempt),
        {
            "action": decision.action.value,
            "reason": decision.reason,
            "pause_seconds": decision.pause_seconds,
            "exclude": list(decision.exclude),
            "at": time.time(),
            "charged": decision.charged,
            "host": host,
            "spent": {**dict.fromkeys(BUDGETS, 0), **plus(spent, decision.charged)},
            "cause": _cause(cause) if isinstance(cause, Finding) else cause,
        },
    )


def _cause(found: Finding) -> dict[str, str]:
    row = found.signature
    words = {} if row is None else {"name": row.name, "kind": row.kind, "action": row.action, "cause": row.cause}
    return {**dict.fromkeys(("name", "kind", "action", "cause"), ""), **words, "who": found.who, "line": found.line}


def last_stop(run: RunFolder, numbers: Sequence[int]) -> Optional[tuple[int, dict[str, Any]]]:
    """The newest attempt's number and decision when that was to stop."""
    if not numbers:
        return None
    decision = read_object(decision_file(run.attempt(numbers[-1])))
    return (numbers[-1], decision) if decision is not None and decision.get("action") == Action.STOP.value else None


def write_missing_result(
    attempt: AttemptFolder,
    end: End,
    *,
    steps: int,
    step: Optional[int],
    checkpoint: Optional[int],
    started: float,
    start: str = "",
) -> None:
    """result.json for an attempt whose node 0 left none, so that every reader finds the reason in one place.

    Its key `by` tells it from a worker's.
    """
    write_json(
        attempt.result(),
        {
            "code": end.code,
            "outcome": outcome_of(end.code).value,
            "reason": end.reason,
            "first_step": None,
            "last_step": step,
            "steps": steps,
            "checkpoint": checkpoint,
            "ranks": [],
            "by": "supervisor",
            "started": started,
            "ended": time.time(),
            "start": start,
        },
    )
