"""`ladder`: the article's optimisations one by one over an experiment; `ladder bisect`: which setting makes the difference."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.cli.composing import composer_of, planned
from launcher.cli.main import print_issues
from launcher.cli.options import VerbParser, add_runs, at_least_one, composing_parser, running_parser, writing
from launcher.issue import Issue, Refused, Severity
from launcher.runs import store

if TYPE_CHECKING:
    from launcher.config.compose import Composer
    from launcher.report.bisect import Found
    from launcher.report.ladder import Step
    from launcher.report.probes import Bisection
    from launcher.report.rungs import Stage
    from launcher.runs.sweeps import Point


def _told(run: store.Run) -> dict[str, Any]:
    from launcher.report.measured import report
    from launcher.report.text import as_json

    return as_json(report(run))


def _add_submit(parser: VerbParser, what: str) -> None:
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--submit", action="store_true", help=what)
    how.add_argument("--json", action="store_true", help="the same for scripts, on stdout")


def ladder(words: list[str]) -> int:
    """The article's optimisations one by one."""
    if words[:1] == ["bisect"]:
        return bisect(words[1:])
    parser = composing_parser(
        "ladder",
        "The article's optimisations one by one over an experiment, each on top of those before: predicted, and measured\n"
        "where there are runs of them; or runs that you name, beside one another. Without words: the rungs.\n"
        "`ladder bisect A B` finds which setting makes the difference between two runs.",
        ["ladder +exp=dsv3_128gpu_fits", "ladder +exp=dsv3_128gpu_fits --from grouped_gemm --submit --rounds 3"],
    )
    parser.add_argument("--from", dest="first", metavar="RUNG", help="begin with this one")
    parser.add_argument("--to", dest="last", metavar="RUNG", help="end with this one")
    parser.add_argument(
        "--rounds",
        type=at_least_one,
        default=1,
        metavar="N",
        help="each rung N times, round by round: repeats lie apart in time, and a gain is known to be one",
    )
    _add_submit(parser, "run each rung that can run and has not; typed again it goes on")
    parser.add_argument("--html", metavar="FILE", help="a page with the bars, which needs nothing else")
    add_runs(parser)
    options = parser.parse_intermixed_args(words)
    names = [word for word in options.overrides if "=" not in word]
    if not options.overrides:
        return _show_rungs(options)
    if names:
        _refuse_mixture(options, names)
        root = store.root(options.runs)
        from launcher.report.ladder import of_told

        _print_ladder("Ladder", [of_told(_told(store.open_run(root, name))) for name in options.overrides], options)
        return 0
    return _ladder_of(options)


def _refuse_mixture(options: argparse.Namespace, names: Sequence[str]) -> None:
    given = {
        "--from": options.first,
        "--to": options.last,
        "--submit": options.submit,
        "--rounds": options.rounds > 1,
    }
    other = [word for word in options.overrides if "=" in word] + [name for name, value in given.items() if value]
    if other:
        message = f"{names[0]} is a run; {other[0]} goes with an experiment"
        raise Refused(Issue("LADDER", Severity.ERROR, "", message, "type either runs, or +exp=NAME and what differs"))


def _show_rungs(options: argparse.Namespace) -> int:
    from launcher.report.rungs import read

    rungs = read(composer_of(options).path)
    if options.json:
        print(json.dumps([dataclasses.asdict(rung) for rung in rungs], indent=2))
        return 0
    for rung in rungs:
        print(f"{rung.name}: {' '.join(rung.words) or 'nothing to type'}\n  {rung.adds}")
        if rung.absent:
            print(f"  left out: {rung.absent}")
    print("\nover an experiment: python -m launcher ladder +exp=NAME")
    return 0


def _ladder_of(options: argparse.Namespace) -> int:
    from launcher.report.rungs import between, key_of, read, stages

    composer = composer_of(options)
    rungs = read(composer.path)
    low, high = between(rungs, options.first, options.last)
    made = stages(rungs[: high + 1], options.overrides, lambda words: planned(composer, words))[low:]
    rounds = [_rounds(stage, options.rounds, composer) for stage in made]
    code = _submit_rounds(made, rounds, options) if options.submit else 0
    root = store.root(options.runs)
    steps = [_step(stage, [bundle.name for _, bundle in some], root) for stage, some in zip(made, rounds, strict=True)]
    experiment = next(word for word in options.overrides if key_of(word) == "exp")
    _print_ladder(f"Ladder of {experiment}", steps, options)
    return code


def _rounds(stage: Stage, rounds: int, composer: Composer) -> list[Point]:
    """What runs of a rung: in each round after the first the same, with its number behind the name. Nothing where it is left out."""
    from launcher.render.bundle import render
    from launcher.report.rungs import key_of

    if stage.plan is None or stage.plan.errors or stage.left_out:
        return []
    plans = [stage.plan]
    words = [word for word in stage.words if key_of(word) != "name"]
    for number in range(2, rounds + 1):
        plans.append(planned(composer, [*words, f"name={stage.plan.experiment.name}_{number}"]))
    return [(plan, render(plan)) for plan in plans]


