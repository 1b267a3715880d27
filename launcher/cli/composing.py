"""The verbs that compose an experiment: submit, plan, render, preflight, diff."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.cli.main import print_issues
from launcher.cli.options import add_runs, composing_parser
from launcher.issue import Issue, Refused, Severity

if TYPE_CHECKING:
    from launcher.config.compose import Composer
    from launcher.config.schema import Experiment
    from launcher.plan.plan import Plan
    from launcher.render.bundle import Bundle


def _search_path(options: argparse.Namespace) -> tuple[Path, ...]:
    from launcher.config.groups import search_path

    try:
        return search_path(options.config_dir)
    except NotADirectoryError as error:
        raise Refused(Issue("CONFIG_DIR", Severity.ERROR, "", str(error), "name a folder that exists")) from error


def _composer(options: argparse.Namespace) -> Composer:
    from launcher.config.compose import Composer

    return Composer(_search_path(options))


def _plan(composer: Composer, words: Sequence[str]) -> Plan:
    from launcher.plan.plan import make

    composed = composer.compose(words)
    if composed.experiment is None:
        raise Refused(*composed.issues)
    return make(composed.experiment)


def _sound(plan: Plan) -> Plan:
    """The plan, if nothing forbids it; else every issue is told."""
    if plan.errors:
        raise Refused(*plan.issues)
    return plan


def plan(words: list[str]) -> int:
    """What the experiment means; exit code 1 when something forbids it."""
    parser = composing_parser(
        "plan",
        "What an experiment means: mesh, NVLink domains, batch, MaxText's keys, every problem.",
        ["plan +exp=dsv3_128gpu", "plan +exp=dsv3_128gpu mesh.ici.expert=4 mesh.ici.fsdp=16 --json"],
    )
    parser.add_argument("--json", action="store_true", help="the same for scripts, on stdout")
    options = parser.parse_intermixed_args(words)
    from launcher.render.plan_text import issues_json, plan_json, plan_text

    try:
        made = _plan(_composer(options), options.overrides)
    except Refused as refused:
        if not options.json:
            raise
        print(json.dumps({"issues": issues_json(refused.issues)}, indent=2))
        return 1
    print(json.dumps(plan_json(made), indent=2) if options.json else plan_text(made), end="\n" if options.json else "")
    return 1 if made.errors else 0


def render(words: list[str]) -> int:
    """Write the bundle, or print the target's artefact."""
    parser = composing_parser(
        "render",
        "Everything that will run, as a folder (default bundles/NAME) or the target's artefact alone on stdout.",
        ["render +exp=dsv3_1024gpu --out /tmp/bundle", "render +exp=moe_tiny_cpu --print"],
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--out", metavar="DIR", help="the folder to write; it must be new, empty, or hold the same bundle"
    )
    where.add_argument("--print", action="store_true", dest="to_stdout", help="only the target's artefact, on stdout")
    options = parser.parse_intermixed_args(words)
    from launcher.render.bundle import render as rendered
    from launcher.render.bundle import write

    made = _sound(_plan(_composer(options), options.overrides))
    bundle = rendered(made)
    print_issues(made.issues)
    if options.to_stdout:
        sys.stdout.write(bundle.artefact)
        return 0
    folder = Path(options.out) if options.out else Path("bundles") / bundle.name
    write(bundle, folder)
    print(f"{folder}: {len(bundle.files)} files, content {bundle.content[:16]}")
    for name in sorted(bundle.files):
        print(f"  {name}")
    return 0


def submit(words: list[str]) -> int:
    """Compose, check, write, run."""
    from launcher.cli import hydra_ways

    parser = composing_parser(
        "submit",
        "Compose, check, write the bundle and run it. `submit` may be left out.",
        ["+exp=moe_tiny_cpu", "-m +exp=moe_tiny_cpu trainer.learning_rate=1e-3,3e-3"],
    )
    parser.add_argument(
        "--detach", "-d", action="store_true", help="return at once, as always on a cluster; follow with `logs -f`"
    )
    parser.add_argument(
        "--after", metavar="RUN", help="start it when that run's job has ended, however (a cluster only)"
    )
    parser.add_argument(
        "--singleton", action="store_true", help="not beside another job of the same experiment name (a cluster only)"
    )
    add_runs(parser)
    hydra_ways.add_options(parser)
    options = parser.parse_intermixed_args(words)
    if any(getattr(options, name) for name in hydra_ways.OPTIONS):
        return hydra_ways.answer(options, options.overrides, _search_path(options))
    if options.multirun:
        return _sweep(options)
    made = _plan(_composer(options), options.overrides)
    return _start(made, options)


def _start(made: Plan, options: argparse.Namespace) -> int:
    """Submit one plan; its warnings are told first, its errors stop it."""
    from launcher.render.bundle import render as rendered
    from launcher.runs import lifecycle

    _sound(made)
    print_issues(made.issues)
    return lifecycle.submit(
        made,
        rendered(made),
        runs=options.runs,
        detach=options.detach,
        after=options.after,
        singleton=options.singleton,
    )


