"""A run's newest checkpoint: seen in its folder, or as its workers told where that folder cannot be seen from here."""

from __future__ import annotations

from dataclasses import dataclass

from launcher.node import checkpoints
from launcher.node.speech import CHECKPOINTS
from launcher.runs.store import Run, read_object_if_there
from launcher.targets import base


@dataclass(frozen=True)
class Saved:
    """step: of the newest committed checkpoint, None = there is none. at: Unix seconds, None = nobody says.

    is_known: False where it can neither be seen nor has been told: `step` then says nothing.
    """

    step: int | None = None
    at: float | None = None
    is_known: bool = True


def saved(run: Run) -> Saved:
    """The newest checkpoint of a run. Raises Damaged."""
    if run.target in base.DISTANT:
        return _told(run)
    folder = run.checkpoints()
    if folder is None:
        return Saved(is_known=False)
    step = checkpoints.newest(folder)
    if step is None:
        return Saved()
    try:
        return Saved(step, (folder / str(step)).stat().st_mtime)
    except OSError:  # removed just now: MaxText keeps only so many
        return Saved(step)


def _told(run: Run) -> Saved:
    """By the newest attempt that said anything: its list of checkpoints, and what its result says came after."""
    for number in reversed(run.layout.attempt_numbers()):
        attempt = run.layout.attempt(number)
        listed = read_object_if_there(attempt.path / CHECKPOINTS)
        last = (read_object_if_there(attempt.result()) or {}).get("checkpoint")
        if listed is None and last is None:
            continue
        steps = [*((listed or {}).get("steps") or ()), *([last] if isinstance(last, int) else [])]
        step = max(steps, default=None)
        at = (listed or {}).get("at")
        is_dated = isinstance(at, int | float) and step in (listed or {}).get("steps", ())
        return Saved(step, float(at) if is_dated and at is not None else None)
    return Saved(is_known=False)