def _submit_rounds(made: Sequence[Stage], rounds: Sequence[list[Point]], options: argparse.Namespace) -> int:
    """Round by round, in each all rungs in their order."""
    able = [(stage, some) for stage, some in zip(made, rounds, strict=True) if some]
    if not able:
        raise Refused(*(_left_out(stage) for stage in made))
    points, titles = [], []
    for number in range(options.rounds):
        which = f" (round {number + 1} of {options.rounds})" if options.rounds > 1 else ""
        for stage, some in able:
            points.append(some[number])
            titles.append(f"{stage.rung.name}: {shlex.join(stage.rung.words)}{which}")
    return _sweep(points, titles, options.runs, warned=len(able))


def _sweep(points: Sequence[Point], titles: Sequence[str], runs: str | None, warned: int | None = None) -> int:
    """Starts them. warned: of so many, the first ones, what `plan` has to say is told; None = of all."""
    from launcher.runs import lifecycle

    def introduce(place: int) -> None:
        print(f"[{place + 1}/{len(points)}] {titles[place]}", flush=True)
        if warned is None or place < warned:
            print_issues(points[place][0].issues)

    return lifecycle.sweep(points, introduce, runs=runs)


def _left_out(stage: Stage) -> Issue:
    return Issue("LADDER_RUNG", Severity.ERROR, stage.rung.name, stage.left_out, "change the experiment's words")


def _step(stage: Stage, runs: Sequence[str], root: Path) -> Step:
    """A rung with what its plan says, and its runs, as far as there are some."""
    from launcher.report.ladder import Step

    plan = None if stage.plan is None or stage.plan.errors else stage.plan
    time = plan.numbers.throughput if plan is not None and plan.numbers is not None else None
    rounds = [_told(store.load(root / run)) if (root / run).exists() else {} for run in runs]
    each: dict[str, Any] = next((told["per_step_and_gpu"] for told in rounds if told), {})
    return Step(
        name=stage.rung.name,
        words=stage.rung.words,
        adds=stage.rung.adds,
        left_out=stage.left_out,
        expected=None if time is None else time.expected,
        is_predicted=stage.rung.predicted,
        flop=time.flops if time is not None else each.get("flop"),
        tokens=time.tokens if time is not None else each.get("tokens"),
        rounds=rounds,
    )


def _print_ladder(title: str, steps: Sequence[Step], options: argparse.Namespace) -> None:
    from launcher.report.ladder import ladder_json, ladder_page, ladder_text

    if options.html:
        drawn = ladder_page(title, steps)
        with writing(f"--html {options.html}", "name a file in a folder that is there: --html ladder.html"):
            Path(options.html).write_text(drawn, encoding="utf-8")
    print(json.dumps(ladder_json(steps), indent=2) if options.json else ladder_text(steps))


def bisect(words: list[str]) -> int:
    """Which setting makes the difference between two runs."""
    parser = running_parser(
        "ladder bisect",
        "Which of the settings that differ between two runs makes the difference in speed, or why one finishes and the\n"
        "other does not: runs with a half of them, then a quarter. What is known is read from the runs; typed again it goes on.",
        ["ladder bisect fast-1a2b slow-3c4d", "ladder bisect fast-1a2b slow-3c4d --submit"],
    )
    parser.add_argument("a", help="a run's name, or the beginning of it")
    parser.add_argument("b", help="the run that differs")
    _add_submit(parser, "run the probes that are wanted next; on this machine until the end")
    options = parser.parse_args(words)
    from launcher.report.bisect import bisect_json, bisect_text
    from launcher.report.probes import Bisection

    search = Bisection(store.root(options.runs), options.a, options.b)
    found = search.found()
    while options.submit and found.wanted and _submit(search, found, options.runs):
        found = search.found()
    arguments = (found, search.differing, search.shown, search.tried())
    if options.json:
        print(json.dumps(bisect_json(*arguments), indent=2))
        return 0
    print(f"a: {search.a.name}\nb: {search.b.name}, {search.verdict}")
    print(bisect_text(*arguments))
    if found.wanted:
        again = f"python -m launcher ladder bisect {search.a.name} {search.b.name} --submit"
        print(f"{len(found.wanted)} probe(s) wanted next, or running; type: {again}")
    for line in search.beside:
        print(line)
    return 0


def _submit(search: Bisection, found: Found, runs: str | None) -> bool:
    """Start what is wanted; on this machine the first alone, to its end. False: nothing more is known afterwards."""
    from launcher.targets.base import CLUSTERS

    points = [point for point in map(search.point, found.wanted) if not isinstance(point, str)]
    titles = [f"A with B's {search.names(probe)}" for probe in found.wanted]
    on_cluster = all(plan.experiment.target.kind in CLUSTERS for plan, _ in points)
    if not on_cluster:
        points, titles = points[:1], titles[:1]
    _sweep(points, titles, runs)
    return not on_cluster and search.judged(found.wanted[0])[1].side is not None
