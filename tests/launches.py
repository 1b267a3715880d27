"""launch.json as the tests of worker and supervisor write it: what every bundle has, for a job of a stand-in trainer."""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

LAUNCH: dict[str, Any] = {
    "version": 1,
    "nodes": 1,
    "processes_per_node": 2,
    "platform": "cpu",
    "start": "env",
    "module": "standin_trainer",
    "arguments": {},
    "steps": 8,
    "checkpointing": True,
    "checkpoint_period": 1000,
    "output_directory": None,
    "stop_grace_seconds": 60,
    "coordinator_timeout_seconds": 2,
}


def oldest_python() -> str:
    """A Python 3.9 (the oldest that worker and supervisor need) where there is one, else this one."""
    candidates = sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob("versions/3.9.*/bin/python"))
    return str(candidates[-1]) if candidates else shutil.which("python3.9") or sys.executable
