"""array.sbatch: several runs of one shape as one job array, each task as its own bundle's job.sbatch says."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

from launcher.render.slurm import quoted

HEAD = """\
#!/bin/bash
# {count} runs of one shape as one job array: task I is the I-th run below. Submitted as it stands, by the launcher or by hand,
# in this folder: sbatch array.sbatch
# The options are those that each run's own bundle/job.sbatch has, which does the rest.

"""

BODY = """\

runs=(
{runs}
)
run=../../${{runs[$SLURM_ARRAY_TASK_ID]}}
cd -- "$run/bundle" || exit 78
# From here on as a job of its own: in the run's bundle, with a log in the run's folder that a requeued task goes on writing.
exec >>"../slurm-${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID.log" 2>&1
exec bash ./job.sbatch
"""

_OPTION = re.compile(r"#SBATCH --([a-z-]+)")
_NAME, _OUTPUT = "job-name", "output"


def _options(script: str) -> list[str]:
    """The block of a job.sbatch that holds its options, with their reasons; it has no empty line."""
    return script.split("\n\n", 2)[1].splitlines()


def _option(line: str) -> str:
    found = _OPTION.match(line)
    return found[1] if found else ""


def shape(script: str) -> tuple[str, ...]:
    """What SLURM is asked for in a job.sbatch, but its name. Runs of equal shape can be tasks of one array."""
    return tuple(line for line in _options(script) if _option(line) not in ("", _NAME))


def array(scripts: Mapping[str, str], at_once: int | None = None) -> str:
    """array.sbatch for runs of equal shape: run's name -> its job.sbatch, in the order of the tasks.

    It lies in RUNS/sweeps/NAME; no path in it is absolute. `at_once`: tasks that may run at the same time, None = all.
    """
    texts = list(scripts.values())
    if len({shape(text) for text in texts}) != 1:
        raise ValueError("runs of one array have one shape")
    names = {line for text in texts for line in _options(text) if _option(line) == _NAME}
    lines: list[str] = []
    for line in _options(texts[0]):
        name = _option(line)
        if name == _OUTPUT:
            lines[-1:] = _tasks(len(texts), at_once)  # instead of that log's reason: it is written by the body
        else:
            lines.append(f"#SBATCH --job-name={quoted('sweep')}" if name == _NAME and len(names) > 1 else line)
    head = HEAD.format(count=len(texts)) + "\n".join(lines) + "\n"
    return head + BODY.format(runs="\n".join(f"    {name}  # {task}" for task, name in enumerate(scripts)))


def _tasks(count: int, at_once: int | None) -> list[str]:
    return [
        f"#SBATCH --array=0-{count - 1}{'' if at_once is None else f'%{at_once}'}",
        "# Empty, unless a run's folder cannot be entered.",
        "#SBATCH --output=array-%A_%a.log",
    ]


def sweep_name(text: str) -> str:
    """The name of the sweep with this array.sbatch: its job's name and 8 hex of its sha256."""
    job = re.search(r"^#SBATCH --job-name=(\S+)$", text, re.MULTILINE)
    return f"{job[1] if job else 'sweep'}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
