"""A run's life on a real Slurm: told to the real command line, and watched by a witness that asks the controller too.

The experiment trains on 4 nodes with one process each. What trains is MaxText, or the stand-in that says and does what
MaxText does (tests/targets/conformance_trainer.py). It runs in the stand-in container, so only what is mounted is there.
"""

import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.node.steps import StepLine, parse_step
from launcher.runs import store
from launcher.runs.attempts import LIVE, State
from launcher.runs.status import Status, status_of, status_text
from slurm.testbed import processes
from slurm.testbed.cluster import Cluster

TESTS = Path(__file__).resolve().parents[1]
NODES = 4
IMAGE = "ghcr.io/nvidia/jax:maxtext-2026-09-09"
TINY = (
    "+exp=moe_tiny_cpu",
    f"nodes={NODES}",
    "hardware.gpus_per_node=1",
    f"hardware.domain_nodes={NODES}",
    "mesh.ici.fsdp=2",
    "mesh.ici.expert=2",
    f"container.image={IMAGE}",
    "target=testbed",
)
USERS_FILE = """\
# What a user writes once: how this cluster wants to be asked.
defaults: [slurm]
slurm:
  time_minutes: 30
"""
GONE = "no answer"


def wait_for(what: Callable[[], object], limit_s: float, told: Callable[[], object] = lambda: "") -> None:
    """Until `what()` holds; a failure tells what was seen last."""
    deadline = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < deadline, f"not within {limit_s:.0f} s: {told()}"
        time.sleep(0.2)


@dataclass
class Site:
    """A cluster with a shared folder, an image that holds this Python, and the one file that its user wrote."""

    cluster: Cluster
    home: Path
    environ: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        conf = self.home / "conf" / "target"
        conf.mkdir(parents=True)
        (conf / "testbed.yaml").write_text(USERS_FILE)
        image = self.cluster.folder / "images" / IMAGE.replace("/", "_").replace(":", "_")
        image.write_text(f"PATH={Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin\n")
        self.environ = {**self.cluster.environment(), "LAUNCHER_CONF": str(conf.parent), "HOME": str(self.home)}

    def launcher(self, *words: str, check: bool = True) -> str:
        """What the command line says."""
        command = [sys.executable, "-m", "launcher", *words]
        done = subprocess.run(
            command, cwd=self.home, env=self.environ, capture_output=True, text=True, timeout=120, check=False
        )
        assert not check or done.returncode == 0, f"{' '.join(words)}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def submit(self, *words: str) -> "Life":
        """Submit the experiment, and have it watched."""
        root = self.home / "runs"
        told = self.launcher(*words, "--runs", str(root))
        (run,) = store.all_runs(root)
        handle = json.loads((run.layout.attempt(1).path / "handle.json").read_text())
        assert run.name in told
        assert handle["job"] in told, "the job's number is told"
        return Life(self, run, str(handle["job"]))


@dataclass(frozen=True)
class Sample:
    """What the controller and `status` said at one moment. `truth`: the job's state, asked before and after."""

    truth: tuple[str, str]
    status: Status


class Witness(threading.Thread):
    """Asks the controller, `status`, and the controller again, all the time."""

    def __init__(self, life: "Life") -> None:
        super().__init__(daemon=True)
        self.samples: list[Sample] = []
        self.failure: Exception | None = None
        self._life = life
        self._over = threading.Event()

    def run(self) -> None:
        try:
            while not self._over.wait(0.3):
                before = self._life.job_state()
                status = status_of(self._life.run)
                self.samples.append(Sample((before, self._life.job_state()), status))
        except Exception as failure:  # told at the end: a thread's would be lost
            self.failure = failure

    def stop(self) -> None:
        self._over.set()
        self.join(60)

    def lies(self) -> list[str]:
        """Every sample in which `status` said something else than the controller did before and after."""
        assert self.failure is None, f"status failed: {self.failure!r}"
        assert LIVE & set(self.states), "the witness has not seen it live"
        return [f"job {sample.truth[0]}: {sample.status}" for sample in self.samples if not _is_true(sample)]

    @property
    def states(self) -> list[State]:
        """The states in the order in which they were told."""
        told = [sample.status.state for sample in self.samples]
        return [state for i, state in enumerate(told) if i == 0 or told[i - 1] is not state]


def _is_true(sample: Sample) -> bool:
    before, after = sample.truth
    status = sample.status
    if status.state in (State.DAMAGED, State.DIED, State.FAILED, State.PREEMPTED, State.CREATED):
        return False  # none of these lives goes through that: what follows an ended attempt is decided at once
    if status.last_step is not None and status.steps is not None and status.last_step >= status.steps:
        return False
    if before != after:
        return True  # it changed meanwhile
    if before == "PENDING":
        return status.state is State.WAITING and bool(status.reason)
    if before == GONE:
        return status.state is State.UNKNOWN and bool(status.reason)
    if before == "COMPLETED":
        return status.state is State.FINISHED
    if before == "RUNNING":
        # Finished: the batch script ends a moment after the last worker has written its verdict.
        return status.state in LIVE - {State.WAITING, State.UNKNOWN} or _has_ended(status)
    return True  # completing: both views hold


