"""The watcher of steps that do not come: sees a stall (stall.py), gathers evidence (flight.py), and then asks for the end."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Optional

from . import flight
from .clock import Clock as LogClock
from .codes import Code
from .ending import last_step, read_object
from .launch import Launch
from .layout import AttemptFolder, RunFolder
from .monitor import Pids, Stop
from .peers import Failure
from .stall import Clock, Schedule, Stalled
from .steps import parse_step

DEBUGGER_SECONDS = 60.0  # that a rank which a debugger holds gets, again and again
PAST_ATTEMPTS = 20  # that tell how long the first step takes: the newest ones may all have found a warm compile cache
_PAST_BYTES = 8 << 20  # of a log that are looked through for its first step

_KEY = re.compile(
    r"^(eval_interval|eval_start_step|profiler|profiler_steps|skip_first_n_steps_for_profiler): (.*)$", re.M
)


class Others(NamedTuple):
    """The other nodes. failure: the first failure, if it was another node's. report: tells them of one here.

    hold: seconds that they get to gather after this node has, because the first node to end may end all.
    """

    failure: Callable[[], Optional[Failure]]
    report: Callable[[Stop], None]
    hold: float


class Heard(NamedTuple):
    """Who hears of it. say: one line for people. stalled: a stall begins, with its last step (None: not one was made) and
    one line. landed: the summary of what was gathered is there."""

    say: Callable[[str], None]
    stalled: Callable[[Optional[int], str], None]
    landed: Callable[[], None]


class Hang:
    """The watcher. It tells the other nodes before it gathers, so that all gather at once and none is killed meanwhile."""

    def __init__(
        self,
        ask: flight.Asked,
        clock: Clock,
        *,
        acts: bool,
        pids: Pids,
        is_ending: Callable[[], bool],
        others: Others,
        heard: Heard,
    ) -> None:
        """`ask`: pids and last are filled in when there is a stall. `acts`: False = it is only told."""
        self._ask = ask
        self._clock = clock
        self._acts = acts
        self._pids = pids
        self._is_ending = is_ending
        self._others = others
        self._heard = heard
        self._flight: Optional[flight.Flight] = None
        self._stop: Optional[Stop] = None
        self._not_before = 0.0
        self._told: Optional[float] = None
        self._is_mute = False

    def line(self, rank: int, text: str, now: float) -> None:
        """Takes in one line of a rank."""
        self._clock.line(rank, text, now)

    def look(self, now: float) -> Optional[Stop]:
        """The end, once a stall is seen, told and looked into."""
        if self._is_ending():
            self.close()
            return None
        stalled = self._clock.look(now)
        if self._flight is not None:
            if not self._flight.is_done(now):
                return None
            self._landed()
            self._not_before = now + self._others.hold
        if self._stop is not None:
            return self._stop if now >= self._not_before else None
        peer = self._others.failure() if self._acts else None
        if peer is not None and peer.code == Code.STALLED:
            self._stop = Stop(int(Code.STALLED), f"node {peer.node} ({peer.host}): {peer.reason}")
            self._tell(self._stop.reason, "evidence is gathered here too, then the attempt ends")
            self._take_off(self._stop.reason, now)
        elif stalled is not None and self._told != self._clock.moved and not self._is_mute:
            self._on_stall(stalled, now)
        return None

    def close(self) -> None:
        """Ends what still gathers: a stop signal does not wait for it."""
        if self._flight is not None:
            self._flight.end()
            self._landed()

    def _on_stall(self, stalled: Stalled, now: float) -> None:
        if self._ask.node and set(stalled.last.values()) == {None} and last_step(self._ask.attempt) is not None:
            self._is_mute = True
            self._heard.say(
                "rank 0 has made steps, the ranks here print none: whether they stall is not looked at here"
            )
            return
        held = [rank for rank, pid in self._pids().items() if is_traced(pid)]
        if held:
            self._heard.say(f"{stalled.text}; a debugger holds rank(s) {', '.join(map(str, held))}: that is no stall")
            self._clock.excuse(DEBUGGER_SECONDS)
            return
        self._told = self._clock.moved
        follows = "then the attempt ends" if self._acts else "nothing else is done (monitor.stall=warn)"
        self._tell(stalled.text, f"evidence is gathered, {follows}")
        if self._acts:
            self._stop = Stop(int(Code.STALLED), stalled.text)
            self._others.report(self._stop)
        self._take_off(stalled.text, now)

    def _tell(self, text: str, follows: str) -> None:
        self._heard.say(f"stalled: {text}; {follows}")
        self._heard.stalled(max((step for step in self._clock.last.values() if step is not None), default=None), text)

    def _take_off(self, why: str, now: float) -> None:
        asked = self._ask._replace(pids=self._pids(), last=self._clock.last)
        try:
            self._flight = flight.Flight(asked, why, now)
        except OSError as error:
            self._heard.say(f"no evidence can be gathered: {error}")

    def _landed(self) -> None:
        self._flight = None
        own = [summary for summary in flight.read(self._ask.attempt) if summary["node"] == self._ask.node]
        if own:
            self._heard.landed()
            seen = flight.standing(own).text
            said = f": {seen}" if seen else ""
            self._heard.say(f"evidence is in {self._ask.attempt.flight(self._ask.node)}{said}")
            if self._stop is not None and seen:
                self._stop = Stop(self._stop.code, f"{self._stop.reason}; {seen}")


def is_traced(pid: int) -> bool:
    """Whether a debugger holds a process (TracerPid in /proc/PID/status, proc(5))."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    found = re.search(r"^TracerPid:\s+(\d+)", status, re.MULTILINE)
    return found is not None and found[1] != "0"


