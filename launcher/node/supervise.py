"""The supervisor: runs on the first node of a SLURM job, starts each attempt as one srun step, and says what follows.

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

from . import environment, history, image, job, step
from .budgets import LEAST_SECONDS, Action, Allocation, Decision, Spent, decide
from .codes import Code, WorkerError
from .ending import End, is_late, judge, last_step, newest_checkpoint, read_facts, read_object, srun_log, unsaid
from .launch import Launch, read_adjustments, read_launch
from .layout import AttemptFolder, checkpoints_folder
from .placing import Nodes
from .policy import STOP
from .submission import Options, read_options

CONTROLLER_SECONDS = 3600.0  # that the controller may be away while an attempt's end is judged
_KILLED_SOON = 600.0  # seconds in which SLURM ends a job that it has put back in the queue
_LATE_FILES = 3.0  # seconds until a result that another node wrote shows on a shared file system
_REFUSED_SECONDS, _REFUSED_PAUSE = 300.0, 3.0  # for which a step is asked for again, and between two tries
_LOOK_SECONDS = 1.0  # between two looks for a person's wish
_TICK = 0.2


def say(text: str) -> None:
    """One line in the job's log, with the time (UTC)."""
    print(f"[supervisor] {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {text}", flush=True)


def main(argv: Sequence[str]) -> int:
    """Runs the job to its end; returns the exit code of the last attempt (codes.py)."""
    options = None
    try:
        options = read_options(argv, os.environ)
        launch = read_launch(options.bundle.launch)
        for folder in (options.run.attempts, options.run.compile_cache):
            folder.mkdir(parents=True, exist_ok=True)
        if options.job != os.environ["SLURM_JOB_ID"]:
            say(f"task {options.job} of its array, with a number of its own: {os.environ['SLURM_JOB_ID']}")
        supervisor = _Supervisor(options, launch)
        return supervisor.run()
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


def _leave_word(options: Options, end: End) -> None:
    """Writes the reason where the run's state is looked for, when it did not come to an attempt."""
    attempt = options.run.attempt(max([options.first, *options.run.attempt_numbers()]))
    if not attempt.result().exists():
        attempt.path.mkdir(parents=True, exist_ok=True)
        history.write_missing_result(attempt, end, steps=0, step=None, checkpoint=None, started=time.time())
        history.write_decision(attempt, Decision(Action.STOP, end.reason), "", Spent())


class _Supervisor:
    def __init__(self, options: Options, launch: Launch) -> None:
        self._options, self._launch = options, launch
        self._run = options.run
        self._nodes = Nodes(job.hostnames(options.nodelist), launch)
        self._job = job.show_patiently(options.job, CONTROLLER_SECONDS)
        self._planned = self._job.end  # by its time limit, Unix seconds
        self._step: Optional[step.Step] = None
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
            self._record(attempt, end, started)
            decision = self._decide(attempt, end, misplaced)
            say(f"attempt {number}: {decision.action.value}: {decision.reason}")
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
            if not history.is_cancelled(self._run, self._options.first):
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
        result = read_object(attempt.result())
        if result is None:
            checkpoint = newest_checkpoint(self._checkpoints())
            end = unsaid("ended together with its job (a lost node, preemption, scontrol requeue)", checkpoint)
            facts = read_facts(attempt)
            self._record(attempt, end, float(facts.started.get(0, {}).get("started") or time.time()))
        else:
            end = judge(read_facts(attempt))
        decision = self._judged(attempt, end, Allocation(is_over=True))
        self._write(attempt, decision, end)
        say(f"attempt {attempt.number}: {decision.action.value}: {decision.reason}")

    # ---- one attempt ----

    def _attempt(self, attempt: AttemptFolder) -> tuple[End, bool]:
        """Runs one attempt. How it ended, and whether this allocation can never run it."""
        past = history.read_past(self._run, self._options.first, attempt.number)
        self._forwarded = False
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
        if is_limit and self._job.may_requeue and not history.is_cancelled(self._run, self._options.first):
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
        return history.is_cancelled(self._run, self._options.first)

    def _record(self, attempt: AttemptFolder, end: End, started: float) -> None:
        if read_object(attempt.result()) is None:
            history.write_missing_result(
                attempt,
                end,
                steps=self._launch.steps,
                step=last_step(attempt),
                checkpoint=newest_checkpoint(self._checkpoints()),
                started=started,
            )

    def _checkpoints(self) -> Optional[Path]:
        keys = environment.maxtext_keys(self._run, self._launch, read_adjustments(self._run.adjust))
        output = str(keys["base_output_directory"])
        return None if "://" in output else checkpoints_folder(Path(output), str(keys["run_name"]))

    # ---- what follows ----

    def _is_ended_by_slurm(self) -> bool:
        """Whether the job is being ended, so that nothing is ours to decide: its next start, if there is one, does."""
        self._job = job.show_patiently(self._options.job, CONTROLLER_SECONDS)
        if self._job.state == "RUNNING":
            self._planned = self._job.end
        return self._is_requeued or self._job.ends_from_outside(time.time(), self._planned)

    def _decide(self, attempt: AttemptFolder, end: End, misplaced: bool) -> Decision:
        """The decision, written down."""
        past = history.read_past(self._run, self._options.first, attempt.number)
        left = None if self._planned is None else self._planned - time.time()
        allocation = Allocation(
            self._nodes.suffice({*past.excluded, *end.suspects}),
            left,
            self._job.may_requeue,
            LEAST_SECONDS if self._launch.signal_seconds is None else self._launch.signal_seconds,
        )
        decision = self._judged(attempt, end, allocation, misplaced)
        self._write(attempt, decision, end)
        return decision

    def _judged(self, attempt: AttemptFolder, end: End, allocation: Allocation, misplaced: bool = False) -> Decision:
        past = history.read_past(self._run, self._options.first, attempt.number)
        result = read_object(attempt.result()) or {}
        ending = history.ending_of(
            end,
            past,
            progressed=past.progressed(result.get("checkpoint"), result.get("last_step")),
            cancelled=history.is_cancelled(self._run, self._options.first),
            misplaced=misplaced,
            unhealed=end.code == Code.OVERFLOW and self._launch.overflow == STOP,
        )
        if ending.suspects and not self._nodes.suffice({*past.excluded, *ending.suspects}):
            allocation = replace(allocation, enough_nodes=False)
        return decide(ending, past.spent, self._launch.restarts, allocation, past.excluded)

    def _write(self, attempt: AttemptFolder, decision: Decision, end: End) -> None:
        past = history.read_past(self._run, self._options.first, attempt.number)
        history.write_decision(attempt, decision, end.host, past.spent)

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
        say(f"attempt {attempt.number}: stop: {stop.reason}")
        spent = history.read_past(self._run, self._options.first, attempt.number).spent
        history.write_decision(attempt, stop, "", spent)
        return stop

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
        if history.is_cancelled(self._run, self._options.first):
            stop = replace(decision, action=Action.STOP, reason=f"a person asked for the end: {end.reason}")
            spent = history.read_past(self._run, self._options.first, attempt.number).spent
            history.write_decision(attempt, stop, end.host, spent)
            say(f"attempt {attempt.number}: stop: {stop.reason}")
        else:
            say("SLURM ends this job")
        return end.code
