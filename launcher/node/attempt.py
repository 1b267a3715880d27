"""One attempt on one node, from the command line to the exit code."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import checkpoints, checkup, coordinator, environment, numa, overflow, pod
from .codes import Code, WorkerError, outcome_of, refused
from .ending import read_object
from .health import FAIL
from .history import decision_file
from .launch import Launch, read_adjustments, read_launch
from .layout import AttemptFolder, BundleFolder, RunFolder, checkpoints_folder
from .output import Console, Journal, standard_output
from .peers import Peers, blame
from .place import JOBSET, Place, find_place, host_name
from .place import Asked as AskedPlace
from .record import result_content, started_content, write_json
from .said import Said
from .signals import SignalBox
from .speech import Speaker
from .stopping import Stopping
from .trainers import Trainers
from .verdict import Asked, RankEnd, Verdict, judge

_FLUSH_SECONDS = 5.0  # that a slow reader of our output gets at the end


@dataclass(frozen=True)
class Options:
    """The worker's command line. start: which start of all pods this is, None = not in a pod."""

    bundle: BundleFolder
    run: RunFolder
    attempt: AttemptFolder
    start: pod.Start | None
    python: str
    place: AskedPlace
    quiet: bool


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        raise refused(f"{message}; wanted: {' '.join(self.format_usage().split()[1:])}")


def read_options(argv: Sequence[str]) -> Options:
    """The options; refuses (78) wrong ones with the usage."""
    parser = _Parser(prog="worker.py", description="Runs one attempt of a bundle's trainer on this node.")
    parser.add_argument("--bundle", required=True, metavar="DIR", help="the rendered bundle")
    parser.add_argument("--run", required=True, metavar="DIR", help="the run's folder; its name is the run's name")
    number = parser.add_mutually_exclusive_group(required=True)
    number.add_argument("--attempt", type=int, metavar="N", help="1 for the first start, then 2, ...")
    number.add_argument("--pod", action="store_true", help="in a pod of a JobSet, which counts; tells all on stdout")
    parser.add_argument("--python", default=sys.executable, metavar="PY", help="the trainer's Python (default: this)")
    parser.add_argument("--nodes", type=int, metavar="N", help="how many nodes (default: from SLURM, Kubernetes, or 1)")
    parser.add_argument("--node-rank", type=int, metavar="I", help="which of them this is, from 0")
    parser.add_argument("--coordinator", metavar="HOST", help="node 0's name, as every node resolves it")
    parser.add_argument("--port", type=int, metavar="P", help="the coordinator's port (default: a new one)")
    parser.add_argument("--quiet", action="store_true", help="the trainers' output to the rank logs only")
    given = parser.parse_args(argv)
    start = pod.read_start(os.environ) if given.pod else None
    attempt = given.attempt if start is None else start.attempt
    if attempt < 1:
        raise refused(f"--attempt {attempt}: wanted 1 or more")
    run = RunFolder(Path(given.run).absolute())
    return Options(
        bundle=BundleFolder(Path(given.bundle).absolute()),
        run=run,
        attempt=run.attempt(attempt),
        start=start,
        python=given.python,
        place=AskedPlace(given.nodes, given.node_rank, given.coordinator, given.port),
        quiet=given.quiet,
    )


def main(argv: Sequence[str]) -> int:
    """Runs one attempt; returns the exit code (codes.py)."""
    started = time.time()
    box = SignalBox()
    box.install()
    console = standard_output(quiet=True)
    try:
        options = read_options(argv)
        console = standard_output(options.quiet)
        if options.start is not None:
            pod.check_unused(options.run, options.start, os.environ, Speaker(console))
        _make(options.attempt.path)
    except WorkerError as error:
        print(f"worker: {error}", file=sys.stderr)
        console.flush(_FLUSH_SECONDS)
        return int(error.code)
    attempt = _Attempt(options, console, box, started)
    try:
        verdict = attempt.run()
    except WorkerError as error:
        print(f"worker: {error}", file=sys.stderr)
        verdict = Verdict(error.code, outcome_of(error.code), str(error), None, None, attempt.newest_checkpoint())
    attempt.finish(verdict)
    console.flush(_FLUSH_SECONDS)
    box.ignore()
    return int(verdict.code)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise refused(f"cannot make {folder}: {error.strerror}; name a run folder that you may write to") from error


