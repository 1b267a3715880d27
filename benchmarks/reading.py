"""How fast logs are read, for one rank and for 1,024: `python -m benchmarks.reading [MB]`.

Prints MB/s, the highest memory of the process, and two yardsticks over the same bytes: reading them, and `grep -c`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from launcher.node.layout import RunFolder

LINE = (
    "{stamp} 140675135284544 metric_logger.py:265] completed step: {step}, seconds: 0.195, TFLOP/s/device: 237.157, "
    "Tokens/s/device: 84164.239, total_weights: 32768, loss: {loss:.3f}, lm_loss: {loss:.3f}, perplexity: 47118.086, "
    "moe_lb_loss: 0.000000\n"
)
PROGRAM = """
import sys, time
from pathlib import Path
from launcher.node.layout import RunFolder
from launcher.runs.reading import table_of
def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024
before = peak()
begin, cpu = time.perf_counter(), time.process_time()
with table_of(RunFolder(Path(sys.argv[1]))) as table:
    rows = table.db.execute("SELECT count(*), min(ranks), max(ranks) FROM step").fetchone()
wall, cpu = time.perf_counter() - begin, time.process_time() - cpu
print(wall, cpu, before, peak(), *rows)
"""


def make(folder: Path, ranks: int, megabytes: int) -> tuple[RunFolder, int, int]:
    """A run whose ranks' logs have that size together; its steps and bytes."""
    run = RunFolder(folder)
    attempt = run.attempt(1)
    attempt.path.mkdir(parents=True)
    attempt.started().write_text('{"started": 1795973750.0}')
    steps = megabytes * 1_000_000 // (ranks * 236)
    lines = []
    for step in range(steps):
        at = 1795973753.0 + 0.2 * step
        stamp = time.strftime("I%m%d %H:%M:%S", time.gmtime(at)) + f".{int(at % 1 * 1e6):06d}"
        lines.append(LINE.format(stamp=stamp, step=step, loss=10 - step / steps))
    data = "".join(lines).encode()
    for rank in range(ranks):
        attempt.rank_log(rank).write_bytes(data)
    return run, steps, len(data) * ranks


def plain(paths: list[Path]) -> float:
    """Seconds to read the same bytes and do nothing."""
    begin = time.perf_counter()
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            while file.read(1 << 20):
                pass
    return time.perf_counter() - begin


def grep(folder: Path) -> float:
    """Seconds of `grep -c`."""
    begin = time.perf_counter()
    command = f"cat {folder}/rank*.log | LC_ALL=C grep -c 'completed step: '"
    subprocess.run(command, shell=True, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def measure(ranks: int, megabytes: int) -> None:
    """One line of the result, after a check that every step of every rank is in the table."""
    with tempfile.TemporaryDirectory() as folder:
        run, steps, size = make(Path(folder) / "run", ranks, megabytes)
        logs = sorted(run.attempt(1).path.glob("rank*.log"))
        read, grepped = plain(logs), grep(run.attempt(1).path)
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(run.path)], check=True, capture_output=True, text=True
        ).stdout.split()
        wall, cpu, before, after = map(float, done[:4])
        if [int(number) for number in done[4:]] != [steps, ranks, ranks]:
            raise SystemExit(f"the table holds {done[4:]}, wanted {steps} steps of {ranks} ranks")
        rates = [f"{name} {size / 1e6 / seconds:.0f}" for name, seconds in (("wall", wall), ("CPU", cpu))]
        print(
            f"{ranks:5} ranks, {size / 1e6:.0f} MB, {steps} steps a rank: {' MB/s, '.join(rates)} MB/s; "
            f"{after - before:.0f} MB more than the {before:.0f} MB of the imports; plain read {size / 1e6 / read:.0f}, "
            f"cat|grep -c {size / 1e6 / grepped:.0f} MB/s; table {run.table.stat().st_size / 1e6:.1f} MB",
            flush=True,
        )


if __name__ == "__main__":
    asked = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    measure(1, asked // 8)
    measure(1, asked // 2)
    measure(1024, asked // 2)
    measure(1024, asked * 2)
