"""Nodes judged side by side: what each of them said of itself (launcher/node/health.py), and who is slower than the others."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.config.schema import Experiment
from launcher.issue import Issue, Refused, Severity
from launcher.node import fitness, health
from launcher.node.layout import AttemptFolder
from launcher.node.pace import far_below
from launcher.render.container import container
from launcher.render.node_check import expected

PROGRAM = Path(health.__file__)

TIMEOUT_S = 600


@dataclass(frozen=True)
class Node:
    """One node. `reasons` why it shall not be used, `warnings` what else was seen; speeds by measure."""

    name: str
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    seen: tuple[str, ...] = ()
    speeds: Mapping[str, float] = field(default_factory=dict)
    domain: str = ""

    @property
    def passed(self) -> bool:
        """Whether it can be used."""
        return not self.reasons


def slow(speeds: Mapping[str, float]) -> dict[str, str]:
    """Node -> why it is called slow: far below the median of all. Within 5 % is no reason to give a node back.

    >>> slow({"n1": 100, "n2": 101, "n3": 99, "n4": 60})
    {'n4': '60 against a median of 99.5, 40 % below'}
    >>> slow({"n1": 100, "n2": 50})
    {}
    """
    return {
        node: f"{speeds[node]:g} against a median of {median:g}, {1 - speeds[node] / median:.0%} below".replace(
            "%", " %"
        )
        for node, median in far_below(speeds).items()
    }


def parse(text: str) -> list[dict[str, Any]]:
    """The reports in what the nodes printed; other lines (a banner, a warning) are passed over."""
    reports = []
    for line in text.splitlines():
        _, found, rest = line.partition(health.PREFIX)
        if found:
            try:
                report = json.loads(rest)
            except ValueError:
                continue
            if isinstance(report, dict) and {"node", "findings"} <= report.keys():
                reports.append(report)
    return reports


def _common(values: Mapping[str, str]) -> str:
    return statistics.mode(values.values()) if values else ""


def judge(reports: Sequence[Mapping[str, Any]], wanted: Sequence[str] = ()) -> list[Node]:
    """Every node's verdict. `wanted`: the nodes that were asked; one that gave no answer fails."""
    by_name = {report["node"]: report for report in reports}
    measures = sorted({name for report in reports for name in report.get("speeds", {})})
    late: dict[str, list[str]] = {}
    for measure in measures:
        speeds = {
            node: report["speeds"][measure] for node, report in by_name.items() if measure in report.get("speeds", {})
        }
        for node, why in slow(speeds).items():
            late.setdefault(node, []).append(f"slow: {measure} {why}")
    drivers = {node: report["driver"] for node, report in by_name.items() if report.get("driver")}
    usual = _common(drivers)
    nodes = []
    for name in sorted({*by_name, *wanted}):
        report = by_name.get(name)
        if report is None:
            nodes.append(Node(name, ("it gave no answer",)))
            continue
        found = {
            level: [f"{f['name']}: {f['seen']}" for f in report["findings"] if f["level"] == level]
            for level in (health.FAIL, health.WARN, health.OK)
        }
        other = [f"driver {drivers[name]}, the others have {usual}"] if drivers.get(name, usual) != usual else []
        nodes.append(
            Node(
                name,
                (*found[health.FAIL], *late.get(name, [])),
                (*found[health.WARN], *other),
                tuple(found[health.OK]),
                report.get("speeds", {}),
                report.get("domain", ""),
            )
        )
    return nodes


def questions(experiment: Experiment, python: str, compute: bool = True, gpus: int | None = None) -> list[str]:
    """The words for health.py: what the experiment needs of a node."""
    hardware = experiment.hardware
    words = expected(experiment, hardware.gpus_per_node if gpus is None else gpus, hardware.domain_nodes > 1)
    words += ["--disk", "/tmp"]
    directory = experiment.checkpoint.directory
    words += ["--disk", directory] if directory and "://" not in directory else []
    words += ["--python", python]
    return words if compute else [*words, "--no-compute"]


