"""The verbs that look at runs and at this machine; none of them loads Hydra."""

from __future__ import annotations

import json
import sys

from launcher.cli.options import VerbParser, running_parser
from launcher.runs import store


def runs(words: list[str]) -> int:
    """All runs, a line each."""
    parser = running_parser(
        "runs", "All runs in the folder of runs, the newest last.", ["runs", "runs --runs /lustre/me/runs --json"]
    )
    parser.add_argument("--json", action="store_true", help="the same for scripts, on stdout")
    options = parser.parse_args(words)
    from launcher.runs.status import status_json, statuses, table

    folder = store.root(options.runs)
    found = statuses(store.all_runs(folder))
    if options.json:
        print(json.dumps([status_json(status) for status in found], indent=2))
    elif not found:
        print(f"no runs in {folder}; `python -m launcher +exp=moe_tiny_cpu` makes one")
    else:
        print(table(found))
    return 0


def status(words: list[str]) -> int:
    """One run."""
    parser = running_parser(
        "status",
        "State, step, loss, throughput and checkpoint of one run.",
        ["status moe_tiny_cpu", "status moe_tiny_cpu-1a2b3c4d --json"],
    )
    parser.add_argument("run", help="its name, or the beginning of it")
    parser.add_argument("--json", action="store_true", help="the same for scripts, on stdout")
    options = parser.parse_args(words)
    from launcher.runs.status import status_json, status_of, status_text

    found = status_of(store.open_run(store.root(options.runs), options.run))
    print(json.dumps(status_json(found), indent=2) if options.json else status_text(found))
    return 0


def logs(words: list[str]) -> int:
    """What the ranks printed."""
    parser = running_parser(
        "logs",
        "What the ranks printed: merged with their numbers, or one rank as it is.",
        ["logs moe_tiny_cpu", "logs moe_tiny_cpu -f --rank 0"],
    )
    parser.add_argument("run", help="its name, or the beginning of it")
    parser.add_argument("--follow", "-f", action="store_true", help="go on until the run ends")
    parser.add_argument("--rank", type=int, metavar="N", help="only this rank, unlabelled")
    parser.add_argument("--attempt", type=int, metavar="N", help="this attempt (default: the newest)")
    parser.add_argument("--all", action="store_true", help="every attempt, one after the other")
    options = parser.parse_args(words)
    from launcher.runs.logs import print_all_logs, print_logs

    run = store.open_run(store.root(options.runs), options.run)
    if options.all:
        if options.follow or options.attempt is not None:
            parser.error("--all goes with neither --follow, which goes on over all attempts to come, nor --attempt")
        return print_all_logs(run, sys.stdout, rank=options.rank)
    return print_logs(run, sys.stdout, follow=options.follow, rank=options.rank, attempt=options.attempt)


def cancel(words: list[str]) -> int:
    """Stop a run."""
    parser = running_parser(
        "cancel",
        "Stop a run: it writes a checkpoint first, unless --now.",
        ["cancel moe_tiny_cpu", "cancel moe_tiny_cpu --now"],
    )
    parser.add_argument("run", help="its name, or the beginning of it")
    parser.add_argument("--now", action="store_true", help="kill it; what came after the last checkpoint is lost")
    options = parser.parse_args(words)
    from launcher.runs import lifecycle

    return lifecycle.cancel(store.open_run(store.root(options.runs), options.run), now=options.now)


def resume(words: list[str]) -> int:
    """Go on from the last checkpoint."""
    parser = running_parser(
        "resume",
        "Start the next attempt of a stopped run; it goes on from the last checkpoint.",
        ["resume moe_tiny_cpu", "resume moe_tiny_cpu --detach"],
    )
    parser.add_argument("run", help="its name, or the beginning of it")
    parser.add_argument(
        "--detach", "-d", action="store_true", help="return at once, as always on a cluster; follow with `logs -f`"
    )
    options = parser.parse_args(words)
    from launcher.runs import lifecycle

    return lifecycle.resume(store.open_run(store.root(options.runs), options.run), detach=options.detach)


def doctor(words: list[str]) -> int:
    """What this machine can do."""
    parser = VerbParser(
        "doctor",
        "What this machine can do, what is missing, and the command that cures it.",
        ["doctor", "doctor --python /opt/venv/bin/python --json"],
    )
    parser.add_argument(
        "--python",
        default=sys.executable,
        metavar="PY",
        help="the Python that shall train (default: the one that runs the launcher)",
    )
    parser.add_argument("--runs", metavar="DIR", help="the folder of runs (else $LAUNCHER_RUNS, else ./runs)")
    parser.add_argument("--json", action="store_true", help="the same for scripts, on stdout")
    options = parser.parse_args(words)
    from launcher.preflight import doctor as examination
    from launcher.preflight.finding import text

    findings = examination.examine(options.python, store.root(options.runs))
    if options.json:
        print(json.dumps([finding.as_dict() for finding in findings], indent=2))
    else:
        print(text(findings))
    return 0 if all(finding.ok or finding.optional for finding in findings) else 1
