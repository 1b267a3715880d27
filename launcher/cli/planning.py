"""The verbs that say what to expect: plan, search, calibrate."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.cli.composing import composer_of, planned, sound_mesh
from launcher.cli.options import at_least_one, composing_parser, positive, running_parser, writing
from launcher.issue import Issue, Refused, Severity

if TYPE_CHECKING:
    from launcher.plan.plan import Plan


def _calibrated(made: Plan) -> Plan:
    """The plan with the time that runs of its kind took, where there are some."""
    from launcher.config import maxtext_schema
    from launcher.plan import case, numbers
    from launcher.runs import calibration

    if made.numbers is None or made.numbers.throughput is None:
        return made
    known = calibration.load(calibration.file()).of(made.numbers.kind)
    if known is None:
        return made
    of_plan = case.of(made.experiment, made.mesh, maxtext_schema.load(made.experiment.trainer.maxtext))
    return dataclasses.replace(made, numbers=numbers.calibrated(made.numbers, of_plan, *known))


def _write_page(made: Plan, path: Path, cost: str) -> None:
    """The plan with pictures. Raises Refused: it cannot be written there."""
    from launcher.render.plan_page import plan_page

    with writing(f"--html {path}", "name a file in a folder that is there: --html plan.html"):
        path.write_text(plan_page(made, cost), encoding="utf-8")


def plan(words: list[str]) -> int:
    """What the experiment means; exit code 1 when something forbids it."""
    parser = composing_parser(
        "plan",
        "What an experiment means: mesh, NVLink domains, memory, step time, MaxText's keys, every problem.",
        ["plan +exp=dsv3_128gpu", "plan +exp=dsv3_128gpu mesh.ici.expert=4 mesh.ici.fsdp=16 --json"],
    )
    parser.add_argument("--json", action="store_true", help="the same for scripts, on stdout")
    parser.add_argument("--html", metavar="FILE", help="a page with the bars as pictures, beside the text")
    parser.add_argument("--price", type=positive, metavar="USD", help="of a GPU-hour: what a day and the steps cost")
    options = parser.parse_intermixed_args(words)
    from launcher.render.issue_text import issues_json
    from launcher.render.plan_numbers import cost_json, cost_line
    from launcher.render.plan_text import plan_json, plan_text

    try:
        made = _calibrated(planned(composer_of(options), options.overrides))
    except Refused as refused:
        if not options.json:
            raise
        print(json.dumps({"issues": issues_json(refused.issues)}, indent=2))
        return 1
    cost = cost_line(made, options.price) if options.price is not None else ""
    if options.json:
        price = cost_json(made, options.price) if options.price is not None else {}
        print(json.dumps({**plan_json(made), **({"price": price} if price else {})}, indent=2))
    else:
        print(plan_text(made) + (f"\n{cost}\n" if cost else ""), end="")
    if options.html:
        _write_page(made, Path(options.html), cost)
    return 1 if made.errors else 0


def search(words: list[str]) -> int:
    """Other meshes, batches and policies; exit code 1 when nothing fits."""
    parser = composing_parser(
        "search",
        "Every mesh, batch, rematerialization and offload choice for the experiment's GPUs: rejected with a reason, or ranked.",
        ["search +exp=dsv3_128gpu", "search +exp=dsv3_1024gpu --most 20 --json"],
    )
    parser.add_argument("--json", action="store_true", help="the same for scripts, on stdout")
    parser.add_argument("--most", type=at_least_one, default=10, metavar="N", help="rows of the table (default 10)")
    options = parser.parse_intermixed_args(words)
    from launcher.config import maxtext_schema
    from launcher.plan.search import search as searched
    from launcher.render.search_text import search_json, search_text

    made = sound_mesh(planned(composer_of(options), options.overrides))
    assert made.mesh is not None
    if made.numbers is None or made.numbers.throughput is None:
        why = made.no_numbers or f"the rates of {made.experiment.hardware.name} are not known"
        raise Refused(
            Issue(
                "SEARCH",
                Severity.ERROR,
                "",
                f"nothing can be predicted: {why}",
                "name an experiment for GPUs: search +exp=dsv3_128gpu",
            )
        )
    schema = maxtext_schema.load(made.experiment.trainer.maxtext)
    found = searched(made.experiment, made.mesh, schema, options.most)
    print(
        json.dumps(search_json(found), indent=2) if options.json else search_text(found, options.overrides),
        end="\n" if options.json else "",
    )
    return 0 if found.ties else 1


def calibrate(words: list[str]) -> int:
    """Learn from finished runs; `--show` only prints."""
    parser = running_parser(
        "calibrate",
        "Compare the step times of finished runs with what their plans expected, by cluster, container and class of models. "
        "`plan` uses the median from then on.",
        ["calibrate", "calibrate --runs /lustre/me/runs --json"],
    )
    parser.add_argument("--show", action="store_true", help="only print what is known; learn nothing")
    parser.add_argument("--json", action="store_true", help="the same for scripts, on stdout")
    options = parser.parse_args(words)
    from launcher.runs import calibration, measured, store
    from launcher.runs.status import statuses

    path = calibration.file()
    known = calibration.load(path)
    skipped: dict[str, str] = {}
    found: list[calibration.Measured] = []
    if not options.show:
        runs = store.all_runs(store.root(options.runs))
        for run, status in zip(runs, statuses(runs), strict=True):
            said = measured.measure(run, status)
            if isinstance(said, str):
                skipped[run.name] = said
            else:
                found.append(said)
        known = calibration.learned(known, found)
        if found:
            calibration.save(path, known)
    if options.json:
        kinds = [
            {**dataclasses.asdict(kind), "factor": known.of(kind), "runs": dict(runs)}
            for kind, runs in known.runs.items()
        ]
        print(json.dumps({"file": str(path), "kinds": kinds, "skipped": skipped}, indent=2))
        return 0
    for kind in known.runs:
        told = known.of(kind)
        assert told is not None
        print(
            f"{kind.cluster}, {kind.container}, {kind.model}: measured / expected {told[0]:.3g} ({told[1]} run{'s' if told[1] > 1 else ''})"
        )
    if not options.show and not found and not skipped:
        print(f"no run in {store.root(options.runs)}: name the folder of runs with --runs DIR or {store.ROOT_VARIABLE}")
    for name, why in skipped.items():
        print(f"  not {name}: {why}")
    print(f"{'in' if known.runs else 'nothing is known; it would be kept in'} {path}")
    return 0
