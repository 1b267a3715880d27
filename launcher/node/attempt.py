"""One attempt on one node, from the command line to the exit code."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import (
    checkpoints,
    checkup,
    coordinator,
    environment,
    fitness,
    jit_cache,
    numa,
    overflow,
    pod,
    rollback,
    watching,
)
from .alarms import Alarm
from .codes import Code, WorkerError, outcome_of, refused
from .ending import read_object
from .health import FAIL
from .history import decision_file
from .launch import Launch, read_adjustments, read_launch
from .layout import AttemptFolder, BundleFolder, RunFolder, checkpoints_folder
from .monitor import Monitor, Stop
from .observe import Overflow
from .output import Console, Journal, standard_output
from .peers import Peers, blame
from .place import JOBSET, Place, find_place, host_name
from .place import Asked as AskedPlace
from .record import result_content, started_content, write_json
from .said import Said
from .signals import SignalBox
from .speech import Speaker
from .stopping import Stopping
from .table import Row
from .telling import tell_now
from .trainers import Trainers
from .verdict import Asked, RankEnd, Verdict, by_monitor, judge

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
        self._diverged: list[Alarm] = []
        self._factor = 0.0  # of the MoE receive buffers; 0 = not known
        self._overflow: Overflow | None = None  # by the metrics

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
        self._factor = overflow.factor_in(options.bundle.maxtext, keys)
        argv = environment.command(options.python, launch, options.bundle.maxtext, keys)
        if options.start is not None:
            self._begin_in_pod(launch, place, options.start)
        self._record_start(place, argv)
        if launch.node_check is None or not launch.node_check.only:
            self._find_coordinator(launch, place)
        return self._train(launch, place, argv)

    def _find_coordinator(self, launch: Launch, place: Place) -> None:
        if place.nodes > 1:
            coordinator.wait_for_name(place.coordinator, launch.coordinator_timeout_seconds, lambda: self._box.pending)

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
                pod.settle_past(
                    run, self._options.bundle, launch, start, checkpoints=self._checkpoints, say=self._journal.say
                )
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
        bundle = environment.read_env(options.bundle.env)
        checked = self._check_node(launch, place, bundle, peers)
        if checked is not None:
            return checked
        flags = environment.read_xla_flags(options.bundle.xla_flags)
        with jit_cache.fresh(launch, options.attempt, bundle) as compiles:
            environments = environment.trainer_environments(
                os.environ, bundle, flags, launch, place, attempt=options.attempt, jit_cache=compiles
            )
            self._announce(launch, place, bundle)
            bindings, words = numa.bindings(launch.processes_per_node, launch.numa)
            for word in words:
                self._journal.say(word)
            trainers, monitor = self._trainers(launch, place, environments[0], stopping, peers)
            try:
                trainers.start(environment.ranks_here(launch, place), argv, environments, bindings)
                trainers.run()
            finally:
                monitor.close()
            if compiles is not None and any(end.observed.last_step is not None for end in trainers.ends):
                jit_cache.keep(compiles)
        if not trainers.ends:  # a signal came before the first start
            for number in self._box.take():
                stopping.on_signal(number, time.monotonic())
        return self._judge(launch, trainers, stopping.signal, peers)

    def _trainers(
        self, launch: Launch, place: Place, environ: Mapping[str, str], stopping: Stopping, peers: Peers
    ) -> tuple[Trainers, Monitor]:
        """This node's trainers, none of them started yet, and what watches them. `environ`: of the first of them."""

        def on_stop(stop: Stop) -> None:
            peers.report(by_monitor(stop))

        here = watching.Here(
            launch=launch,
            run=self._options.run,
            attempt=self._options.attempt,
            node=place.node,
            nodes=place.nodes,
            ranks=environment.ranks_here(launch, place),
            python=self._options.python,
            environ=environ,
            journal=self._journal,
            said=self._said,
            maxtext_yml=self._options.bundle.maxtext,
            pids=lambda: trainers.pids(),  # noqa: PLW0108  they are made below
            peer=lambda: trainers.peer,
            report=on_stop,
            is_ending=lambda: stopping.is_ending,
            on_diverged=self._diverged.append,
            on_overflow=self._on_overflow,
        )
        monitor = watching.monitor(here)
        trainers = Trainers(
            self._options.attempt,
            console=self._console,
            journal=self._journal,
            box=self._box,
            stopping=stopping,
            peers=peers,
            monitor=monitor,
            on_failure=lambda end: peers.report(judge([end], Asked(launch.steps, launch.checkpointing))),
            on_stop=on_stop,
            on_look=self._said.look,
        )
        self._ends = trainers.ends
        return trainers, monitor

    def _judge(self, launch: Launch, trainers: Trainers, number: int | None, peers: Peers) -> Verdict:
        """The verdict, after what follows from it for the next attempt is done. `number`: of the stop signal."""
        asked = Asked(launch.steps, launch.checkpointing, self._committed(), number, trainers.why_killed, trainers.stop)
        verdict = blame(judge(trainers.ends, asked), peers.first_failure())
        if self._node:
            return verdict
        with self._disk():
            options, folder = self._options, self._checkpoints
            place: dict[str, Any] = {
                "launch": launch,
                "run": options.run,
                "attempt": options.attempt,
                "checkpoints": folder,
            }
            verdict = overflow.act(verdict, trainers.ends, **place)
            buffers = next((end.observed.buffers for end in trainers.ends if end.observed.buffers is not None), None)
            verdict = overflow.act_unreported(verdict, self._overflow, buffers, **place)
            return rollback.act(verdict, self._diverged[0] if self._diverged else None, **place)

    def _on_overflow(self, row: Row) -> None:
        self._overflow = overflow.seen_in(row, self._factor, self._overflow)

    def _check_node(self, launch: Launch, place: Place, bundle: Mapping[str, str], peers: Peers) -> Verdict | None:
        """None = train. Raises WorkerError BAD_NODE (79), and tells the other nodes, when this one is not fit.

        Where the check is all that was asked for, what it comes to.
        """
        asked = launch.node_check
        if asked is None:
            return None
        attempt, output = self._options.attempt, launch.output_directory
        disks = [tempfile.gettempdir(), str(attempt.path), *([output] if output and os.path.isdir(output) else [])]
        words = ["--python", self._options.python, *(word for disk in disks for word in ("--disk", disk))]
        foreign = environment.overridden(os.environ, bundle)
        environ = {name: value for name, value in os.environ.items() if name not in foreign} | dict(bundle)
        report, why_none = checkup.check(asked, words, environ, self._box, self._journal)
        if report is None:
            if why_none:
                follows = "this node is not known to be fit" if asked.only else "training goes on without it"
                self._journal.say(f"the node check could not be made: {why_none}; {follows}")
            if not (asked.only and why_none):
                return None
            report = fitness.unmade(host_name(), why_none)
        if asked.only:
            fitness.add(report, "coordinator", lambda: self._find_coordinator(launch, place))
        report["start"] = self._start
        path = attempt.health(self._node)
        with self._disk():
            write_json(path, report)
        self._said.file(path, report)
        if asked.only:
            wait = fitness.waiting(
                launch.coordinator_timeout_seconds + asked.timeout_seconds, lambda: bool(self._box.pending)
            )
            return fitness.settle(attempt, place.node, place.nodes, report, wait=wait, said=self._said)
        why = checkup.told(report, FAIL)
        if why:
            reason = f"{host_name()}: {why} (found before the start; monitor.node_check=none does not ask)"
            code = Code.BAD_NODE
            peers.report(Verdict(code, outcome_of(code), reason, None, None, None))
            raise WorkerError(code, reason)
        return None

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
        said = f"{verdict.outcome.value} ({int(verdict.code)}): {verdict.reason}"
        self._journal.say(said)
        path = self._options.attempt.result(self._node)
        content = result_content(
            verdict, steps=steps, ends=self._ends, started=self._started, ended=time.time(), start=self._start
        )
        try:
            write_json(path, content)
        except OSError as error:
            print(f"worker: cannot write {path}: {error}", file=sys.stderr)
        self._said.last_words(self._options.run, path, content)
        if self._options.start is not None and self._node == 0 and self._launch is not None:
            # In pods no supervisor is left to tell it.
            text = f"attempt {self._options.attempt.number} ended: {said}"
            tell_now(self._launch.policy.webhook, self._options.run.name, text, self._journal.say)
