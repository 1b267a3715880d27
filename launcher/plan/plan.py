"""The plan of one experiment: what it means in numbers, what MaxText will be told, and everything that is wrong with it."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from launcher.config import maxtext_schema
from launcher.config.maxtext_schema import Schema
from launcher.config.schema import Experiment
from launcher.issue import Issue, Severity
from launcher.plan import check_memory, memory, numbers
from launcher.plan.case import of
from launcher.plan.check import check
from launcher.plan.mesh import MeshPlan, lay_out
from launcher.plan.numbers import Numbers
from launcher.plan.settings import Settings, settings


@dataclass(frozen=True)
class Batch:
    """Sequences and tokens of one optimizer step."""

    per_device: float
    sequences: int
    tokens: int
    tokens_per_device: int


@dataclass(frozen=True)
class Plan:
    """`mesh`, `batch` and `settings` are None when the mesh (or the batch) itself is impossible; the issues then say why.

    `numbers` is None then too, and where a model or an axis has no formula: `no_numbers` says why.
    """

    experiment: Experiment
    mesh: MeshPlan | None
    batch: Batch | None
    settings: Settings | None
    issues: tuple[Issue, ...]
    numbers: Numbers | None = None
    no_numbers: str = ""

    @property
    def errors(self) -> tuple[Issue, ...]:
        """The issues that forbid a submission."""
        return tuple(i for i in self.issues if i.severity is Severity.ERROR)


def batch_of(experiment: Experiment, mesh: MeshPlan) -> Batch | None:
    """Global batch as MaxText counts it: devices x per_device_batch_size x gradient accumulation; a fractional one is rounded down.

    None for a size that is no positive number (check_run reports it).
    """
    trainer = experiment.trainer
    if not (math.isfinite(trainer.per_device_batch_size) and trainer.per_device_batch_size > 0):
        return None
    sequences = int(mesh.gpus * trainer.per_device_batch_size * trainer.gradient_accumulation_steps)
    tokens = sequences * trainer.max_target_length
    return Batch(trainer.per_device_batch_size, sequences, tokens, tokens // mesh.gpus)


def make(experiment: Experiment) -> Plan:
    """The plan of a composed experiment. Never raises for a user's mistake: that is an Issue."""
    if experiment.trainer.maxtext not in maxtext_schema.versions():
        known = ", ".join(maxtext_schema.versions())
        issue = Issue(
            "MAXTEXT_VERSION",
            Severity.ERROR,
            "trainer.maxtext",
            f"no key snapshot of MaxText {experiment.trainer.maxtext}",
            f"type trainer.maxtext={known}, or make one with tools/maxtext_schema.py",
        )
        return Plan(experiment, None, None, None, (issue,))
    schema = maxtext_schema.load(experiment.trainer.maxtext)
    mesh, mesh_issues = lay_out(experiment)
    if mesh is None:
        return Plan(
            experiment,
            None,
            None,
            None,
            tuple(sorted(mesh_issues + check(experiment, None, schema), key=Issue.rank)),
        )
    chosen = settings(experiment, mesh, schema)
    case = of(experiment, mesh, schema)
    counted = numbers.of(case)
    issues = mesh_issues + check(experiment, mesh, schema)
    issues += check_memory.issues(
        case, counted.memory if counted else None, functools.partial(_legal, mesh=mesh, schema=schema)
    )
    return Plan(
        experiment,
        mesh,
        batch_of(experiment, mesh),
        chosen,
        tuple(sorted(issues, key=Issue.rank)),
        counted,
        "" if counted else memory.missing(case) or "",
    )


def _legal(experiment: Experiment, mesh: MeshPlan, schema: Schema) -> bool:
    """Nothing forbids the experiment on this mesh."""
    return not any(issue.severity is Severity.ERROR for issue in check(experiment, mesh, schema))
