"""The container's image as one file on a shared file system, imported once for all nodes, attempts and jobs.

Hundreds of nodes that each import an image from its registry are slow, and such mass imports fail (NVIDIA/pyxis #40, #53,
#107). enroot writes to a name of its own beside the file, which is renamed when it is whole.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from . import step
from .codes import Code
from .ending import End

BEAT_SECONDS = 10.0  # between two signs of life of the job that imports
DEAD_SECONDS = 120.0  # without one: that job is gone, and another takes its place
_POLL_SECONDS = 1.0
_GIVEN_UP = End(1, "ended while its image was being imported")


@dataclass(frozen=True)
class Import:
    """One image and the file that it is to become.

    log: where enroot's words go. say: for a line in the job's log. goes_on: asked now and then; False = give up, since the
    job ends or a person asked for that.
    """

    image: str
    file: Path
    log: Path
    say: Callable[[str], None]
    goes_on: Callable[[], bool]

    @property
    def claim(self) -> Path:
        """There while a job imports; its time is the last sign of life of that job."""
        return self.file.with_name(f".{self.file.name}.importing")

    def ensure(self) -> Optional[End]:
        """Makes sure that the file is there; None, or why it cannot be. The first job imports, others wait for it."""
        told = False
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            while not self.file.exists():
                if self._claimed():
                    return self._import()
                if not told:
                    self.say(f"{self.file} is being imported by {self._owner()}: waiting for it")
                    told = True
                if not self._waited():
                    return _GIVEN_UP
        except OSError as error:
            return self._failed(f"{error.strerror}: {error.filename}")
        return None

    def _claimed(self) -> bool:
        """Whether the import is ours to do: only one of all jobs can make this file."""
        try:
            with open(self.claim, "x", encoding="utf-8") as claim:
                claim.write(f"job {os.environ.get('SLURM_JOB_ID', '?')} on {socket.gethostname()}")
        except FileExistsError:
            return False
        return True

    def _owner(self) -> str:
        with contextlib.suppress(OSError):
            return self.claim.read_text(encoding="utf-8") or "another job"
        return "another job"

    def _waited(self) -> bool:
        """Until the file is there, or its import has ended without one; a claim without a sign of life is taken away.

        False when it was given up. Life is that the claim's time changes at all, by this host's clock: hosts' clocks differ.
        """
        beat, seen = None, time.monotonic()
        while not self.file.exists():
            if not self.goes_on():
                return False
            try:
                now = self.claim.stat().st_mtime_ns
            except FileNotFoundError:
                return True
            if now != beat:
                beat, seen = now, time.monotonic()
            elif time.monotonic() - seen > DEAD_SECONDS:
                with contextlib.suppress(FileNotFoundError):
                    self.claim.unlink()
                return True
            time.sleep(_POLL_SECONDS)
        return True

    def _import(self) -> Optional[End]:
        fresh = self.file.with_name(f".{self.file.name}.{socket.gethostname()}.{os.getpid()}.sqsh")
        began = time.monotonic()
        try:
            if self.file.exists():  # the claim before ours ended with it just now
                return None
            self.say(f"importing {self.image} to {self.file}")
            code = self._run(["enroot", "import", "-o", str(fresh), f"docker://{self.image}"])
            if code is None:
                return _GIVEN_UP
            if code != 0:
                return self._failed(step.reason_in(step.lines_of(self.log)) or f"exit code {code}")
            os.replace(fresh, self.file)
            self.say(f"{self.file} is there, after {time.monotonic() - began:.0f} s")
            return None
        finally:
            for path in (fresh, self.claim):
                with contextlib.suppress(OSError):
                    path.unlink()

    def _run(self, argv: list[str]) -> Optional[int]:
        """The command's exit code; None when it was ended, since there is no reason to go on."""
        beaten, ended = time.monotonic(), False

        def tick() -> None:
            nonlocal beaten, ended
            if time.monotonic() - beaten > BEAT_SECONDS:
                beaten = time.monotonic()
                with contextlib.suppress(OSError):
                    os.utime(self.claim)
            if not ended and not self.goes_on():
                ended = True
                running.signal(signal.SIGTERM)

        running = step.Step(argv, self.log)
        code = running.wait(tick)
        return None if ended else code

    def _failed(self, why: str) -> End:
        return End(int(Code.BAD_NODE), f"{self.image} could not be imported: {why}")