def schedule_of(launch: Launch, maxtext_yml: Path) -> Schedule:
    """When this training pauses by plan: launch.json, and MaxText's keys as its command line and its file have them."""
    try:
        text = maxtext_yml.read_text(encoding="utf-8", errors="replace")
    except OSError:  # MaxText will say so
        text = ""
    keys: dict[str, Any] = {**dict(_KEY.findall(text)), **launch.arguments}
    skip, steps = _whole(keys, "skip_first_n_steps_for_profiler", 1), _whole(keys, "profiler_steps", 5)
    is_profiled = str(keys.get("profiler") or "").strip("\"' ") != ""
    return Schedule(
        steps=launch.steps,
        checkpoint_period=launch.checkpoint_period if launch.checkpointing else 0,
        eval_interval=max(0, _whole(keys, "eval_interval", 0)),
        eval_start=_whole(keys, "eval_start_step", 0),
        profile=range(skip, skip + steps + 1) if is_profiled else (),
    )


def _whole(keys: Mapping[str, Any], key: str, default: int) -> int:
    try:
        return int(keys[key])
    except (KeyError, TypeError, ValueError):
        return default


def past_first_steps(run: RunFolder, number: int) -> list[float]:
    """Seconds from the start to the first step, of the attempts before `number` that had one.

    None at all once the monitor has changed a setting: then the program is another one, and is compiled anew.
    """
    if (read_object(run.adjust) or {}).get("maxtext"):
        return []
    past = [each for each in run.attempt_numbers() if each < number][-PAST_ATTEMPTS:]
    found = (_to_first_step(run.attempt(each)) for each in past)
    return [seconds for seconds in found if seconds is not None]


def _to_first_step(attempt: AttemptFolder) -> Optional[float]:
    started = (read_object(attempt.started()) or {}).get("started")
    if not isinstance(started, (int, float)):
        return None
    clock = LogClock(float(started))
    try:
        with open(attempt.rank_log(0), "rb") as log:
            lines = log.read(_PAST_BYTES).decode("utf-8", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        at = clock.at(line)
        if at is not None and parse_step(line) is not None:
            return max(0.0, at - started)
    return None
