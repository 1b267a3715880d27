"""preflight node: is each node healthy, on this machine or over an allocation."""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
from collections.abc import Sequence

from launcher.cli.main import print_issues
from launcher.cli.options import composing_parser
from launcher.issue import Issue, Refused, Severity
from launcher.plan.plan import Plan
from launcher.preflight import node as nodes_check
from launcher.preflight.node import Node


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


def _outside(made: Plan, words: Sequence[str], where: Sequence[str]) -> Refused:
    """Nobody can be asked from here: what to type."""
    slurm, count = made.experiment.target.slurm, made.mesh.nodes if made.mesh else 1
    message = f"the {count} nodes of {made.experiment.name} cannot be reached from here"
    if made.experiment.target.kind == "kubernetes":
        alone = shlex.join(["python3", "-", *words])
        hint = (
            "launcher/node/health.py is one file: in a pod on each node `kubectl exec -i POD -- "
            f"{alone} < launcher/node/health.py` (exit code 79: bad)\n       --here looks at this machine"
        )
        return Refused(
            Issue("NODE_NO_ALLOCATION", Severity.ERROR, "target", f"{message}: they are Kubernetes' own", hint)
        )
    asked = [
        f"--{name}={value}" for name, value in (("account", slurm.account), ("partition", slurm.partition)) if value
    ]
    inside = shlex.join(nodes_check.srun(count, words, where))
    hint = (
        f"in an allocation the same command asks all of its nodes: `{shlex.join(['salloc', f'--nodes={count}', *asked])}`, or by hand:\n"
        f"       {inside} < launcher/node/health.py\n       --here looks at this machine"
    )
    return Refused(
        Issue("NODE_NO_ALLOCATION", Severity.ERROR, "target", f"{message}: this is no SLURM allocation", hint)
    )


def node(words: list[str]) -> int:
    """Ask the nodes; exit code 1 when one fails."""
    parser = composing_parser(
        "preflight node",
        "Is each node fit: GPUs present, idle and free of errors, links, memory, disk, clock,\nthen a short product and all-reduce. "
        "target=local looks at this machine; inside a SLURM allocation every node of it is asked, at once.",
        ["preflight node +exp=moe_tiny_cpu", "preflight node +exp=dsv3_128gpu --here --no-compute"],
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
    options = parser.parse_intermixed_args(words)
    from launcher.cli.composing import composer_of, planned, sound

    made = sound(planned(composer_of(options), options.overrides))
    alone = options.here or made.experiment.target.kind == "local"
    asked = nodes_check.questions(
        made.experiment, options.python or (sys.executable if alone else "python3"), not options.no_compute
    )
    where = nodes_check.inside(made.experiment) if options.container else []
    names = [] if alone else nodes_check.allocation()
    if not alone and not names:
        raise _outside(made, asked, where)
    found = nodes_check.here(asked) if alone else nodes_check.everywhere(names, asked, where)
    issue = nodes_check.domains(found, made.mesh) if made.mesh else None
    if options.json:
        issues = [dataclasses.asdict(issue)] if issue else []
        listed = [{**dataclasses.asdict(each), "passed": each.passed} for each in found]
        print(json.dumps({"nodes": listed, "issues": issues}, indent=2))
    else:
        print(_text(found, options.verbose))
        sys.stdout.flush()
        print_issues([issue] if issue else [])
    return 0 if all(each.passed for each in found) else 1