def inside(experiment: Experiment) -> list[str]:
    """srun's words for the experiment's container (pyxis), where the trainer's Python and its jax are; none without an image."""
    wanted = container(experiment)
    if wanted is None:
        return []
    words = [f"--container-image={wanted['file'] or wanted['image']}"]
    mounts = experiment.container.mounts
    return [*words, f"--container-mounts={','.join(mounts)}"] if mounts else words


def srun(nodes: int, words: Sequence[str], where: Sequence[str] = ()) -> list[str]:
    """The step that asks every node of an allocation; the program comes on standard input, which srun gives to every task.

    `where`: srun's further words, such as the container's.
    """
    return ["srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", *where, "python3", "-", *words]


def _run(command: Sequence[str], program: str | None, timeout_s: float) -> str:
    """What a command prints, whatever its exit code: a bad node ends with 79.

    Raises Refused: it does not start, or not end.
    """
    try:
        done = subprocess.run(
            command, input=program, capture_output=True, text=True, errors="replace", timeout=timeout_s
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        message = f"{command[0]}: {error}"
        raise Refused(Issue("NODE_CHECK", Severity.ERROR, "", message, "try on an idle machine")) from error
    if not parse(done.stdout):
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        message = f"{command[0]} brought no answer: {last[:300]}"
        raise Refused(Issue("NODE_CHECK", Severity.ERROR, "", message, "the text says what is missing"))
    return done.stdout


def here(words: Sequence[str]) -> list[Node]:
    """This machine alone."""
    return judge(parse(_run([sys.executable, str(PROGRAM), *words], None, TIMEOUT_S)))


def allocation() -> list[str]:
    """The nodes of the SLURM allocation that this process is in; none outside of one."""
    names = os.environ.get("SLURM_JOB_NODELIST", "")
    if not names:
        return []
    done = subprocess.run(["scontrol", "show", "hostnames", names], capture_output=True, text=True, timeout=60)
    return done.stdout.split()


def everywhere(names: Sequence[str], words: Sequence[str], where: Sequence[str] = ()) -> list[Node]:
    """All nodes of this allocation, at once."""
    text = _run(srun(len(names), words, where), PROGRAM.read_text(encoding="utf-8"), TIMEOUT_S)
    return judge(parse(text), names)


def of_attempt(attempt: AttemptFolder, silent: int) -> list[Node]:
    """The verdict on the nodes that have examined themselves in an attempt; empty when none has left a word.

    silent: how many nodes there are, each of which fails without a report; 0 = those that have one are all that count.
    """
    answers = fitness.Answers(attempt, None)
    answers.look()
    names = {node: fitness.name_of(attempt, node) for node in {*answers.reports, *range(silent)}}
    twice = {name for name in names.values() if list(names.values()).count(name) > 1}
    names = {node: f"{name} (node {node})" if name in twice else name for node, name in names.items()}
    found = judge([{**report, "node": names[node]} for node, report in answers.reports.items()])
    missing = {node: why for node, why in answers.unfit(silent).items() if node not in answers.reports}
    return sorted([*found, *(Node(names[node], (why,)) for node, why in missing.items())], key=lambda node: node.name)


def domains(nodes: Sequence[Node], size: int) -> Issue | None:
    """A warning when the nodes do not lie in NVLink domains of `size` nodes; None where no node tells of its domain."""
    counts: dict[str, int] = {}
    for node in nodes:
        if node.domain:
            counts[node.domain] = counts.get(node.domain, 0) + 1
    if not counts or all(n % size == 0 for n in counts.values()):
        return None
    shown = " + ".join(str(n) for n in sorted(counts.values(), reverse=True))
    message = f"the nodes lie in NVLink domains of {shown}, the mesh wants {size} in each"
    return Issue(
        "NODE_DOMAINS", Severity.WARNING, "mesh.ici", message, "ask for whole racks: target.slurm.segment=true"
    )
