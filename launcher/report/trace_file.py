"""A run's profile: where it lies, and its events as JAX's own reader gives them, in a process of its own.

jax.profiler.ProfileData comes with the JAX that wrote the file. The xprof package would give kernels' sums ready made, but
not what ran beside what, and is no part of a trainer's installation.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from array import array
from pathlib import Path
from typing import Any

from launcher.issue import Issue, Refused, Severity
from launcher.report.trace import Events, Key, Trace
from launcher.runs.store import Run, read_object_if_there

PROBE = Path(__file__).with_name("trace_probe.py")
PATTERN = "*.xplane.pb"
HINT = "submit it with monitor.profiler=xplane, or name a file: --trace FILE.xplane.pb"


def find(run: Run) -> Path:
    """The newest profile below the run's output: MaxText 0.2.5 writes tensorboard/plugins/profile/<time>/<host>.xplane.pb.

    Raises Refused: there is none, or the output is not on this machine.
    """
    checkpoints = run.checkpoints()
    if checkpoints is None:
        raise _refused("TRACE_REMOTE", f"the output of {run.name} is not on this machine", "copy it here; --trace FILE")
    folder = checkpoints.parent
    found = sorted(folder.rglob(PATTERN), key=lambda path: (path.stat().st_mtime, str(path)))
    if not found:
        raise _refused("TRACE_NONE", f"no {PATTERN} below {folder}: the run was not profiled, or not yet", HINT)
    return found[-1]


def read(path: Path, python: str = sys.executable) -> Trace:
    """The events in a file. python: an interpreter that has JAX; it needs nothing of the launcher.

    Raises Refused: no such file, no JAX there, or it cannot be read as a profile.
    """
    if not path.is_file():
        raise _refused("TRACE_FILE", f"{path} is not there, wanted an {PATTERN}", HINT)
    if os.sep in python:
        python = os.path.abspath(python)  # the working folder is another one; a venv's link must stay a link
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # A copy: Python puts the program's folder first on its path, and the original lies among modules of ours.
        probe = shutil.copy(PROBE, folder)
        environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
        command = [python, probe, str(path.absolute()), name]
        try:
            done = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, errors="replace"
            )
        except OSError as error:
            raise _refused("TRACE_PYTHON", f"{python} does not start: {error.strerror}", "--python PYTHON") from error
        answered = folder / "answer.json"
        if not answered.exists():
            last = (done.stderr.strip().splitlines() or ["no output"])[-1]
            hint = "is there memory enough? It takes about seven times the file's size"
            raise _refused("TRACE_DIED", f"{path} could not be read, exit code {done.returncode}: {last}", hint)
        return _trace(json.loads(answered.read_text(encoding="utf-8")), folder, path, python)


def is_one_domain(run: Run) -> bool:
    """Whether all of the run's GPUs are in one NVLink domain, by its plan."""
    plan = read_object_if_there(run.layout.bundle.path / "plan.json") or {}
    return (plan.get("mesh") or {}).get("domains") == 1 and plan.get("hardware") != "cpu"


def _trace(answer: dict[str, Any], folder: Path, path: Path, python: str) -> Trace:
    if "missing" in answer:
        hint = "name a Python that has it: --python /PATH/bin/python, or pip install 'launcher[local]'"
        raise _refused("TRACE_JAX", f"a profile is read with JAX, which {python} lacks: {answer['missing']}", hint)
    if "damaged" in answer:
        raise _refused("TRACE_DAMAGED", f"{path} is no profile that JAX can read: {answer['damaged']}", HINT)
    if not answer["devices"]:
        message = (
            f"{path} holds no kernel of a GPU and no operation of a CPU; its planes: {', '.join(answer['planes'])}"
        )
        raise _refused("TRACE_EMPTY", message, "profile steps that run: monitor.skip_first_n_steps_for_profiler=4")
    devices = [
        Events(device["name"], [Key(*key) for key in device["keys"]], *_arrays(folder / f"{index}.bin"))
        for index, device in enumerate(answer["devices"])
    ]
    return Trace(str(path), devices, answer["steps"])


def _arrays(path: Path) -> list[array[int]]:
    each = path.stat().st_size // 4 // 8
    found = []
    with path.open("rb") as file:
        for _ in range(4):
            values = array("q")
            values.fromfile(file, each)
            found.append(values)
    return found


def _refused(code: str, message: str, hint: str) -> Refused:
    return Refused(Issue(code, Severity.ERROR, "", message, hint))
