"""correctness: a small model of an experiment's family, by the exact MoE path and by the experiment's own."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.cli.main import print_issues
from launcher.cli.options import add_runs, composing_parser, writing
from launcher.issue import Issue, Refused, Severity

if TYPE_CHECKING:
    from launcher.plan.plan import Plan
    from launcher.render.folder import Bundle
    from launcher.runs.sweeps import Point


def correctness(words: list[str]) -> int:
    """Train both, hold them against each other; exit code 1 when they part."""
    parser = composing_parser(
        "correctness",
        "Does the fast MoE path train as the exact one: a small model of the experiment's family, once with every expert\n"
        "computed for every token and once by the experiment's own path, same seed and data, losses within tolerances.\n"
        "On a cluster both are queued: type the same again when they have finished.",
        [
            "correctness +exp=dsv3_128gpu",
            "correctness +exp=moe_tiny_cpu moe=dropless mesh.ici.expert=1 mesh.ici.fsdp=2",
        ],
    )
    parser.add_argument("--as-is", action="store_true", help="do not make the model small (always so on CPUs)")
    parser.add_argument("--plan", action="store_true", help="only say what would run")
    parser.add_argument("--json", action="store_true", help="the verdict for scripts, on stdout")
    parser.add_argument("--html", metavar="FILE", help="a page with both curves, which needs nothing else")
    add_runs(parser)
    options = parser.parse_intermixed_args(words)
    pair = _pair(options)
    if options.plan:
        for role, (made, bundle) in zip(("reference", "under test"), pair, strict=True):
            print(f"{role:<11} {bundle.name}: {made.experiment.description}")
        return 0
    if not _both_finished(options, pair):
        return 0
    return _verdict(options, pair)


def _pair(options: argparse.Namespace) -> list[Point]:
    """The reference and what is tested, as they will be submitted. Raises Refused: every reason."""
    from launcher.cli.composing import composer_of, planned, sound
    from launcher.render.bundle import render
    from launcher.report.correctness import REFERENCE, SMALL, UNHEALED

    composer, words = composer_of(options), list(options.overrides)
    asked = planned(composer, words)
    hardware = asked.experiment.hardware
    typed, given = {word.lstrip("+").partition("=")[0] for word in words}, [*UNHEALED]
    if not options.as_is and hardware.platform != "cpu":
        given += [*SMALL, f"mesh.ici.expert={hardware.gpus_per_node}"]
    words = [*words, *(word for word in given if word.lstrip("+").partition("=")[0] not in typed)]
    found: list[tuple[Plan, Bundle]] = []
    for role, more, what in (("exact", REFERENCE, "every expert for every token"), ("fast", (), "its own MoE path")):
        own = [word for word in words if word.partition("=")[0] != "moe"] if more else words
        named = [f"name={asked.experiment.name[:28]}-{role}", f"description='{asked.experiment.name}, small: {what}'"]
        made = sound(planned(composer, [*own, *more, *named]))
        found.append((made, render(made)))
    if _told(found[0][0]) == _told(found[1][0]):
        message = (
            f"the MoE path of {asked.experiment.name} is the reference already: there is nothing to hold against it"
        )
        hint = "choose another: moe=te on GPUs, moe=dropless mesh.ici.expert=1 or moe=capacity on CPUs"
        raise Refused(Issue("CORRECTNESS_SAME", Severity.ERROR, "moe", message, hint))
    return found


def _told(made: Plan) -> dict[str, object]:
    """All that MaxText will be told, but the run's name."""
    assert made.settings is not None
    return {key: value for key, value in {**made.settings.keys, **made.settings.arguments}.items() if key != "run_name"}


def _both_finished(options: argparse.Namespace, pair: Sequence[Point]) -> bool:
    """Whether both runs are over and well, after those that were not yet there have been started."""
    from launcher.runs import lifecycle, store
    from launcher.runs.attempts import State, judge_one

    root = store.root(options.runs)

    def state(bundle: Bundle) -> State | None:
        run = next((run for run in store.all_runs(root) if run.name == bundle.name), None)
        return None if run is None else judge_one(run).state

    open_points = [point for point in pair if state(point[1]) is not State.FINISHED]
    if open_points:

        def introduce(place: int) -> None:
            print(f"[{place + 1}/{len(open_points)}] {open_points[place][1].name}", file=sys.stderr, flush=True)
            print_issues(open_points[place][0].issues)

        lifecycle.sweep(open_points, introduce, runs=options.runs)
    states = {bundle.name: state(bundle) for _, bundle in pair}
    waiting = [f"{name} is {found or 'not there'}" for name, found in states.items() if found is not State.FINISHED]
    if not waiting:
        return True
    broken = [found for found in states.values() if found in (State.FAILED, State.DIED, State.STALLED, State.OVERFLOW)]
    if broken:
        hint = "`status` and `events` of it say why; mend it and type the same again"
        raise Refused(Issue("CORRECTNESS_RUN", Severity.ERROR, "", "; ".join(waiting), hint))
    print(f"{'; '.join(waiting)}: type the same again when both have finished", file=sys.stderr)
    return False


def _verdict(options: argparse.Namespace, pair: Sequence[Point]) -> int:
    from launcher.report.correctness import (
        Tolerance,
        correctness_json,
        correctness_page,
        correctness_text,
        curve,
        judge,
    )
    from launcher.runs import store

    root = store.root(options.runs)
    reference, candidate = (curve(store.open_run(root, bundle.name)) for _, bundle in pair)
    found = judge(reference, candidate, Tolerance())
    if options.html:
        drawn, path = correctness_page(found), Path(options.html)
        with writing(f"--html {path}", "name a file in a folder that is there: --html correctness.html"):
            path.write_text(drawn, encoding="utf-8")
    print(json.dumps(correctness_json(found), indent=2) if options.json else correctness_text(found))
    return 1 if found.reasons else 0
