"""Which checkpoints of a run are complete on disk.

Orbax (as maxtext 0.2.5 uses it) writes `<step>.orbax-checkpoint-tmp` and renames it when everything is there; the
finished folder holds `_CHECKPOINT_METADATA` and, from MaxText, `commit_success.txt`.
"""

from __future__ import annotations

import os
from pathlib import Path

MARKS = ("commit_success.txt", "_CHECKPOINT_METADATA")
UNFINISHED = ".orbax-checkpoint-tmp"


def committed_steps(folder: Path) -> list[int]:
    """The steps with a complete checkpoint under `folder`, ascending; empty when the folder is not there."""
    if not folder.is_dir():
        return []
    return sorted(int(entry.name) for entry in folder.iterdir() if entry.name.isdigit() and is_committed(entry))


def is_committed(checkpoint: Path) -> bool:
    """Whether one step's folder is complete: it has a commit mark and no part that is still being written."""
    if not any((checkpoint / mark).exists() for mark in MARKS):
        return False
    return not any(UNFINISHED in part.name for part in checkpoint.iterdir())


def newest(folder: Path) -> int | None:
    """The last completed step that a new attempt would resume from, or None."""
    steps = committed_steps(folder)
    return steps[-1] if steps else None


def set_aside(folder: Path, step: int, attempt: int, why: str) -> list[Path]:
    """Moves the complete checkpoints from `step` on beside `folder`, to `<folder>.<why>/<step>.attempt<attempt>`, where
    MaxText and Orbax do not look. Deletes nothing. Raises OSError.
    """
    moved = []
    for tainted in [found for found in committed_steps(folder) if found >= step]:
        aside = folder.with_name(f"{folder.name}.{why}")
        aside.mkdir(exist_ok=True)
        target = aside / f"{tainted}.attempt{attempt}"
        os.rename(folder / str(tainted), target)
        moved.append(target)
    return moved


def held_by(checkpoints: Path | None, step: int) -> str:
    """What a person must know who goes on from here by hand: which checkpoints hold it; "" when none does."""
    tainted = [found for found in committed_steps(checkpoints) if found >= step] if checkpoints is not None else []
    if not tainted:
        return ""
    names = ", ".join(str(found) for found in tainted[-8:])
    return f"; the checkpoint(s) of step {names} hold it: move them out of {checkpoints} before `resume`"
