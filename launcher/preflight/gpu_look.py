"""Runs gpu_probe.py in the Python that trains: what it saw, and which part of the stack killed it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROBE = Path(__file__).resolve().with_name("gpu_probe.py")

PROBE_S = 180.0
"""Bound in seconds for one run. It takes half a second without Transformer Engine; the first import of that and JAX from a network
folder may take a minute (guess)."""


@dataclass(frozen=True)
class Look:
    """seen: part -> what it saw. died: part -> how it killed the probe. problem: why nothing was seen at all."""

    seen: Mapping[str, Any] = field(default_factory=dict)
    died: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""


def parts(text: str) -> tuple[dict[str, Any], str]:
    """What the probe wrote -> what each part saw, and the part that began and did not end ("" = it came to its end)."""
    seen: dict[str, Any] = {}
    open_part = "?"
    for line in text.splitlines():
        try:
            told = json.loads(line)
        except json.JSONDecodeError:
            break
        open_part = "" if "seen" in told or told["part"] == "end" else told["part"]
        if "seen" in told:
            seen[told["part"]] = told["seen"]
    return seen, open_part


def how(status: int | None, limit_s: float, last_words: str) -> str:
    """How a probe ended that did not come to its end. status: None = it was stopped after `limit_s` seconds."""
    if status is None:
        return f"no answer in {limit_s:g} s"
    if status < 0:
        with contextlib.suppress(ValueError):
            return f"{signal.Signals(-status).name}"
        return f"signal {-status}"
    return f"exit code {status}" + (f", {last_words}" if last_words else "")


def _run(command: list[str], environment: Mapping[str, str] | None, limit_s: float) -> tuple[int | None, str, str]:
    """Exit status (None = too late), what it wrote, and its last words."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdout=out, stderr=errors, env=environment, start_new_session=True)
        try:
            status: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            if process.poll() is None:
                # its nvcc or nvidia-smi goes with it
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        out.seek(0)
        errors.seek(0)
        said = errors.read().decode("utf-8", "replace").strip().splitlines()
        return status, out.read().decode("utf-8", "replace"), said[-1] if said else ""


def look(python: str, environment: Mapping[str, str] | None = None, limit_s: float = PROBE_S) -> Look:
    """Everything that can be seen from `python`; environment: None = this process' own.

    A part that kills the probe is left out of the next run, until one comes to its end.
    """
    died: dict[str, str] = {}
    while True:
        command = [python, str(PROBE), *(word for part in died for word in ("--without", part))]
        try:
            status, text, last_words = _run(command, environment, limit_s)
        except OSError as error:
            return Look(problem=f"{python} does not start: {error.strerror or error}")
        seen, culprit = parts(text)
        if culprit == "":
            return Look(seen, died)
        if culprit == "?" or culprit in died:
            return Look(problem=f"{python} does not start: {how(status, limit_s, last_words)}")
        died[culprit] = how(status, limit_s, last_words)
