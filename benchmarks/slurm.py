"""What the launcher adds to Slurm's own times: `python -m benchmarks.slurm [--nodes N]`.

A real Slurm of the test bed (slurm/testbed) is started for it; as root on Debian, or it says why not. Each figure is the median
of several runs, with the fastest and the slowest; beside it stands what Slurm takes for the least that can be done, a batch
script with one `srun` of `true`, measured in the same minute.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.command_line import process, show, timed
from slurm.testbed.cluster import Cluster
from slurm.testbed.settings import Settings

ROOT = Path(__file__).resolve().parents[1]
RUNS = 5
STATUS_RUNS = 200
PAUSE_S = 1  # the shortest pause before a restart
LIMIT_S = 120


class Bench:
    """A cluster, a folder for runs and the environment of a user of it."""

    def __init__(self, cluster: Cluster, folder: Path, nodes: int) -> None:
        self.cluster, self.folder, self.nodes = cluster, folder, nodes
        self.environ = {**cluster.environment(), "LAUNCHER_CONF": str(folder / "conf"), "PYTHONPATH": str(ROOT)}
        (folder / "conf/target").mkdir(parents=True)
        # The nodes have this machine's Python; a cluster's own file says as much where python3 is not the right one.
        path = f"setup: ['export PATH=\"{Path(sys.executable).parent}:$PATH\"']"
        text = f"defaults: [slurm]\nslurm:\n  time_minutes: 60\n  {path}\n"
        (folder / "conf/target/bench.yaml").write_text(text, encoding="utf-8")

    def words(self, *more: str) -> list[str]:
        """The smallest experiment of `nodes` nodes, one process each."""
        mesh = [f"nodes={self.nodes}", "hardware.gpus_per_node=1", f"hardware.domain_nodes={self.nodes}"]
        mesh += [f"mesh.ici.fsdp={self.nodes}", "mesh.ici.expert=1", "trainer.per_device_batch_size=1"]
        trainer = ["trainer.module=benchmarks.first_process", f"+env.vars.PYTHONPATH='{ROOT}'"]
        trainer += [f"monitor.restart_pause_seconds={PAUSE_S}", "checkpoint=none"]
        return ["+exp=moe_tiny_cpu", "target=bench", *mesh, *trainer, *more]

    def launcher(self, *words: str) -> None:
        """The command line, as a user types it. Raises CalledProcessError with what it said on stderr."""
        done = subprocess.run(
            [sys.executable, "-m", "launcher", *words],
            env=self.environ,
            cwd=self.folder,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise SystemExit(f"launcher {' '.join(words)}: {done.returncode}\n{done.stdout}{done.stderr}")

    def idle(self) -> None:
        """Until no job is there."""
        while self.cluster.run("squeue", "--noheader").stdout.strip():
            time.sleep(0.1)

    def sbatch(self, name: str, lines: str) -> float:
        """Submit a batch script of one node a task; gives the time before sbatch."""
        script = self.folder / f"{name}.sh"
        script.write_text(
            f"#!/bin/bash\n#SBATCH -N{self.nodes} --ntasks-per-node=1 -o /dev/null\n{lines}\n", encoding="utf-8"
        )
        before = time.time()
        self.cluster.submit(str(script), cwd=self.folder)
        return before

    def run(self, name: str, *words: str) -> tuple[float, float, Path]:
        """Submit an experiment of this name: times before and after the command, and the run's output folder."""
        self.idle()
        root = self.folder / "runs" / name
        before = time.time()
        self.launcher(*self.words(f"name={name}", *words), "--runs", str(root))
        after = time.time()
        (run,) = root.glob(f"{name}-*")
        return before, after, run / "output"


def read_time(path: Path) -> float:
    """The Unix seconds in a file, once they are there."""
    deadline = time.monotonic() + LIMIT_S
    while not path.exists() or not path.read_text(encoding="utf-8").strip():
        if time.monotonic() > deadline:
            raise SystemExit(f"{path} did not come in {LIMIT_S} s")
        time.sleep(0.02)
    return float(path.read_text(encoding="utf-8"))