class _Attempt:
    """What one attempt knows so far, so that its end can be recorded whenever it comes."""

    def __init__(self, options: Options, console: Console, box: SignalBox, started: float) -> None:
        self._options = options
        self._console = console
        self._box = box
        self._started = started
        self._node = options.place.node or 0
        self._launch: Launch | None = None
        self._checkpoints: Path | None = None
        self._ends: Sequence[RankEnd] = ()
        self._journal = Journal(options.attempt.worker_log(self._node), console)
        self._said = Said(Speaker(None), options.attempt, 0)
        self._has_begun_before = False

    @property
    def _start(self) -> str:
        """The name of this start of all nodes; "" where starts have none."""
        return "" if self._options.start is None else self._options.start.name

    def run(self) -> Verdict:
        """Starts the trainers and waits for their end. Raises WorkerError when it does not come to that."""
        options = self._options
        launch = self._launch = read_launch(options.bundle.launch)
        place = find_place(options.place, os.environ, launch.nodes, options.attempt.number, options.run.name)
        self._node = place.node
        self._journal = Journal(options.attempt.worker_log(place.node), self._console)
        keys = environment.maxtext_keys(options.run, launch, read_adjustments(options.run.adjust))
        output = str(keys["base_output_directory"])
        self._checkpoints = None if "://" in output else checkpoints_folder(Path(output), str(keys["run_name"]))
        argv = environment.command(options.python, launch, options.bundle.maxtext, keys)
        if options.start is not None:
            self._begin_in_pod(launch, place, options.start)
        self._record_start(place, argv)
        if place.nodes > 1:
            coordinator.wait_for_name(place.coordinator, launch.coordinator_timeout_seconds, lambda: self._box.pending)
        return self._train(launch, place, argv)

    def _begin_in_pod(self, launch: Launch, place: Place, start: pod.Start) -> None:
        """Judges and tells what went before, and refuses to go on when that has used up a budget.

        Node 0 alone: another one may see a shared file system late and would judge otherwise. They wait for its rank 0.
        """
        if place.source != JOBSET:
            raise refused(f"--pod, but {place.source} says where this node stands: leave the other words away")
        run, speaker = self._options.run, Speaker(self._console)
        self._said = Said(speaker, self._options.attempt, place.node, self._checkpoints)
        if place.node:
            return
        try:
            with self._disk():
                pod.settle_past(run, launch, start, self._checkpoints)
        finally:
            pod.tell(run, [number for number in run.attempt_numbers() if number != start.attempt], speaker)

    def _record_start(self, place: Place, argv: Sequence[str]) -> None:
        attempt = self._options.attempt
        content = started_content(attempt, place, argv, self._started, self._start)
        before = read_object(attempt.started(place.node)) or {}
        # Kueue suspends and resumes a JobSet without a new number: the attempt goes on in its folder.
        self._has_begun_before = bool(self._start) and before.get("start") == self._start
        with self._disk():
            for left in (attempt.result(place.node), *((decision_file(attempt),) if place.node == 0 else ())):
                left.unlink(missing_ok=True)  # of an earlier use of this attempt's number
            write_json(attempt.started(place.node), content)
        self._said.file(attempt.started(place.node), content)

    @contextlib.contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            where = f"{self._options.attempt.path} on {host_name()}"
            raise WorkerError(
                Code.BAD_NODE, f"cannot write in {where}: {error.strerror}; is the disk there?"
            ) from error

    def _train(self, launch: Launch, place: Place, argv: Sequence[str]) -> Verdict:
        options = self._options
        stopping = Stopping(launch.stop_grace_seconds, launch.checkpointing)
        peers = Peers(
            options.attempt, place.node, place.nodes, self._started, self._start, again=self._has_begun_before
        )
        trainers = Trainers(
            options.attempt,
            console=self._console,
            journal=self._journal,
            box=self._box,
            stopping=stopping,
            peers=peers,
            on_failure=lambda end: peers.report(judge([end], Asked(launch.steps, launch.checkpointing))),
            on_look=self._said.look,
        )
        self._ends = trainers.ends
        bundle = environment.read_env(options.bundle.env)
        self._check_node(launch, bundle, peers)
        flags = environment.read_xla_flags(options.bundle.xla_flags)
        jit_cache = _fresh_jit_cache(launch, options.attempt, bundle)
        try:
            environments = environment.trainer_environments(
                os.environ, bundle, flags, launch, place, attempt=options.attempt, jit_cache=jit_cache
            )
            self._announce(launch, place, bundle)
            bindings, words = numa.bindings(launch.processes_per_node, launch.numa)
            for word in words:
                self._journal.say(word)
            trainers.start(environment.ranks_here(launch, place), argv, environments, bindings)
            trainers.run()
        finally:
            if jit_cache is not None:
                shutil.rmtree(jit_cache, ignore_errors=True)
        if not trainers.ends:  # a signal came before the first start
            for number in self._box.take():
                stopping.on_signal(number, time.monotonic())
        asked = Asked(launch.steps, launch.checkpointing, self._committed(), stopping.signal, trainers.why_killed)
        verdict = blame(judge(trainers.ends, asked), peers.first_failure())
        if place.node:
            return verdict
        with self._disk():
            return overflow.act(
                verdict,
                trainers.ends,
                launch=launch,
                run=options.run,
                attempt=options.attempt,
                checkpoints=self._checkpoints,
            )

    def _check_node(self, launch: Launch, bundle: Mapping[str, str], peers: Peers) -> None:
        """Raises WorkerError BAD_NODE (79), and tells the other nodes, when health.py says that this node is not fit."""
        if launch.node_check is None:
            return
        attempt, output = self._options.attempt, launch.output_directory
        disks = [tempfile.gettempdir(), str(attempt.path), *([output] if output and os.path.isdir(output) else [])]
        words = ["--python", self._options.python, *(word for disk in disks for word in ("--disk", disk))]
        foreign = environment.overridden(os.environ, bundle)
        environ = {name: value for name, value in os.environ.items() if name not in foreign} | dict(bundle)
        report = checkup.check(launch.node_check, words, environ, self._box, self._journal)
        if report is None:
            return
        path = attempt.health(self._node)
        with self._disk():
            write_json(path, report)
        self._said.file(path, report)
        why = checkup.told(report, FAIL)
        if why:
            reason = f"{host_name()}: {why} (found before the start; monitor.node_check=none does not ask)"
            code = Code.BAD_NODE
            peers.report(Verdict(code, outcome_of(code), reason, None, None, None))
            raise WorkerError(code, reason)

    def _announce(self, launch: Launch, place: Place, bundle: Mapping[str, str]) -> None:
        ranks = environment.ranks_here(launch, place)
        for name in environment.overridden(os.environ, bundle):
            self._journal.say(f"{name} of this shell or image is not passed on: the bundle decides")
        self._journal.say(
            f"node {place.node} of {place.nodes} ({place.source}): ranks {ranks[0]} to {ranks[-1]} "
            f"of {launch.processes}, coordinator {place.address}"
        )

    def newest_checkpoint(self) -> int | None:
        """The last committed step on disk, or None when there is none or it cannot be seen."""
        return None if self._checkpoints is None else checkpoints.newest(self._checkpoints)

    def _committed(self) -> list[int] | None:
        return None if self._checkpoints is None else checkpoints.committed_steps(self._checkpoints)

    def finish(self, verdict: Verdict) -> None:
        """Writes result.json and the last word."""
        steps = 0 if self._launch is None else self._launch.steps
        self._journal.say(f"{verdict.outcome.value} ({int(verdict.code)}): {verdict.reason}")
        path = self._options.attempt.result(self._node)
        content = result_content(
            verdict, steps=steps, ends=self._ends, started=self._started, ended=time.time(), start=self._start
        )
        try:
            write_json(path, content)
        except OSError as error:
            print(f"worker: cannot write {path}: {error}", file=sys.stderr)
        self._said.last_words(self._options.run, path, content)


def _fresh_jit_cache(launch: Launch, attempt: AttemptFolder, bundle: Mapping[str, str]) -> Path | None:
    """An empty folder on this node's disk for NCCL EP's run-time compiles, inside the bundle's own or $TMPDIR.

    Never a fixed one: a SIGTERM during a compile leaves a mark there after which no start succeeds.
    """
    if launch.platform != "gpu":
        return None
    parent = bundle.get(environment.JIT_CACHE) or tempfile.gettempdir()
    try:
        os.makedirs(parent, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f"nccl-ep-jit-{attempt.number}-", dir=parent))
    except OSError as error:
        raise WorkerError(
            Code.BAD_NODE,
            f"cannot make a folder in {parent} on {host_name()}: {error.strerror}; is its disk full?",
        ) from error
