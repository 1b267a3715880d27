"""What a sitting measured, as the tables of docs/h200.md.

    python -m benchmarks.h200.tables [RUNS ...] [--trace ROW=FILE.xplane.pb[.xz] ...] [--sizes]

RUNS: the folder of `python -m benchmarks.h200`, or an archive of it: one sitting each. Beside what was measured stand what `plan`
says of the same words now, and the answers of `preflight aot`, kept in aot.json, since each takes a minute. --trace: a row's profile,
read with JAX.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import lzma
import re
import statistics
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.h200.__main__ import NODE, QUEUE, jobs
from launcher.config.compose import Composer
from launcher.plan.plan import make
from launcher.report import trace_file
from launcher.report.kinds import COMMUNICATION, COPIES, Kind, own_table
from launcher.report.measured import report
from launcher.report.text import as_json
from launcher.report.trace import Device, breakdown
from launcher.runs import events, first_step, store

GIB = 1 << 30
AOT = Path(__file__).with_name("aot.json")
"""Row -> device, arguments, temporary, host: bytes that XLA's compiler gave the row's train step, for an H200: by jaxlib 0.12.0.1,
the one_ rows by 0.11.2, which ran. flows: kind of collective -> its calls in a step, and bytes that one GPU sends over NVLink."""
HAND = "_hand"
MATMUL = re.compile(r"matmul_tflops ([\d.]+)")
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

    matmul: TFLOPS of a bf16 product on that GPU, where the sitting has no node.txt.
    """
    node = runs / NODE
    told = MATMUL.search(node.read_text(encoding="utf-8")) if node.exists() else None
    matmul = float(told[1]) if told else matmul
    times = [json.loads(line) for line in (runs / "times.jsonl").read_text(encoding="utf-8").splitlines()]
    found = {run.record["experiment"]: run for run in store.all_runs(runs)}
    found |= {run.name: run for run in store.all_runs(runs)}
    rounds: dict[str, list[dict[str, Any]]] = {}
    for entry in times:
        rounds.setdefault(entry["row"], []).append(_round(entry, found.get(entry["name"])))
    rows = {row: _row(row, some, matmul) for row, some in rounds.items()}
    pairs = {
        row: (rows[row], rows[row + HAND])
        for row in measured({"rows": rows})
        if rows.get(row + HAND, {}).get("seconds")
    }
    return {"matmul_tflops": matmul, "rows": rows, "overhead": {row: _overhead(*pair) for row, pair in pairs.items()}}


