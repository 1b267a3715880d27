"""One srun step: its command line, its life, and what its output says when no worker could say anything.

The texts are srun's and slurmstepd's (24.11, 22.05; `--label` puts the task's number before a node's lines) and pyxis'.
"""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from .codes import refused
from .launch import Container, Launch
from .layout import BundleFolder, RunFolder

PYTHON = "python3"  # the node's or the image's; the batch script has found one by the same name
_TICK = 0.2  # seconds between two looks at srun
_PATIENCE = 60.0  # seconds that an srun which was told to end gets before SIGKILL
_REASON = 400  # characters kept of one line

_LABEL = re.compile(r"^\s*\d+: ")
_SPEAKER = re.compile(r"^(?:slurmstepd(?:-\S+)?|srun): ")
_DEAD = re.compile(r"^srun: error: (\S+): tasks? ([\d,\[\]-]+): (?!Terminated)(.*)")
_STOPPED = re.compile(r"Job step aborted|\*\*\* (?:STEP|JOB) .* CANCELLED|forcing job termination")
_EMPTY_WORDS = re.compile(
    r"tasks? [\d,\[\]-]+: |Terminat|\*\*\* (?:STEP|JOB) |Step created|Job step aborted|got SIGCONT|spank|_fork_all_tasks"
    r"|exec_wait_signal_child|forcing job|launch/slurm|Timed out waiting for job step|pyxis: +printing|_pre_task"
    r"|pyxis: importing|pyxis: imported|Waiting up to"
)
_TELLING = (
    re.compile(r"\[ERROR\]"),
    re.compile(r"pyxis|enroot"),
    re.compile(r"^worker: "),
    re.compile(r"error|fatal", re.I),
)


@dataclass(frozen=True)
class Dead:
    """A task that ended by itself, before srun ended the others. hosts: srun's words expanded. what: how it ended."""

    hosts: tuple[str, ...]
    what: str


def words(launch: Launch, bundle: BundleFolder, run: RunFolder, attempt: int, hosts: Sequence[str]) -> list[str]:
    """srun's command line for one attempt: a worker on each of `hosts`, in the container if there is one.

    --quiet: the trainers' output goes to the rank logs alone; that of a thousand ranks is too much for one file.
    """
    worker = [PYTHON, "-B", str(bundle.worker), "--bundle", str(bundle.path), "--run", str(run.path)]
    return [
        "srun",
        *_size(hosts),
        *launch.srun,
        "--label",
        *(_container(launch.container, bundle, run) if launch.container is not None else ()),
        *worker,
        "--attempt",
        str(attempt),
        "--quiet",
    ]


def domain_words(launch: Launch, bundle: BundleFolder, hosts: Sequence[str]) -> list[str]:
    """srun's command line for the question to each node which domain it is in, outside the container."""
    plain = [word for word in launch.srun if word.startswith(("--mpi", "--cpu-bind"))]
    script = bundle.worker.with_name("domains.py")
    return ["srun", *_size(hosts), "--ntasks-per-node=1", *plain, PYTHON, "-B", str(script)]


def _size(hosts: Sequence[str]) -> list[str]:
    return [f"--nodes={len(hosts)}", f"--ntasks={len(hosts)}", f"--nodelist={','.join(hosts)}"]


def _container(container: Container, bundle: BundleFolder, run: RunFolder) -> list[str]:
    """pyxis' options. The run's folder, the bundle's and the compile cache's are mounted where they are."""
    own = [run.path, run.compile_cache.parent]
    own += [] if run.path in bundle.path.parents else [bundle.path]
    for path in own:
        if re.search("[:,]", str(path)):
            raise refused(
                f"{path} cannot be mounted: pyxis takes no comma or colon in a path; name another runs folder"
            )
    mounts = [*container.mounts, *(f"{path}:{path}" for path in own)]
    options = [
        f"--container-image={container.file or container.image}",
        f"--container-mounts={','.join(mounts)}",
        "--no-container-mount-home",
        "--container-writable",
    ]
    options += [f"--container-workdir={container.workdir}"] if container.workdir else []
    options += [f"--container-env={','.join(container.env)}"] if container.env else []
    return options


class Step:
    """A running srun, its output in a file. Signals that the job gets reach the tasks by SLURM itself."""

    def __init__(self, argv: Sequence[str], log: Path, output: Optional[Path] = None) -> None:
        """`output`: where standard output goes apart from the log."""
        with open(log, "ab") as errors, open(output or log, "ab") as standard:
            self._process = subprocess.Popen(list(argv), stdin=subprocess.DEVNULL, stdout=standard, stderr=errors)

    def wait(self, each_tick: Callable[[], None], seconds: Optional[float] = None) -> int:
        """srun's exit code, as a shell counts it. It is ended when it takes longer than `seconds`."""
        deadline = None if seconds is None else time.monotonic() + seconds
        ending = False
        while True:
            try:
                code = self._process.wait(_TICK)
                return 128 - code if code < 0 else code
            except subprocess.TimeoutExpired:
                each_tick()
            if deadline is not None and time.monotonic() > deadline:
                self._process.send_signal(signal.SIGKILL if ending else signal.SIGTERM)
                ending, deadline = True, time.monotonic() + _PATIENCE

    def signal(self, number: int) -> None:
        """To srun, which hands it to all tasks."""
        self._process.send_signal(number)


def lines_of(log: Path) -> list[str]:
    """A step's log; empty when there is none."""
    try:
        return log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def reason_in(lines: Sequence[str]) -> str:
    """The line of a step's log that says best why it failed, or an empty text."""
    said = [_SPEAKER.sub("", _LABEL.sub("", line)).strip() for line in lines]
    telling = [line for line in said if line and not _EMPTY_WORDS.search(line)]
    for pattern in _TELLING:
        for line in telling:
            if pattern.search(line):
                return re.sub(r"^(?:error|fatal): ", "", line)[:_REASON]
    return (telling or [line for line in said if line] or [""])[0][:_REASON]


def was_refused(lines: Sequence[str]) -> bool:
    """Whether SLURM did not create the step: it has no answer for srun, or what the last step held is not free yet."""
    return any("Unable to create step" in line for line in lines)


def deaths(lines: Sequence[str]) -> list[Dead]:
    """All tasks that did not end well, in srun's order; `Terminated` is left out: they heard srun's SIGTERM."""
    matches = [_DEAD.match(line) for line in lines]
    return [Dead(tuple(expand(match[1])), match[3].strip()) for match in matches if match is not None]


def first_dead(lines: Sequence[str]) -> list[Dead]:
    """Those of `deaths` that came before the step was ended: by themselves."""
    ended = next((number for number, line in enumerate(lines) if _STOPPED.search(line)), len(lines))
    return deaths(lines[:ended])


def expand(nodelist: str) -> list[str]:
    """Host names from SLURM's writing, for one pair of brackets.

    >>> expand("n[08-10,12],m3")
    ['n08', 'n09', 'n10', 'n12', 'm3']
    """
    names = []
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", nodelist):
        match = re.fullmatch(r"([^\[]*)\[([^\]]*)\](.*)", part)
        if match is None:
            names.append(part)
            continue
        for piece in match[2].split(","):
            first, _, last = piece.partition("-")
            for number in range(int(first), int(last or first) + 1):
                names.append(f"{match[1]}{str(number).zfill(len(first))}{match[3]}")
    return names
