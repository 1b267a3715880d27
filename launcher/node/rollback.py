"""What follows when the numbers went wrong and monitor.* says `rollback`: the checkpoints that may hold what did it are moved
aside, and the next attempt goes on from the clean one before, with other data where MaxText can be told to take others.

data_shuffle_seed is what changes MaxText's batches (input_pipeline/*.py of maxtext 0.2.5): Grain keeps its position in the
checkpoint and goes on from there in the order of the new seed; the others begin their files anew at each start.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

from .alarms import Alarm
from .checkpoints import committed_steps, held_by, set_aside
from .codes import Code, Outcome, outcome_of
from .ending import read_object
from .launch import Launch
from .layout import AttemptFolder, RunFolder
from .numbers import word_of
from .policy import ROLLBACK
from .record import write_json
from .verdict import Verdict

KEY = "rollback"
"""Of such an entry in adjust.json's history: `old` is the last step, `new` the checkpoint, null = from the start."""

SEED = "data_shuffle_seed"
_SETTLED = (Code.FINISHED, Code.CONFIG_REFUSED)  # nothing follows, or nothing would help


def act(
    verdict: Verdict,
    found: Optional[Alarm],
    *,
    launch: Launch,
    run: RunFolder,
    attempt: AttemptFolder,
    checkpoints: Optional[Path],
) -> Verdict:
    """Node 0's part after an alarm that asked for the end, whoever was first to end the attempt: MaxText aborts on NaN by itself.

    found: None = there was none, and the verdict is given back as it is. checkpoints: None = on remote storage. The verdict
    keeps the code of a stop signal or of a broken node, becomes 74 for the trainer's own end, and 74 without an entry in
    adjust.json where a person is needed. Raises OSError.
    """
    if found is None or verdict.code in _SETTLED:
        return verdict
    policy = word_of(launch.policy, found.kind)
    if found.text not in verdict.reason:
        verdict = replace(verdict, reason=f"{found.text}; {verdict.reason}")
    since = found.step if found.since is None else found.since
    if policy != ROLLBACK:
        cure = held_by(checkpoints, since) or "; resume goes on from the newest checkpoint"
        return _final(
            verdict, f"monitor.{found.kind}={policy}{cure}; monitor.{found.kind}=rollback goes back by itself"
        )
    adjusted = read_object(run.adjust) or {}
    past: list[dict[str, Any]] = list(adjusted.get("history") or [])
    been = [entry.get("new") for entry in past if entry.get("key") == KEY]
    if checkpoints is None:
        unseen = _unseen(launch, since, verdict.last_step)
        if unseen is not None:
            why = f"a checkpoint of step {unseen} may hold what went wrong, and it lies on remote storage"
            return _final(verdict, f"{why}: delete what is of step {since} or later, then resume")
        target, tried = _before(launch, since), _before(launch, since) in been
    else:
        target, tried = _target(
            [step for step in committed_steps(checkpoints) if step < since], been, launch.checkpoint_period
        )
    if tried:
        where = "from the start" if target is None else f"from step {target}"
        return _final(verdict, f"an earlier rollback went on {where} already, and there is no checkpoint before that")
    moved = (
        [] if checkpoints is None else set_aside(checkpoints, 0 if target is None else target + 1, attempt.number, KEY)
    )
    keys = dict(adjusted.get("maxtext") or {})
    data = _other_data(launch, keys)
    entry = {"attempt": attempt.number, **_entry(found, verdict.last_step, target, data, moved)}
    write_json(run.adjust, {**adjusted, "maxtext": keys, "history": [*past, entry]})
    code = verdict.code if verdict.outcome not in (Outcome.TRAINER, Outcome.DIVERGED) else int(Code.DIVERGED)
    kept = verdict.checkpoint if checkpoints is None else target
    aside = f"; set aside: {', '.join(map(str, moved))}" if moved else ""
    reason = f"{verdict.reason}; {told(entry)}{aside}"
    return replace(verdict, code=code, outcome=outcome_of(code), reason=reason, checkpoint=kept)


