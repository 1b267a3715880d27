"""Drives the faults of fault_table.py through the command line, many runs at once, and says what each of them came to."""

import contextlib
import io
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from launcher.cli import composing
from launcher.cli.main import main
from launcher.config.compose import Composer
from launcher.issue import Refused
from launcher.node.checkpoints import committed_steps
from launcher.node.steps import parse_step
from launcher.render.bundle import render
from launcher.runs import lifecycle, store
from launcher.runs.attempts import State, judge, judge_one

HERE = Path(__file__).resolve().parent
STEPS, PERIOD = 12, 4  # checkpoints after the steps 4, 8 and 11
COMMON = (
    "+exp=moe_tiny_cpu",
    f"trainer.steps={STEPS}",
    f"checkpoint.checkpoint_period={PERIOD}",
    "trainer.module=fault_trainer",
    "trainer.stop_grace_seconds=30",
    "monitor.restart_pause_seconds=0",
    f"+env.vars.PYTHONPATH={HERE}",
)
LIMIT = 60.0  # seconds for one run; a run that hangs is a failure of its own row


class Fault(NamedTuple):
    """One row. deeds: what the trainer does, by attempt (fault_trainer.py); every: in each of them. words: overrides.

    steps: what each attempt trains, "5-11", or "" for none: their overlap is what is trained again. decisions: what follows
    each, "restart failures" (and the budget that is charged), "stop". state: the end. events: kinds that must be told; never:
    kinds that must not. said: words of the last decision's or result's reason. aside: checkpoints that are set aside.
    adjusted: the factors that adjust.json got. cause: of the first attempt, as its decision names it. flight: whether evidence
    was gathered. resumed: a person types `resume` at the first end, which has the state; the second one is the training's.
    """

    name: str
    deeds: Sequence[Sequence[dict[str, Any]]] = ()
    every: Sequence[dict[str, Any]] = ()
    words: Sequence[str] = ()
    steps: Sequence[str] = ("0-11",)
    decisions: Sequence[str] = ("stop",)
    state: State = State.FINISHED
    events: Sequence[str] = ()
    never: Sequence[str] = ()
    said: str = ""
    aside: Sequence[str] = ()
    adjusted: Sequence[float] = ()
    cause: str | None = None
    flight: bool = False
    resumed: bool = False


@dataclass
class Outcome:
    """What a run came to, as its files and `events` tell it."""

    run: store.Run
    state: State
    reason: str
    events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def numbers(self) -> list[int]:
        return self.run.layout.attempt_numbers()

    @property
    def kinds(self) -> list[str]:
        return [event["kind"] for event in self.events]

    def json(self, attempt: int, name: str) -> dict[str, Any]:
        path = self.run.layout.attempt(attempt).path / name
        return dict(json.loads(path.read_text())) if path.exists() else {}

    def steps(self, attempt: int) -> list[int]:
        """The steps that rank 0 told of, in its order."""
        path = self.run.layout.attempt(attempt).rank_log(0)
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        return [step.step for step in map(parse_step, lines) if step is not None]

    def decision(self, attempt: int) -> str:
        found = self.json(attempt, "decision.json")
        return " ".join(word for word in (found.get("action", "none"), found.get("charged")) if word)

    @property
    def adjust(self) -> list[dict[str, Any]]:
        path = self.run.layout.adjust
        return list(json.loads(path.read_text())["history"]) if path.exists() else []

    @property
    def checkpoints(self) -> Path:
        return self.run.layout.output / self.run.name / "checkpoints"

    def story(self) -> str:
        """For a failure's message: everything."""
        lines = ["", f"{self.run.folder}", f"state {self.state}: {self.reason}"]
        for number in self.numbers:
            folder = self.run.layout.attempt(number).path
            lines += [f"attempt {number}: steps {spans(self.steps(number))!r}, {self.decision(number)}"]
            lines += [f"   {self.json(number, 'result.json').get('reason')}"]
            lines += [f"   {self.json(number, 'decision.json').get('reason')}"]
            for log in sorted([*folder.glob("*.log")]):
                lines += [f"   --- {log.name}", log.read_text(errors="replace")[-700:]]
        lines += [f"{event['attempt']} {event['kind']}: {event['text']}"[:400] for event in self.events]
        return "\n".join(lines)


def spans(steps: Sequence[int]) -> str:
    """Steps in a row as the first and the last; a gap or a repetition shows."""
    parts: list[list[int]] = []
    for step in steps:
        if parts and step == parts[-1][1] + 1:
            parts[-1][1] = step
        else:
            parts.append([step, step])
    return " ".join(f"{first}-{last}" for first, last in parts)


