"""The local target passes the suite for all targets."""

import os
import signal
import time

import pytest
from bench import ONE_ATTEMPT
from conformance import Conformance

from launcher.runs.attempts import judge_one, newest
from launcher.runs.store import read_object
from launcher.targets import local, processes


class LocalHarness:
    words = ("target=local", *ONE_ATTEMPT)

    def kill_worker(self, run):
        os.kill(read_object(newest(run).started())["pid"], signal.SIGKILL)

    def preempt(self, run):
        os.kill(judge_one(run).handle["pid"], signal.SIGTERM)

    def left_over(self, run):
        """A killed process is there until it is reaped; a moment is given for that."""
        deadline = time.monotonic() + 5
        while True:
            first = str(run.layout.attempt(1).path)
            found = [
                pid for folder in {first, str(newest(run).path)} for pid, _ in processes.marked(local.MARK, folder)
            ]
            if not found or time.monotonic() > deadline:
                return found
            time.sleep(0.02)


class TestLocal(Conformance):
    @pytest.fixture
    def harness(self):
        return LocalHarness()
