"""What is particular to a worker in a pod of a JobSet: its attempt's number, and what went before.

The JobSet controller starts all pods again and counts: it knows nothing of steps and checkpoints, and does not bound
restarts that its policy excuses. So node 0 judges at each start what the attempts since the submission came to, with
the budgets and the records (decision.json) of the supervisor on SLURM.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Optional

from . import history
from .budgets import Action, Allocation
from .causes import read_table
from .codes import Code, refused
from .ending import End, Facts, by_words, last_step, newest_checkpoint, read_facts, read_object, unsaid
from .following import Say, Submission, follow
from .launch import Launch
from .layout import AttemptFolder, BundleFolder, RunFolder
from .place import whole_number
from .speech import ADJUST, Speaker

FIRST, RESTART, UID = "LAUNCHER_FIRST_ATTEMPT", "LAUNCHER_RESTART", "LAUNCHER_JOBSET_UID"
TOLD_ATTEMPTS = 100  # the newest whose records are repeated at each start
_EXPLAINED = (
    Code.FINISHED,
    Code.OVERFLOW,
    Code.DIVERGED,
    Code.CONFIG_REFUSED,
    Code.BAD_NODE,
)  # whoever fell silent over it
_CURE = "the pod template sets it from the JobSet's labels and annotations; render the bundle again"


@dataclass(frozen=True)
class Start:
    """One start of all pods. first: the submission's first attempt. restart: the JobSet's count, from 0.

    uid: the JobSet's, which tells this submission from one before it with the same numbers; "" = not told.
    """

    first: int
    restart: int
    uid: str = ""

    @property
    def attempt(self) -> int:
        """This attempt's number."""
        return self.first + self.restart

    @property
    def name(self) -> str:
        """The same in all pods of this start, and in no others; "" when the JobSet's uid is not known."""
        return self.name_of(self.attempt)

    def name_of(self, attempt: int) -> str:
        """The name that the start with that attempt had, if it was of this submission."""
        return f"{self.uid}/{attempt - self.first}" if self.uid else ""


def read_start(environ: Mapping[str, str]) -> Start:
    """This start, from the pod's environment; refuses (78) what is missing or contradicts itself."""
    if "JOB_COMPLETION_INDEX" not in environ:
        raise refused("--pod outside an indexed Job: JOB_COMPLETION_INDEX is not set; start with --attempt N instead")
    first, restart = whole_number(environ, FIRST, _CURE), whole_number(environ, RESTART, _CURE)
    if first < 1:
        raise refused(f"{FIRST} is {first}, wanted 1 or more: it is the annotation launcher/first-attempt")
    return Start(first, restart, environ.get(UID, ""))


def check_unused(run: RunFolder, start: Start, environ: Mapping[str, str], speaker: Speaker) -> None:
    """Refuses (78) an attempt's number that another submission has used: its files must not be mixed with ours.

    Node 0 tells of them first, so that the launcher knows the next free number.
    """
    attempt = run.attempt(start.attempt)
    before = (read_object(attempt.started()) or {}).get("start")
    if not (start.name and before and before != start.name):
        return
    if environ.get("JOB_COMPLETION_INDEX") == "0" and environ.get("LAUNCHER_JOB_INDEX", "0") in ("0", ""):
        tell(run, run.attempt_numbers(), speaker)
    free = max([start.attempt, *run.attempt_numbers()]) + 1
    raise refused(
        f"attempt {start.attempt} of {run.name} was made by another JobSet, its files are in {attempt.path}: go on with "
        f'`python -m launcher resume`, or with the annotation launcher/first-attempt: "{free}"'
    )


def tell(run: RunFolder, numbers: Sequence[int], speaker: Speaker) -> None:
    """Repeats what attempts left, for a launcher that was not listening then."""
    for number in numbers[-TOLD_ATTEMPTS:]:
        attempt = run.attempt(number)
        for path in (attempt.started(), attempt.failure, attempt.result(), history.decision_file(attempt)):
            content = read_object(path)
            if content is not None:
                speaker.say(number, path.name, content)
    adjusted = read_object(run.adjust)
    if adjusted is not None:
        speaker.say(None, ADJUST, adjusted)


def settle_past(
    run: RunFolder, bundle: BundleFolder, launch: Launch, start: Start, *, checkpoints: Optional[Path], say: Say
) -> None:
    """Judges the attempts since the first that nobody has judged; refuses (78) when they have used up a budget."""
    submission = Submission(run, launch, start.first, read_table(bundle.failures))
    for number in range(start.first, start.attempt):
        attempt = run.attempt(number)
        facts = _facts(attempt, start.name_of(number))
        decision = read_object(history.decision_file(attempt))
        if decision is None or not (facts.started or facts.results):
            attempt.path.mkdir(parents=True, exist_ok=True)
            _settle(submission, attempt, facts, newest_checkpoint(checkpoints), name=start.name_of(number), say=say)
            decision = read_object(history.decision_file(attempt)) or {}
        code = (facts.results.get(0) or {}).get("code")
        if decision.get("action") == Action.STOP.value and code != Code.FINISHED:
            raise refused(f"not started, attempt {number} was the last: {decision.get('reason')}")


def _facts(attempt: AttemptFolder, name: str) -> Facts:
    """What the workers of that start left in the folder; files of another one count as not there."""
    facts = read_facts(attempt)
    if not name:
        return facts

    def of_it(files: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
        return {node: content for node, content in files.items() if content.get("start") == name}

    is_its_failure = facts.failure is not None and facts.failure.get("start") == name
    return replace(
        facts,
        results=of_it(facts.results),
        started=of_it(facts.started),
        failure=facts.failure if is_its_failure else None,
    )


def _settle(
    submission: Submission, attempt: AttemptFolder, facts: Facts, checkpoint: Optional[int], *, name: str, say: Say
) -> None:
    """Writes result.json, where there is none, and decision.json of one attempt that is over. name: its start's."""
    end = end_of(facts, checkpoint)
    if 0 not in facts.results:
        history.write_missing_result(
            attempt,
            end,
            steps=submission.launch.steps,
            step=last_step(attempt) if facts.started else None,
            checkpoint=checkpoint,
            started=float(facts.started.get(0, {}).get("started") or time.time()),
            start=name,
        )
    follow(submission, attempt, facts, end, Allocation(are_recreated=True), suffice=lambda _: True, say=say)


def end_of(facts: Facts, checkpoint: Optional[int]) -> End:
    """How an attempt in pods ended. A node without a last word went first: the others then fail over its silence."""
    said = by_words(facts)
    if not facts.started:
        return said or unsaid("no worker began: its pods were not started, or ended before", checkpoint)
    lost = sorted(set(facts.started) - set(facts.results))
    if said is not None and (said.code in _EXPLAINED or not lost):
        return said
    if len(lost) == len(facts.started):
        return unsaid("its pods ended without a word (lost nodes, preemption, out of memory)", checkpoint)
    names = ", ".join(f"{node} ({facts.host(node)})" for node in lost)
    end = unsaid(f"the pod of node {names} ended without a word (a lost node, out of memory, killed)", checkpoint)
    return replace(end, host=facts.host(lost[0])) if len(lost) == 1 else end
