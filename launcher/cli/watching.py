"""The verbs that tell what a run went through; none of them loads Hydra."""

from __future__ import annotations

import json
import sys

from launcher.cli.options import running_parser
from launcher.runs import store


def events(words: list[str]) -> int:
    """What happened in a run."""
    parser = running_parser(
        "events",
        "What happened in a run, one line an event over all attempts: starts, ends and their causes, checkpoints,\n"
        "restarts, changed factors, and what the steps say (loss, MoE headroom, slow steps).",
        ["events moe_tiny_cpu -f", "events moe_tiny_cpu --goodput --json"],
    )
    parser.add_argument("run", help="its name, or the beginning of it")
    parser.add_argument("--json", action="store_true", help="the same for scripts, one object a line, on stdout")
    parser.add_argument("--follow", "-f", action="store_true", help="go on until the run ends")
    parser.add_argument(
        "--all-ranks", action="store_true", help="read every rank's log, not rank 0's alone, and compare"
    )
    parser.add_argument("--goodput", action="store_true", help="instead: where the time went, in seconds and shares")
    options = parser.parse_args(words)
    if options.goodput and options.follow:
        parser.error("--goodput is told once: it does not go with --follow")
    from launcher.runs import events as told
    from launcher.runs.goodput import goodput

    run = store.open_run(store.root(options.runs), options.run)
    if not options.goodput:
        return told.print_events(
            run, sys.stdout, as_json=options.json, follow=options.follow, all_ranks=options.all_ranks
        )
    found = goodput(told.read(run)[1])
    print(json.dumps(found.as_json(), indent=2) if options.json else found.text())
    return 0


def watch(words: list[str]) -> int:
    """A run, live."""
    parser = running_parser(
        "watch",
        "A run as it goes: state, step, loss, speed, MoE headroom, restarts, goodput and the last events, until it ends.\n"
        "Ctrl-C ends the showing, never the run. Without a terminal: events and a line of figures now and then.",
        ["watch moe_tiny_cpu", "watch moe_tiny_cpu --once"],
    )
    parser.add_argument("run", help="its name, or the beginning of it")
    parser.add_argument("--once", action="store_true", help="show it as it is now, and end")
    options = parser.parse_args(words)
    from launcher.runs import live

    return live.watch(store.open_run(store.root(options.runs), options.run), sys.stdout, once=options.once)
