"""The supervisor on one machine without SLURM: one worker as its child for each attempt, and what follows from its end.

The worker and, through it, the trainers do not outlive this process. Who wants to end them signals this one: it passes the
signal on, and starts nothing any more.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Collection
from dataclasses import replace
from typing import Optional

from .budgets import Action, Allocation, Decision
from .codes import exit_code_of
from .ending import End, Facts, judge, read_facts
from .following import Submission, change, follow, record
from .layout import AttemptFolder
from .place import host_name
from .record import process_start, write_json
from .signals import SignalBox
from .submission import Options, say
from .tether import adopt_orphans, end_orphans, tether

_LOOK_SECONDS = 1.0  # between two looks at the worker and for a person's wish; its end and signals are noticed at once
_SOON = 0.05  # until a signal is offered again to a worker that is just beginning
_ORPHAN_SECONDS = 30.0  # for what a killed worker left behind to be gone, GPU memory included
_ALL = Allocation(is_machine=True)


class Alone:
    """All attempts of one submission."""

    def __init__(self, options: Options, submission: Submission) -> None:
        self._options, self._submission, self._run = options, submission, options.run
        self._signal: Optional[int] = None  # the first stop signal
        self._box = SignalBox()
        self._box.install()
        signal.signal(signal.SIGCHLD, lambda *_: None)  # wakes the box
        adopt_orphans()

    def run(self) -> int:
        """Runs attempts until one is the last; returns its exit code."""
        attempt = self._run.attempt(self._options.first)
        while True:
            started = time.time()
            facts, end = self._attempt(attempt)
            record(self._submission, attempt, end, started)
            decision = follow(
                self._submission, attempt, facts, end, _ALL, suffice=_is_nothing, say=say, final=self._why_final()
            )
            if decision.action is Action.STOP or not self._pause(attempt, decision, end):
                self._box.ignore()
                return end.code
            attempt = self._run.attempt(self._run.attempt_numbers()[-1] + 1)

    def _why_final(self) -> str:
        return "" if self._signal is None else f"its supervisor was told to end ({signal.Signals(self._signal).name})"

    # ---- one attempt ----

    def _attempt(self, attempt: AttemptFolder) -> tuple[Facts, End]:
        """Runs the worker to its end."""
        attempt.path.mkdir(parents=True, exist_ok=True)
        host = host_name()
        found = {"host": host, "pid": os.getpid(), "process_start": process_start(os.getpid())}
        # The launcher looks for left-over processes by the folder that their environment names (targets/local.py).
        write_json(attempt.supervisor, {**found, "attempt_folder": str(self._run.attempt(self._options.first).path)})
        worker = self._start(attempt)
        say(f"attempt {attempt.number}: worker {worker.pid}")
        waiting: list[int] = []
        while worker.poll() is None:
            waiting += self._signals(_SOON if waiting else _LOOK_SECONDS)
            # Before it has written this file it may not yet catch signals, and would die of the first.
            if attempt.started().exists():
                for number in waiting:
                    worker.send_signal(number)
                waiting = []
        end_orphans(_ORPHAN_SECONDS)
        self._signals(0)
        facts = read_facts(attempt, [host])
        return facts, judge(facts) if 0 in facts.results else _without_words(worker.returncode)

    def _start(self, attempt: AttemptFolder) -> subprocess.Popen[bytes]:
        python, bundle = str(self._options.python), self._options.bundle
        argv = [python, "-B", str(bundle.worker), "--bundle", str(bundle.path), "--run", str(self._run.path)]
        argv += ["--attempt", str(attempt.number), "--python", python, "--quiet"]
        with open(attempt.worker_log(), "ab") as log:
            return subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=tether(),  # noqa: PLW1509  there are no threads
            )

    def _signals(self, seconds: float) -> list[int]:
        """The stop signals since the last call; waits so long for the first, or for the worker's end."""
        select.select([self._box.wakeup], [], [], seconds)
        taken = self._box.take()
        for number in taken:
            self._signal = self._signal or number
        return taken

    # ---- between two ----

    def _pause(self, attempt: AttemptFolder, decision: Decision, end: End) -> bool:
        """Waits before the next attempt; False, and the decision is another one, when somebody ended the wait."""
        deadline = time.monotonic() + decision.pause_seconds
        while True:
            why = "a person asked for the end" if self._submission.is_cancelled else self._why_final()
            if why:
                stop = replace(decision, action=Action.STOP, reason=f"{why}: {end.reason}", charged=None)
                change(self._submission, attempt, stop, say=say, host=end.host)
                return False
            left = deadline - time.monotonic()
            if left <= 0:
                return True
            self._signals(min(left, _LOOK_SECONDS))


def _is_nothing(excluded: Collection[str]) -> bool:
    """Whether this machine may be used; there is no other."""
    return not excluded


def _without_words(returncode: int) -> End:
    """The end of a worker that left no result."""
    if returncode < 0:
        return End(exit_code_of(returncode), f"the worker was killed by {_name(-returncode)} and left no result")
    return End(returncode or 1, f"the worker ended with exit code {returncode} and left no result")


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
