"""Which watchers look at the trainers of this node: the one place where they are put together."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from .alarms import SLOW, Alarm
from .ending import read_object
from .flight import Asked
from .hang import Hang, Heard, Others, past_first_steps, schedule_of
from .launch import Launch
from .layout import AttemptFolder, RunFolder
from .monitor import Monitor, Pids, Stop, Watcher
from .numbers import Numbers
from .output import Journal
from .peers import PAUSE, Failure
from .place import host_name
from .policy import ACT, NONE, WARN
from .prometheus import Endpoint, Metrics
from .rows import LiveRows, earlier
from .said import Said
from .sampling import Sampler
from .stall import Bounds, Clock, first_bound
from .table import Row
from .telling import Teller


@dataclass(frozen=True)
class Here:
    """What a watcher may know of this node and this attempt.

    ranks: of this node. python: the trainers'. environ: theirs, so it holds secrets. said: tells files in a pod.
    maxtext_yml: MaxText's file. pids: the live trainers. peer: the first failure, if it was another node's. report: tells
    the other nodes that this one asks for the end. is_ending: a stop signal has come, or a rank has ended: a Stop comes too
    late. on_diverged: hears of each alarm that the policy answers with the attempt's end. on_overflow: hears of each step
    whose rows did not fit a MoE receive buffer.
    """

    launch: Launch
    run: RunFolder
    attempt: AttemptFolder
    node: int
    nodes: int
    ranks: Sequence[int]
    python: str
    environ: Mapping[str, str]
    journal: Journal
    said: Said
    maxtext_yml: Path
    pids: Pids
    peer: Callable[[], Optional[Failure]]
    report: Callable[[Stop], None]
    is_ending: Callable[[], bool]
    on_diverged: Callable[[Alarm], None]
    on_overflow: Callable[[Row], None]


def monitor(here: Here) -> Monitor:
    """This node's watchers; the last ones hear what those before them found."""
    watchers: list[Watcher] = []
    exports = Exports(here)
    if here.node == 0:
        watchers.append(_numbers(here, exports))
    if here.launch.policy.stall != NONE:
        watchers.append(_hang(here, exports))
    if here.launch.platform == "gpu":
        watchers.append(_sampler(here, exports))
    return Monitor([*watchers, *exports.watchers()])


def _numbers(here: Here, exports: Exports) -> Numbers:
    def on_alarm(alarm: Alarm, word: str) -> None:
        exports.alarm(alarm, word)
        if word != WARN:
            here.on_diverged(alarm)

    def on_row(row: Row) -> None:
        exports.row(row)
        if row.demand is not None and row.capacity and row.demand > row.capacity:
            here.on_overflow(row)

    return Numbers(
        LiveRows(here.attempt.number, here.attempt.metrics, time.time()),
        here.launch.policy,
        here.journal.say,
        on_row=on_row,
        on_alarm=on_alarm,
        before=earlier(here.run, here.attempt.number),
    )


def _sampler(here: Here, exports: Exports) -> Sampler:
    def tell(text: str) -> None:
        exports.alarm(Alarm("straggler", -1, time.time(), text), here.launch.policy.straggler)

    return Sampler(here.attempt, here.node, here.ranks, said=here.said, say=here.journal.say, tell=tell)


def _hang(here: Here, exports: Exports) -> Hang:
    policy, attempt = here.launch.policy, here.attempt
    first = first_bound(policy.first_step_seconds, past_first_steps(here.run, attempt.number))
    schedule = schedule_of(here.launch, here.maxtext_yml)

    def stalled(step: Optional[int], text: str) -> None:
        exports.alarm(Alarm("stalled", -1 if step is None else step, time.time(), text), policy.stall)

    def landed() -> None:
        path = attempt.flight_summary(here.node)
        here.said.file(path, read_object(path) or {})

    return Hang(
        Asked(attempt, here.node, {}, {}, time.time(), here.python, here.environ),
        Clock(here.ranks, Bounds(first, policy.stall_seconds), schedule, time.monotonic()),
        acts=policy.stall == ACT,
        pids=here.pids,
        is_ending=here.is_ending,
        others=Others(here.peer, here.report, 2 * PAUSE if here.nodes > 1 else 0.0),
        heard=Heard(here.journal.say, stalled, landed),
    )


class Exports:
    """Where rows and alarms go besides the journal: node 0's messages, and the page of the metrics endpoint."""

    def __init__(self, here: Here) -> None:
        self._here = here
        policy, number = here.launch.policy, here.attempt.number
        self._teller = Teller(None if here.node else policy.webhook, here.run.name, here.journal.say)
        about = f"attempt {number} starts on {here.nodes} node{'s' if here.nodes > 1 else ''}, {host_name()} first"
        self._teller.tell(about)
        self._metrics = Metrics(
            {"run": here.run.name, "attempt": str(number), "node": str(here.node)},
            {
                "attempt_start_time_seconds": ("When the trainers were started, Unix time.", time.time()),
                "steps": ("How many steps the run shall have.", float(here.launch.steps)),
            },
        )

    def row(self, row: Row) -> None:
        """One completed step."""
        self._metrics.row(row)

    def alarm(self, alarm: Alarm, word: str) -> None:
        """One alarm; word: what the policy says to it (policy.py). A slow step is no reason to call a person."""
        self._metrics.alarm(alarm.kind)
        if alarm.kind != SLOW:
            self._teller.tell(alarm.text if word == WARN else f"{alarm.text} ({word})")

    def watchers(self) -> list[Watcher]:
        """What serves them. In a JobSet all pods carry the same annotations, so each of them answers a scrape."""
        port = self._here.launch.policy.metrics_port
        if port is None or (self._here.node and not self._here.said.is_heard):
            return [self._teller]
        return [Endpoint(int(port), self._metrics.text, self._here.journal.say), self._teller]
