"""Run folders written by hand, file by file, for what a real run cannot be made to show in a moment."""

import json
import os
import socket
import time

from launcher.node.layout import RunFolder
from launcher.runs import store
from launcher.targets import processes


def step_line(step, loss=None, seconds=0.5, tokens=100.0, stamp="I1129 16:03:20.969282"):
    loss = 7 - step / 100 if loss is None else loss
    return (
        f"{stamp} 140264848128896 metric_logger.py:265] completed step: {step}, seconds: {seconds:.3f}, TFLOP/s/device: "
        f"0.000, Tokens/s/device: {tokens:.3f}, total_weights: 512, loss: {loss:.3f}, lm_loss: {loss:.3f}\n"
    )


def me():
    """A handle of a process that lives: this one."""
    return {
        "kind": "local",
        "host": socket.gethostname(),
        "boot": processes.boot_id(),
        "pid": os.getpid(),
        "process_start": processes.start_ticks(os.getpid()),
        "attempt_folder": "/nowhere",
    }


def gone():
    """A handle whose pid is now another process's."""
    return {**me(), "process_start": 1}


def elsewhere():
    return {**me(), "host": "another-login-node"}


def make_run(root, name="demo-0a1b2c3d", steps=20, experiment="demo"):
    def fill(layout):
        layout.bundle.path.mkdir()
        layout.bundle.launch.write_text(json.dumps({"steps": steps, "output_directory": None, "stop_grace_seconds": 1}))

    record = {"target": "local", "experiment": experiment, "content": name, "options": {"python": "python3"}}
    assert store.create(root, name, record, fill)
    return store.load(root / name)


def add_attempt(run, handle=None, log="", result=None, rank_logs=None):
    """The next attempt of a run. `result`: what result.json says beside the times."""
    layout: RunFolder = run.layout
    attempt = layout.attempt(len(layout.attempt_numbers()) + 1)
    attempt.path.mkdir(parents=True)
    if handle is not None:
        (attempt.path / "handle.json").write_text(json.dumps(handle))
        attempt.started().write_text(json.dumps({**handle, "attempt": attempt.number, "started": time.time() - 10}))
    if log:
        attempt.rank_log(0).write_text(log)
    for rank, text in (rank_logs or {}).items():
        attempt.rank_log(rank).write_text(text)
    if result is not None:
        attempt.result().write_text(json.dumps({"started": 100.0, "ended": 160.0, "ranks": [], **result}))
    return attempt


def add_checkpoint(run, step):
    folder = run.checkpoints() / str(step)
    folder.mkdir(parents=True)
    (folder / "commit_success.txt").write_text("")
