"""What follows the end of an attempt, judged in one way for all targets: by the supervisors on SLURM and on one machine,
and by node 0 of the next start in pods.

Each has its own way to learn how an attempt ended (End) and what may come after it (Allocation). Causes, suspects,
budgets and the record (decision.json) are the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Optional

from . import environment, fitness, flight, history, pace, telling
from .budgets import OVERFLOW, STALL, Allocation, Decision, Ending, decide
from .causes import tails
from .codes import Code
from .ending import End, Facts, last_step, newest_checkpoint, read_object
from .failures import Finding, Signature, recognise
from .launch import Launch, read_adjustments
from .layout import AttemptFolder, RunFolder, checkpoints_folder
from .policy import EXCLUDE, STOP, WARN

_OF_THE_CODE = re.compile(
    r"([\w.]+\.)?(ValueError|TypeError|KeyError|IndexError|AttributeError|NameError|AssertionError|NotImplementedError)\b"
)
"""What a program says of itself and not of its machine (OSError, RuntimeError, XlaRuntimeError)."""

Suffice = Callable[[Collection[str]], bool]
"""Whether the nodes suffice without these."""

Say = Callable[[str], None]
"""Takes one line for the log of whoever judges."""


@dataclass(frozen=True)
class Submission:
    """What a judge knows before the first attempt ends. first: this submission's first attempt. table: of failures."""

    run: RunFolder
    launch: Launch
    first: int
    table: Sequence[Signature] = ()

    @property
    def is_cancelled(self) -> bool:
        """Whether a person asked for the end."""
        return history.is_cancelled(self.run, self.first)

    def past(self, attempt: AttemptFolder) -> history.Past:
        """What the attempts before this one came to."""
        return history.read_past(self.run, self.first, attempt.number)

    def checkpoints(self) -> Optional[Path]:
        """The folder of checkpoints; None = on remote storage."""
        keys = environment.maxtext_keys(self.run, self.launch, read_adjustments(self.run.adjust))
        output = str(keys["base_output_directory"])
        return None if "://" in output else checkpoints_folder(Path(output), str(keys["run_name"]))


def record(submission: Submission, attempt: AttemptFolder, end: End, started: float) -> None:
    """result.json of an attempt whose node 0 left none. started: Unix seconds."""
    if read_object(attempt.result()) is None:
        history.write_missing_result(
            attempt,
            end,
            steps=submission.launch.steps,
            step=last_step(attempt),
            checkpoint=newest_checkpoint(submission.checkpoints()),
            started=started,
        )


def follow(
    submission: Submission,
    attempt: AttemptFolder,
    facts: Facts,
    end: End,
    allocation: Allocation,
    *,
    suffice: Suffice,
    say: Say,
    final: str = "",
) -> Decision:
    """Decides what follows an attempt whose result is written, writes decision.json, and tells it who wants to be told.

    final: why the caller's own situation allows nothing to follow. The allocation's `enough_nodes` is worked out here.
    """
    past = submission.past(attempt)
    if end.code == Code.STALLED:
        end = replace(end, host="")  # whoever sees it first is not to blame for it
    if _only_checks(submission.launch) and 0 in facts.results:
        end = replace(end, host="", reason=str(facts.results[0].get("reason", "")))  # it tells of all nodes
    found = _finding(submission, attempt, end) if facts.started else None
    result = read_object(attempt.result()) or {}
    ending = Ending(
        end.code,
        end.reason,
        progressed=past.progressed(result.get("checkpoint"), result.get("last_step")),
        host=end.host,
        suspects=_suspects(submission, attempt, facts, end, found),
        final=_final(submission, attempt, end, found) or final,
        kind=_kind(end, found),
        cause=_told(found) or _standing(attempt, end),
    )
    allocation = replace(allocation, enough_nodes=suffice({*past.excluded, *ending.suspects}))
    decision = decide(ending, past.spent, submission.launch.restarts, allocation, past.excluded)
    if allocation.are_recreated:
        decision = replace(decision, pause_seconds=0.0)  # the controller has made the new pods already
    history.write_decision(attempt, decision, end.host, past.spent, found)
    _tell(submission, attempt, decision, say)
    return decision


def _tell(submission: Submission, attempt: AttemptFolder, decision: Decision, say: Say) -> None:
    text = f"attempt {attempt.number}: {decision.action.value}: {decision.reason}"
    say(text)
    telling.tell_now(submission.launch.policy.webhook, submission.run.name, text, say)


def change(submission: Submission, attempt: AttemptFolder, decision: Decision, *, say: Say, host: str = "") -> Decision:
    """Writes another decision over an attempt's own, whose cause stays, and tells it."""
    before = read_object(history.decision_file(attempt)) or {}
    history.write_decision(attempt, decision, host, submission.past(attempt).spent, cause=before.get("cause"))
    _tell(submission, attempt, decision, say)
    return decision


