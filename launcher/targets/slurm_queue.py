"""Questions to SLURM's controller, each through the command that a person would type. Nothing here needs accounting (sacct)."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.targets import sweep

COMMANDS = ("sbatch", "squeue", "scancel", "scontrol", "srun")
"""What a login node of SLURM has, and the launcher uses (srun: submitit takes it for the sign of a cluster)."""

ANSWER_SECONDS = 90.0
"""Bound for one command. Without a controller squeue itself gives up after 18 s (measured, 24.11); a busy one may take a minute."""

# Options of other jobs and shells that would change ours: in a job or an salloc shell they are everywhere.
_THEIRS = ("SLURM_", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SCANCEL_", "PMI_", "PMIX_")
_KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT")

_FORMAT = "%i|%T|%r|%S|%E|%Z"
_NO_SUCH_JOB = "Invalid job id specified"  # squeue's answer when it is asked for one job alone


class Unanswered(OSError):
    """SLURM's controller did not answer, or its commands are not here; the text says which and what it said."""


@dataclass(frozen=True)
class Job:
    """A job as squeue shows it.

    state: SLURM's long word. reason: why it is pending, or how it ended. start: Unix seconds, of the newest start, or when
    SLURM expects to start it; None = neither. dependency: what is left of it. folder: its working directory, as it was
    said at its submission; with the number it names one job: numbers are used again, and by other clusters too.
    A task of an array is a job of its own here, ARRAY_TASK its number; that of a sweep works in its own run's bundle.
    """

    number: str
    state: str
    reason: str
    start: float | None
    dependency: str
    folder: str


@dataclass(frozen=True)
class Site:
    """The cluster that this shell talks to. hides_jobs: users do not see each other's jobs. largest_array: in tasks."""

    cluster: str
    hides_jobs: bool
    largest_array: int = 1001  # SLURM's own default


def foreign(environ: Mapping[str, str]) -> list[str]:
    """The variables that must not reach sbatch and the like: another job's, or a shell's hidden options."""
    return sorted(name for name in environ if name.startswith(_THEIRS) and name not in _KEPT)


def missing() -> list[str]:
    """Which of SLURM's commands are not on the PATH."""
    return [name for name in COMMANDS if shutil.which(name) is None]


def jobs(numbers: Sequence[str]) -> dict[str, Job]:
    """What the controller knows of these jobs, ended ones too as long as it remembers them: one call for all.

    Raises Unanswered.
    """
    return _listed("--states=all", f"--jobs={','.join(numbers)}") if numbers else {}


def jobs_of_user() -> list[Job]:
    """The jobs of this user that are not over. Raises Unanswered."""
    return list(_listed(f"--user={os.getuid()}").values())


def jobs_in(folder: Path) -> list[Job]:
    """Those that work in the folder. Raises Unanswered."""
    return [job for job in jobs_of_user() if job.folder == str(folder)]


def site() -> Site:
    """The cluster's name and whether it hides jobs. Raises Unanswered."""
    text = _ask("scontrol", "show", "config")
    found = dict(re.findall(r"^(ClusterName|PrivateData|MaxArraySize)\s*=\s*(.*?)\s*$", text, re.MULTILINE))
    private = re.split(r"[,\s]+", found.get("PrivateData", "").lower())
    largest = found.get("MaxArraySize", "")
    hides = bool({"jobs", "all"} & set(private))
    name = found.get("ClusterName", "")
    return Site(name, hides, int(largest)) if largest.isdigit() else Site(name, hides)


def depend(number: str, dependency: str) -> None:
    """Give a pending job these dependencies instead of its own. Raises Unanswered: also when it is not pending any more."""
    _ask("scontrol", "update", f"jobid={number}", f"dependency={dependency}")


def cancel(number: str, *options: str) -> None:
    """scancel. A job that is over, or a step that is, is no error. Raises Unanswered."""
    answer = _run("scancel", *options, number)
    if answer.returncode != 0 and no_contact(answer.stderr):
        raise Unanswered(_said("scancel", answer))


def test_only(script: str) -> tuple[bool, str]:
    """Whether sbatch would take that script, and its words. Raises Unanswered."""
    answer = _run("sbatch", "--test-only", script=script)
    if answer.returncode != 0 and no_contact(answer.stderr):
        raise Unanswered(_said("sbatch", answer))
    return answer.returncode == 0, " ".join(answer.stderr.removeprefix("sbatch: ").split())


def no_contact(said: str) -> bool:
    """Whether a command failed because it did not reach the controller (src/common/slurm_errno.c), not by its answer."""
    return bool(
        re.search(r"contact slurm controller|[Tt]imed out|Connection refused|Zero Bytes were transmitted", said)
    )


def _listed(*which: str) -> dict[str, Job]:
    answer = _run("squeue", "--noheader", "--all", "--array", *which, f"--format={_FORMAT}")
    if answer.returncode != 0 and _NO_SUCH_JOB not in answer.stderr:
        raise Unanswered(_said("squeue", answer))
    found, tasks = {}, functools.cache(sweep.bundles)
    for line in answer.stdout.splitlines():
        fields = line.split("|", 5)
        if len(fields) == 6:
            number, state, reason, start, dependency, folder = fields
            when = float(start) if start.isdigit() and int(start) else None
            task = number.partition("_")[2]
            bundles = tasks(folder) if task.isdecimal() else []
            folder = bundles[int(task)] if bundles and int(task) < len(bundles) else folder
            found[number] = Job(number, state, reason, when, "" if dependency == "(null)" else dependency, folder)
    return found


def _ask(*command: str) -> str:
    answer = _run(*command)
    if answer.returncode != 0:
        raise Unanswered(_said(command[0], answer))
    return answer.stdout


def _run(*command: str, script: str = "") -> subprocess.CompletedProcess[str]:
    drop = set(foreign(os.environ))
    environment = {name: value for name, value in os.environ.items() if name not in drop}
    environment["SLURM_TIME_FORMAT"] = "%s"
    try:
        return subprocess.run(
            command,
            input=script,
            capture_output=True,
            text=True,
            errors="replace",
            env=environment,
            timeout=ANSWER_SECONDS,
        )
    except FileNotFoundError:
        raise Unanswered(f"SLURM cannot be asked from here: there is no {command[0]} on the PATH") from None
    except subprocess.TimeoutExpired:
        raise Unanswered(f"SLURM's controller gave no answer to {command[0]} within {ANSWER_SECONDS:g} s") from None


def _said(command: str, answer: subprocess.CompletedProcess[str]) -> str:
    said = " ".join(answer.stderr.split()) or f"{command} ended with {answer.returncode}"
    return f"SLURM's controller does not answer: {said}"