def _entry(
    found: Alarm, last: Optional[int], target: Optional[int], data: Optional[dict[str, Any]], moved: Sequence[Path]
) -> dict[str, Any]:
    """What adjust.json's history says of it, but for the attempt's number."""
    return {
        "step": found.step,
        "key": KEY,
        "old": last,
        "new": target,
        "why": found.text,
        "kind": found.kind,
        "data": data,
        "moved": [str(path) for path in moved],
        "at": time.time(),
    }


def _target(clean: Sequence[int], been: Sequence[Optional[int]], period: int) -> tuple[Optional[int], bool]:
    """The checkpoint to go on from, None = from the start; and whether that was done before, and nothing earlier is left.

    One that an earlier rollback went back to did not help: what is wrong may be in it. Before the first one that is there
    comes the start only if it is the run's first: others may have been removed, and the start would lose all.

    >>> _target([4, 8], [], 4), _target([4, 8], [8], 4), _target([4, 8], [8, 4], 4), _target([4], [4, None], 4)
    ((8, False), (4, False), (None, False), (4, True))
    >>> _target([80, 84], [84, 80], 4), _target([], [], 4), _target([], [None], 4)
    ((80, True), (None, False), (None, True))
    """
    fresh = [step for step in clean if step not in been]
    if fresh:
        return fresh[-1], False
    if clean and (clean[0] > period or None in been):
        return clean[0], True
    return None, None in been


def _unseen(launch: Launch, since: int, last: Optional[int]) -> Optional[int]:
    """The first step from `since` on at which MaxText has saved by its period (step % period == 0), or None.

    A step is trained while the line of the one before is printed, so one more than the last may be saved.
    """
    period = launch.checkpoint_period
    if not launch.checkpointing or period < 1:
        return None
    step = -(-since // period) * period
    return step if step <= (since if last is None else last + 1) else None


def _before(launch: Launch, since: int) -> Optional[int]:
    """The newest checkpoint before `since` that MaxText's period makes; None = none."""
    period = launch.checkpoint_period
    return (since - 1) // period * period if launch.checkpointing and period >= 1 and since > 0 else None


def _other_data(launch: Launch, keys: dict[str, Any]) -> Optional[dict[str, Any]]:
    """Puts another order of the data into `keys`, and says what changed; None where there is no other."""
    if launch.data_seed is None:
        return None
    old = int(keys.get(SEED, launch.data_seed))
    keys[SEED] = old + 1
    return {"key": SEED, "old": old, "new": old + 1}


def told(entry: Mapping[str, Any]) -> str:
    """What an entry of adjust.json's history changed, in words; of a changed key, its name and values.

    >>> told({"key": "rollback", "new": 8, "data": {"key": "data_shuffle_seed", "old": 0, "new": 1}})
    'back to the checkpoint of step 8, with other data (data_shuffle_seed 0 -> 1)'
    >>> told({"key": "rollback", "new": None, "data": None})
    'back to the start, with the same data'
    >>> told({"key": "ragged_buffer_factor", "old": 1.0, "new": 1.29})
    'ragged_buffer_factor 1.0 -> 1.29'
    """
    target, data = entry.get("new"), entry.get("data")
    if entry.get("key") != KEY:
        return f"{entry.get('key')} {entry.get('old')} -> {target}"
    where = "back to the start" if target is None else f"back to the checkpoint of step {target}"
    if not isinstance(data, Mapping):
        return f"{where}, with the same data"
    return f"{where}, with other data ({data.get('key')} {data.get('old')} -> {data.get('new')})"


def _final(verdict: Verdict, why: str) -> Verdict:
    code = int(Code.DIVERGED)
    return replace(verdict, code=code, outcome=outcome_of(code), reason=f"{verdict.reason}; {why}")
