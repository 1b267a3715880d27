"""Compilations that were made before, by content: the same question is answered at once.

They lie in $LAUNCHER_CACHE, else $XDG_CACHE_HOME/launcher, else ~/.cache/launcher: a JSON file each, a few KiB. They can be
deleted at any time. A file that cannot be read or written is no obstacle: then it is compiled anew, or not remembered.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

VARIABLE = "LAUNCHER_CACHE"


def folder() -> Path:
    """Where compilations are remembered."""
    if own := os.environ.get(VARIABLE):
        return Path(own) / "aot"
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "launcher" / "aot"


def key(parts: Mapping[str, object]) -> str:
    """The name of what these decide.

    >>> key({"a": 1, "b": 2}) == key({"b": 2, "a": 1}) != key({"a": 1, "b": 3})
    True
    """
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:32]


def load(name: str) -> dict[str, Any] | None:
    """What was remembered under a name; None when there is nothing that can be read."""
    try:
        found = json.loads((folder() / f"{name}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def store(name: str, answer: Mapping[str, Any]) -> None:
    """Remember; a reader never sees half a file."""
    with contextlib.suppress(OSError):
        folder().mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=folder(), suffix=".part")
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(answer, file)
        os.replace(temporary, folder() / f"{name}.json")


def last_seconds(experiment: str) -> float | None:
    """How long the experiment's last compilation took; None when it is not known."""
    seconds = (load("seconds") or {}).get(experiment)
    return float(seconds) if isinstance(seconds, int | float) else None


def remember_seconds(experiment: str, seconds: float) -> None:
    """For the next time that somebody waits."""
    store("seconds", {**(load("seconds") or {}), experiment: round(seconds, 1)})
