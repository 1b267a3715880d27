"""What happened in a run, one line an event, over all attempts in time order: its folder's records, its logs, its steps."""

from __future__ import annotations

import dataclasses
import itertools
import json
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from launcher.node import flight, pace, rollback
from launcher.node import marks as m
from launcher.node.alarms import Alarms
from launcher.node.codes import Outcome
from launcher.node.marks import Mark
from launcher.runs.attempts import Judged, cancel_file, judge_one
from launcher.runs.causes import cause_of
from launcher.runs.figures import duration
from launcher.runs.goodput import goodput
from launcher.runs.history import History, Life, history
from launcher.runs.reading import RANK_0, table_of
from launcher.runs.store import Run, read_object_if_there
from launcher.targets import base

FOLLOW_SECONDS = 2.0
"""Between two looks of `events -f`."""

LATE_SHARE = 0.05
"""Of the time between two steps: by less the ranks of one machine differ that print their lines when it is their turn."""

_LEAST_STEPS = 16  # before one rank can be said to be always the last

# Of a divergence the monitor's own events tell; the table would advise against the restart that it prepared.
_NO_FAILURES = (Outcome.FINISHED.value, Outcome.PREEMPTED.value, Outcome.DIVERGED.value)
EXCLUDE = "; monitor.straggler=exclude would have the next attempt do without it"
_EVENTS = {
    m.STARTED: "JAX runs on all ranks, {text} devices",
    m.RESTORING: "goes on from the checkpoint of step {step}",
    m.RESTORED: "the checkpoint is restored, after {text} s",
    m.COMPILED: "compiled; XLA's estimate of memory is {text}",
    m.SAVED: "checkpoint of step {step} is written",
    m.EVALUATED: "evaluated after step {step}: {text}",
    m.OVERFLOW: "MoE receive buffers overflowed at step {step} {text}",
    m.FALLBACK: "MoE buffers overflowed at step {step} in {text}(s); MaxText's dropless fallback was used",
    m.ABORTED: "MaxText ends the training: {text} loss",
    m.STOPPED: "MaxText stopped: {text}",
}


@dataclass(frozen=True)
class Event:
    """One thing that happened. at: Unix seconds, None = nobody told the time (it stands where it belongs by order).

    attempt: None = the run's. kind: a word for scripts. step: the one that it is about. text: one line for people.
    """

    at: float | None
    attempt: int | None
    kind: str
    text: str
    step: int | None = None


def events(told: History, run: Run) -> list[Event]:
    """All events of a run so far. Raises Damaged, Refused (a table of failures of the user's)."""
    found = [Event(told.created, None, "submitted", f"submitted to {run.target or 'an unknown target'}")]
    alarms = Alarms()
    for life in told.lives:
        found += _begin(life)
        found += _by_time([*_marks(life.marks, life.number), *_alarms(alarms, life), *_steps(life, told.steps)])
        found += [*_stragglers(run, life), *_flight(run, life), *_end(run, life)]
    found += _adjusted(run)
    return _by_time(found)


def _by_time(found: Sequence[Event]) -> list[Event]:
    """In time order; what has no time stays behind what it came after."""
    keys: list[tuple[float, int]] = []
    latest = float("-inf")
    for index, event in enumerate(found):
        latest = event.at if event.at is not None else latest
        keys.append((latest, index))
    return [found[index] for _, index in sorted(keys)]


def _begin(life: Life) -> list[Event]:
    if life.started is None:
        return []
    hosts = life.hosts
    where = f" on {hosts[0]}" if len(hosts) == 1 else f" on {len(hosts)} nodes, {hosts[0]} first" if hosts else ""
    return [Event(life.started, life.number, "attempt_started", f"attempt {life.number} started{where}")]


def _marks(marks: Sequence[Mark], attempt: int) -> Iterator[Event]:
    """A mark that a rank repeats (a check of every process, a message of every thread) is one event."""
    seen: set[tuple[str, int | None]] = set()
    for mark in marks:
        text = _EVENTS.get(mark.kind)
        if text is not None and (mark.kind, mark.step) not in seen:
            seen.add((mark.kind, mark.step))
            said = text.format(step=mark.step, text=mark.text)
            yield Event(mark.at, attempt, mark.kind, said, mark.step)


def _alarms(alarms: Alarms, life: Life) -> Iterator[Event]:
    pauses = sorted(
        mark.at for mark in life.marks if mark.at is not None and mark.kind in (m.SAVED, m.SAVING, m.EVALUATED)
    )
    position = 0
    for row in life.rows:
        begin = position
        while position < len(pauses) and row.at is not None and pauses[position] <= row.at:
            position += 1
        for alarm in alarms.feed(row, excused=position > begin):
            yield Event(alarm.at, life.number, alarm.kind, alarm.text, alarm.step)


def _steps(life: Life, steps: int) -> Iterator[Event]:
    if not life.rows:
        return
    first, last = life.rows[0], life.rows[-1]
    since = "" if first.at is None or life.started is None else f", {duration(first.at - life.started)} after the start"
    yield Event(first.at, life.number, "first_step", f"step {first.step} is the first{since}", first.step)
    if life.ended is not None:
        yield Event(last.at, life.number, "last_step", f"step {last.step} of 0..{steps - 1} is the last", last.step)
        yield from _ranks(life)


