"""Runs a queue of experiments on this machine through the launcher, round by round, as far as the time goes.

    python -m benchmarks.h200 --runs DIR --seconds 560 --out DIR     # typed again it goes on

Everything is kept in the runs' folders; `--out` gets an archive of what this call ran (logs, metrics, plans, no
checkpoints), one of its profiles, times.jsonl: when each command was typed and when it ended, and node.txt: what `preflight node`
measured before the first run. Needs a machine that passes `python -m launcher doctor`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.node import environment, launch

QUEUE = Path(__file__).with_name("queue.toml")
ROUNDS = 3
HAND = "_hand"
NODE = "node.txt"
DROPPED = {".cache", ".lock", "checkpoints", "node", "table.sqlite"}
"""Of a run's folder, what an archive does not need: `node` is the launcher's own, the table is made anew."""
TYPICAL_S = 100.0
"""A run's length where none is known; the next run is started only if its row's longest, or this, still fits."""
ENDING_S = 8.0
"""At the end, for packing."""
LIMIT_S = 200.0
"""After so long a run is told to end: one that hangs shall not cost the others their time. A row's own: `limit`."""


@dataclass(frozen=True)
class Job:
    """One run. hand: the trainer alone, started as a person would."""

    name: str
    words: tuple[str, ...]
    row: str
    hand: bool = False
    limit: float = LIMIT_S
    verb: str = "submit"


def jobs(queue: Path, blocks: list[str]) -> Iterator[Job]:
    """The queue's runs in their order."""
    for block in tomllib.loads(queue.read_text(encoding="utf-8"))["block"]:
        if blocks and block["name"] not in blocks:
            continue
        for number in range(1, ROUNDS + 1):
            for row in block["row"]:
                if number > row.get("rounds", ROUNDS):
                    continue
                words = merged(block["words"], row["words"], row.get("first", []) if number == 1 else [])
                name = f"{row['name']}_{number}"
                limit = row.get("limit", LIMIT_S)
                yield Job(name, (*words, f"name={name}"), row["name"], limit=limit, verb=row.get("verb", "submit"))
                if row.get("hand"):
                    hand = f"{row['name']}{HAND}"
                    yield Job(f"{hand}_{number}", (*words, f"name={name}{HAND}"), hand, True, limit)


def merged(*groups: list[str]) -> list[str]:
    """Words, the later ones winning over those before of the same key."""
    found = {word.lstrip("+").partition("=")[0]: word for words in groups for word in words}
    return list(found.values())


def by_launcher(job: Job, runs: Path, limit: float) -> int:
    """The launcher's own command, in the foreground."""
    command = [sys.executable, "-m", "launcher", job.verb, *job.words, "--runs", str(runs)]
    return ended(
        subprocess.Popen(command, stdout=(runs / f"{job.name}.out").open("wb"), stderr=subprocess.STDOUT), limit
    )


def ended(process: subprocess.Popen[bytes], limit: float) -> int:
    """Its exit code; after `limit` seconds it is told to end, as Ctrl-C does."""
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        try:
            return process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


def by_hand(job: Job, runs: Path, limit: float) -> int:
    """The same configuration without the launcher: its files, a process a GPU, the variables that MaxText reads.

    Workarounds too, which are in the program that starts a trainer. The folder is laid out as a run's, so that `report` reads it.
    """
    folder = runs / job.name
    attempt = folder / "attempts" / "1"
    attempt.mkdir(parents=True)
    render = [sys.executable, "-m", "launcher", "render", *job.words, "--out", str(folder / "bundle")]
    subprocess.run(render, check=True, stdout=subprocess.DEVNULL)
    bundle = launch.read_launch(folder / "bundle" / "launch.json")
    keys = {
        "run_name": job.name,
        "base_output_directory": str(folder / "output"),
        "jax_cache_dir": str(runs / ".cache" / "jax"),
        **bundle.arguments,
    }
    command = environment.command(sys.executable, bundle, folder / "bundle" / "maxtext.yml", keys)
    cache = folder / "nccl_ep"
    cache.mkdir()
    env = {**os.environ, **variables(folder / "bundle"), "NCCL_EP_JIT_CACHE_DIR": str(cache)}
    record = {
        "version": 1,
        "target": "local",
        "experiment": job.row,
        "content": job.name,
        "options": {"python": sys.executable},
    }
    (folder / "run.json").write_text(json.dumps({**record, "created": time.strftime("%FT%TZ", time.gmtime())}))
    begun = time.time()
    processes = bundle.processes_per_node
    started = [
        _trainer(command, {**env, **coordinates(rank, processes)}, attempt / f"rank{rank}.log")
        for rank in range(processes)
    ]
    (attempt / "attempt.json").write_text(json.dumps({"attempt": 1, "node": 0, "started": begun, "command": command}))
    codes = [ended(process, max(1.0, limit - (time.time() - begun))) for process in started]
    compiled = sorted(path for path in cache.rglob("*") if path.is_file())
    names = "".join(f"{path.stat().st_size:>9} {path.relative_to(cache)}\n" for path in compiled)
    (folder / "nccl_ep.txt").write_text(names)  # what each start of TE's MoE block compiles anew
    shutil.rmtree(cache)
    code = max(codes, key=abs)
    outcome = {
        "code": 0 if code == 0 else 70,
        "outcome": "finished" if code == 0 else "failed",
        "reason": f"codes {codes}",
    }
    (attempt / "result.json").write_text(
        json.dumps({**outcome, "steps": bundle.steps, "started": begun, "ended": time.time()})
    )
    return code


