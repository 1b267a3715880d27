"""The folder of a sweep's job array: its text, and which run is which task. Written once, before it is submitted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from launcher.node.record import write_json

ARRAY = "array.sbatch"
SWEEPS = "sweeps"
"""Where the sweeps of a folder of runs lie in it."""
_TASKS = "sweep.json"


def folder_of(root: Path, name: str) -> Path:
    """Where a sweep lies in the folder of runs, symbolic links resolved, as its job's working directory has it."""
    return root.resolve() / SWEEPS / name


def write(folder: Path, text: str, runs: Sequence[str]) -> Path:
    """Write the array's text, and its runs in the order of its tasks. The text's path comes back."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / _TASKS, {"runs": list(runs)})
    (folder / ARRAY).write_text(text, encoding="utf-8")
    return folder / ARRAY


def bundles(folder: str) -> list[str]:
    """The bundles that the tasks of the sweep in `folder` work in, in order; none where no sweep lies that can be read."""
    path = Path(folder)
    if path.parent.name != SWEEPS:
        return []
    try:
        runs = json.loads((path / _TASKS).read_text(encoding="utf-8"))["runs"]
        return [str(path.parents[1] / run / "bundle") for run in runs]
    except (OSError, ValueError, KeyError, TypeError):
        return []
