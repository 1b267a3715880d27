"""What the ranks printed: one, or all of them merged by time; as it is, or as it grows until the run ends."""

from __future__ import annotations

import calendar
import heapq
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TextIO

from launcher.node.layout import AttemptFolder
from launcher.runs.attempts import POLL_SECONDS, Judged, State, handle_of, newest
from launcher.runs.follow import GrowingFile
from launcher.runs.store import Run, RunsError
from launcher.runs.watch import Watch
from launcher.targets import base

_ABSL = re.compile(r"[IWEF](\d{4} \d\d:\d\d:\d\d\.\d{6}) ")
"""absl's prefix, local time without a year: I1129 16:03:20.969282 140264848128896 metric_logger.py:265]."""
_WORKER_STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)Z ")
"""The worker's own lines: UTC."""
_RANK_LOG = re.compile(r"rank(\d+)\.log")
SRUN_LOG = "srun.log"
"""In an attempt's folder: what srun and pyxis said (launcher/node/step.py)."""
LISTEN_SECONDS = 2.0
"""Between two looks for new pods of a run that is followed; what the known ones say comes by itself."""
_SHOWN = 8  # ranks listed one by one in a message
_WORKER_LOG = re.compile(r"worker(\d+)\.log")


class _Clock:
    """Gives each line of one log a time: its own stamp, else that of the line before it."""

    def __init__(self) -> None:
        self._year = 0
        self._stamp = ""

    def of(self, line: str) -> tuple[int, str]:
        absl, worker = _ABSL.match(line), _WORKER_STAMP.match(line)
        if absl or worker:
            stamp = absl.group(1) if absl else _local(worker.group(1)) if worker else ""
            if stamp[:2] == "01" and self._stamp[:2] == "12":
                self._year += 1
            self._stamp = stamp
        return self._year, self._stamp


def _local(utc: str) -> str:
    """An UTC time as absl would print it here."""
    seconds = calendar.timegm(time.strptime(utc, "%Y-%m-%dT%H:%M:%S"))
    return time.strftime("%m%d %H:%M:%S.000000", time.localtime(seconds))


def print_logs(
    run: Run, out: TextIO, *, follow: bool = False, rank: int | None = None, attempt: int | None = None
) -> int:
    """Print what the ranks of an attempt printed; with `follow` go on, new ranks and attempts too, until the run ends.

    `rank`: that one as it is; None = all ranks and the workers, merged by time, each line with its `[rank]`.
    `attempt`: None = the newest. A reader that goes away (`| head`) ends it quietly. Returns 0.

    Raises:
        RunsError: there is no such attempt or rank, or nothing was printed; the text says what there is.
    """
    hearing = _Hearing(run, rank)
    hearing.hear()
    shown = _attempt(run, attempt)
    try:
        if follow:
            _follow(run, shown, hearing, attempt is None, out)
        else:
            logs = _logs(shown, rank)
            if not logs:
                raise _nothing(run, shown, rank)
            _print_merged(logs, rank is None, out)
        out.flush()
    except BrokenPipeError:
        if out is sys.stdout:
            # Python flushes stdout once more at its exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def print_all_logs(run: Run, out: TextIO, *, rank: int | None = None) -> int:
    """print_logs of each attempt, the oldest first, each under its own line; one that printed nothing says so."""
    _attempt(run, None)
    for number in run.layout.attempt_numbers():
        print(f"==> attempt {number} <==", file=out)
        try:
            print_logs(run, out, rank=rank, attempt=number)
        except RunsError as nothing:
            print(nothing, file=out)
    return 0


def _attempt(run: Run, asked: int | None) -> AttemptFolder:
    numbers = run.layout.attempt_numbers()
    if not numbers:
        raise RunsError(f"{run.name} was never started, it has no logs", f"start it: resume {run.name}")
    if asked is not None and asked not in numbers:
        raise RunsError(f"{run.name} has no attempt {asked}, it has {', '.join(map(str, numbers))}")
    return run.layout.attempt(numbers[-1] if asked is None else asked)


def _logs(attempt: AttemptFolder, rank: int | None) -> list[tuple[str, Path]]:
    """(label, path) of the logs that are there: ranks in their order, the workers, and what srun said if it did."""
    found: list[tuple[int, int, str, Path]] = []
    for entry in attempt.path.iterdir():
        rank_log, worker_log = _RANK_LOG.fullmatch(entry.name), _WORKER_LOG.fullmatch(entry.name)
        if rank_log is not None and rank in (None, int(rank_log.group(1))):
            found.append((0, int(rank_log.group(1)), rank_log.group(1), entry))
        elif worker_log is not None and rank is None:
            label = "worker" if worker_log.group(1) == "0" else f"worker {worker_log.group(1)}"
            found.append((1, int(worker_log.group(1)), label, entry))
        elif entry.name == SRUN_LOG and rank is None and entry.stat().st_size:
            found.append((2, 0, "srun", entry))
    return [(label, path) for _, _, label, path in sorted(found)]