def _finding(submission: Submission, attempt: AttemptFolder, end: End) -> Optional[Finding]:
    """What the trainer died of by itself; None when an exit code of ours says more, or nothing can be looked up."""
    if end.code in list(Code) or not submission.table:
        return None
    return recognise(tails(attempt), submission.table)


def _kind(end: End, found: Optional[Finding]) -> str:
    if end.code in (Code.STALLED, Code.OVERFLOW):
        return STALL if end.code == Code.STALLED else OVERFLOW
    return found.signature.kind if found is not None and found.signature is not None else ""


def _told(found: Optional[Finding]) -> str:
    if found is None:
        return ""
    return "cause unknown" if found.signature is None else f"cause: {found.signature.cause}"


def _standing(attempt: AttemptFolder, end: End) -> str:
    """What stands out in a stall over all nodes; one node may have said the same of itself already."""
    text = flight.told(attempt) if end.code == Code.STALLED else ""
    return "" if text in end.reason else text


def _final(submission: Submission, attempt: AttemptFolder, end: End, found: Optional[Finding]) -> str:
    """Why nothing may follow, whatever the budgets allow; "" = something may."""
    if submission.is_cancelled:
        return "a person asked for the end"
    if _only_checks(submission.launch) and end.code != Code.PREEMPTED:
        return "these nodes cannot run it"
    if found is not None and found.signature is not None and found.signature.action == "stop":
        return f"no retry helps ({found.signature.name}: {found.signature.cause})"
    if _is_repeated(submission, attempt, found):
        return "no retry helps (the attempt before died of the same words, no step in either)"
    overflow = submission.launch.overflow
    if end.code == Code.OVERFLOW and overflow != WARN and not _was_adjusted(submission.run, attempt):
        left = "is left to a person (monitor.overflow=stop)" if overflow == STOP else "was not set"
        return f"a larger ragged_buffer_factor {left}"
    if end.code == Code.DIVERGED and not _was_adjusted(submission.run, attempt):
        return "to go back to an earlier checkpoint is left to a person"
    return ""


def _is_repeated(submission: Submission, attempt: AttemptFolder, found: Optional[Finding]) -> bool:
    """Whether the attempt before made no step either and died of the same error of Python's: the same code on the same configuration."""
    if found is None or found.signature is not None or not _OF_THE_CODE.match(found.line):
        return False
    if attempt.number == submission.first or _was_adjusted(submission.run, attempt):
        return False
    before = submission.run.attempt(attempt.number - 1)
    line = ((read_object(history.decision_file(before)) or {}).get("cause") or {}).get("line")
    steps = [(read_object(one.result()) or {}).get("last_step") for one in (before, attempt)]
    return line == found.line and steps == [None, None]


def _was_adjusted(run: RunFolder, attempt: AttemptFolder) -> bool:
    """Whether the monitor changed something for the attempts after this one."""
    entries = (read_object(run.adjust) or {}).get("history") or ()
    return any(entry.get("attempt") == attempt.number for entry in entries if isinstance(entry, dict))


def _only_checks(launch: Launch) -> bool:
    """Whether the nodes are examined and nothing is trained (monitor.node_check=only)."""
    return launch.node_check is not None and launch.node_check.only


def _suspects(
    submission: Submission, attempt: AttemptFolder, facts: Facts, end: End, found: Optional[Finding]
) -> tuple[str, ...]:
    """Nodes to do without: the end's own, the cause's, and one whose process failed first for the second time."""
    if _only_checks(submission.launch):
        return tuple(filter(None, map(facts.host, fitness.suspects(attempt))))
    hosts = list(end.suspects)
    if end.host and end.host in submission.past(attempt).hosts:
        hosts.append(end.host)
    if end.code == Code.STALLED:
        hosts += map(facts.host, flight.suspects(attempt))
    if submission.launch.policy.straggler == EXCLUDE and end.code != Code.FINISHED:
        hosts += map(facts.host, pace.suspects(attempt))
    if found is not None and found.signature is not None and found.signature.action == "exclude":
        hosts.append(_host_of(found.who, submission.launch, facts) or end.host)
    return tuple(dict.fromkeys(host for host in hosts if host))


def _host_of(who: str, launch: Launch, facts: Facts) -> str:
    """The node of the one whose line it is: "rank 3", "worker 0"; "" for srun and the cluster."""
    place, _, number = who.partition(" ")
    if not number.isdigit() or place not in ("rank", "worker"):
        return ""
    return facts.host(int(number) // launch.processes_per_node if place == "rank" else int(number))
