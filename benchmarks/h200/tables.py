"""What a sitting measured, as one JSON and as the tables of docs/h200.md.

    python -m benchmarks.h200.tables RUNS [--json FILE]

RUNS: the folder of `python -m benchmarks.h200`, or its archive. Beside what was measured stand what `plan` says of the same words
now, and the answers of `preflight aot`, kept in aot.json, since each takes a minute.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import statistics
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.config.compose import Composer
from launcher.plan.plan import make
from launcher.report.measured import report
from launcher.report.text import as_json
from launcher.runs import events, store

GIB = 1 << 30
AOT = Path(__file__).with_name("aot.json")
"""Row -> device, arguments, temporary, host: bytes that XLA's compiler gave the row's train step, for an H200 (jaxlib 0.12.0.1)."""
HAND = "_hand"
DROPPED = re.compile(r"dropped (\d+) of (\d+) by a capacity of \d+")


@contextlib.contextmanager
def unpacked(runs: Path) -> Iterator[Path]:
    """The folder of runs, also of one in an archive."""
    if runs.is_dir():
        yield runs
        return
    with tempfile.TemporaryDirectory() as folder, tarfile.open(runs) as archive:
        archive.extractall(folder, filter="data")
        yield Path(folder)


def read(runs: Path, matmul: float) -> dict[str, Any]:
    """Every row of times.jsonl with its rounds, in order, and what the launcher costs where a row was also started by hand.

    matmul: TFLOPS of a bf16 product on that GPU.
    """
    times = [json.loads(line) for line in (runs / "times.jsonl").read_text(encoding="utf-8").splitlines()]
    found = {run.record["experiment"]: run for run in store.all_runs(runs)}
    found |= {run.name: run for run in store.all_runs(runs)}
    rounds: dict[str, list[dict[str, Any]]] = {}
    for entry in times:
        rounds.setdefault(entry["row"], []).append(_round(entry, found.get(entry["name"])))
    rows = {row: _row(row, some, matmul) for row, some in rounds.items()}
    pairs = {row: (rows[row], rows[row + HAND]) for row in rows if row + HAND in rows}
    return {"matmul_tflops": matmul, "rows": rows, "overhead": {row: _overhead(*pair) for row, pair in pairs.items()}}


def _round(entry: Mapping[str, Any], run: store.Run | None) -> dict[str, Any]:
    """One run: seconds of a step with its 95 % interval, loss, memory, and seconds from the command to the first step's line."""
    found: dict[str, Any] = {"name": entry["name"], "words": entry["words"], "state": "not kept"}
    if run is None:
        return found
    told = as_json(report(run))
    _, history = events.read(run)
    lines = [row.at for life in history.lives for row in life.rows if row.at is not None]
    typed = history.lives[0].started if entry["row"].endswith(HAND) else entry["typed"]
    speed = told["speed"] or {}
    return found | {
        "state": told["state"],
        "seconds": speed["mean"]["seconds"] if speed else None,
        "interval": [(speed.get(key) or {}).get("seconds") for key in ("fastest_of_interval", "slowest_of_interval")],
        "flop": told["per_step_and_gpu"]["flop"],
        "peak_flops": told["per_step_and_gpu"]["peak_flops_per_s"],
        "compiled": told["memory_bytes"]["compiled"],
        "peak": told["memory_bytes"]["peak"],
        "loss": [told["loss"][0], told["loss"][-1]] if told["loss"] else None,
        "first_line": lines[0] - typed if lines and typed else None,
    }


def _row(row: str, rounds: Sequence[dict[str, Any]], matmul: float) -> dict[str, Any]:
    done = [one for one in rounds if one.get("seconds")]
    if not done:
        return {"rounds": list(rounds)}
    seconds, first = [one["seconds"] for one in done], done[0]
    mean = statistics.fmean(seconds)
    tflops = first["flop"] / mean / 1e12
    answer = json.loads(AOT.read_text(encoding="utf-8")).get(row)
    time, memory = planned(first["words"])
    return {
        "rounds": list(rounds),
        "seconds": mean,
        "fastest": min(seconds),
        "slowest": max(seconds),
        "tflops": tflops,
        "mfu": first["flop"] / mean / first["peak_flops"] if first["peak_flops"] else None,
        "of_matmul": tflops / matmul,
        "expected": time,
        "memory": {
            "planned": memory,
            "aot": answer["device"] if answer else None,
            "compiled": first["compiled"],
            "peak": max((one["peak"] for one in done if one["peak"]), default=None),
        },
    }


