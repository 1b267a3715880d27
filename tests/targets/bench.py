"""What the tests of all targets share: one folder of runs, experiments with the stand-in as their trainer, waits with a bound."""

import io
import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from launcher.config.compose import Composer
from launcher.plan.plan import Plan, make
from launcher.render.bundle import Bundle, render
from launcher.runs import starting, store
from launcher.runs.attempts import State
from launcher.runs.logs import print_logs
from launcher.runs.status import status_of

HERE = Path(__file__).resolve().parent
STEPS = 12
PERIOD = 4
RANKS = 2
AWKWARD = {
    "QUOTES": """it's "quoted" `twice`""",
    "NEWLINES": "one\ntwo\n",
    "DOLLAR": "$HOME ${PATH} $(id) \\ %s",
    "COMMAS": "a,b c=d;e#f",
    "SPACES": "  both ends  ",
    "EMPTY": "",
    "UNICODE": "Zürich 漢字",
}


# For what is about one attempt: a supervisor shall not start the next one by itself.
ONE_ATTEMPT = ("monitor.max_failures=0", "monitor.max_preemptions=0", "monitor.max_bad_nodes=0")


class Harness(Protocol):
    """What a target's own test file provides.

    It may have `seconds_between_looks`, where a look costs a question to a scheduler; `output(run)`, where the trainers do not
    write into the run's folder; and `provide(experiment, names)`, where secrets do not come from the submitting shell.
    """

    words: list[str]
    """The overrides that choose the target."""

    def kill_worker(self, run: store.Run) -> None:
        """SIGKILL to the worker of the newest attempt on its first node, as when a node fails."""

    def preempt(self, run: store.Run) -> None:
        """The scheduler's notice, with no person having asked for it."""

    def left_over(self, run: store.Run) -> list[int]:
        """The processes of the newest attempt that still exist."""


@dataclass
class Bench:
    """One folder of runs on one target."""

    root: Path
    harness: Harness
    environ: dict[str, str] = field(default_factory=lambda: dict(os.environ))

    def plan(self, orders: str = "", env: dict[str, str] | None = None, secrets: tuple[str, ...] = ()) -> Plan:
        """The tiny experiment with the stand-in as its trainer. `orders`: see conformance_trainer.py."""
        words = ["+exp=moe_tiny_cpu", f"trainer.steps={STEPS}", f"checkpoint.checkpoint_period={PERIOD}"]
        words += ["trainer.module=conformance_trainer", "trainer.stop_grace_seconds=30", *self.harness.words]
        composed = Composer().compose(words)
        assert composed.experiment is not None, composed.issues
        path = os.pathsep.join([str(HERE), str(HERE.parent / "node")])
        composed.experiment.env.vars |= {"PYTHONPATH": path, "STANDIN": orders, **(env or {})}
        composed.experiment.env.secrets += secrets
        if hasattr(self.harness, "provide"):
            self.harness.provide(composed.experiment, secrets)
        made = make(composed.experiment)
        assert not made.errors, made.errors
        return made

    def submit(self, plan: Plan) -> starting.Submitted:
        return starting.submit(self.root, render(plan), plan, self.environ, {"time": "now"})

    def start(self, orders: str = "", **more) -> store.Run:
        submitted = self.submit(self.plan(orders, **more))
        assert submitted.attempt == 1, submitted
        return submitted.run

    def finish(self, orders: str = "", **more) -> store.Run:
        run = self.start(orders, **more)
        self.wait(run, State.FINISHED)
        return run

    def wait(self, run: store.Run, *wanted: State, seconds: float = 60) -> None:
        """Until the run is in one of these states."""
        self._wait_until(lambda: status_of(run).state in wanted, seconds, run)

    def let_go(self, run: store.Run) -> None:
        """Ends the trainer's wait at `hold=`."""
        output = self.harness.output(run) if hasattr(self.harness, "output") else run.layout.output
        (output / "go").touch()

    def wait_for_step(self, run: store.Run, step: int, attempt: int = 1) -> None:
        def reached() -> bool:
            status = status_of(run)
            return status.step_attempt == attempt and status.last_step is not None and status.last_step >= step

        self._wait_until(reached, 60, run)

    def wait_for_checkpoint(self, run: store.Run, step: int) -> None:
        """Until the status knows it: at once, or when a worker has told, as it does every some seconds."""
        self._wait_until(lambda: status_of(run).checkpoint == step, 30, run)

    def _wait_until(self, condition, seconds: float, run: store.Run) -> None:
        pause = getattr(self.harness, "seconds_between_looks", 0.03)
        wait_until(condition, seconds, lambda: status_of(run), pause)


def wait_until(condition, seconds: float, describe=lambda: "", pause: float = 0.03) -> None:
    """Until `condition()` holds; a failure tells what was seen last."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {describe()}")
        time.sleep(pause)


def printed(run: store.Run, **selection) -> str:
    out = io.StringIO()
    assert print_logs(run, out, **selection) == 0
    return out.getvalue()


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def result(run: store.Run, attempt: int = 1) -> dict:
    return json.loads(run.layout.attempt(attempt).result().read_text())


def submit_elsewhere(root: Path, bundle: Bundle, plan: Plan) -> tuple[int | None, str]:
    """In another process: one submission, and what it came to."""
    submitted = starting.submit(root, bundle, plan, os.environ, {"time": "now"})
    return submitted.attempt, submitted.message
