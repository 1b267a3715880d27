"""job.sbatch: the batch script of the slurm target, complete: what a person can hand to sbatch, and what is submitted."""

from __future__ import annotations

import re
from collections.abc import Sequence

from launcher.config.schema import Experiment
from launcher.plan.mesh import MeshPlan
from launcher.plan.slurm import Option, placement, sbatch_options, srun_options

HEAD = """\
#!/bin/bash
# {name}: {nodes} node{plural} under SLURM. Submitted as it stands, by the launcher or by hand, in this folder:
#     sbatch job.sbatch [ATTEMPT]
# The nodes need a python3 (3.9 or newer) and this folder; supervisor and workers are in node/, all else is in launch.json.

"""

BODY = """\

# sbatch starts this in its --chdir, or where it was typed. Inside a run (RUN/bundle) the run is that folder.
bundle=$PWD
if [ ! -f "$bundle/launch.json" ]; then
    echo "job.sbatch: $bundle is not the folder of its bundle; go there, then: sbatch job.sbatch" >&2
    exit 78
fi
if [ -f "$bundle/../run.json" ]; then run=$(dirname -- "$bundle"); else run=$bundle.run; fi
"""

START = """\

# Starts each attempt as one srun step, restarts it here, or has the job queued again. -B: no bytecode in the sealed bundle.
exec python3 -B "$bundle/node/supervisor.py" --bundle "$bundle" --run "$run" --attempt "${1:-1}"
"""

_BARE = re.compile(r"[A-Za-z0-9_./,:=@%+-]*")


def quoted(value: str) -> str:
    r"""A value as #SBATCH lines hold it. sbatch reads them itself, not by a shell's rules: a backslash escapes inside
    either kind of quotes, and an unquoted `#` cuts the line (src/sbatch/opt.c, get_argument).

    >>> print(quoted("a#b"), quoted("plain"), quoted('say "\\\\"'))
    "a#b" plain "say \"\\\\\""

    Raises:
        ValueError: a line break or a NUL, which no line can hold.
    """
    if re.search(r"[\n\r\0]", value):
        raise ValueError(f"target.slurm: {value!r} has a line break or a NUL, and an #SBATCH line is one line")
    if _BARE.fullmatch(value):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _lines(options: Sequence[Option]) -> list[str]:
    lines = []
    for option in options:
        lines += [f"# {option.why}"] if option.why else []
        lines.append(f"#SBATCH --{option.name}" + ("" if option.value is None else f"={quoted(option.value)}"))
    return lines


def script(experiment: Experiment, mesh: MeshPlan) -> str:
    """job.sbatch: #SBATCH lines, the user's setup lines, the supervisor. No path in it is absolute.

    Raises:
        ValueError: spare nodes that do not split over the domains, or a value that no #SBATCH line can hold.
    """
    placed = placement(experiment, mesh)
    if placed is None:
        raise ValueError("target.slurm.spare_nodes: spare nodes that do not split over the domains")
    head = HEAD.format(name=experiment.name, nodes=placed.nodes, plural="" if placed.nodes == 1 else "s")
    options = "\n".join(_lines(sbatch_options(experiment, mesh, placed))) + "\n"
    setup = experiment.target.slurm.setup
    own = "\n".join(["", "# target.slurm.setup", *setup]) + "\n" if setup else ""
    return head + options + BODY + own + START


def srun_words(experiment: Experiment) -> list[str]:
    """launch.json's `srun`: words for an argument list, so nothing in them is quoted."""
    return [f"--{o.name}" if o.value is None else f"--{o.name}={o.value}" for o in srun_options(experiment)]
