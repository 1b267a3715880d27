"""The watcher that fills pace.py's files: asks nvidia-smi now and then, in a child process that nobody waits for."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Optional

from . import pace
from .layout import AttemptFolder
from .monitor import Stop
from .place import host_name
from .record import write_json
from .said import Said
from .steps import parse_step

SAMPLE_SECONDS = 60.0
PATIENCE = 30.0  # seconds for one answer: a driver in trouble gives none
EACH = 5  # samples between two writings, and two comparisons by node 0: one small file a node on a shared file system
KEPT = 60  # samples: an hour
_PASSED = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH")  # of the environment, which may hold secrets


class Sampler:
    """A Watcher of this node's pace. `say`: a line for the journal. `tell`: what node 0 finds, to people."""

    def __init__(
        self,
        attempt: AttemptFolder,
        node: int,
        ranks: Sequence[int],
        *,
        said: Said,
        say: Callable[[str], None],
        tell: Callable[[str], None],
        seconds: float = SAMPLE_SECONDS,
    ) -> None:
        self._attempt, self._node, self._said, self._say, self._tell = attempt, node, said, say, tell
        self._seconds = seconds
        self._fields = list(pace.FIELDS)
        self._samples: list[list[pace.Sample]] = []
        self._count = 0
        self._lateness = pace.Lateness(ranks)
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._due: Optional[float] = None
        self._given_up = False
        self._last: set[int] = set()
        self._found: list[dict[str, object]] = []

    def line(self, rank: int, text: str, now: float) -> None:
        """Notes when a rank completed a step."""
        step = parse_step(text)
        if step is not None:
            self._lateness.feed(rank, step.step, now)

    def look(self, now: float) -> Optional[Stop]:
        """Begins a question when it is time, and takes in its answer; never asks for the end."""
        if self._process is not None:
            self._take(self._process, now)
        elif not self._given_up and (self._due is None or now >= self._due):
            self._due = now + self._seconds
            self._ask()
        return None

    def close(self) -> None:
        """Ends a question that is open."""
        if self._process is not None:
            self._end(self._process)

    def _ask(self) -> None:
        words = ["nvidia-smi", f"--query-gpu={','.join(self._fields)}", "--format=csv,noheader,nounits"]
        try:
            # The answer is far smaller than a pipe, so that the child never waits for us.
            self._process = subprocess.Popen(
                words,
                env={name: os.environ[name] for name in _PASSED if name in os.environ},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            self._give_up(f"{words[0]}: {error.strerror}")

    def _take(self, process: subprocess.Popen[bytes], now: float) -> None:
        if process.poll() is None:
            if self._due is not None and now > self._due - self._seconds + PATIENCE:
                self._end(process)
                self._give_up(f"nvidia-smi did not answer within {PATIENCE:g} s")
            return
        assert process.stdout is not None
        with process.stdout as output:
            text = output.read().decode("utf-8", errors="replace")
        self._process = None
        if process.returncode:
            unknown = re.search(r'Field "([^"]+)" is not a valid field', text)
            if unknown and unknown[1] in self._fields:
                self._fields.remove(unknown[1])
                self._due = now  # once more, without it
            else:
                self._give_up(" ".join(text.split())[:200] or f"nvidia-smi ended with {process.returncode}")
            return
        self._samples = [*self._samples, pace.parse(text, self._fields)][-KEPT:]
        self._count += 1
        if self._count % EACH == 0:
            self._write()

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(OSError):
            process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # it hangs in the driver
            process.wait(0.5)
        if process.stdout is not None:
            process.stdout.close()
        self._process = None

    def _give_up(self, why: str) -> None:
        self._given_up = True
        self._say(f"the GPUs' clocks are not sampled: {why}")

    def _write(self) -> None:
        """This node's file; on node 0 with what a comparison of all nodes shows, seen twice in a row."""
        content: dict[str, object] = {
            "node": self._node,
            "host": host_name(),
            "at": time.time(),
            "gpus": pace.summary(self._samples),
            "late": self._lateness.shares(),
        }
        if self._node == 0:
            self._compare(content)
        path = self._attempt.pace(self._node)
        try:
            write_json(path, content)
        except OSError:  # the next one may succeed; training does not depend on it
            return
        self._said.file(path, content)

    def _compare(self, content: dict[str, object]) -> None:
        reports = {**pace.read(self._attempt), 0: content}
        out = pace.standing_out(reports)
        known = {one["node"] for one in self._found}
        for node in sorted(set(out) & self._last - known):
            host = str(reports[node].get("host", ""))
            self._found.append({"node": node, "host": host, "at": time.time(), "why": out[node]})
            text = f"straggler: node {node} ({host}): {out[node]}"
            self._say(text)
            self._tell(text)
        self._last = set(out)
        content["found"] = self._found
