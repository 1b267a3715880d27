"""Processes of this machine that can be recognised again later: Linux's /proc only.

A pid alone is reused; pid, start time and boot together are not.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

PROC = Path("/proc")
_ENDED = ("Z", "X")


def boot_id() -> str:
    """This boot of the kernel: start times count from it."""
    return (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def start_ticks(pid: int) -> int | None:
    """When the process began, in clock ticks after boot (proc(5), stat field 22); None when it has ended or never was.

    A zombie counts as ended: nobody may be there to reap it.
    """
    try:
        text = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name in field 2 may hold spaces and brackets; fields[0] is field 3
    return None if fields[0] in _ENDED else int(fields[19])


def send(pid: int, started: int, number: signal.Signals) -> bool:
    """Signal exactly the process that began at `started`; False when it is gone.

    A pidfd keeps the pid from being reused between the look and the signal; kernels before 5.3 have none.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    except OSError:
        descriptor = -1
    try:
        if start_ticks(pid) != started:
            return False
        if descriptor < 0:
            os.kill(pid, number)
        else:
            signal.pidfd_send_signal(descriptor, number)
        return True
    except ProcessLookupError:
        return False
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def marked(variable: str, value: str) -> list[tuple[int, int]]:
    """(pid, start ticks) of this user's processes that were started with `variable=value` in their environment."""
    wanted = f"{variable}={value}".encode()
    found = []
    for entry in PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if entry.stat().st_uid != os.getuid() or wanted not in (entry / "environ").read_bytes().split(b"\0"):
                continue
        except OSError:
            continue
        started = start_ticks(int(entry.name))
        if started is not None:
            found.append((int(entry.name), started))
    return sorted(found)
