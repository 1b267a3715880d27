"""Processes that do not outlive their parent, however it ends, and orphans that find a new one (Linux only)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_PAUSE = 0.02  # seconds between two looks at what is ending


def tether() -> Callable[[], None]:
    """What a child runs before exec: the kernel kills it when the thread that forked it ends, even of SIGKILL."""
    parent = os.getpid()
    is_linux = _is_linux()
    prctl = ctypes.CDLL(None).prctl if is_linux else None

    def prepare() -> None:
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:  # it died between fork and prctl
                os._exit(1)

    return prepare


def adopt_orphans() -> None:
    """Makes this process the parent of all descendants whose own parent ends."""
    if _is_linux():
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_orphans(seconds: float) -> None:
    """Kills and reaps every child, those that come while it does so included, for at most `seconds`.

    Not while a subprocess is waited for elsewhere. One that is left hangs in the kernel (driver or disk).
    """
    deadline = time.monotonic() + seconds
    while (children := _children()) and time.monotonic() < deadline:
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, os.WNOHANG)
        time.sleep(_PAUSE)


def _is_linux() -> bool:
    return Path("/proc/self/stat").exists()


def _children() -> list[int]:
    """This process's children, the dead ones included; proc(5), none where the kernel does not list them."""
    try:
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    except OSError:
        return []
