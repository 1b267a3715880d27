"""What every rule of the checks looks at, and how a rule words an issue."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from launcher.config.maxtext_schema import Schema
from launcher.config.overrides import maxtext_home
from launcher.config.schema import Experiment
from launcher.issue import Issue, Severity
from launcher.plan.mesh import MeshPlan
from launcher.plan.model import ModelShape, Values, shape, values


@dataclass(frozen=True, eq=False)
class Case:
    """One experiment with what follows from it. `mesh` is None when it is impossible: rules about it are then silent.

    Two cases are never equal, so that what is worked out from one can be remembered by the case itself.
    """

    experiment: Experiment
    mesh: MeshPlan | None
    values: Values
    shape: ModelShape
    schema: Schema

    @property
    def te(self) -> bool:
        """Transformer Engine's MoE block computes the experts."""
        return self.values.flag("te_moe_block") and self.shape.moe

    @property
    def cpu(self) -> bool:
        """The job runs on CPUs."""
        return self.experiment.hardware.platform == "cpu"

    def size(self, axis: str) -> int:
        """Ranks of one mesh axis; 1 while there is no mesh."""
        return 1 if self.mesh is None else self.mesh.size(axis)

    def field(self, key: str) -> str:
        """Where this experiment sets a MaxText key: as a user would type it."""
        if key in self.experiment.maxtext:
            return f"maxtext.{key}"
        if key in self.experiment.model.overrides:
            return f"model.overrides.{key}"
        return maxtext_home(key) or f"maxtext.{key}"

    def xla(self, name: str, default: bool) -> bool:
        """Whether an XLA flag of two values is set, or what holds where it is not named."""
        return str(self.experiment.xla.flags.get(name, default)).lower() in ("true", "1")

    def typed(self, key: str, value: object) -> str:
        """The override that sets a MaxText key."""
        return f"{self.field(key)}={shown(value)}"


def of(experiment: Experiment, mesh: MeshPlan | None, schema: Schema) -> Case:
    """The case of an experiment on a mesh."""
    found = values(experiment, schema)
    return Case(experiment, mesh, found, shape(found), schema)


Rule = Callable[[Case], Iterable[Issue]]


def shown(value: object) -> str:
    """A value as a user types it: true, null, 6, te_mxfp8.

    >>> shown(True), shown(None), shown(6.0), shown("a b")
    ('true', 'null', '6', 'a b')
    """
    if isinstance(value, str):
        return value or "''"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return json.dumps(value, default=str)


def error(code: str, field: str, message: str, hint: str) -> Issue:
    """An issue that forbids a submission."""
    return Issue(code, Severity.ERROR, field, message, hint)


def warning(code: str, field: str, message: str, hint: str) -> Issue:
    """An issue that the user should know before submitting."""
    return Issue(code, Severity.WARNING, field, message, hint)


def note(code: str, field: str, message: str, hint: str) -> Issue:
    """An issue that only informs."""
    return Issue(code, Severity.NOTE, field, message, hint)
