"""preflight node: is each node healthy, on this machine or over an allocation."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import sys
from collections.abc import Sequence

from launcher.cli.main import print_issues
from launcher.cli.options import add_runs, composing_parser
from launcher.issue import Issue, Refused, Severity
from launcher.plan.plan import Plan
from launcher.preflight import node as nodes_check
from launcher.preflight.node import Node

ONLY = "monitor.node_check=only"


def _text(nodes: Sequence[Node], verbose: bool) -> str:
    width = max(len(node.name) for node in nodes)
    lines = []
    for node in nodes:
        speeds = ", ".join(f"{name} {value:g}" for name, value in node.speeds.items())
        lines.append(f"{'passed' if node.passed else 'FAILED'}  {node.name:{width}}  {speeds}".rstrip())
        lines += [f"        {reason}" for reason in node.reasons]
        lines += [f"        warning: {warning}" for warning in node.warnings]
        lines += [f"        {seen}" for seen in node.seen] if verbose else []
    failed = [node.name for node in nodes if not node.passed]
    lines.append(f"{len(nodes) - len(failed)} of {len(nodes)} nodes passed")
    if failed:
        lines.append(f"leave out: {','.join(failed)}")
    return "\n".join(lines)


def _outside(made: Plan, name: str, typed: Sequence[str]) -> Refused:
    """Nobody can be asked from here: the two commands that do it. `name`: of the run that the first will make."""
    count, target = made.mesh.nodes if made.mesh else 1, made.experiment.target
    submit = shlex.join(["python", "-m", "launcher", "submit", *typed, ONLY])
    hint = f"ask them by a run that does nothing else, and read its verdict once it has ended:\n       {submit}\n"
    hint += f"       python -m launcher preflight node {name}\n       --here looks at this machine"
    where = "they are Kubernetes' own"
    if target.kind == "slurm":
        where = "this is no SLURM allocation"
        asked = [(key, getattr(target.slurm, key)) for key in ("account", "partition")]
        words = [f"--nodes={count}", *(f"--{key}={value}" for key, value in asked if value)]
        hint += f"; inside of an allocation (`{shlex.join(['salloc', *words])}`) the same command asks all of its nodes"
    message = f"the {count} nodes of {made.experiment.name} cannot be reached from here: {where}"
    return Refused(Issue("NODE_NO_ALLOCATION", Severity.ERROR, "target", message, hint))


def _of_run(name: str, runs: str | None) -> tuple[list[Node], Issue | None]:
    """The verdict of a run whose nodes have examined themselves, and a warning about their domains."""
    from launcher.runs import store
    from launcher.runs.attempts import judge_one

    run = store.open_run(store.root(runs), name)
    judged = judge_one(run)
    launch = run.launch()
    only = bool((launch.get("node_check") or {}).get("only"))
    if judged.attempt is None or (only and judged.is_live):
        message = f"{run.name} is {judged.state}: its nodes have not all answered"
        hint = f"`python -m launcher status {run.name}` says more"
        raise Refused(Issue("NODE_CHECK_RUNS", Severity.ERROR, "", message, hint))
    found = nodes_check.of_attempt(judged.attempt, int(launch["nodes"]) if only else 0)
    if not found:
        message = f"the nodes of {run.name} were not examined in attempt {judged.attempt.number}"
        raise Refused(Issue("NODE_CHECK_NONE", Severity.ERROR, "monitor.node_check", message, f"submit it with {ONLY}"))
    return found, nodes_check.domains(found, int(launch.get("nodes_per_domain") or 1))


def _asked(options: argparse.Namespace) -> tuple[list[Node], Issue | None]:
    """The verdict on nodes that are asked now: this machine, or those of the allocation."""
    from launcher.cli.composing import composer_of, planned, sound

    composer = composer_of(options)
    made = sound(planned(composer, options.overrides))
    alone = options.here or made.experiment.target.kind == "local"
    names = [] if alone else nodes_check.allocation()
    if not alone and not names:
        from launcher.render.bundle import render

        raise _outside(made, render(sound(planned(composer, [*options.overrides, ONLY]))).name, options.overrides)
    asked = nodes_check.questions(
        made.experiment, options.python or (sys.executable if alone else "python3"), not options.no_compute
    )
    where = nodes_check.inside(made.experiment) if options.container else []
    found = nodes_check.here(asked) if alone else nodes_check.everywhere(names, asked, where)
    return found, nodes_check.domains(found, made.mesh.nodes_per_domain) if made.mesh else None


def node(words: list[str]) -> int:
    """Ask the nodes; exit code 1 when one fails."""
    parser = composing_parser(
        "preflight node",
        "Is each node fit: GPUs present, idle and free of errors, links, memory, disk, clock,\nthen a short product and all-reduce. "
        "target=local looks at this machine; inside a SLURM allocation every node of it is asked, at once.\n"
        f"RUN: the verdict of a run that was submitted with {ONLY}, on any target.",
        ["preflight node +exp=moe_tiny_cpu", "preflight node dsv3_128gpu-1a2b3c4d"],
    )
    parser.add_argument("--here", action="store_true", help="this machine alone, whatever the target")
    parser.add_argument(
        "--container", action="store_true", help="in the experiment's container, whose Python has jax (pyxis)"
    )
    parser.add_argument("--no-compute", action="store_true", help="leave out the computation (it needs jax)")
    parser.add_argument(
        "--python", metavar="PY", help="the trainer's Python on the nodes (default: python3; here: the launcher's own)"
    )
    parser.add_argument("--verbose", action="store_true", help="also what was found in order")
    parser.add_argument("--json", action="store_true", help="the same for scripts, on stdout")
    add_runs(parser)
    options = parser.parse_intermixed_args(words)
    is_run = len(options.overrides) == 1 and not set("+~=") & set(options.overrides[0])
    found, issue = _of_run(options.overrides[0], options.runs) if is_run else _asked(options)
    if options.json:
        issues = [dataclasses.asdict(issue)] if issue else []
        listed = [{**dataclasses.asdict(each), "passed": each.passed} for each in found]
        print(json.dumps({"nodes": listed, "issues": issues}, indent=2))
    else:
        print(_text(found, options.verbose))
        sys.stdout.flush()
        print_issues([issue] if issue else [])
    return 0 if all(each.passed for each in found) else 1
