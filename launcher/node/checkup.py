"""Is this node fit, asked before the trainers start: health.py in a process of its own, within a time, ended by a stop signal."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from .health import FAIL, PREFIX, WARN
from .launch import NodeCheck
from .output import Journal
from .signals import SignalBox

PROGRAM = Path(__file__).with_name("health.py")

PASSING = frozenset({"idle", "NVLink"})
"""Findings that may cure themselves: an earlier attempt's memory is not free at once, a fabric still joins."""

LOOKS = 3
PAUSE = 5.0  # seconds between two looks
_CHUNK = 1 << 16  # bytes of one read


def check(
    asked: NodeCheck, words: Sequence[str], environ: Mapping[str, str], box: SignalBox, journal: Journal
) -> tuple[Optional[dict[str, Any]], str]:
    """health.py's report on this node; None where it could not be made, and why; "" when a signal came first.

    `words`: those that only this node knows (Python, disks). `environ`: the trainer's variables.
    """
    began = time.monotonic()
    argv = [sys.executable, "-I", "-B", str(PROGRAM), *asked.words, *words]
    for look in range(LOOKS):
        report, why = _ask(argv, environ, asked.timeout_seconds, box)
        if box.pending:
            return None, ""
        if report is None:
            return None, why
        failed = {each["name"] for each in report["findings"] if each["level"] == FAIL}
        if not failed:
            warned = told(report, WARN)
            journal.say(
                f"the node check passed in {time.monotonic() - began:.1f} s" + (f"; {warned}" if warned else "")
            )
        if not failed or not failed <= PASSING or look == LOOKS - 1:
            return report, ""
        journal.say(f"the node check asks again in {PAUSE:g} s: {told(report, FAIL)}")
        _wait(box, PAUSE)
    return None, ""


def told(report: Mapping[str, Any], level: str) -> str:
    """The report's findings of one level in one line; "" without any.

    >>> told({"findings": [{"name": "ECC", "level": "fail", "seen": "GPU 0: 3 uncorrected errors"}]}, "fail")
    'ECC: GPU 0: 3 uncorrected errors'
    """
    return "; ".join(f"{each['name']}: {each['seen']}" for each in report["findings"] if each["level"] == level)


def _ask(
    argv: Sequence[str], environ: Mapping[str, str], seconds: float, box: SignalBox
) -> tuple[Optional[dict[str, Any]], str]:
    """The report, or None and why there is none."""
    try:
        process = subprocess.Popen(
            list(argv),
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that what it has started ends with it
        )
    except OSError as error:
        return None, f"cannot start {argv[0]}: {error.strerror}"
    text, in_time = _read(process, seconds, box)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):  # it hangs in a driver or a disk
        process.wait(PAUSE)
    if not in_time:
        return None, f"no answer within {seconds:g} s"
    lines = text.decode("utf-8", errors="replace").splitlines()
    for line in reversed(lines):
        if line.startswith(PREFIX):
            with contextlib.suppress(ValueError, KeyError, TypeError):
                report: dict[str, Any] = json.loads(line[len(PREFIX) :])
                told(report, FAIL)  # it has what a report has
                return report, ""
    return None, f"{PROGRAM.name} ended without a report: {lines[-1][:300] if lines else 'it said nothing'}"


def _read(process: subprocess.Popen[bytes], seconds: float, box: SignalBox) -> tuple[bytes, bool]:
    """What the process prints to its end, and whether that came within `seconds`; a stop signal ends the reading."""
    text, end = b"", time.monotonic() + seconds
    assert process.stdout is not None
    with process.stdout as output, selectors.PollSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        selector.register(box.wakeup, selectors.EVENT_READ)
        while not box.pending:
            left = end - time.monotonic()
            if left <= 0:
                return text, False
            if any(key.fileobj is output for key, _ in selector.select(left)):
                chunk = os.read(output.fileno(), _CHUNK)
                if not chunk:
                    return text, True
                text += chunk
    return text, True


def _wait(box: SignalBox, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not box.pending and time.monotonic() < end:
        time.sleep(0.1)