def planned(words: Sequence[str]) -> tuple[float, float]:
    """Seconds of a step and bytes of a GPU by `plan`'s formulas, as they are now."""
    composed = Composer().compose(words)
    assert composed.experiment is not None, composed.issues
    numbers = make(composed.experiment).numbers
    assert numbers is not None
    assert numbers.throughput is not None
    return numbers.throughput.expected, numbers.memory.total


def _overhead(launched: Mapping[str, Any], hand: Mapping[str, Any]) -> dict[str, Any]:
    """Through the launcher against by hand: share of a step's time, and seconds to the first step's line in each round."""
    return {
        "step_share": launched["seconds"] / hand["seconds"] - 1,
        "launcher": [one["first_line"] for one in launched["rounds"]],
        "hand": [one["first_line"] for one in hand["rounds"]],
    }


def dropped(log: Path) -> tuple[float, float] | None:
    """Share of (token, expert) pairs that a capacity dropped, in the first and the last tenth of the lines of `dropped.py`."""
    text = log.read_text(encoding="utf-8", errors="replace")
    counts = [(int(lost), int(of)) for lost, of in DROPPED.findall(text)]
    if not counts:
        return None
    part = max(1, len(counts) // 10)
    ends = (counts[:part], counts[-part:])
    first, last = (sum(lost for lost, _ in some) / sum(of for _, of in some) for some in ends)
    return first, last


def measured(found: Mapping[str, Any]) -> list[str]:
    """The rows that trained, those by hand left out."""
    return [row for row, told in found["rows"].items() if told.get("seconds") and not row.endswith(HAND)]


def speed_table(found: Mapping[str, Any]) -> str:
    """Markdown: a line a row."""
    lines = [
        "| row | runs | s/step, mean (range of runs) | TFLOPS/GPU | MFU | of a matmul | `plan` says | off |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in measured(found):
        row = found["rows"][name]
        runs = sum(1 for one in row["rounds"] if one.get("seconds"))
        spread = f" ({row['fastest']:.4f} to {row['slowest']:.4f})" if runs > 1 else ""
        lines.append(
            f"| {name} | {runs} | {row['seconds']:.4f}{spread} | {row['tflops']:.0f} | {row['mfu']:.1%} | {row['of_matmul']:.1%} | "
            f"{row['expected']:.3g} s | {row['expected'] / row['seconds'] - 1:+.0%} |"
        )
    return "\n".join(lines)


def memory_table(found: Mapping[str, Any]) -> str:
    """Markdown: the allocator's peak in GiB, and how far `preflight aot` and `plan` are from it."""
    lines = [
        "| row | allocator's peak | `preflight aot` | off | `plan` | off | MaxText's line |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in measured(found):
        memory = found["rows"][name]["memory"]
        peak = memory["peak"]
        cells = [_gib(peak)]
        for told in (memory["aot"], memory["planned"]):
            cells += [_gib(told), f"{told / peak - 1:+.1%}" if told and peak else "-"]
        lines.append(f"| {name} | {' | '.join([*cells, _gib(memory['compiled'])])} |")
    return "\n".join(lines)


def _gib(value: float | None) -> str:
    return "-" if value is None else f"{value / GIB:.1f}"


def main() -> int:
    """Prints the tables."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.h200.tables", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("runs", type=Path)
    parser.add_argument("--matmul", type=float, default=819.1, help="TFLOPS of a bf16 product there (preflight node)")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with unpacked(options.runs) as runs:
        found = read(runs, options.matmul)
    print(speed_table(found), memory_table(found), json.dumps(found["overhead"], indent=1), sep="\n\n")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
