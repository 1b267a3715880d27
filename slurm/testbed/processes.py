"""Starts and finds the processes of a cluster. Each runs under an /etc/hosts of its own, which is also how it is known again.

A node is a mount namespace and a UTS namespace: inside, `hostname` is n0 and n0, n1, ... are loopback; outside, nothing has changed.
What a node's daemon starts (step managers, jobs, their children, detached or not) inherits the namespaces, so "the processes of a
node" is exact: no pid file has to be believed, and no process of anybody else can be hit.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from slurm.testbed.configuration import MARK
from slurm.testbed.settings import TestbedError

CONTROLLER, MUNGE = "controller", "munge"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENTER = 'mount --bind "$1" /etc/hosts && { [ -z "$2" ] || hostname "$2"; } && shift 2 && exec "$@"'


def spawn(folder: Path, role: str, words: list[str], *, hostname: str = "") -> subprocess.Popen[bytes]:
    """Start a daemon in the namespaces of `role`; it detaches, and the process that is returned ends with the daemon's verdict."""
    enter = ["unshare", "--mount", "--uts", "--propagation", "slave"]
    enter += ["sh", "-c", ENTER, "sh", str(folder / "hosts" / role), hostname]
    # Nothing of the caller's environment: a job must not depend on who started the cluster.
    environment = {"PATH": PATH, "SLURM_CONF": str(folder / "slurm.conf")}
    with (folder / "log" / f"start-{role}.log").open("wb") as log:
        return subprocess.Popen(
            [*enter, *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", env=environment
        )


def wait_started(folder: Path, daemons: dict[str, subprocess.Popen[bytes]]) -> None:
    """Wait until each daemon has detached. Errors: TestbedError with what the first that failed has said."""
    for role, process in daemons.items():
        if process.wait(timeout=60) != 0:
            said = (folder / "log" / f"start-{role}.log").read_text(errors="replace").strip()
            raise TestbedError(
                f"{role} did not start (exit code {process.returncode}): {said[-800:] or 'it said nothing'}"
            )


def find(folder: Path, *roles: str) -> Iterator[int]:
    """Give the pids of the cluster in `folder`: of these roles (controller, munge, a node's name), or all."""
    begin = MARK.format(folder=folder, role="")
    own = os.readlink("/proc/self/ns/mnt")
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # it has ended, or has no root any more (a zombie)
            if os.readlink(f"/proc/{entry.name}/ns/mnt") == own:
                continue
            last = (
                Path("/proc", entry.name, "root/etc/hosts")
                .read_text(encoding="utf-8", errors="replace")
                .rstrip()
                .rpartition("\n")[2]
            )
            if last.startswith(begin) and (not roles or last[len(begin) :] in roles):
                yield int(entry.name)


def daemon(folder: Path, role: str, pid_file: Path) -> int | None:
    """Give the pid in `pid_file` if it is a living process of that role."""
    try:
        pid = int(pid_file.read_text())
    except (OSError, ValueError):
        return None
    return pid if pid in find(folder, role) else None


def kill(folder: Path, *roles: str, wait_s: float = 10) -> None:
    """SIGKILL every process of the roles (or of the cluster), until none is left; those that were forked meanwhile too."""
    deadline = time.monotonic() + wait_s
    while pids := list(find(folder, *roles)):
        if time.monotonic() > deadline:
            raise TestbedError(
                f"processes {pids} of the cluster in {folder} did not end within {wait_s:.0f} s of SIGKILL"
            )
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def end(pid: int, sign: signal.Signals, wait_s: float = 20) -> None:
    """Send one process the signal and wait until it has ended."""
    os.kill(pid, sign)
    deadline = time.monotonic() + wait_s
    while _alive(pid):
        if time.monotonic() > deadline:
            raise TestbedError(f"process {pid} did not end within {wait_s:.0f} s of {sign.name}")
        time.sleep(0.02)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