def _nothing(run: Run, attempt: AttemptFolder, rank: int | None) -> RunsError:
    ranks = [label for label, path in _logs(attempt, None) if _RANK_LOG.fullmatch(path.name)]
    if rank is None or not ranks:
        jobs = sorted(attempt.path.parent.parent.glob("slurm-*.log"), key=lambda path: path.stat().st_mtime)
        more = f"what the job itself said: {jobs[-1]}" if jobs else _kept_elsewhere(run, attempt)
        return RunsError(f"attempt {attempt.number} has printed nothing yet: {attempt.path}", more)
    shown = ", ".join(ranks) if len(ranks) <= _SHOWN else f"{ranks[0]} to {ranks[-1]}"
    said = f"attempt {attempt.number} has no rank {rank}, it has {shown}"
    return RunsError(said, _kept_elsewhere(run, attempt))


def _kept_elsewhere(run: Run, attempt: AttemptFolder) -> str:
    """Where the logs of pods lie that are gone; empty for a target whose workers write here."""
    handle = handle_of(run, attempt) if run.target in base.DISTANT else None
    if handle is None:
        return ""
    return (
        f"the volume claim {handle.get('claim')} keeps all of them, in {handle.get('jobset')}/attempts/{attempt.number}"
    )


class _Hearing:
    """Brings what the workers say where they do not write here themselves; says once what cannot be brought."""

    def __init__(self, run: Run, rank: int | None) -> None:
        self._run = run
        self.rank = rank
        self._told: set[str] = set()
        self._due = 0.0

    def hear(self) -> None:
        """All that was said until now."""
        self._tell(False)

    def listen(self) -> None:
        """The same, and every further word as it is said; asks the cluster now and then."""
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + LISTEN_SECONDS
            self._tell(True)

    def _tell(self, goes_on: bool) -> None:
        attempt = newest(self._run) if self._run.target in base.DISTANT else None
        handle = handle_of(self._run, attempt) if attempt is not None else None
        if handle is None:
            return
        target = base.get(self._run.target)
        ranks = None if self.rank is None else frozenset({self.rank})
        for line in (target.listen if goes_on else target.bring)(self._run.layout, handle, ranks):
            if line not in self._told:
                print(f"{self._run.name}: {line}", file=sys.stderr, flush=True)
                self._told.add(line)


def _print_merged(logs: Sequence[tuple[str, Path]], labelled: bool, out: TextIO) -> None:
    """Lazily: memory for one line a log, whatever their size."""
    files = [path.open(encoding="utf-8", errors="replace", newline="\n") for _, path in logs]
    try:
        streams = [
            _stamped(file, order, label) for order, (file, (label, _)) in enumerate(zip(files, logs, strict=True))
        ]
        for _, _, _, label, line in heapq.merge(*streams):
            out.write(_labelled(label, line, labelled))
    finally:
        for file in files:
            file.close()


_Stamped = tuple[tuple[int, str], int, int, str, str]


def _stamped(lines: Iterable[str], order: int, label: str, clock: _Clock | None = None) -> Iterator[_Stamped]:
    clock = clock or _Clock()
    for number, line in enumerate(lines):
        text = line.rstrip("\r\n")
        yield clock.of(text), order, number, label, text


def _labelled(label: str, line: str, labelled: bool) -> str:
    return f"[{label}] {line}\n" if labelled else f"{line}\n"


class _Followed:
    """The growing logs of one attempt."""

    def __init__(self, attempt: AttemptFolder, rank: int | None) -> None:
        self._attempt = attempt
        self._rank = rank
        self._files: dict[Path, tuple[str, GrowingFile, _Clock]] = {}

    def print_new(self, out: TextIO, last: bool) -> bool:
        """Print what came since the last call; `last`: to the very end, cut-off lines too. Whether there was any."""
        for label, path in _logs(self._attempt, self._rank):
            if path not in self._files:
                self._files[path] = label, GrowingFile(path), _Clock()
        streams = []
        for order, (label, file, clock) in enumerate(self._files.values()):
            lines = file.close() if last else file.lines()
            streams.append(list(_stamped(lines, order, label, clock)))
        printed = False
        for _, _, _, label, line in heapq.merge(*streams):
            out.write(_labelled(label, line, self._rank is None))
            printed = True
        if printed:
            out.flush()
        return printed


def _follow(run: Run, attempt: AttemptFolder, hearing: _Hearing, later_ones: bool, out: TextIO) -> None:
    rank = hearing.rank
    followed, watch = _Followed(attempt, rank), Watch(run)
    seen, told = False, ""
    while True:
        judged = watch.look()  # before reading: what was written before the end is then never missed
        newest_one = judged.attempt.number if judged.attempt is not None else attempt.number
        over = not judged.is_live or newest_one > attempt.number
        if over:
            hearing.hear()
        else:
            hearing.listen()
        seen = followed.print_new(out, last=over) or seen
        told = _tell_why_nothing_comes(judged, told)
        if not over:
            time.sleep(POLL_SECONDS)
        elif later_ones and newest_one > attempt.number:
            attempt = run.layout.attempt(min(n for n in run.layout.attempt_numbers() if n > attempt.number))
            followed = _Followed(attempt, rank)
            out.write(f"==> attempt {attempt.number} <==\n")
        elif not seen:
            raise _nothing(run, attempt, rank)
        else:
            return


def _tell_why_nothing_comes(judged: Judged, told: str) -> str:
    """On stderr, once each time that it is another state: the reader of stdout gets what the trainers print, only."""
    if judged.state not in (State.WAITING, State.RESTARTING, State.UNKNOWN):
        return ""
    if told != judged.state:
        print(f"{judged.run.name}: {judged.state}: {judged.reason}", file=sys.stderr, flush=True)
    return judged.state
