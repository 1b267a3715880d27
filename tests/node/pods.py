"""A JobSet's pods as local processes: the controllers' variables around the worker, a volume, and a restart of all."""

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from launches import LAUNCH, oldest_python
from worker_bench import HERE, NODE

from launcher.node import speech
from launcher.node.layout import RunFolder

TRAINERS = f"{HERE.parent / 'targets'}:{HERE}"


@dataclass
class Pods:
    """One JobSet on one volume. `orders` go to the stand-in trainer (tests/targets/conformance_trainer.py).

    `start` begins an attempt; `end` waits as the controllers do: the first pod that fails has the others deleted.
    """

    volume: Path
    name: str = "demo-0a1b2c3d"
    uid: str = "6a7d4b1c"
    first: int = 1
    restart: int = 0
    per_job: int = 0
    running: dict = field(default_factory=dict)
    leftovers: list = field(default_factory=list)

    @property
    def run(self) -> RunFolder:
        return RunFolder(self.volume / self.name)

    @property
    def bundle(self) -> Path:
        """What a ConfigMap holds, mounted."""
        return self.volume.parent / "bundle"

    def write(self, orders="", keys=None, **launch) -> "Pods":
        self.volume.mkdir(exist_ok=True)
        self.bundle.mkdir(exist_ok=True)
        shutil.copytree(NODE, self.bundle / "node", ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
        settings = {**LAUNCH, "nodes": 4, "module": "conformance_trainer", **launch}
        yml = {"steps": settings["steps"], "enable_autocheckpoint": "true", **(keys or {})}
        (self.bundle / "launch.json").write_text(json.dumps(settings))
        (self.bundle / "maxtext.yml").write_text("".join(f"{key}: {value}\n" for key, value in yml.items()))
        (self.bundle / "xla_flags").write_text("")
        variables = {"PYTHONPATH": TRAINERS, "STANDIN": orders}
        (self.bundle / "env").write_text("".join(f"export {k}={shlex.quote(v)}\n" for k, v in variables.items()))
        return self

    @property
    def nodes(self) -> int:
        return json.loads((self.bundle / "launch.json").read_text())["nodes"]

    def environ(self, node: int) -> dict:
        """What a pod template with the downward API and the Job controller give a container."""
        job, index = divmod(node, self.per_job) if self.per_job else (0, node)
        variables = {
            "PATH": os.environ["PATH"],
            "POD_NAME": f"{self.name}-w-{job}-{index}-x7k2p",
            "NODE_NAME": f"tray-{node}",
            "JOBSET_NAME": self.name,
            "LAUNCHER_RESTART": str(self.restart),
            "LAUNCHER_FIRST_ATTEMPT": str(self.first),
            "LAUNCHER_NODES": str(self.nodes),
            "LAUNCHER_COORDINATOR": "localhost",
            "LAUNCHER_JOBSET_UID": self.uid,
            "JOB_COMPLETION_INDEX": str(index),
        }
        if self.per_job:
            variables |= {"LAUNCHER_JOB_INDEX": str(job), "LAUNCHER_NODES_PER_JOB": str(self.per_job)}
        return variables

    def log(self, node: int, restart=None) -> Path:
        return self.volume.parent / f"pod-{self.uid}-{self.restart if restart is None else restart}-{node}.log"

    def start(self, *nodes: int, **environ) -> "Pods":
        """Starts these pods, or all."""
        python = oldest_python()
        words = [python, "-B", str(self.bundle / "node/worker.py"), "--bundle", str(self.bundle)]
        for node in nodes or range(self.nodes):
            with self.log(node).open("wb") as log:
                process = subprocess.Popen(
                    [*words, "--run", str(self.run.path), "--pod"],
                    env={**self.environ(node), **environ},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            self.running[node] = process
            self.leftovers.append(process.pid)
        return self

    def end(self, seconds=90) -> dict:
        """The exit codes by node, once all have ended; restart counts one up."""
        end = time.monotonic() + seconds
        told = False
        while any(process.poll() is None for process in self.running.values()):
            assert time.monotonic() < end, f"still running: {self.texts()}"
            if not told and any(process.poll() not in (None, 0) for process in self.running.values()):
                told = True
                self.signal(signal.SIGTERM)
            time.sleep(0.02)
        codes = {node: process.returncode for node, process in self.running.items()}
        self.running.clear()
        self.restart += 1
        return codes

    def signal(self, number: int, *nodes: int) -> None:
        for node in nodes or self.running:
            with contextlib.suppress(ProcessLookupError):
                if self.running[node].poll() is None:
                    self.running[node].send_signal(number)

    def wait_step(self, step: int, attempt=1, seconds=60) -> None:
        """Waits until every rank has said that step."""
        end = time.monotonic() + seconds
        ranks = range(self.nodes * LAUNCH["processes_per_node"])
        while not all(f"completed step: {step}," in self.rank(rank, attempt) for rank in ranks):
            assert time.monotonic() < end, self.texts()
            time.sleep(0.02)

    def rank(self, rank: int, attempt=1) -> str:
        log = self.run.attempt(attempt).rank_log(rank)
        return log.read_text() if log.exists() else ""

    def json(self, name: str, attempt=1) -> dict:
        return json.loads((self.run.attempt(attempt).path / name).read_text())

    def said(self, node=0, restart=0) -> list:
        """The records that a pod said, in their order."""
        lines = self.log(node, restart).read_text().split("\n")
        return [record for record in map(speech.parse, lines) if record is not None]

    def texts(self) -> str:
        return "\n".join(
            f"{path.name}: {path.read_text()[-800:]}" for path in sorted(self.volume.parent.glob("pod-*.log"))
        )
