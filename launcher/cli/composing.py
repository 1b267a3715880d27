"""The verbs that compose an experiment: submit, render, diff (plan, search: cli/planning.py; preflight: cli/preflight.py)."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.cli.main import print_issues
from launcher.cli.options import add_runs, composing_parser, writing
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


def composer_of(options: argparse.Namespace) -> Composer:
    """What composes experiments from the launcher's folder of groups and the user's own."""
    from launcher.config.compose import Composer

    return Composer(_search_path(options))


def planned(composer: Composer, words: Sequence[str]) -> Plan:
    """The plan of the experiment that the words compose; Refused when they compose none."""
    from launcher.plan.plan import make

    composed = composer.compose(words)
    if composed.experiment is None:
        raise Refused(*composed.issues)
    return make(composed.experiment)


def sound(plan: Plan) -> Plan:
    """The plan, if nothing forbids it; else every issue is told."""
    if plan.errors:
        raise Refused(*plan.issues)
    return plan


def sound_mesh(plan: Plan) -> Plan:
    """The plan, if its mesh can be laid out; else every issue is told."""
    if plan.mesh is None:
        raise Refused(*plan.issues)
    return plan


_ELSEWHERE = "name a folder that you may write: --out DIR"


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
    parser.add_argument(
        "--format",
        choices=("bundle", "kustomize"),
        default="bundle",
        help="kustomize: a base of the Kubernetes manifest (default kustomize/NAME; an earlier base there is replaced)",
    )
    options = parser.parse_intermixed_args(words)
    if options.to_stdout and options.format == "kustomize":
        parser.error("--format kustomize is a folder of files: it goes with --out, not with --print")
    from launcher.render.bundle import render as rendered
    from launcher.render.bundle import write

    made = sound(planned(composer_of(options), options.overrides))
    bundle = rendered(made)
    print_issues(made.issues)
    if options.to_stdout:
        sys.stdout.write(bundle.artefact)
        return 0
    if options.format == "kustomize":
        return _write_kustomize(bundle, options.out)
    folder = Path(options.out) if options.out else Path("bundles") / bundle.name
    with writing(f"{'--out ' if options.out else ''}{folder}", _ELSEWHERE):
        write(bundle, folder)
    print(f"{folder}: {len(bundle.files)} files, content {bundle.content[:16]}")
    for name in sorted(bundle.files):
        print(f"  {name}")
    return 0


def _write_kustomize(bundle: Bundle, out: str | None) -> int:
    """A kustomize base as a folder (default kustomize/NAME). Files of an earlier base are replaced, others left alone."""
    from launcher.render.kustomize import base

    folder, files = Path(out) if out else Path("kustomize") / bundle.name, base(bundle)
    with writing(f"{'--out ' if out else ''}{folder}", _ELSEWHERE):
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    print(f"{folder}: a kustomize base, {', '.join(files)}")
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
    parser.add_argument(
        "--at-once", type=int, metavar="N", help="with -m: at most N runs of one job array at the same time"
    )
    parser.add_argument(
        "--dry-run", choices=["server"], help="let the cluster's server judge it; nothing is submitted or written"
    )
    add_runs(parser)
    hydra_ways.add_options(parser)
    options = parser.parse_intermixed_args(words)
    if any(getattr(options, name) for name in hydra_ways.OPTIONS):
        return hydra_ways.answer(options, options.overrides, _search_path(options))
    if options.dry_run:
        return _rehearse(options)
    if options.at_once is not None and (options.at_once < 1 or not options.multirun):
        message = f"--at-once {options.at_once} wants a sweep (-m), and a number of 1 or more"
        raise Refused(Issue("AT_ONCE", Severity.ERROR, "", message, "-m KEY=A,B,C --at-once 2"))
    if options.multirun:
        return _sweep(options)
    made = planned(composer_of(options), options.overrides)
    return _start(made, options)


def _rehearse(options: argparse.Namespace) -> int:
    from launcher.cli import cluster

    if options.multirun:
        hint = "name one point: leave out -m"
        raise Refused(Issue("DRY_RUN", Severity.ERROR, "", "--dry-run judges one experiment, -m is several", hint))
    made = sound(planned(composer_of(options), options.overrides))
    print_issues(made.issues)
    return cluster.dry_run(made)


def _start(made: Plan, options: argparse.Namespace) -> int:
    """Submit one plan; its warnings are told first, its errors stop it."""
    from launcher.render.bundle import render as rendered
    from launcher.runs import lifecycle

    sound(made)
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
    from launcher.targets.base import CLUSTERS

    if detach and any(made.experiment.target.kind not in CLUSTERS for made in plans):
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
    from launcher.render.bundle import render as rendered
    from launcher.runs import lifecycle

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
    composer = composer_of(options)
    jobs = hydra_ways.points(options.overrides, path)
    plans = []
    wrong = 0
    for words in jobs:
        try:
            plans.append(sound(planned(composer, words)))
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

    def introduce(place: int) -> None:
        print(f"[{place + 1}/{len(jobs)}] {shlex.join(jobs[place])}", flush=True)
        print_issues(plans[place].issues)

    return lifecycle.sweep(
        [(made, rendered(made)) for made in plans],
        introduce,
        runs=options.runs,
        after=options.after,
        singleton=options.singleton,
        at_once=options.at_once,
    )


def _bundle_of(word: str, composer: Composer, runs: str | None) -> Bundle | Path:
    """What a word of `diff` names: an experiment (its words in one argument), a bundle's folder, or a run."""
    if "=" in word:
        from launcher.render.bundle import render as rendered

        return rendered(sound(planned(composer, shlex.split(word))))
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
            "diff moe_tiny_cpu-1a2b3c4d --cluster",
        ],
    )
    parser.add_argument(
        "--cluster",
        action="store_true",
        help="one thing and what its Kubernetes cluster has; exit code 1 when they differ",
    )
    parser.add_argument("--json", action="store_true", help="the same for scripts, on stdout")
    add_runs(parser)
    options = parser.parse_intermixed_args(words)
    composer = composer_of(options)
    if options.cluster and options.overrides:
        from launcher.cli import cluster

        words = options.overrides
        name = shlex.join(words) if all("=" in word for word in words) else words[0]
        return cluster.compare(_bundle_of(name, composer, options.runs), name, options.json)
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

    a, b = (_bundle_of(word, composer, options.runs) for word in options.overrides)
    found = differences(a, b)
    print(json.dumps(found, indent=2, default=str) if options.json else diff_text(found, *options.overrides))
    return 0
