"""How job.sbatch gets to sbatch: through submitit, byte for byte as it lies in the bundle.

submitit pickles a function and starts itself on the nodes; here its executor only writes, submits and reads the job's
number. The nodes need no submitit, and what was previewed is what is submitted.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from submitit.core.core import Job
from submitit.core.utils import CommandFunction, DelayedSubmission, FailedJobError, FailedSubmissionError
from submitit.slurm.slurm import SlurmExecutor

T = TypeVar("T")


class SbatchFailed(Exception):
    """sbatch did not take the job. `said`: its own words, whole. `command`: what was typed."""

    def __init__(self, said: str, command: Sequence[str]) -> None:
        super().__init__(said)
        self.said = said
        self.command = list(command)


@dataclass(frozen=True)
class Submission:
    """What is submitted. script: the bundle's job.sbatch. options: sbatch's, beyond the script's own. drop: variables that
    sbatch must not see. words: the script's arguments."""

    script: Path
    options: Sequence[str]
    drop: Sequence[str]
    words: Sequence[str]

    def command(self, file: Path) -> list[str]:
        """The sbatch command for the script's text in `file`."""
        return ["sbatch", *self.options, str(file), *self.words]


class _Executor(SlurmExecutor):
    """submitit's, with our text and our options."""

    def __init__(self, folder: Path, submission: Submission) -> None:
        super().__init__(folder)
        self._submission = submission

    def _make_submission_file_text(self, command: str, uid: str) -> str:  # noqa: ARG002  submitit's signature
        return self._submission.script.read_bytes().decode()

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        unset = [word for name in self._submission.drop for word in ("-u", name)]
        return ["env", *unset, *self._submission.command(submission_file_path)]


class _Array(_Executor):
    """submitit's batch: what it collects becomes one job array, of our text."""

    def _internal_process_submissions(self, delayed_submissions: list[DelayedSubmission]) -> list[Job[Any]]:
        array = self._submit_command("").job_id
        return [self.job_class(self.folder, f"{array}_{task}", [0]) for task in range(len(delayed_submissions))]


def submit(submission: Submission) -> str:
    """The number of the new job. Raises SbatchFailed."""
    return _said(submission, _Executor, lambda executor: executor._submit_command("").job_id)


def submit_array(submission: Submission, folders: Sequence[Path]) -> list[str]:
    """The numbers of the tasks of the new array, one for each bundle, in order. Raises SbatchFailed."""

    def batch(executor: _Executor) -> list[str]:
        with executor.batch():
            jobs = [executor.submit(CommandFunction(["bash", "job.sbatch"], cwd=folder)) for folder in folders]
        return [job.job_id for job in jobs]

    return _said(submission, _Array, batch)


def _said(submission: Submission, kind: type[_Executor], ask: Callable[[_Executor], T]) -> T:
    command = submission.command(submission.script)
    with tempfile.TemporaryDirectory(prefix="launcher-sbatch-") as folder:
        executor = kind(Path(folder), submission)
        try:
            # submitit prints sbatch's words before it raises them.
            with contextlib.redirect_stderr(io.StringIO()):
                return ask(executor)
        except FailedJobError as error:
            raise SbatchFailed(str(error), command) from error
        except FailedSubmissionError as error:
            raise SbatchFailed(f"sbatch named no job: {error}", command) from error


def lines(script: Path, option: str) -> str | None:
    """The value of an #SBATCH line of the script, unquoted as sbatch does; None without one. The last one counts."""
    found = re.findall(rf"^#SBATCH\s+--{option}(?:=|\s+)(.*)$", script.read_text(encoding="utf-8"), re.MULTILINE)
    return shlex.split(found[-1], comments=True)[0] if found else None