def _round(entry: Mapping[str, Any], run: store.Run | None) -> dict[str, Any]:
    """One run: seconds of a step, loss, memory, and seconds from the command to the trainer's start and to the first step's line."""
    found: dict[str, Any] = {"name": entry["name"], "words": entry["words"], "state": "not kept"}
    if run is None:
        return found
    told = as_json(report(run))
    _, history = events.read(run)
    lines = [row.at for life in history.lives for row in life.rows if row.at is not None]
    started = history.lives[0].started if history.lives else None
    typed = started if entry["row"].endswith(HAND) else entry["typed"]
    speed = told["speed"] or {}
    return found | {
        "state": told["state"],
        "seconds": speed["mean"]["seconds"] if speed else None,
        "flop": told["per_step_and_gpu"]["flop"],
        "peak_flops": told["per_step_and_gpu"]["peak_flops_per_s"],
        "compiled": told["memory_bytes"]["compiled"],
        "peak": told["memory_bytes"]["peak"],
        "loss": [told["loss"][0], told["loss"][-1]] if told["loss"] else None,
        "before_trainer": started - typed if started and typed else None,
        "first_line": lines[0] - typed if lines and typed else None,
        "pieces": first_step.seconds(history.lives[0]) if lines else {},
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
    """Through the launcher against by hand: share of a step's time; starts: round -> seconds to the trainer's processes, to the first
    step's line, and to that by hand, where both trained."""
    pairs = enumerate(zip(launched["rounds"], hand["rounds"], strict=False), start=1)
    return {
        "step_share": launched["seconds"] / hand["seconds"] - 1,
        "starts": {
            number: (one["before_trainer"], one["first_line"], other["first_line"])
            for number, (one, other) in pairs
            if one.get("first_line") and other.get("first_line")
        },
    }


def start_table(found: Mapping[str, Any]) -> str:
    """Markdown: seconds from the command (by hand: from the trainer's) to the first step's line, in each round."""
    lines = [
        "| row | round | to the trainer's processes | to the first step | by hand | difference |",
        "|---|---|---|---|---|---|",
    ]
    for row, told in found["overhead"].items():
        for number, (before, own, hand) in told["starts"].items():
            lines.append(f"| {row} | {number} | {before:.1f} | {own:.1f} | {hand:.1f} | {own - hand:+.1f} |")
    return "\n".join(lines)


def piece_table(found: Mapping[str, Any]) -> str:
    """Markdown: seconds of each piece of the start, through the launcher and by hand, least to most of a row's rounds."""
    names = (first_step.PYTHON, first_step.SET_UP, first_step.XLA, first_step.FIRST_STEP)
    lines = [f"| row | runs | {' | '.join(names)} |", "|---" * (2 + len(names)) + "|"]
    for row, told in found["rows"].items():
        some = [one["pieces"] for one in told["rounds"] if {*names} <= {*one.get("pieces", ())}]
        if some:
            cells = [_range([pieces[name] for pieces in some]) for name in names]
            lines.append(f"| {row.replace(HAND, ' by hand')} | {len(some)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _range(values: Sequence[float]) -> str:
    least, most = min(values), max(values)
    return f"{least:.1f}" if len(values) == 1 else f"{least:.1f} to {most:.1f}"


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


COLUMNS: Mapping[str, Sequence[Kind]] = {
    "grouped GEMM": (Kind.GROUPED_GEMM,),
    "GEMM": (Kind.GEMM,),
    "attention": (Kind.ATTENTION,),
    "other kernels": (Kind.QUANTIZE, Kind.PERMUTE, Kind.OTHER),
    "experts' tokens": (Kind.DISPATCH, Kind.COMBINE, Kind.ALL_TO_ALL),
    "other collectives": [kind for kind in COMMUNICATION if kind not in (Kind.DISPATCH, Kind.COMBINE, Kind.ALL_TO_ALL)],
    "idle, copies": (*COPIES, Kind.IDLE),
}
"""Of the table of kernels: heading -> kinds. Together they are all kinds, so that a line's shares sum up to the step."""


FLOWS: Mapping[str, Sequence[Kind]] = {
    "expert exchange": (Kind.DISPATCH, Kind.COMBINE),
    "all-to-all": (Kind.ALL_TO_ALL,),
    "all-gather": (Kind.ALL_GATHER,),
    "reduce-scatter": (Kind.REDUCE_SCATTER,),
    "all-reduce": (Kind.ALL_REDUCE,),
}
"""Of the table of collectives: flows of `preflight aot` -> kinds of kernels. ragged-all-to-all is another all-to-all."""


def profiled(traces: Mapping[str, Path]) -> dict[str, tuple[Device, int]]:
    """Row -> its device and the steps in its profile. A file may be packed (.xz)."""
    found = {}
    for row, path in traces.items():
        with tempfile.TemporaryDirectory() as folder:
            plain = Path(folder) / "trace.xplane.pb"
            opened = lzma.open if path.suffix == ".xz" else open
            with opened(path, "rb") as file:
                plain.write_bytes(file.read())
            judged = breakdown(trace_file.read(plain), own_table(), single=True)
        (device,) = judged.devices
        found[row] = (device, judged.steps)
    return found


def kernel_table(profiles: Mapping[str, tuple[Device, int]]) -> str:
    """Markdown: where the time of each profiled row went. Each moment counts once; what ran beside computing is computing's."""
    lines = [
        f"| row | ms/step | {' | '.join(COLUMNS)} | communication |",
        f"|---|---|{'---|' * len(COLUMNS)}---|",
    ]
    for row, (device, steps) in profiles.items():
        assert device.communication is not None
        shares = [f"{device.active(kinds) / device.span:.1%}" for kinds in COLUMNS.values()]
        lines.append(f"| {row} | {device.span / steps * 1e3:.1f} | {' | '.join(shares)} | {device.communication:.1%} |")
    return "\n".join(lines)


def collective_table(profiles: Mapping[str, tuple[Device, int]]) -> str:
    """Markdown: the collectives of a step as `preflight aot` foresees them, and as the profile has them. GB: 10^9 bytes."""
    lines = [
        "| row | collective | calls, `aot` | in the profile | GB over NVLink, `aot` | ms in the profile | GB/s |",
        "|---|---|---|---|---|---|---|",
    ]
    for row, (device, steps) in profiles.items():
        foreseen, bytes_sent = Counter[str](), Counter[str]()
        for name, (calls, sent) in json.loads(AOT.read_text(encoding="utf-8"))[row]["flows"].items():
            foreseen[name.removeprefix("ragged-")] += calls
            bytes_sent[name.removeprefix("ragged-")] += sent
        for name, kinds in FLOWS.items():
            parts = [device.parts[kind] for kind in kinds if kind in device.parts]
            calls, sent = foreseen[name], bytes_sent[name]
            if not parts and not calls:
                continue
            seconds = device.kernels(kinds) / steps
            seen = sum(part.calls for part in parts) / steps
            rate = f"{sent / seconds / 1e9:.0f}" if seconds else "-"
            lines.append(f"| {row} | {name} | {calls} | {seen:.0f} | {sent / 1e9:.2f} | {seconds * 1e3:.2f} | {rate} |")
    return "\n".join(lines)


SIZES = {
    "wide_te": "2: EP 2",
    "four_ep2_fsdp2": "4: EP 2 x FSDP 2",
    "four_ep4": "4: EP 4",
    "eight_ep2_fsdp4": "8: EP 2 x FSDP 4",
    "eight_ep4_fsdp2": "8: EP 4 x FSDP 2",
    "eight_ep8": "8: EP 8",
}
"""Row of the queue -> GPUs and layout."""


def size_table() -> str:
    """Markdown: what `plan` and `preflight aot` say of the widths on two, four and eight GPUs."""
    lines = [
        "| GPUs | `plan` s/step | `plan` GiB | `aot` GiB | all-gathers, GB | expert exchange, GB |",
        "|---|---|---|---|---|---|",
    ]
    answers = json.loads(AOT.read_text(encoding="utf-8"))
    words = {job.row: job.words for job in jobs(QUEUE, ["widths", "four", "eight"])}
    for row, name in SIZES.items():
        time, memory = planned(words[row])
        answer, flows = answers[row], answers[row]["flows"]
        sent = [f"{flows[kind][1] / 1e9:.1f}" for kind in ("all-gather", "expert exchange")]
        lines.append(f"| {name} | {time:.2f} | {_gib(memory)} | {_gib(answer['device'])} | {' | '.join(sent)} |")
    return "\n".join(lines)


def shown(*tables: str) -> None:
    """Prints those that have a line under their heading."""
    for table in tables:
        if table.count("\n") > 1:
            print(table, end="\n\n")


def main() -> int:
    """Prints the tables."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.h200.tables", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("runs", type=Path, nargs="*")
    parser.add_argument(
        "--matmul", type=float, default=819.1, help="TFLOPS of a bf16 product, for a sitting without node.txt"
    )
    parser.add_argument("--trace", action="append", default=[], metavar="ROW=FILE")
    parser.add_argument("--sizes", action="store_true", help="what is foreseen for four and eight GPUs")
    options = parser.parse_args()
    for archive in options.runs:
        if not archive.exists():
            parser.error(f"there is no {archive}; recorded sittings are in tests/data/h200")
        with unpacked(archive) as runs:
            found = read(runs, options.matmul)
        shown(speed_table(found), memory_table(found), start_table(found), piece_table(found))
    if options.sizes:
        shown(size_table())
    if options.trace:
        profiles = profiled({row: Path(path) for row, _, path in (word.partition("=") for word in options.trace)})
        shown(kernel_table(profiles), collective_table(profiles))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
