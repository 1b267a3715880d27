"""Fixtures of the worker's tests."""

import os
import shutil
import signal

import pytest
from launches import oldest_python
from worker_bench import NODE, Run, is_alive


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "runs" / "demo-0a1b2c3d"
    (path / "bundle").mkdir(parents=True)
    shutil.copytree(NODE, path / "bundle" / "node", ignore=shutil.ignore_patterns("__pycache__"))
    return Run(path, oldest_python())


@pytest.fixture
def stop_leftovers():
    """Kills by pid, at the end, whatever a test registered and left."""
    pids: list = []
    yield pids
    for pid in pids:
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)
