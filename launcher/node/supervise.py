"""The supervisor: runs on the first node of a SLURM job, starts each attempt as one srun step, and says what follows.

On one machine without SLURM it is alone.py's.

It is killed as often as its job is queued again, so all it must know lies in the attempts' folders. One thread.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Optional

from . import alone, history, image, job, step
from .budgets import LEAST_SECONDS, Action, Allocation, Decision
from .causes import read_table
from .codes import Code, WorkerError
from .ending import End, Facts, is_late, judge, newest_checkpoint, read_facts, read_object, srun_log, unsaid
from .following import Submission, change, follow, record
from .launch import read_launch
from .layout import AttemptFolder
from .placing import Nodes
from .submission import Options, read_options, say

CONTROLLER_SECONDS = 3600.0  # that the controller may be away while an attempt's end is judged
_KILLED_SOON = 600.0  # seconds in which SLURM ends a job that it has put back in the queue
_LATE_FILES = 3.0  # seconds until a result that another node wrote shows on a shared file system
_REFUSED_SECONDS, _REFUSED_PAUSE = 300.0, 3.0  # for which a step is asked for again, and between two tries
_LOOK_SECONDS = 1.0  # between two looks for a person's wish
_TICK = 0.2


def main(argv: Sequence[str]) -> int:
    """Runs the job to its end; returns the exit code of the last attempt (codes.py)."""
    options = None
    try:
        options = read_options(argv, os.environ)
        launch, table = read_launch(options.bundle.launch), read_table(options.bundle.failures)
        submission = Submission(options.run, launch, options.first, table)
        for folder in (options.run.attempts, options.run.compile_cache):
            folder.mkdir(parents=True, exist_ok=True)
        if options.python is not None:
            return alone.Alone(options, submission).run()
        if options.job != os.environ["SLURM_JOB_ID"]:
            say(f"task {options.job} of its array, with a number of its own: {os.environ['SLURM_JOB_ID']}")
        return _Supervisor(options, submission).run()
    except WorkerError as error:
        say(str(error))
        if options is not None:
            _leave_word(options, End(int(error.code), str(error)))
        return int(error.code)
    except job.NoAnswer as error:
        say(f"SLURM does not answer: {error}")
        if options is not None:
            _leave_word(options, End(int(Code.BAD_NODE), f"SLURM does not answer: {error}"))
        return int(Code.BAD_NODE)
    except OSError as error:  # as likely the disk on which a word would be left
        name = "RUN" if options is None else options.run.name
        say(f"cannot go on: {error}; is the disk full? When it is not: python -m launcher resume {name}")
        return int(Code.BAD_NODE)


def _leave_word(options: Options, end: End) -> None:
    """Writes the reason where the run's state is looked for, when it did not come to an attempt."""
    attempt = options.run.attempt(max([options.first, *options.run.attempt_numbers()]))
    if not attempt.result().exists():
        attempt.path.mkdir(parents=True, exist_ok=True)
        history.write_missing_result(attempt, end, steps=0, step=None, checkpoint=None, started=time.time())
        history.write_decision(attempt, Decision(Action.STOP, end.reason), "", {})


