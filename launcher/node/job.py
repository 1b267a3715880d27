"""The supervisor's own job, through scontrol: what SLURM thinks of it, and what the supervisor asks of SLURM.

scontrol alone, in the format of every version since 22.05: a batch script has it, squeue and sacct may be missing, and the
JSON output differs from version to version.
"""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

ASK_SECONDS = 60.0  # for one scontrol; it waits for a busy controller itself
_AGAIN = 5.0  # seconds between two tries while the controller does not answer
_TRIES = 5  # at excluding nodes
_TIME = "%Y-%m-%dT%H:%M:%S"  # scontrol's, local time


@dataclass(frozen=True)
class Job:
    """What SLURM says of the job. state: its long word. end: Unix seconds of its time limit, None = none or unknown.

    excluded: ExcNodeList as SLURM writes it, "" when there is none.
    """

    state: str
    end: Optional[float] = None
    may_requeue: bool = True
    excluded: str = ""

    def ends_from_outside(self, now: float, planned: Optional[float]) -> bool:
        """Whether SLURM is ending the job for another reason than its time limit: scancel, requeue, a lost node.

        While it does, the state is COMPLETING whatever the reason, and `scontrol requeue` would bring a cancelled job
        back to life. planned: the end by the time limit as it was known before, Unix seconds like `now`.
        """
        if self.state in ("RUNNING", "SUSPENDED", "STOPPED", "TIMEOUT"):
            return False
        return planned is None or now < planned


class NoAnswer(Exception):
    """scontrol failed; the text is what it said."""


def parse(text: str) -> Job:
    """`scontrol show job --oneliner`."""

    def value(key: str) -> str:
        found = re.search(rf"(?:^|\s){key}=(\S*)", text)
        return "" if found is None or found[1] in ("(null)", "Unknown", "None") else found[1]

    end = value("EndTime")
    return Job(
        state=value("JobState"),
        end=time.mktime(time.strptime(end, _TIME)) if re.fullmatch(r"[\d-]+T[\d:]+", end) else None,
        may_requeue=value("Requeue") != "0",
        excluded=value("ExcNodeList"),
    )


def show(job: str) -> Job:
    """The job now. Raises NoAnswer."""
    return parse(_scontrol("show", "job", "--oneliner", job))


def show_patiently(job: str, seconds: float) -> Job:
    """The job, asked for again for `seconds` while the controller is away (an update of SLURM). Raises NoAnswer."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return show(job)
        except NoAnswer:
            if time.monotonic() >= deadline:
                raise
        time.sleep(_AGAIN)


def hostnames(nodelist: str) -> list[str]:
    """The names in a node list, in SLURM's order, which is the order of a step's ranks. Raises NoAnswer."""
    return _scontrol("show", "hostnames", nodelist).split()


def requeue(job: str, exclude: Sequence[str], before: str) -> None:
    """Puts the job back in the queue, to run without `exclude`; `before`: the ExcNodeList that it has.

    ExcNodeList can be changed of a pending job only, and SLURM ends this process once the job is in the queue again: hence
    the second question at once, by processes that do not hear SIGTERM. SLURM starts it after two minutes at the earliest.
    Raises NoAnswer when the job is not in the queue; that nodes could not be excluded is no error, the next start sees it.
    """
    _scontrol("requeue", job)
    for _ in range(_TRIES if exclude else 0):
        with contextlib.suppress(NoAnswer):
            _scontrol("update", f"jobid={job}", f"ExcNodeList={','.join(filter(None, [before, *exclude]))}")
            return
        time.sleep(1)


def _scontrol(*words: str) -> str:
    try:
        done = subprocess.run(
            ["scontrol", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ASK_SECONDS,
            check=False,
            preexec_fn=_deaf,  # there are no threads
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise NoAnswer(f"scontrol {' '.join(words)}: {error}") from error
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", errors="replace").strip()
        raise NoAnswer(f"scontrol {' '.join(words)}: exit code {done.returncode}: {said}")
    return done.stdout.decode("utf-8", errors="replace")


def _deaf() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
