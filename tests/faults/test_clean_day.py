"""No false alarm in a day of clean log: a real run's own lines, stretched in time, through the watchers as a worker asks them;
and of a day with one fault in it, that fault alone."""

import itertools
import json
import re
import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest
import recorded

from launcher.node.clock import Clock as LogClock
from launcher.node.numbers import Numbers
from launcher.node.policy import Policy
from launcher.node.rows import LiveRows
from launcher.node.scan import read_piece
from launcher.node.stall import Bounds, Clock, Schedule
from launcher.node.steps import JUNK_STEPS, parse_step

DAY = 86400.0
BEGAN = 1795996800.0  # of the log's first line, Unix seconds
PERIOD = 250  # steps between two checkpoints
SAVE_SECONDS = 90.0  # that the training waits for one
STEP_SECONDS = 10.0  # those of the large models
LOOK_SECONDS = 20.0  # between two looks; a worker's 0.2 s would see no more
ALL_ACT = Policy(nan="stop", loss_spike="stop", grad_spike="stop", imbalance="stop")


class Said(NamedTuple):
    """One line of rank 0, and what it puts into its metrics file before it goes on."""

    at: float
    text: str
    entry: dict[str, float] | None = None


def stamped(text: str, at: float) -> str:
    stamp = time.strftime("I%m%d %H:%M:%S", time.localtime(at)) + f".{int(at % 1 * 1e6):06d}"
    return re.sub(r"^I\d{4} [\d:.]+", stamp, text)


def there_and_back(values: list) -> list:
    """A cycle without a seam."""
    return values + values[-2:0:-1]


def norms() -> list[float]:
    """The gradient norms of a real run, from where they fall no more."""
    lines = recorded.lines("cpu_tiny_metrics.jsonl")
    return there_and_back([json.loads(line)["learning/raw_grad_norm"] for line in lines[-60:]])


def day_of(name: str) -> Iterator[Said]:
    """The run's steps, its losses and the time that each took, as often as a day of steps of ten seconds holds; with checkpoints."""
    lines = [line for line in recorded.lines(name) if parse_step(line) is not None][JUNK_STEPS:]
    data = "\n".join(recorded.lines(name)).encode()
    times = [at for _, at in read_piece(data, LogClock(BEGAN))[0]][JUNK_STEPS - 1 :]
    gaps = there_and_back([later - earlier for earlier, later in itertools.pairwise(times)])
    factor = STEP_SECONDS * len(gaps) / sum(gaps)
    texts, grads, at = there_and_back(lines), norms(), BEGAN
    for step in itertools.count():
        at += factor * gaps[step % len(gaps)]
        if at > BEGAN + DAY:
            return
        if step and step % PERIOD == 0:
            at += SAVE_SECONDS
            yield Said(at, stamped(f"I1129 17:34:48.1 1 checkpointing.py:795] {SAVING.format(step=step)}", at))
        text = re.sub(r"completed step: \d+", f"completed step: {step}", texts[step % len(texts)])
        loss = parse_step(text).loss
        entry = {"step": float(step), "learning/loss": loss, "learning/raw_grad_norm": grads[step % len(grads)]}
        yield Said(at, stamped(text, at), entry)


SAVING = "Started an asynchronous checkpoint save for step {step}"


class Worker:
    """Shows a day to the watchers of a node with one rank, as trainers.py does."""

    def __init__(self, folder) -> None:
        self.alarms: list[tuple[str, int]] = []
        self.stalls: list[str] = []
        self.rows = 0
        self._file = folder / "metrics.jsonl"
        rows = LiveRows(1, self._file, BEGAN)
        self._numbers = Numbers(
            rows,
            ALL_ACT,
            lambda _: None,
            on_row=self._on_row,
            on_alarm=lambda alarm, _: self.alarms.append((alarm.kind, alarm.step)),
        )
        schedule = Schedule(steps=1_000_000, checkpoint_period=PERIOD)
        self._clock = Clock([0], Bounds(first=3600.0), schedule, BEGAN)

    def _on_row(self, _) -> None:
        self.rows += 1

    def show(self, day: Iterator[Said]) -> "Worker":
        now = BEGAN
        with open(self._file, "a") as metrics:
            for said in day:
                while now + LOOK_SECONDS < said.at:
                    now += LOOK_SECONDS
                    self._look(now)
                now = said.at
                self._look(now)
                self._clock.line(0, said.text, now)
                self._numbers.line(0, said.text, now)
                if said.entry is not None:
                    metrics.write(json.dumps(said.entry) + "\n")
                    metrics.flush()
        self._numbers.close()
        return self

    def _look(self, now: float) -> None:
        self._numbers.look(now)
        stalled = self._clock.look(now)
        if stalled is not None and (not self.stalls or self.stalls[-1] != str(stalled.last)):
            self.stalls.append(str(stalled.last))


@pytest.mark.parametrize("name", recorded.CLEAN)
def test_a_day_of_a_clean_run_raises_nothing(name, tmp_path):
    worker = Worker(tmp_path).show(day_of(name))
    assert worker.rows > 7000
    assert (worker.alarms, worker.stalls) == ([], [])


def with_fault(day, step, change):
    """The day, with one step changed; what comes later keeps its distance."""
    late = 0.0
    for said in day:
        new = change(said) if said.entry is not None and said.entry["step"] == step else said
        late += new.at - said.at
        yield new._replace(at=said.at + late, text=stamped(said.text, said.at + late))


FAULTS = {
    "loss_spike": lambda said: said._replace(entry={**said.entry, "learning/loss": 3 * said.entry["learning/loss"]}),
    "nan": lambda said: said._replace(entry={**said.entry, "learning/loss": float("nan")}),
    "grad_spike": lambda said: said._replace(
        entry={**said.entry, "learning/raw_grad_norm": 100 * said.entry["learning/raw_grad_norm"]}
    ),
    "slow_step": lambda said: said._replace(at=said.at + 60),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_one_fault_in_a_day_is_told_and_nothing_else(kind, tmp_path):
    day = with_fault(day_of(recorded.CLEAN[0]), 4321, FAULTS[kind])
    worker = Worker(tmp_path).show(day)
    assert (worker.alarms, worker.stalls) == ([(kind, 4321)], [])


@pytest.mark.parametrize(
    ("step", "minutes", "seen"), [(4321, 10, True), (4321, 4, False), (4250, 20, False), (4250, 40, True)]
)
def test_a_pause_is_a_stall_where_nothing_explains_it(step, minutes, seen, tmp_path):
    day = with_fault(day_of(recorded.CLEAN[0]), step, lambda said: said._replace(at=said.at + 60 * minutes))
    assert bool(Worker(tmp_path).show(day).stalls) is seen