class _Supervisor:
    def __init__(self, options: Options, submission: Submission) -> None:
        self._options, self._submission, self._launch = options, submission, submission.launch
        self._run = options.run
        self._nodes = Nodes(job.hostnames(options.nodelist), self._launch)
        self._job = job.show_patiently(options.job, CONTROLLER_SECONDS)
        self._planned = self._job.end  # by its time limit, Unix seconds
        self._step: Optional[step.Step] = None
        self._hosts: Sequence[str] = ()  # of the newest step
        self._terminated = False
        self._was_over = self._is_requeued = False
        self._forwarded = False
        self._looked = 0.0
        signal.signal(signal.SIGTERM, self._on_term)
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
            signal.signal(number, self._on_stop)

    def _on_term(self, _number: int, _frame: object) -> None:
        self._terminated = True

    def _on_stop(self, number: int, _frame: object) -> None:
        """A stop signal that reached the batch script too (scancel --full); the workers have their own from SLURM."""
        if self._step is not None:
            self._step.signal(number)

    # ---- the loop ----

    def run(self) -> int:
        over = self._settle_the_past()
        if over is not None:
            return over
        number = self._next_number()
        while True:
            attempt = self._run.attempt(number)
            attempt.path.mkdir(parents=True, exist_ok=True)
            started = time.time()
            end, misplaced = self._attempt(attempt)
            if end.code != Code.FINISHED and self._is_ended_by_slurm():
                say(f"attempt {number}: {end.reason}; SLURM ends this job")
                return end.code
            record(self._submission, attempt, end, started)
            decision = self._decide(attempt, end, misplaced)
            if decision.action is Action.REQUEUE:
                decision = self._requeue(attempt, decision)
            if decision.action is Action.STOP:
                return end.code
            if not self._pause(decision.pause_seconds):
                return self._ended_in_pause(attempt, decision, end)
            number += 1

    def _next_number(self) -> int:
        numbers = [number for number in self._run.attempt_numbers() if history.was_used(self._run.attempt(number))]
        if self._options.first not in numbers and (not numbers or numbers[-1] < self._options.first):
            return self._options.first
        return max(self._options.first, numbers[-1] + 1)

    def _settle_the_past(self) -> Optional[int]:
        """Judges the attempts since the first that were ended from outside. The exit code when there is nothing to do."""
        numbers = [
            number
            for number in self._run.attempt_numbers()
            if number >= self._options.first and history.was_used(self._run.attempt(number))
        ]
        for number in numbers:
            attempt = self._run.attempt(number)
            if not history.decision_file(attempt).exists():
                self._settle(attempt)
        stop = history.last_stop(self._run, numbers)
        if stop is None:
            if not self._submission.is_cancelled:
                return None
            say("a person asked for the end (cancel.json): nothing is started")
            return int(Code.PREEMPTED)
        number, decision = stop
        result = read_object(self._run.attempt(number).result()) or {}
        code = int(result.get("code", 1))
        cure = "" if code == Code.FINISHED else f"; to go on: python -m launcher resume {self._run.name}"
        say(f"attempt {number} was the last: {decision.get('reason')}{cure}")
        return code

    def _settle(self, attempt: AttemptFolder) -> None:
        """Writes what an attempt left open that ended together with its job."""
        facts = read_facts(attempt)
        end = judge(facts)
        if read_object(attempt.result()) is None:
            checkpoint = newest_checkpoint(self._submission.checkpoints())
            end = unsaid("ended together with its job (a lost node, preemption, scontrol requeue)", checkpoint)
            began = float(facts.started.get(0, {}).get("started") or time.time())
            record(self._submission, attempt, end, began)
        self._followed(attempt, facts, end, Allocation(is_over=True))

    # ---- one attempt ----

    def _attempt(self, attempt: AttemptFolder) -> tuple[End, bool]:
        """Runs one attempt. How it ended, and whether this allocation can never run it."""
        past = self._submission.past(attempt)
        self._forwarded, self._hosts = False, ()
        end = self._nodes.ask(self._options.bundle, attempt, self._tick)
        if end is not None:
            return end, False
        if self._nodes.are_strangers:
            say(
                "which NVLink domain each node is in is not known here (no topology/block, no cluster UUID): not checked"
            )
        hosts, why_not, misplaced = self._nodes.choose(past.excluded)
        if why_not is not None:
            return why_not, misplaced
        end = self._import(attempt)
        if end is not None:
            return end, False
        argv = step.words(self._launch, self._options.bundle, self._run, attempt.number, hosts)
        say(f"attempt {attempt.number} on {len(hosts)} node(s)")
        self._hosts = hosts
        began = time.monotonic()
        while True:
            self._step = step.Step(argv, srun_log(attempt))
            rc = self._step.wait(self._tick)
            self._step = None
            facts = read_facts(attempt, hosts, rc)
            if facts.started or not step.was_refused(facts.log) or not self._may_ask_again(began):
                break
        late = time.monotonic() + _LATE_FILES
        while is_late(facts) and time.monotonic() < late:
            time.sleep(_TICK)
            facts = read_facts(attempt, hosts, rc)
        return judge(facts), False

    def _may_ask_again(self, began: float) -> bool:
        """Whether to ask SLURM for the step once more, after a while; the nodes of an ended step are not free at once.

        A controller that is away is waited for.
        """
        if self._terminated or self._is_cancelled() or time.monotonic() - began > _REFUSED_SECONDS:
            return False
        time.sleep(_REFUSED_PAUSE)
        return not job.show_patiently(self._options.job, CONTROLLER_SECONDS).ends_from_outside(
            time.time(), self._planned
        )

    def _tick(self) -> None:
        """Passes a person's wish on that was noted in an attempt before this one, or before its step was there."""
        if self._terminated and not self._was_over:
            self._was_over = True
            self._go_on_after_the_limit()
        if self._step is not None and not self._forwarded and self._is_cancelled():
            self._forwarded = True
            self._step.signal(signal.SIGUSR1)

    def _import(self, attempt: AttemptFolder) -> Optional[End]:
        """Has the container's image as a file, where one is asked for; None, or why there is none."""
        container = self._launch.container
        if container is None or container.file is None:
            return None
        log = attempt.path / "import.log"
        return image.Import(container.image, Path(container.file), log, say, self._goes_on).ensure()

    def _goes_on(self) -> bool:
        """A tick while no step runs; whether there is still a reason to begin one."""
        self._tick()
        return not self._terminated and not self._is_cancelled()

    def _go_on_after_the_limit(self) -> None:
        """Has the job queued again when its time limit is what ends it: at once, SIGKILL comes within SLURM's KillWait.

        Whether the budgets allow another attempt is judged at the next start, which finds this one without a decision.
        """
        is_limit = self._planned is not None and time.time() >= self._planned
        if is_limit and self._job.may_requeue and not self._submission.is_cancelled:
            with contextlib.suppress(job.NoAnswer):
                job.requeue(self._options.job, (), "")
                self._is_requeued = True
                say("the time limit has come before the end: back to the queue")

    def _is_cancelled(self) -> bool:
        """Whether a person asked for the end, looked for now and then: on a shared file system each look costs."""
        now = time.monotonic()
        if now - self._looked < _LOOK_SECONDS:
            return False
        self._looked = now
        return self._submission.is_cancelled

    # ---- what follows ----

    def _is_ended_by_slurm(self) -> bool:
        """Whether the job is being ended, so that nothing is ours to decide: its next start, if there is one, does."""
        self._job = job.show_patiently(self._options.job, CONTROLLER_SECONDS)
        if self._job.state == "RUNNING":
            self._planned = self._job.end
        return self._is_requeued or self._job.ends_from_outside(time.time(), self._planned)

    def _decide(self, attempt: AttemptFolder, end: End, misplaced: bool) -> Decision:
        """The decision, written down."""
        allocation = Allocation(
            seconds_left=None if self._planned is None else self._planned - time.time(),
            may_requeue=self._job.may_requeue,
            least_seconds=LEAST_SECONDS if self._launch.signal_seconds is None else self._launch.signal_seconds,
        )
        why = "these nodes cannot run it" if misplaced else ""
        return self._followed(attempt, read_facts(attempt, self._hosts), end, allocation, why)

    def _followed(
        self, attempt: AttemptFolder, facts: Facts, end: End, allocation: Allocation, final: str = ""
    ) -> Decision:
        suffice = self._nodes.suffice
        return follow(self._submission, attempt, facts, end, allocation, suffice=suffice, say=say, final=final)

    def _requeue(self, attempt: AttemptFolder, decision: Decision) -> Decision:
        """Asks SLURM to queue the job again, and waits to be killed. A decision to stop when SLURM does not want to."""
        try:
            job.requeue(self._options.job, decision.exclude, self._job.excluded)
            end = time.monotonic() + _KILLED_SOON
            while time.monotonic() < end:
                time.sleep(_TICK)
            why = f"SLURM took the job back in the queue but did not end it in {_KILLED_SOON:.0f} s"
        except job.NoAnswer as error:
            why = f"SLURM does not queue the job again: {error}"
        stop = replace(decision, action=Action.STOP, reason=f"{why}; {decision.reason}")
        return change(self._submission, attempt, stop, say=say)

    def _pause(self, seconds: float) -> bool:
        """Waits before the next attempt; False when it was cut short by a person's wish or SLURM."""
        deadline = time.monotonic() + seconds
        while True:
            if self._terminated or self._is_cancelled():
                return False
            if time.monotonic() >= deadline:
                return True
            time.sleep(_TICK)

    def _ended_in_pause(self, attempt: AttemptFolder, decision: Decision, end: End) -> int:
        if self._submission.is_cancelled:
            stop = replace(decision, action=Action.STOP, reason=f"a person asked for the end: {end.reason}")
            change(self._submission, attempt, stop, say=say, host=end.host)
        else:
            say("SLURM ends this job")
        return end.code
