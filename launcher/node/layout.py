"""Where everything lies in a bundle and in a run's folder. Nobody else spells these names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class BundleFolder:
    """The folder of artefacts that will run."""

    path: Path

    @property
    def maxtext(self) -> Path:
        """MaxText's own configuration file."""
        return self.path / "maxtext.yml"

    @property
    def env(self) -> Path:
        """The variables of the trainer, as a shell reads them."""
        return self.path / "env"

    @property
    def xla_flags(self) -> Path:
        """One XLA flag a line."""
        return self.path / "xla_flags"

    @property
    def launch(self) -> Path:
        """What the worker needs to know."""
        return self.path / "launch.json"

    @property
    def failures(self) -> Path:
        """What failed attempts die of, and what is done about it (causes.py)."""
        return self.path / "failures.json"

    @property
    def experiment(self) -> Path:
        """The composed experiment."""
        return self.path / "experiment.yaml"

    @property
    def manifest(self) -> Path:
        """Every file's hash, and the content hash."""
        return self.path / "manifest.json"

    @property
    def worker(self) -> Path:
        """The worker's entry point."""
        return self.path / "node" / "worker.py"

    @property
    def supervisor(self) -> Path:
        """The supervisor's entry point."""
        return self.path / "node" / "supervisor.py"


@dataclass(frozen=True)
class AttemptFolder:
    """One start of the trainer. `node` is a node's index from 0, `rank` a process's index over all nodes."""

    path: Path

    @property
    def number(self) -> int:
        """The attempt's number, from 1."""
        return int(self.path.name)

    @property
    def metrics(self) -> Path:
        """MaxText's metrics_file, of rank 0 alone: JSON lines."""
        return self.path / "metrics.jsonl"

    @property
    def failure(self) -> Path:
        """Which node failed first, in an attempt of several nodes; absent while none has."""
        return self.path / "failure.json"

    @property
    def supervisor(self) -> Path:
        """On one machine: which process starts this attempt's worker, and will start the next one."""
        return self.path / "supervisor.json"

    def started(self, node: int = 0) -> Path:
        """What the worker of `node` wrote when it began."""
        return self.path / ("attempt.json" if node == 0 else f"attempt-node{node}.json")

    def result(self, node: int = 0) -> Path:
        """What the worker of `node` wrote when it ended; node 0's is the attempt's verdict."""
        return self.path / ("result.json" if node == 0 else f"node{node}.json")

    def health(self, node: int = 0) -> Path:
        """What health.py said of `node` before the trainers started; absent where it was not asked."""
        return self.path / f"health-node{node}.json"

    def flight(self, node: int = 0) -> Path:
        """The folder of what was gathered on `node` when no step came any more; absent where none was missed."""
        return self.path / "flight" / f"node{node}"

    def flight_summary(self, node: int = 0) -> Path:
        """What flight.py makes of it, in short."""
        return self.path / f"flight-node{node}.json"

    def pace(self, node: int = 0) -> Path:
        """How fast the GPUs of `node` ran, sampled now and then; absent where there are none."""
        return self.path / f"pace-node{node}.json"

    def rank_log(self, rank: int) -> Path:
        """All that process `rank` printed."""
        return self.path / f"rank{rank}.log"

    def worker_log(self, node: int = 0) -> Path:
        """The worker's own words on `node`."""
        return self.path / f"worker{node}.log"


@dataclass(frozen=True)
class RunFolder:
    """One submitted bundle and all its attempts; the folder's name is the run's name."""

    path: Path

    @property
    def name(self) -> str:
        """The run's name."""
        return self.path.name

    @property
    def bundle(self) -> BundleFolder:
        """What was rendered for this run."""
        return BundleFolder(self.path / "bundle")

    @property
    def run(self) -> Path:
        """Who submitted it, where, when."""
        return self.path / "run.json"

    @property
    def provenance(self) -> Path:
        """Versions, commit, host and time of the submit."""
        return self.path / "provenance.json"

    @property
    def adjust(self) -> Path:
        """What the monitor changed for the attempts to come; may be absent."""
        return self.path / "adjust.json"

    @property
    def output(self) -> Path:
        """MaxText's base_output_directory, unless the experiment names another."""
        return self.path / "output"

    @property
    def table(self) -> Path:
        """The metrics table (table.py), made from the logs by whoever reads them; it can be removed at any time."""
        return self.path / "table.sqlite"

    @property
    def supervisor_log(self) -> Path:
        """The words of the supervisor on one machine, of all submissions; on SLURM the job's log has them."""
        return self.path / "supervisor.log"

    @property
    def compile_cache(self) -> Path:
        """JAX's persistent compile cache, shared by the runs of one runs root."""
        return self.path.parent / ".cache" / "jax"

    @property
    def attempts(self) -> Path:
        """The folder of all attempts."""
        return self.path / "attempts"

    def attempt(self, number: int) -> AttemptFolder:
        """One attempt's folder, which need not exist yet."""
        return AttemptFolder(self.attempts / str(number))

    def attempt_numbers(self) -> list[int]:
        """The attempts that have a folder, ascending; empty before the first."""
        if not self.attempts.is_dir():
            return []
        return sorted(int(entry.name) for entry in self.attempts.iterdir() if entry.name.isdigit())


def checkpoints_folder(output: Path, run_name: str) -> Path:
    """Where MaxText 0.2.5 keeps a run's checkpoints: {base_output_directory}/{run_name}/checkpoints/<step>."""
    return output / run_name / "checkpoints"
