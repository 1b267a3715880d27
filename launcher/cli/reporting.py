"""The verbs that say what a run was worth; none of them loads Hydra."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.cli.options import running_parser, writing
from launcher.runs import store

if TYPE_CHECKING:
    from launcher.report.trace import Breakdown


def report(words: list[str]) -> int:
    """What the hardware delivered."""
    parser = running_parser(
        "report",
        "What a run delivered: seconds a step with its interval and window, TFLOPS/GPU, MFU, tokens/s/GPU beside what was\n"
        "predicted, loss, memory, MoE headroom, goodput, every attempt, versions.",
        ["report moe_tiny_cpu", "report dsv3_128gpu --trace --html report.html"],
    )
    parser.add_argument("run", help="its name, or the beginning of it")
    parser.add_argument("--json", action="store_true", help="the same for scripts, on stdout")
    parser.add_argument("--html", metavar="FILE", help="a page with plots, which needs nothing else")
    trace = "and the kernels' share of the time, from a profile (default: the newest of the run)"
    parser.add_argument("--trace", nargs="?", const="", metavar="FILE", help=trace)
    parser.add_argument(
        "--python",
        default=sys.executable,
        metavar="PYTHON",
        help="with JAX, to read the profile with (default: this one)",
    )
    options = parser.parse_args(words)
    from launcher.report.measured import report as measured
    from launcher.report.text import as_json, text

    run = store.open_run(store.root(options.runs), options.run)
    found = measured(run)
    profile = None if options.trace is None else _profiled(run, options.trace, options.python)
    if options.html:
        from launcher.report.page import page

        _page_to(Path(options.html), page(found, profile))
    told, content = [text(found)], as_json(found)
    if profile is not None:
        from launcher.report.trace_text import trace_json, trace_text

        told, content = [*told, "", trace_text(profile)], content | {"trace": trace_json(profile)}
    print(json.dumps(content, indent=2) if options.json else "\n".join(told))
    return 0


def _profiled(run: store.Run, file: str, python: str) -> Breakdown:
    """Where the profiled time went. file: "" = the newest profile of the run."""
    from launcher.report import kinds, trace, trace_file

    rows = kinds.table()
    read = trace_file.read(Path(file) if file else trace_file.find(run), python)
    return trace.breakdown(read, rows, trace_file.is_one_domain(run))


def _told(options: argparse.Namespace, name: str) -> dict[str, Any]:
    from launcher.report.measured import report as measured
    from launcher.report.text import as_json

    return as_json(measured(store.open_run(store.root(options.runs), name)))


def _page_to(path: Path, drawn: str) -> None:
    with writing(f"--html {path}", "name a file in a folder that is there: --html report.html"):
        path.write_text(drawn, encoding="utf-8")


def scaling(words: list[str]) -> int:
    """One experiment at several sizes."""
    parser = running_parser(
        "scaling",
        "The same experiment at several sizes: what a GPU delivers at each against the smallest, beside the prediction\n"
        "and the article's 97 % at 1,024 GPUs.",
        ["scaling dsv3_128gpu dsv3_1024gpu", "scaling small middle large --html scaling.html"],
    )
    parser.add_argument("runs_", nargs="+", metavar="run", help="their names, or the beginnings")
    parser.add_argument("--json", action="store_true", help="the same for scripts, on stdout")
    parser.add_argument("--html", metavar="FILE", help="a page with the plot, which needs nothing else")
    options = parser.parse_args(words)
    from launcher.report.measured import report as measured
    from launcher.report.scaling import scaling as scaled
    from launcher.report.scaling import scaling_json, scaling_page, scaling_text

    root = store.root(options.runs)
    found = scaled([measured(store.open_run(root, name)) for name in options.runs_])
    if options.html:
        _page_to(Path(options.html), scaling_page(found))
    print(json.dumps(scaling_json(found), indent=2) if options.json else scaling_text(found))
    return 0


def compare(words: list[str]) -> int:
    """Runs side by side."""
    parser = running_parser(
        "compare",
        "Runs side by side: what differs in the experiment, flags, environment and versions, then in time, loss and memory,\n"
        "each beside the first, with how sure that is.",
        ["compare dsv3_128gpu-1a2b dsv3_128gpu-3c4d", "compare base tuned other --json"],
    )
    parser.add_argument("first", help="a run's name, or the beginning of it")
    parser.add_argument("others", nargs="+", metavar="run", help="those to hold against it")
    parser.add_argument("--json", action="store_true", help="the same for scripts, on stdout")
    options = parser.parse_args(words)
    from launcher.report.compare import compare_json, compare_text
    from launcher.runs.diff import diff, diff_text

    root = store.root(options.runs)
    runs = [store.open_run(root, name) for name in (options.first, *options.others)]
    told = [_told(options, run.name) for run in runs]
    found = [diff(runs[0].layout.path, run.layout.path) for run in runs[1:]]
    for one in found:
        one["differences"] = [each for each in one["differences"] if each["section"] != "results"]
    if options.json:
        print(json.dumps({"runs": compare_json(told), "differences": found}, indent=2))
        return 0
    for run, one in zip(runs[1:], found, strict=True):
        print(diff_text(one, runs[0].name, run.name) + "\n")
    print(compare_text(told))
    return 0


def _share(word: str) -> float:
    """For add_argument(type=...): 0.05 or 5%."""
    try:
        value = float(word.removesuffix("%")) / (100 if word.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{word!r}, wanted a share such as 0.05 or 5%")
    return value


def verify(words: list[str]) -> int:
    """A run against a golden one; exit code 1 when a limit is passed."""
    from launcher.report.compare import LIMITS, read_golden, verify_text
    from launcher.report.compare import verify as verified

    parser = running_parser(
        "verify",
        "Is a run as good as a golden one: time, memory and loss within limits; for continuous integration (exit code 1: no).",
        ["verify dsv3_128gpu --against golden.json", "verify tuned --against base --time 2% --loss 0.5%"],
    )
    parser.add_argument("run", help="its name, or the beginning of it")
    parser.add_argument("--against", required=True, metavar="GOLDEN", help="a file of `report --json`, or a run")
    for name, limit in LIMITS.items():
        parser.add_argument(
            f"--{name}", type=_share, default=limit, metavar="SHARE", help=f"limit (default {limit:.0%}%)"
        )
    parser.add_argument("--json", action="store_true", help="the same for scripts, on stdout")
    options = parser.parse_args(words)
    told, path = _told(options, options.run), Path(options.against)
    golden = read_golden(path) if path.suffix == ".json" or path.is_file() else _told(options, options.against)
    checks = verified(told, golden, {name: getattr(options, name) for name in LIMITS})
    if options.json:
        print(json.dumps([dataclasses.asdict(check) for check in checks], indent=2))
    else:
        print(verify_text(checks))
    return 0 if all(check.passed for check in checks) else 1
