"""The options of sbatch and srun that a user may add: which exist, and which the launcher sets itself."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

from launcher.config.maxtext_schema import SNAPSHOTS
from launcher.plan.slurm import SETTINGS

PROGRAMS = ("sbatch", "srun")

HOMES: Mapping[str, Mapping[str, str]] = {
    "sbatch": {
        **{name: f"target.slurm.{name}" for name in SETTINGS},
        "job-name": "name", "nodes": "nodes", "cpus-per-task": "target.slurm.cpus_per_node",
    },
    "srun": {"mpi": "target.slurm.mpi", "cpus-per-task": "target.slurm.cpus_per_node"},
}  # fmt: skip
"""Option -> the field of ours that takes the same value."""

_TASKS = "there is one task a node, the worker, and it starts one process for each GPU"
_GPUS = "every process must see all GPUs of its node: they are asked for by the node, target.slurm.gpus says how"
_FILES = "where logs go follows from the run's folder"
_ANSWER = "the launcher reads the program's own answer"
_ENVIRONMENT = "the submitting environment is passed whole; variables of the run are env.vars and env.secrets"
_STEP = "the supervisor sets it for each attempt"

_BOTH: Mapping[str, str] = {
    **dict.fromkeys(
        [
            "ntasks", "ntasks-per-node", "tasks-per-node", "ntasks-per-core", "ntasks-per-gpu", "ntasks-per-socket",
            "ntasks-per-tres",
        ],
        _TASKS,
    ),
    **dict.fromkeys(["gpus", "gpus-per-task", "gpus-per-socket", "gpu-bind", "tres-bind", "tres-per-task"], _GPUS),
    **dict.fromkeys(["output", "error", "input", "open-mode", "chdir"], _FILES),
    **dict.fromkeys(["help", "usage", "version", "test-only", "quiet", "verbose"], _ANSWER),
    **dict.fromkeys(["export", "export-file"], _ENVIRONMENT),
    "dependency": "`submit --after RUN` and `--singleton` say what a run waits for",
}  # fmt: skip
_CONTAINER = {
    **dict.fromkeys(["container-image", "container-mounts", "container-workdir"], "container.image, .mounts and .workdir say it"),
    **dict.fromkeys(["container-env", "container-writable", "container-readonly"], _STEP),
    **dict.fromkeys(["container-mount-home", "no-container-mount-home"], _STEP),
}  # fmt: skip

FIXED: Mapping[str, Mapping[str, str]] = {
    "sbatch": {
        **_BOTH,
        **dict.fromkeys(["parsable", "wait", "wrap", "ignore-pbs"], _ANSWER),
        "array": "a run is one job; `-m` makes one array of the points of a sweep",
        "time": "target.slurm.time_minutes says it",
        "signal": "target.slurm.signal_seconds says it",
        "requeue": "target.slurm.requeue says it",
        "no-requeue": "target.slurm.requeue says it",
    },
    "srun": {
        **_BOTH,
        **_CONTAINER,
        **dict.fromkeys(["nodes", "nodelist", "exclude", "relative", "jobid", "kill-on-bad-exit", "wait"], _STEP),
        **dict.fromkeys(["multi-prog", "pty", "no-allocate", "immediate"], "the worker would not start"),
    },
}
"""Option -> why it cannot be added."""


@functools.cache
def _data() -> Mapping[str, Any]:
    """launcher/data/slurm_options.json, which tools/slurm_options.py writes."""
    found: dict[str, Any] = json.loads((SNAPSHOTS.parent / "slurm_options.json").read_text(encoding="utf-8"))
    return found


def version() -> str:
    """Of the SLURM whose options are known."""
    return str(_data()["version"])


def known(program: str) -> Mapping[str, str]:
    """Each long option of sbatch or srun, and of pyxis -> flag, value or optional."""
    return {**_data()["pyxis"], **_data()[program]}


def refusal(program: str, name: str) -> str | None:
    """Why an option cannot be added, whatever its value is; None when it can."""
    if name in HOMES[program]:
        return f"{HOMES[program][name]} says it"
    if program == "sbatch" and name in _data()["pyxis"]:
        return "the batch script runs on the host, and its steps in the container: container.image says which"
    return FIXED[program].get(name)
