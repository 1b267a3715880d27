"""This node's trainer processes: started, read, stopped and reaped by one thread.

One thread, the main one, because PR_SET_PDEATHSIG fires when the *thread* that forked the child ends, and because
forking with other threads running is unsafe.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from . import numa
from .codes import Code, refused
from .layout import AttemptFolder
from .monitor import Monitor, Stop
from .observe import Observed
from .output import Console, Journal, LineSplitter
from .peers import Failure, Peers
from .signals import SignalBox
from .stopping import STOP_SIGNALS, Act, Stopping
from .tether import tether
from .verdict import RankEnd

_PR_SET_PTRACER = 0x59616D61  # linux/prctl.h
_CHUNK = 1 << 16  # bytes of one read
_LAST_READS = 64  # after the end: a pipe holds 1 MiB at most (pipe(7)), and a process that escaped may go on writing
_TICK = 0.2  # seconds between two looks at the processes
REAP_LIMIT = 30.0  # seconds after SIGKILL; a process in an uninterruptible wait (dead driver or disk) never goes


@dataclass
class _Trainer:
    rank: int
    process: subprocess.Popen[bytes]
    log: BinaryIO
    splitter: LineSplitter = field(default_factory=LineSplitter)
    observed: Observed = field(default_factory=Observed)
    killed: bool = False

    @property
    def output(self) -> int:
        assert self.process.stdout is not None
        return self.process.stdout.fileno()


class Trainers:
    """The processes of one attempt on this node. `ends` fills in the order in which they end."""

    def __init__(
        self,
        attempt: AttemptFolder,
        *,
        console: Console,
        journal: Journal,
        box: SignalBox,
        stopping: Stopping,
        peers: Peers,
        monitor: Monitor,
        on_failure: Callable[[RankEnd], None],
        on_stop: Callable[[Stop], None],
        on_look: Callable[[float], None],
    ) -> None:
        """`on_look`: called a few times a second with the monotonic time, while processes run.

        `on_stop`: the monitor asked for the end, and nothing else has ended the training yet: SIGKILL follows.
        """
        self.ends: list[RankEnd] = []
        self._attempt = attempt
        self._console = console
        self._journal = journal
        self._box = box
        self._stopping = stopping
        self._peers = peers
        self._monitor = monitor
        self._on_failure = on_failure
        self._on_stop = on_stop
        self._on_look = on_look
        self._alive: dict[int, _Trainer] = {}
        self._selector = selectors.PollSelector()
        self._selector.register(box.wakeup, selectors.EVENT_READ, None)
        self._log_is_full = False
        self._killed_at: float | None = None
        self.why_killed = ""
        self.stop: Stop | None = None
        """What the monitor asked for and got."""
        self.peer: Failure | None = None
        """The first failure, if it was another node's."""

    def pids(self) -> dict[int, int]:
        """The live trainers: rank -> process id."""
        return {rank: trainer.process.pid for rank, trainer in self._alive.items()}

    def start(
        self,
        ranks: Sequence[int],
        argv: Sequence[str],
        environments: Sequence[Mapping[str, str]],
        bindings: Sequence[numa.Binding],
    ) -> None:
        """Starts one process a rank, unless a stop signal has come. Refuses (78) a Python that cannot be started."""
        for index, rank in enumerate(ranks):
            if self._box.pending:
                return
            log = self._attempt.rank_log(rank).open("ab", buffering=0)
            try:
                command = [*bindings[index].prefix, *argv]
                process = _spawn(command, environments[index], _prepare(bindings[index].cpus))
            except OSError as error:
                log.close()
                self._kill("another rank could not be started")
                self.run()
                why = f"cannot start {argv[0]}: {error.strerror}"
                raise refused(f"{why}; give the trainer's Python with --python") from error
            trainer = _Trainer(rank, process, log)
            os.set_blocking(trainer.output, False)
            self._alive[rank] = trainer
            self._selector.register(trainer.output, selectors.EVENT_READ, trainer)

    def run(self) -> None:
        """Reads, forwards stop signals and waits until every process has ended (or would not die)."""
        while self._alive:
            for key, _ in self._selector.select(_TICK):
                if key.data is not None:
                    self._read(key.data)
            self._console.flush(0)
            for number in self._box.take():
                self._on_signal(number)
            self._reap()
            now = time.monotonic()
            self._on_look(now)
            self._ask_monitor(now)
            peer = self._peers.look(now)
            if peer is not None:
                self._on_peer(peer, now)
            if self._killed_at is None and self._stopping.is_due(now):
                self._kill(self._stopping.why)
            elif self._killed_at is not None and now - self._killed_at > REAP_LIMIT:
                self._give_up()

    def _ask_monitor(self, now: float) -> None:
        """Obeys the monitor, unless the training ends anyway: a stop signal, or a rank that ended, came first."""
        stop = self._monitor.look(now)
        if stop is not None and self._alive and self._killed_at is None and not self._stopping.is_ending:
            self.stop = stop
            self._on_stop(stop)
            self._kill(stop.reason)

    def _on_peer(self, peer: Failure, now: float) -> None:
        self.peer = peer
        if peer.code == Code.STALLED:
            self._stopping.on_peer_stall(peer.node, now)
        else:
            self._stopping.on_peer_failure(peer.node, now)

    def _on_signal(self, number: int) -> None:
        name = signal.Signals(number).name
        act = self._stopping.on_signal(number, time.monotonic())
        if act is Act.FORWARD:
            wait = f"waiting at most {self._stopping.grace:g} s for MaxText to save and end"
            self._journal.say(f"{name}: SIGTERM to {len(self._alive)} trainer(s), {wait}; again to kill")
            for trainer in self._alive.values():
                # To the trainer alone: its data-loading children must live until the checkpoint is written.
                os.kill(trainer.process.pid, signal.SIGTERM)
        elif act is Act.KILL:
            self._kill(self._stopping.why)

    def _kill(self, why: str) -> None:
        if self._killed_at is None and self._alive:
            self._killed_at, self.why_killed = time.monotonic(), why
            self._journal.say(f"SIGKILL to rank(s) {', '.join(map(str, self._alive))}: {why}")
            for trainer in self._alive.values():
                trainer.killed = not _has_ended(trainer.process.pid)
                _signal_group(trainer.process.pid)

    def _reap(self) -> None:
        ended = [trainer for trainer in self._alive.values() if _has_ended(trainer.process.pid)]
        for trainer in ended:
            # What it left behind would keep the GPU; while it is not reaped, its group's number cannot be reused.
            _signal_group(trainer.process.pid)
            for _ in range(_LAST_READS):
                if not self._read(trainer):
                    break
            self._finish(trainer, trainer.process.wait())
        if self._killed_at is not None:
            return
        for end in self.ends[len(self.ends) - len(ended) :]:
            if self._alive:
                self._stopping.on_exit(end.rank, end.returncode or 0, time.monotonic())
            if end.returncode != 0 and self._stopping.signal is None:
                self._on_failure(end)

    def _finish(self, trainer: _Trainer, returncode: int | None) -> None:
        for line in trainer.splitter.close():
            self._line(trainer, line)
        self._forget(trainer)
        trainer.log.close()
        del self._alive[trainer.rank]
        self.ends.append(RankEnd(trainer.rank, returncode, trainer.killed, trainer.observed))

    def _give_up(self) -> None:
        for trainer in list(self._alive.values()):
            self._journal.say(f"rank {trainer.rank} (pid {trainer.process.pid}) does not die of SIGKILL")
            self._finish(trainer, None)

    def _read(self, trainer: _Trainer) -> bool:
        """Takes in one piece of output; False when there is none now."""
        try:
            chunk = os.read(trainer.output, _CHUNK)
        except (BlockingIOError, ValueError):
            return False
        if not chunk:
            self._forget(trainer)
            return False
        self._write_log(trainer, chunk)
        for line in trainer.splitter.feed(chunk):
            self._line(trainer, line)
        return True

    def _forget(self, trainer: _Trainer) -> None:
        stream = trainer.process.stdout
        if stream is not None and not stream.closed:
            self._selector.unregister(stream.fileno())
            stream.close()

    def _line(self, trainer: _Trainer, line: str) -> None:
        trainer.observed.feed(line)
        self._monitor.line(trainer.rank, line, time.monotonic())
        self._console.say(f"[{trainer.rank}] {line}")

    def _write_log(self, trainer: _Trainer, chunk: bytes) -> None:
        try:
            view = memoryview(chunk)
            while view:
                view = view[trainer.log.write(view) :]
        except OSError as error:
            if not self._log_is_full:
                self._log_is_full = True
                self._journal.say(f"{self._attempt.rank_log(trainer.rank)}: {error.strerror}; training goes on")


