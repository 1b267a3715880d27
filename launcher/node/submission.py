"""The supervisor's command line, its job as SLURM's commands take it, and its words."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from .codes import refused
from .layout import BundleFolder, RunFolder


def job_number(environ: Mapping[str, str]) -> str:
    """The job that this process is in; empty outside of SLURM.

    A task of an array goes by its name in the array, from its submission on: only once it has started it has a number of
    its own too.

    >>> job_number({"SLURM_JOB_ID": "14", "SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "1"})
    '12_1'
    """
    if environ.get("SLURM_ARRAY_JOB_ID"):
        return f"{environ['SLURM_ARRAY_JOB_ID']}_{environ.get('SLURM_ARRAY_TASK_ID', '')}"
    return environ.get("SLURM_JOB_ID", "")


@dataclass(frozen=True)
class Options:
    """The supervisor's command line. first: the attempt that this submission begins with. job, nodelist: SLURM's.

    python: the trainer's, on this machine alone, with no job; None = in a batch job.
    """

    bundle: BundleFolder
    run: RunFolder
    first: int
    job: str
    nodelist: str
    python: Optional[str] = None


def say(text: str) -> None:
    """One line in the supervisor's log, with the time (UTC)."""
    print(f"[supervisor] {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {text}", flush=True)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        raise refused(f"{message}; wanted: {' '.join(self.format_usage().split()[1:])}")


def read_options(argv: Sequence[str], environ: Mapping[str, str]) -> Options:
    """The options; refuses (78) wrong ones, and a start outside a batch job."""
    parser = _Parser(
        prog="supervisor.py", description="Keeps a bundle's run alive, inside a SLURM batch job or on this machine."
    )
    parser.add_argument("--bundle", required=True, metavar="DIR", help="the rendered bundle")
    parser.add_argument("--run", required=True, metavar="DIR", help="the run's folder; its name is the run's name")
    parser.add_argument(
        "--attempt", type=int, default=1, metavar="N", help="the number of this submission's first attempt"
    )
    parser.add_argument("--here", metavar="PY", help="on this machine, without SLURM, with this Python for the trainer")
    given = parser.parse_args(argv)
    if given.attempt < 1:
        raise refused(f"--attempt {given.attempt}: wanted 1 or more")
    for name in () if given.here else ("SLURM_JOB_ID", "SLURM_JOB_NODELIST"):
        if not environ.get(name):
            raise refused(f"{name} is not set: the supervisor runs in a batch job; hand job.sbatch to sbatch")
    return Options(
        BundleFolder(Path(given.bundle).absolute()),
        RunFolder(Path(given.run).absolute()),
        given.attempt,
        "" if given.here else job_number(environ),
        "" if given.here else environ["SLURM_JOB_NODELIST"],
        given.here,
    )