def _ranks(life: Life) -> Iterator[Event]:
    """What a comparison of all ranks' logs shows at the end of an attempt; nothing when only rank 0's was read."""
    most, last = max(row.ranks for row in life.rows), life.rows[-1]
    if most < 2:
        return
    if last.ranks < most:
        text = f"{last.ranks} of {most} ranks report step {last.step}, the last"
        yield Event(last.last_at, life.number, "ranks_missing", text, last.step)
    timed = [row for row in life.rows if row.last_at is not None and row.first_at is not None]
    late = Counter(row.last_rank for row in timed).most_common(1)
    if len(timed) < _LEAST_STEPS or 2 * late[0][1] <= len(timed):
        return
    by = statistics.median(row.last_at - row.first_at for row in timed if row.last_at and row.first_at)
    begins = [row.first_at for row in timed if row.first_at is not None]
    if by < LATE_SHARE * statistics.median(b - a for a, b in itertools.pairwise(begins)):
        return
    text = f"rank {late[0][0]} was the last to complete {late[0][1]} of {len(timed)} steps; first to last: {by:.3f} s"
    yield Event(last.last_at, life.number, "late_rank", f"{text} (median)", last.step)


def _stragglers(run: Run, life: Life) -> Iterator[Event]:
    """Nodes that hold the others up, once each, and what to do about them."""
    for one in pace.found_in(run.layout.attempt(life.number)):
        does = "" if run.launch().get("monitor", {}).get("straggler") == "exclude" else EXCLUDE
        yield Event(
            float(one["at"]), life.number, "straggler", f"node {one['node']} ({one['host']}): {one['why']}{does}"
        )


def _flight(run: Run, life: Life) -> list[Event]:
    """A stall, by the first node that saw it, and what the evidence of all nodes shows."""
    summaries = sorted(flight.read(run.layout.attempt(life.number)), key=lambda summary: summary.get("at") or 0.0)
    if not summaries:
        return []
    first, last = summaries[0], summaries[-1]
    found = [Event(first.get("at"), life.number, "stalled", f"stalled: {first.get('why')}")]
    seen = flight.standing(summaries).text
    if seen:
        found.append(Event(last.get("at"), life.number, "flight", f"evidence of {len(summaries)} node(s): {seen}"))
    return found


def _end(run: Run, life: Life) -> list[Event]:
    found = []
    if life.outcome or life.ended is not None:
        what = f"{life.outcome or 'ended without a word'} (exit code {life.code})" if life.code is not None else "ended"
        said = f": {life.reason}" if life.reason else ""
        found.append(Event(life.ended, life.number, "attempt_ended", f"attempt {life.number} {what}{said}"))
        attempt = run.layout.attempt(life.number)
        if life.outcome not in _NO_FAILURES and not cancel_file(attempt).exists():
            cause = cause_of(attempt, life.reason)
            # What a worker itself ended with a code of ours over, its reason explains.
            if cause is not None and (cause.signature is not None or life.outcome in ("", Outcome.TRAINER.value)):
                kind = cause.signature.name if cause.signature is not None else "unknown_failure"
                help_text = f"; {cause.advice}" if cause.advice else ""
                found.append(Event(life.ended, life.number, kind, f"cause: {cause.cause}{help_text}"))
    if life.decision is not None:
        action = life.decision.action
        at = life.decision.at or None
        found.append(Event(at, life.number, f"decided_{action}", f"{action}: {life.decision.reason}"))
    return found


def _adjusted(run: Run) -> list[Event]:
    """The monitor's changes, as adjust.json keeps them."""
    found = []
    for entry in (read_object_if_there(run.layout.adjust) or {}).get("history") or ():
        at, attempt = entry.get("at"), entry.get("attempt")
        kind = "rollback" if entry.get("key") == rollback.KEY else "adjusted"
        text = rollback.told(entry)
        reason = f": {entry['why']}" if entry.get("why") else ""
        found.append(Event(float(at) if at is not None else None, attempt, kind, f"{text}{reason}"))
    return found


def event_text(event: Event) -> str:
    """One line: local time, attempt, what happened."""
    stamp = "-" * 19 if event.at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.at))
    attempt = "   " if event.attempt is None else f"{event.attempt:>3}"
    return f"{stamp}  {attempt}  {event.kind:<16} {event.text}"


def event_json(event: Event) -> dict[str, Any]:
    """For `--json`: the fields of Event by name."""
    return dataclasses.asdict(event)


def read(run: Run, *, all_ranks: bool = False) -> tuple[Judged, History]:
    """The run as it is now, by rank 0's log or all ranks'. Raises Damaged."""
    judged = judge_one(run)
    if all_ranks and run.target in base.DISTANT and judged.handle is not None:
        base.get(run.target).bring(run.layout, judged.handle, None)
    with table_of(run.layout, None if all_ranks else RANK_0) as table:
        return judged, history(judged, table)


def print_events(run: Run, out: TextIO, *, as_json: bool, follow: bool, all_ranks: bool) -> int:
    """Every event, a line each; with `follow`, those to come until the run is over. The exit code of the command."""
    told: set[Event] = set()
    while True:
        judged, known = read(run, all_ranks=all_ranks)
        for event in events(known, run):
            if event not in told:
                told.add(event)
                out.write((json.dumps(event_json(event)) if as_json else event_text(event)) + "\n")
        out.flush()
        if not follow or not judged.is_live:
            break
        time.sleep(FOLLOW_SECONDS)
    if not as_json:
        out.write(f"goodput: {goodput(known).line()}\n")
    return 0