def _spawn(argv: Sequence[str], environment: Mapping[str, str], prepare: Callable[[], None]) -> subprocess.Popen[bytes]:
    # Its own session: Ctrl-C reaches the worker alone, and SIGKILL reaches the trainer's children too.
    return subprocess.Popen(
        list(argv),
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        bufsize=0,
        start_new_session=True,
        preexec_fn=prepare,  # noqa: PLW1509  there are no threads
    )


def _has_ended(pid: int) -> bool:
    """Whether a child has ended, without reaping it."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _signal_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _prepare(cpus: frozenset[int]) -> Callable[[], None]:
    """What a child runs before exec: the kernel kills it when the worker dies, even of SIGKILL (Linux only), it is bound
    to its CPUs, the worker's other children may look at its stack (Linux's Yama lets only parents do so), and of the stop
    signals it hears SIGTERM alone: SLURM sends its warning to every process of a step, and a trainer would die of SIGUSR1.
    """
    prctl = ctypes.CDLL(None, use_errno=True).prctl if Path("/proc/self/stat").exists() else None
    parent, tie = os.getpid(), tether()

    def prepare() -> None:
        tie()
        if prctl is not None:
            prctl(_PR_SET_PTRACER, parent, 0, 0, 0)
        for number in STOP_SIGNALS:
            if number != signal.SIGTERM:
                signal.signal(number, signal.SIG_IGN)
        if cpus:
            numa.apply(cpus)

    return prepare
