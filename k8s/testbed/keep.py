"""Runs one program so that it and all its descendants end when the program ends, or when whoever started this is gone.

    python3 -I -S keep.py PROGRAM [ARGUMENT ...]

It is what a container runtime's shim is: descendants whose parent has died become this process's children (a subreaper), so none is
lost, detached or not. Standard input is the leash: at its end, everything is killed. SIGTERM goes on to the program alone, as the
kubelet sends it to a container's first process; SIGUSR1 kills everything. The exit code is the program's, 128 + N after signal N.
Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
HERE = Path(__file__)


def command(words: list[str]) -> list[str]:
    """Give the command line that runs `words` under this program; start it with a pipe as its standard input."""
    return [sys.executable, "-I", "-S", str(HERE), *words]


def descendants(root: int) -> list[int]:
    """Give the pids below `root`, from the parent that every process names in /proc."""
    children: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                stat = Path("/proc", entry.name, "stat").read_text(encoding="utf-8", errors="replace")
                state, parent = stat.rpartition(")")[2].split()[:2]
                if state != "Z":
                    children.setdefault(int(parent), []).append(int(entry.name))
    found, todo = [], [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def kill_all() -> None:
    """SIGKILL every descendant until none is left, those that were forked meanwhile too."""
    while pids := descendants(os.getpid()):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _reap()
        time.sleep(0.005)


def _reap() -> dict[int, int]:
    ended = {}
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended[found[0]] = os.waitstatus_to_exitcode(found[1])
    return ended


def main(words: list[str]) -> int:
    """Run the program to its end. Exit code 127 if it cannot be started."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    awake, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    for one in (signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD, signal.SIGINT):  # Ctrl-C is for whoever holds the leash
        signal.signal(one, lambda *_: None)  # and not SIG_IGN, which the program would inherit
    try:
        program = subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as why:
        print(f"{words[0]}: {why.strerror}", file=sys.stderr)
        return 127
    leash: list[int] = [0]
    while True:
        ready = select.select([awake, *leash], [], [])[0]
        got = os.read(awake, 4096) if awake in ready else b""
        if 0 in ready and not os.read(0, 4096):
            leash = []
            kill_all()
        if signal.SIGUSR1 in got:
            kill_all()
            return 128 + signal.SIGKILL
        if signal.SIGTERM in got:
            with contextlib.suppress(ProcessLookupError):
                os.kill(program.pid, signal.SIGTERM)
        ended = _reap()
        if program.pid in ended or not leash:
            kill_all()
            code = ended.get(program.pid, -signal.SIGKILL)
            return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