def _has_ended(status: Status) -> bool:
    return status.state is State.FINISHED and status.last_step == (status.steps or 0) - 1


class Life:
    """One submitted run. `job`: Slurm's id, which it keeps through requeues."""

    def __init__(self, site: Site, run: store.Run, job: str) -> None:
        self.site, self.run, self.job, self.cluster = site, run, job, site.cluster
        self.witness = Witness(self)
        self.witness.start()

    # What is there

    def job_state(self) -> str:
        """The controller's word: RUNNING, PENDING, ..., or GONE when it does not answer."""
        if not any(processes.find(self.cluster.folder, processes.CONTROLLER)):
            return GONE
        done = self.cluster.run("scontrol", "show", "job", "--oneliner", self.job, check=False)
        return done.stdout.partition("JobState=")[2].split(" ")[0] or GONE

    def status(self) -> Status:
        return status_of(self.run)

    def told(self) -> str:
        """For a failure's message: what can be seen now."""
        number = self.run.layout.attempt_numbers()[-1]
        folder = self.run.layout.attempt(number).path
        logs = [*sorted(self.run.folder.glob("slurm-*.log")), folder / "srun.log", folder / "worker0.log"]
        ends = [f"--- {log}\n{log.read_text(errors='replace')[-1500:]}" for log in logs if log.exists()]
        return "\n".join([status_text(self.status()), f"job {self.job}: {self.job_state()}", *ends])

    def wait(self, what: Callable[[Status], object], limit_s: float = 300) -> None:
        wait_for(lambda: what(self.status()), limit_s, self.told)

    def wait_past(self, step: int, attempt: int) -> None:
        """Until this attempt has completed the step."""
        self.wait(lambda s: s.step_attempt == attempt and s.last_step is not None and s.last_step >= step)

    def wait_finished(self, limit_s: float = 300) -> None:
        """Until the run's and the job's end; then the witness is asked."""
        self.wait(lambda s: s.state is State.FINISHED, limit_s)
        wait_for(lambda: self.job_state() == "COMPLETED", 60, self.told)
        self.witness.stop()
        assert self.witness.lies() == []

    def read(self, attempt: int, name: str) -> dict[str, Any]:
        return dict(json.loads((self.run.layout.attempt(attempt).path / name).read_text()))

    def steps(self, attempt: int) -> list[StepLine]:
        """The steps that rank 0 completed."""
        lines = self.run.layout.attempt(attempt).rank_log(0).read_text(errors="replace").splitlines()
        return [step for step in map(parse_step, lines) if step is not None]

    def trainer(self, attempt: int, node: int) -> int:
        """The pid of the trainer on a node: the worker's only child."""
        name = self.run.layout.attempt(attempt).started(node).name
        worker = self.read(attempt, name)["pid"]
        (child,) = Path(f"/proc/{worker}/task/{worker}/children").read_text().split()
        return int(child)

    def host(self, attempt: int, node: int) -> str:
        """The name of the attempt's node `node`."""
        return str(self.read(attempt, self.run.layout.attempt(attempt).started(node).name)["host"])

    def decisions(self) -> list[str]:
        """What the supervisor did after each attempt."""
        numbers = self.run.layout.attempt_numbers()
        found = [self.run.layout.attempt(number).path / "decision.json" for number in numbers]
        return [json.loads(path.read_text())["action"] if path.exists() else "none" for path in found]

    # What must hold at the end

    def assert_resumed(self, steps: int, period: int) -> None:
        """Each attempt went on behind a checkpoint that lost at most `period` steps, with the state that was saved."""
        numbers = self.run.layout.attempt_numbers()
        told = [self.steps(number) for number in numbers]
        assert all(told), "an attempt completed no step"
        assert told[0][0].step == 0
        for before, after in itertools.pairwise(told):
            lost = before[-1].step + 1 - after[0].step
            # -1: MaxText prints a step's line after the next step has begun, and saves before that.
            assert -1 <= lost <= period, f"{lost} steps lost, a checkpoint is written every {period}"
            assert after[0].step > 0, "it began anew"
        for one in told:
            assert [step.step for step in one] == list(range(one[0].step, one[-1].step + 1))
        assert told[-1][-1].step == steps - 1
        losses: dict[int, float] = {}
        for step in (step for one in told for step in one):
            assert step.loss is not None
            known = losses.setdefault(step.step, step.loss)
            # One float32 sum in another order; a state that was not the saved one differs in the first digits.
            assert abs(step.loss - known) <= 2e-3 * abs(known), f"step {step.step}: loss {step.loss} was {known} before"
        checkpoint = self.status().checkpoint
        assert checkpoint == steps - 1

    def assert_nothing_left(self) -> None:
        """No process of the run is on any node."""
        run = os.fsencode(self.run.folder)
        own = [pid for pid in processes.find(self.cluster.folder) if run in _command(pid)]
        assert not own, [_command(pid) for pid in own]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
