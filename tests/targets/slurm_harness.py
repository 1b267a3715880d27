"""The SLURM target's harness: what its tests do to a run, on a real cluster of the test bed."""

import json
import os
import signal
import time
from pathlib import Path

from bench import ONE_ATTEMPT, Bench

from launcher.runs.attempts import handle_file, judge_one, newest
from launcher.runs.store import read_object
from launcher.targets import slurm_queue


class SlurmHarness:
    words = ("target=slurm", *ONE_ATTEMPT)
    seconds_between_looks = 0.2

    def kill_worker(self, run):
        os.kill(
            read_object(newest(run).started())["pid"], signal.SIGKILL
        )  # the nodes share the machine's process numbers

    def preempt(self, run):
        slurm_queue.cancel(judge_one(run).handle["job"], "--signal=USR1")  # as SLURM does before the time limit

    def left_over(self, run):
        """Supervisor, workers and trainers, whose command lines name the run's folder."""
        deadline = time.monotonic() + 10
        while True:
            found = [int(entry.name) for entry in Path("/proc").iterdir() if _works_in(entry, run.folder)]
            if not found or time.monotonic() > deadline:
                return found
            time.sleep(0.1)


def _works_in(entry, folder):
    try:
        return entry.name.isdigit() and str(folder).encode() in (entry / "cmdline").read_bytes()
    except OSError:
        return False


def with_words(bench, *words):
    """The bench with more overrides."""
    harness = SlurmHarness()
    harness.words = (*harness.words, *words)
    return Bench(bench.root, harness)


def job_of(run):
    """The job of the newest attempt."""
    return judge_one(run).handle["job"]


def noted_job(run):
    """The job of the first attempt, whatever SLURM says now."""
    return json.loads(handle_file(run.layout.attempt(1)).read_text())["job"]
