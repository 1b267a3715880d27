"""Bundles for the worker, made as render makes them, and the worker started from a plain copied folder."""

import json
import os
import shlex
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from launches import LAUNCH

import launcher.node

HERE = Path(__file__).parent
NODE = Path(launcher.node.__file__).parent


@dataclass
class Run:
    """A run folder with its bundle; `worker` starts an attempt as the targets do."""

    path: Path
    python: str
    environ: dict = field(default_factory=lambda: {"PATH": os.environ["PATH"]})

    def write(self, launch=None, env=None, xla_flags=(), **arguments) -> "Run":
        bundle = self.path / "bundle"
        steps = (launch or {}).get("steps", LAUNCH["steps"])
        settings = {**LAUNCH, **(launch or {}), "arguments": {"steps": steps, **arguments}}
        if settings["module"] == "standin_trainer":
            settings["arguments"]["together"] = settings["processes_per_node"]
        variables = {"PYTHONPATH": str(HERE), **(env or {})}
        (bundle / "launch.json").write_text(json.dumps(settings))
        (bundle / "maxtext.yml").write_text("base_config: base.yml\n")
        (bundle / "xla_flags").write_text("".join(flag + "\n" for flag in xla_flags))
        (bundle / "env").write_text(
            "".join(f"export {name}={shlex.quote(variables[name])}\n" for name in sorted(variables))
        )
        return self

    def command(self, *more, attempt=1, python=None):
        worker = [self.python, str(self.path / "bundle" / "node" / "worker.py")]
        place = ["--bundle", str(self.path / "bundle"), "--run", str(self.path), "--attempt", str(attempt)]
        return [*worker, *place, "--python", python or self.python, *more]

    def worker(self, *more, attempt=1, trainer_python=None, timeout=120, **environ):
        """Runs one attempt to its end."""
        return subprocess.run(
            self.command(*more, attempt=attempt, python=trainer_python),
            env={**self.environ, **environ},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def start(self, *more, attempt=1, trainer_python=None, **popen):
        """Starts one attempt and leaves it running."""
        return subprocess.Popen(
            self.command(*more, attempt=attempt, python=trainer_python),
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            **popen,
        )

    def wait_for(self, text, rank=0, attempt=1, seconds=60):
        """Waits until a rank's log holds `text`."""
        log = self.path / "attempts" / str(attempt) / f"rank{rank}.log"
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if log.exists() and text in log.read_text(errors="replace"):
                return
            time.sleep(0.02)
        raise AssertionError(f"{log} never held {text!r}")

    def json(self, name, attempt=1):
        return json.loads((self.path / "attempts" / str(attempt) / name).read_text())

    def log(self, name, attempt=1):
        return (self.path / "attempts" / str(attempt) / name).read_text(errors="replace")

    def result(self, attempt=1):
        return self.json("result.json", attempt)


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")


def children_of(pid: int) -> list:
    """The process ids of the direct children."""
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_dead(pids, seconds=20) -> list:
    """The processes that still run after `seconds`; returns as soon as none does."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and any(is_alive(pid) for pid in pids):
        time.sleep(0.02)
    return [pid for pid in pids if is_alive(pid)]
