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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from submitit.core.utils import FailedJobError, FailedSubmissionError
from submitit.slurm.slurm import SlurmExecutor


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


def submit(submission: Submission) -> str:
    """The number of the new job. Raises SbatchFailed."""
    command = submission.command(submission.script)
    with tempfile.TemporaryDirectory(prefix="launcher-sbatch-") as folder:
        executor = _Executor(Path(folder), submission)
        try:
            # submitit prints sbatch's words before it raises them.
            with contextlib.redirect_stderr(io.StringIO()):
                return executor._submit_command("").job_id
        except FailedJobError as error:
            raise SbatchFailed(str(error), command) from error
        except FailedSubmissionError as error:
            raise SbatchFailed(f"sbatch named no job: {error}", command) from error


def lines(script: Path, option: str) -> str | None:
    """The value of an #SBATCH line of the script, unquoted as sbatch does; None without one. The last one counts."""
    found = re.findall(rf"^#SBATCH\s+--{option}(?:=|\s+)(.*)$", script.read_text(encoding="utf-8"), re.MULTILINE)
    return shlex.split(found[-1], comments=True)[0] if found else None
