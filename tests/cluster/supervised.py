"""A run folder with a bundle as render makes it, and the batch job that supervises it, without the launcher's front half."""

import json
import shlex
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from launches import LAUNCH, oldest_python

import launcher.node
from slurm.testbed.cluster import Cluster

HERE = Path(__file__).resolve().parent
NODE = Path(launcher.node.__file__).parent
TRAINERS = f"{HERE.parent / 'targets'}:{HERE.parent / 'node'}"
BATCH = """\
#!/bin/bash
#SBATCH --requeue --open-mode=append --output=../slurm-%j.log --ntasks-per-node=1
exec python3 -B node/supervisor.py --bundle "$PWD" --run "$(dirname "$PWD")" --attempt "${1:-1}"
"""
JOB = LAUNCH | {
    "nodes": 2,
    "processes_per_node": 1,
    "module": "conformance_trainer",
    "coordinator_timeout_seconds": 10,
    "srun": ["--ntasks-per-node=1", "--kill-on-bad-exit=1", "--wait=60", "--mpi=none"],
    "restarts": {"failures": 3, "preemptions": 10, "bad_nodes": 5, "pause_seconds": 1},
}


@dataclass
class Supervised:
    """One run on one cluster. `orders` go to the stand-in trainer (tests/targets/conformance_trainer.py)."""

    cluster: Cluster
    path: Path
    env: dict[str, str] = field(default_factory=dict)
    job: str = ""

    def write(self, orders: str = "", keys: dict[str, object] | None = None, **launch: object) -> "Supervised":
        bundle = self.path / "bundle"
        bundle.mkdir(parents=True, exist_ok=True)
        shutil.copytree(NODE, bundle / "node", ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
        settings = {**JOB, **launch}
        yml = {"steps": settings["steps"], "enable_autocheckpoint": "true", **(keys or {})}
        (bundle / "launch.json").write_text(json.dumps(settings))
        (bundle / "maxtext.yml").write_text("".join(f"{key}: {value}\n" for key, value in yml.items()))
        (bundle / "xla_flags").write_text("")
        variables = {"PYTHONPATH": TRAINERS, "STANDIN": orders}
        (bundle / "env").write_text("".join(f"export {k}={shlex.quote(v)}\n" for k, v in sorted(variables.items())))
        (bundle / "job.sbatch").write_text(BATCH)
        (self.path / "run.json").write_text("{}")
        python = self.path.parent / "bin" / "python3"
        python.parent.mkdir(exist_ok=True)
        if not python.exists():
            python.symlink_to(oldest_python())
        self.env = {"PATH": f"{python.parent}:{self.cluster.environment()['PATH']}"}
        return self

    def launch(self) -> dict:
        return json.loads((self.path / "bundle" / "launch.json").read_text())

    def submit(self, *words: str, attempt: int = 1) -> "Supervised":
        nodes = self.launch()["nodes"]
        size = () if any(word.startswith("-N") for word in words) else (f"-N{nodes}",)
        bundle = self.path / "bundle"
        self.job = self.cluster.submit(*size, *words, "job.sbatch", str(attempt), cwd=bundle, env=self.env)
        return self

    def wait(self, *states: str, seconds: float = 60) -> str:
        try:
            return self.cluster.wait_job(self.job, *states, timeout_s=seconds)
        except Exception as error:
            raise AssertionError(f"{error}\n{self.log()}\n{self.texts()}") from error

    def log(self) -> str:
        path = self.path / f"slurm-{self.job}.log"
        return path.read_text() if path.exists() else ""

    def texts(self) -> str:
        files = sorted(self.path.glob("attempts/*/*"))
        return "\n".join(
            f"{p.parent.name}/{p.name}:\n{p.read_text()[-900 if p.suffix == '.json' else -300 :]}" for p in files
        )

    def attempts(self) -> list[int]:
        return sorted(int(p.name) for p in (self.path / "attempts").iterdir())

    def json(self, name: str, attempt: int = 1) -> dict:
        return json.loads((self.path / "attempts" / str(attempt) / name).read_text())

    def result(self, attempt: int = 1) -> dict:
        return self.json("result.json", attempt)

    def decision(self, attempt: int = 1) -> dict:
        return self.json("decision.json", attempt)

    def wait_line(self, text: str, rank: int = 0, attempt: int = 1, seconds: float = 60) -> None:
        path = self.path / "attempts" / str(attempt) / f"rank{rank}.log"
        self.wait_for(lambda: path.exists() and text in path.read_text(), seconds)

    def wait_for(self, what: Callable[[], object], seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < end, f"not within {seconds} s\n{self.log()}\n{self.texts()}"
            time.sleep(0.05)