def called(*words: str) -> str:
    """A command as a person types it; what it says on stdout."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(list(words))
    assert code == 0, f"{words}: exit code {code}\n{out.getvalue()}{err.getvalue()}"
    return out.getvalue()


class Bench:
    """Rows run in one folder of runs, at most `at_once` at the same time, since they share the machine."""

    def __init__(self, folder: Path, words: Sequence[str], at_once: int, pause: float = 0.1) -> None:
        self.root, self._words, self._at_once, self._pause = folder / "runs", tuple(words), at_once, pause
        self._orders = folder / "orders"
        self._orders.mkdir(parents=True)
        self._composer = Composer()
        self.runs: dict[str, store.Run] = {}
        self.refused: dict[str, str] = {}

    def run(self, faults: Sequence[Fault]) -> dict[str, Outcome]:
        """Submits every row, and waits for the last one's end."""
        waiting, live, over = list(faults), dict[str, float](), dict[str, Outcome]()
        resumable = {fault.name: fault for fault in faults if fault.resumed}
        while waiting or live:
            while waiting and len(live) < self._at_once:
                fault = waiting.pop(0)
                try:
                    self.runs[fault.name] = self.submit(fault)
                except (AssertionError, Refused) as refused:
                    self.refused[fault.name] = str(refused)
                else:
                    live[fault.name] = time.monotonic()
            names = list(live)
            for name, judged in zip(names, judge([self.runs[name] for name in names]), strict=True):
                late = time.monotonic() - live[name] > LIMIT
                # A finished run is finished when its worker says so; its supervisor writes a moment later.
                if (judged.is_live or (judged.state is State.FINISHED and judged.decision is None)) and not late:
                    continue
                if name in resumable and judged.state is resumable[name].state:
                    del resumable[name]
                    called("resume", self.runs[name].name, "--detach", "--runs", str(self.root))
                    continue
                over[name] = Outcome(self.runs[name], judged.state, judged.reason)
                del live[name]
            time.sleep(self._pause)
        for name, outcome in over.items():
            try:
                told = called("events", self.runs[name].name, "--json", "--runs", str(self.root))
            except AssertionError as failed:
                self.refused[name] = str(failed)
            else:
                outcome.events = [json.loads(line) for line in told.splitlines()]
        return over

    def check(self, fault: Fault, found: dict[str, Outcome]) -> None:
        """One row, and that the command line took it."""
        assert fault.name not in self.refused, self.refused[fault.name]
        check(fault, found[fault.name])

    def submit(self, fault: Fault) -> store.Run:
        """What `submit --detach` does; one composer serves all, since most of its time is to read the groups."""
        orders = self._orders / f"{fault.name}.json"
        orders.write_text(json.dumps({"every": list(fault.every), "attempts": [list(deeds) for deeds in fault.deeds]}))
        made = composing.sound(
            composing.planned(
                self._composer,
                [*COMMON, f"name={fault.name}", *self._words, *fault.words, f"+env.vars.FAULTS={orders}"],
            )
        )
        with contextlib.redirect_stdout(io.StringIO()):
            code = lifecycle.submit(made, render(made), runs=str(self.root), detach=True)
        assert code == 0, fault.name
        (folder,) = self.root.glob(f"{fault.name}-????????")
        return store.load(folder)

    def end(self) -> None:
        """Nothing runs on after the tests."""
        for run in self.runs.values():
            if judge_one(run).is_live:
                main(["cancel", run.name, "--now", "--runs", str(self.root)])


def check(fault: Fault, outcome: Outcome) -> None:
    """Everything that the row says, and what holds for every row; all differences at once."""
    last = outcome.numbers[-1]
    end = State.FINISHED if fault.resumed else fault.state
    folders = [outcome.run.layout.attempt(number) for number in outcome.numbers]
    reasons = " ".join(str(outcome.json(last, name).get("reason")) for name in ("decision.json", "result.json"))
    factors = [entry["new"] for entry in outcome.adjust if entry["key"] == "ragged_buffer_factor"]
    aside = sorted(path.name for path in outcome.checkpoints.parent.glob("checkpoints.*/*"))
    found = {
        "state": (outcome.state, end),
        "steps": ([spans(outcome.steps(number)) for number in outcome.numbers], list(fault.steps)),
        "decisions": ([outcome.decision(number) for number in outcome.numbers], list(fault.decisions)),
        "not told": ([kind for kind in fault.events if kind not in outcome.kinds], []),
        "told": ([kind for kind in fault.never if kind in outcome.kinds], []),
        "reason": (fault.said if fault.said in reasons else reasons, fault.said),
        "set aside": (aside, sorted(fault.aside)),
        "factors": (factors, list(fault.adjusted)),
        "evidence": (any((folder.path / "flight").is_dir() for folder in folders), fault.flight),
        "left over": (left_over(outcome.run), []),
    }
    if fault.cause is not None:
        cause = outcome.json(1, "decision.json").get("cause") or {}
        found["cause"] = (cause.get("name"), fault.cause)
    if end is State.FINISHED:
        saved = committed_steps(outcome.checkpoints)[-1:]
        found["checkpoint"] = (saved, [outcome.run.launch()["steps"] - 1])
    wrong = [f"{what}: seen {seen!r}, wanted {wanted!r}" for what, (seen, wanted) in found.items() if seen != wanted]
    assert not wrong, "; ".join([*wrong, outcome.story()])


def left_over(run: store.Run) -> list[int]:
    """Processes whose command line or environment names the run's folder."""
    deadline = time.monotonic() + 5
    needle = str(run.folder).encode() + b"/"
    while True:
        found = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and _names(entry, needle)]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


def _names(entry: Path, needle: bytes) -> bool:
    if int(entry.name) == os.getpid():
        return False
    try:
        return needle in (entry / "cmdline").read_bytes()
    except OSError:
        return False