def first_process(bench: Bench) -> None:
    """From the submission to the first process on a node."""
    plain, command, ours = [], [], []
    for i in range(RUNS):
        bench.idle()
        stamp = bench.folder / f"plain-{i}"
        tick = f"""srun sh -c 'if [ "$SLURM_PROCID" = 0 ]; then date +%s.%N > {stamp}; fi'"""
        before = bench.sbatch("plain", tick)
        plain.append(read_time(stamp) - before)
        start, returned, output = bench.run(f"first{i}")
        command.append(returned - start)
        ours.append(read_time(output / "started-1") - returned)
    show("yardstick: sbatch, to the first process of its srun", plain)
    show("submit: the command itself, cold (compose, check, write)", command)
    show("submit: sbatch's return to the first trainer process", ours)
    show("  beyond Slurm's own", [a - b for a, b in zip(ours, plain, strict=True)])


def restart(bench: Bench) -> None:
    """From a trainer's death to its successor, inside the allocation."""
    plain, ours = [], []
    for i in range(RUNS):
        bench.idle()
        stamp = bench.folder / f"steps-{i}"
        bench.sbatch("steps", f"srun true; date +%s.%N > {stamp}-a; srun true; date +%s.%N > {stamp}-b")
        plain.append(read_time(Path(f"{stamp}-b")) - read_time(Path(f"{stamp}-a")))
        _, _, output = bench.run(f"restart{i}", "+env.vars.BENCH_FAIL_ATTEMPTS=1")
        ours.append(read_time(output / "started-2") - read_time(output / "failed-1") - PAUSE_S)
    show("yardstick: one more `srun true` in the same job", plain)
    show(f"restart in the allocation, without the pause of {PAUSE_S} s", ours)
    show("  beyond Slurm's own", [a - b for a, b in zip(ours, plain, strict=True)])


def status(bench: Bench) -> None:
    """`runs` and `status` with many runs in the folder, all of them in the queue."""
    bench.idle()
    root = bench.folder / "runs" / "many"
    for node in bench.cluster.settings.names:
        bench.cluster.drain(node, "benchmark")
    seeds = ",".join(str(10 + i) for i in range(STATUS_RUNS))
    sweep = ["-m", *bench.words("name=many"), f"trainer.steps={seeds}", "--runs", str(root)]
    submitted = timed(lambda: bench.launcher(*sweep), 1)
    one = next(root.glob("many-*")).name
    show("yardstick: squeue", timed(lambda: bench.cluster.run("squeue")))
    show("yardstick: python -c pass", timed(process("-c", "pass")))
    show(
        f"runs, with {STATUS_RUNS} runs in the queue", timed(lambda: bench.launcher("runs", "--runs", str(root)), RUNS)
    )
    show(f"status of one of {STATUS_RUNS}", timed(lambda: bench.launcher("status", one, "--runs", str(root)), RUNS))
    show(f"submit -m, each of {STATUS_RUNS} points", [seconds / STATUS_RUNS for seconds in submitted])
    bench.cluster.run("scancel", "--user", str(os.getuid()))
    for node in bench.cluster.settings.names:
        bench.cluster.resume(node)


def render() -> None:
    """The bundle of 256 nodes."""
    from launcher.config.compose import Composer
    from launcher.plan.plan import make
    from launcher.render.bundle import render as rendered

    composed = Composer().compose(["+exp=dsv3_1024gpu", "target=slurm"])
    assert composed.experiment is not None, composed.issues
    plan = make(composed.experiment)
    show("render of 256 nodes, from a plan", timed(lambda: rendered(plan)))
    words = ("-m", "launcher", "render", "--print", "+exp=dsv3_1024gpu", "target=slurm")
    show("render --print of 256 nodes, cold", timed(process(*words), RUNS))
    show("yardstick: python -c 'import hydra'", timed(process("-c", "import hydra"), RUNS))


@contextmanager
def cluster(nodes: int) -> Iterator[Bench]:
    with tempfile.TemporaryDirectory(prefix="slurm-bench-") as folder:
        started = Cluster(Settings(Path(folder) / "slurm", nodes=nodes))
        started.start()
        try:
            yield Bench(started, Path(folder), nodes)
        finally:
            started.stop()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.slurm", description=__doc__)
    parser.add_argument(
        "--nodes", type=int, default=4, help="nodes of the pretended cluster and of each run (default 4)"
    )
    with cluster(parser.parse_args().nodes) as bench:
        first_process(bench)
        restart(bench)
        status(bench)
    render()


if __name__ == "__main__":
    main()