def _one_after_the_other(plans: Sequence[Plan], detach: bool) -> None:
    """Points that share this machine run one by one, so nobody can leave; a cluster's are queued, and this returns at once."""
    from launcher.targets.base import SUPERVISED

    if detach and any(made.experiment.target.kind not in SUPERVISED for made in plans):
        raise Refused(
            Issue(
                "SWEEP_DETACHED",
                Severity.ERROR,
                "",
                "-m with --detach would start every point at once on this machine",
                "leave out --detach: the points run one after the other",
            )
        )


def _sweep(options: argparse.Namespace) -> int:
    """All points are checked before the first one is started; the worst exit code is returned."""
    from launcher.cli import hydra_ways
    from launcher.config.overrides import is_hydra_word
    from launcher.plan.plan import make

    path = _search_path(options)
    if any(is_hydra_word(word) for word in options.overrides):

        def job(experiment: Experiment) -> int:
            made = make(experiment)
            _one_after_the_other([made], options.detach)
            code = _start(made, options)
            codes.append(code)
            return code

        codes: list[int] = []
        hydra_ways.multirun(options.overrides, path, job)
        return max(codes, default=0)
    composer = _composer(options)
    jobs = hydra_ways.points(options.overrides, path)
    plans = []
    wrong = 0
    for words in jobs:
        try:
            plans.append(_sound(_plan(composer, words)))
        except Refused as refused:
            wrong += 1
            print(f"sweep point {shlex.join(words)}:", file=sys.stderr)
            print_issues(refused.issues)
    if wrong:
        raise Refused(
            Issue(
                "SWEEP",
                Severity.ERROR,
                "",
                f"{wrong} of {len(jobs)} points of the sweep cannot run; none was started",
                "mend or leave out the values above",
            )
        )
    _one_after_the_other(plans, options.detach)
    codes = []
    for number, (words, made) in enumerate(zip(jobs, plans, strict=True), start=1):
        print(f"[{number}/{len(jobs)}] {shlex.join(words)}", flush=True)
        codes.append(_start(made, options))
    return max(codes)


def preflight(words: list[str]) -> int:
    """Ask the real thing."""
    parser = composing_parser(
        "preflight",
        "Let MaxText itself read the configuration, on as many fake devices as there will be GPUs (seconds, no GPU).",
        [
            "preflight maxtext +exp=dsv3_128gpu",
            "preflight maxtext +exp=dsv3_128gpu --python /opt/venv/bin/python --json",
        ],
    )
    parser.add_argument(
        "--python", metavar="PY", help="a Python that has MaxText (default: the one that runs the launcher)"
    )
    parser.add_argument("--json", action="store_true", help="the same for scripts, on stdout")
    checks = ("maxtext",)
    named = [word for word in words if word in checks]
    options = parser.parse_intermixed_args([word for word in words if word not in checks])
    if len(named) != 1:
        raise Refused(
            Issue(
                "CHECK_UNKNOWN",
                Severity.ERROR,
                "",
                "preflight wants the name of one check",
                f"there are: {', '.join(checks)}",
            )
        )
    from launcher.cli.checking import maxtext

    made = _sound(_plan(_composer(options), options.overrides))
    return maxtext(made, options.python, options.json)


def _bundle_of(word: str, composer: Composer, runs: str | None) -> Bundle | Path:
    """What a word of `diff` names: an experiment (its words in one argument), a bundle's folder, or a run."""
    if "=" in word:
        from launcher.render.bundle import render as rendered

        return rendered(_sound(_plan(composer, shlex.split(word))))
    folder = Path(word)
    if (folder / "manifest.json").is_file():
        return folder
    from launcher.runs import store

    return store.open_run(store.root(runs), word).folder


def diff(words: list[str]) -> int:
    """What differs between two things that could run or have run."""
    parser = composing_parser(
        "diff",
        "What differs between two runs, bundles, or experiments; an experiment's words go into one argument.",
        [
            "diff +exp=dsv3_128gpu +exp=dsv3_128gpu_fits",
            "diff moe_tiny_cpu-1a2b3c4d '+exp=moe_tiny_cpu trainer.steps=40'",
        ],
    )
    parser.add_argument("--json", action="store_true", help="the same for scripts, on stdout")
    add_runs(parser)
    options = parser.parse_intermixed_args(words)
    if len(options.overrides) != 2:
        raise Refused(
            Issue(
                "DIFF",
                Severity.ERROR,
                "",
                f"diff compares two things, {len(options.overrides)} were named",
                "python -m launcher diff A B; put an experiment's words in quotes: '+exp=NAME KEY=VALUE'",
            )
        )
    from launcher.runs.diff import diff as differences
    from launcher.runs.diff import diff_text

    composer = _composer(options)
    a, b = (_bundle_of(word, composer, options.runs) for word in options.overrides)
    found = differences(a, b)
    print(json.dumps(found, indent=2, default=str) if options.json else diff_text(found, *options.overrides))
    return 0