def coordinates(rank: int, processes: int) -> dict[str, str]:
    """What MaxText reads to find the other processes (hardware=gpu)."""
    return {
        "JAX_COORDINATOR_IP": "127.0.0.1",
        "JAX_COORDINATOR_PORT": "29871",
        "NNODES": str(processes),
        "NODE_RANK": str(rank),
        "JAX_LOCAL_DEVICE_IDS": str(rank),
    }


def _trainer(command: list[str], env: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, env=env, stdout=log.open("wb"), stderr=subprocess.STDOUT)


def variables(bundle: Path) -> Mapping[str, str]:
    """What a shell has after reading the bundle's `env`, and its XLA flags."""
    shown = subprocess.run(
        ["env", "-i", "sh", "-c", f". '{bundle}/env' && env"], check=True, capture_output=True, text=True
    ).stdout
    found = dict(
        line.split("=", 1)
        for line in shown.splitlines()
        if "=" in line and not line.startswith(("PWD=", "_=", "SHLVL="))
    )
    flags = (bundle / "xla_flags").read_text().split("\n")
    return {**found, "XLA_FLAGS": " ".join(flag for flag in flags if flag)}


def kept(runs: Path, since: float, out: Path) -> None:
    """Archives of the runs that this call began: one of profiles, one of all else but compile caches, checkpoints, TensorBoard's events."""

    def wanted(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
        path = Path(info.name)
        return None if path.name in DROPPED or ("output" in path.parts and info.isfile()) else info

    number = len(list(out.glob("runs*.tar.xz"))) + 1  # an earlier call's archives in the same folder stay
    last = "" if number == 1 else str(number)
    fresh = [path for path in sorted(runs.iterdir()) if path.stat().st_mtime >= since and path.name != ".cache"]
    with tarfile.open(out / f"runs{last}.tar.xz", "x:xz") as archive:
        for path in fresh:
            archive.add(path, arcname=path.name, filter=wanted)
    with tarfile.open(out / f"profiles{last}.tar.gz", "x:gz") as archive:  # gz: they can be large, and there is no time
        for path in fresh:
            for profile in sorted(path.rglob("*.xplane.pb")):
                archive.add(profile, arcname=str(profile.relative_to(runs)))


def examined(runs: Path, words: Iterable[str]) -> str:
    """node.txt: what `preflight node` says of this machine, written before the first run."""
    path = runs / NODE
    if not path.exists():
        command = [sys.executable, "-m", "launcher", "preflight", "node", *words]
        path.write_bytes(subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False).stdout)
    return path.read_text(encoding="utf-8")


class Sitting:
    """The runs of a folder: which there have been, and how long they took."""

    def __init__(self, runs: Path) -> None:
        self.runs = runs
        self.times = runs / "times.jsonl"
        lines = self.times.read_text(encoding="utf-8").splitlines() if self.times.exists() else []
        self.done: list[dict[str, Any]] = [json.loads(line) for line in lines]

    def left(self, queue: Path, blocks: list[str]) -> list[Job]:
        """What has not been run."""
        names = {entry["name"] for entry in self.done}
        return [job for job in jobs(queue, blocks) if job.name not in names]

    def expected(self, job: Job) -> float:
        """Seconds: the longest of its row, by hand or not."""
        row = job.row.removesuffix(HAND)
        same = [e["ended"] - e["typed"] for e in self.done if e["row"].removesuffix(HAND) == row]
        return max(same, default=TYPICAL_S)

    def run(self, job: Job, seconds: float) -> str:
        """Runs it for at most so long; what came of it in a line."""
        typed = time.time()
        code = (by_hand if job.hand else by_launcher)(job, self.runs, min(job.limit, seconds))
        entry = {
            "name": job.name,
            "row": job.row,
            "code": code,
            "typed": typed,
            "ended": time.time(),
            "words": job.words,
        }
        self.done.append(entry)
        with self.times.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
        return f"{job.name}: {code} after {time.time() - typed:.1f} s"


def main() -> int:
    """Exit code 0: the queue is done; 3: there is more to run."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.h200", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--queue", type=Path, default=QUEUE)
    parser.add_argument("--block", action="append", default=[], help="only this one; may be given again")
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True, help="start nothing that would not end within them")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    there = [block["name"] for block in tomllib.loads(options.queue.read_text(encoding="utf-8"))["block"]]
    if unknown := [name for name in options.block if name not in there]:
        parser.error(f"there is no block {', '.join(unknown)} in {options.queue.name}; there are: {', '.join(there)}")
    begun = time.time()
    options.runs.mkdir(parents=True, exist_ok=True)
    options.out.mkdir(parents=True, exist_ok=True)
    sitting = Sitting(options.runs)
    if left := sitting.left(options.queue, options.block):
        print(examined(options.runs, left[0].words), end="", flush=True)
    for job in sitting.left(options.queue, options.block):
        rest = options.seconds - (time.time() - begun) - ENDING_S
        if rest < sitting.expected(job):
            break
        told = sitting.run(job, rest)
        print(f"{time.time() - begun:6.1f} s  {told}", flush=True)
    kept(options.runs, begun, options.out)
    for path in filter(Path.exists, (sitting.times, options.runs / NODE)):
        shutil.copy(path, options.out)
    left = sitting.left(options.queue, options.block)
    print(f"{len(left)} runs left", flush=True)
    return 3 if left else 0


if __name__ == "__main__":
    raise SystemExit(main())
