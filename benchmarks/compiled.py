"""XLA's own memory figures as cases: the rows of launcher/data/prediction/xla_memory.csv."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass

from launcher.config import maxtext_schema
from launcher.config.compose import Composer
from launcher.plan import memory
from launcher.plan.case import Case, of
from launcher.plan.mesh import lay_out

GIB = 1 << 30


@dataclass(frozen=True)
class Compiled:
    """One compilation: `words` compose the case; `device`, `arguments`, `host` in bytes (device None where it was not noted)."""

    name: str
    words: tuple[str, ...]
    case: Case
    names_beyond: frozenset[str]
    device: float | None
    arguments: float
    host: float

    @property
    def estimate(self) -> memory.Memory:
        """What `plan` says of the case."""
        found = memory.estimate(self.case, self.names_beyond)
        assert found is not None, memory.missing(self.case)
        return found

    @property
    def model(self) -> str:
        """The first word of the name."""
        return self.name.split()[0]


def case_of(composer: Composer, words: tuple[str, ...]) -> Case:
    """The case of an experiment that has a mesh, whatever the other checks say of it."""
    composed = composer.compose(list(words))
    assert composed.experiment is not None, composed.issues
    mesh, issues = lay_out(composed.experiment)
    assert mesh is not None, issues
    return of(composed.experiment, mesh, maxtext_schema.load(composed.experiment.trainer.maxtext))


def rows() -> Iterator[Compiled]:
    """Every compilation."""
    composer = Composer()
    with (memory.DATA / "xla_memory.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            words = tuple(row["words"].split())
            yield Compiled(
                row["name"],
                words,
                case_of(composer, words),
                frozenset(row["names_beyond"].split()),
                float(row["device_gib"]) * GIB if row["device_gib"] else None,
                float(row["arguments_gib"]) * GIB,
                float(row["host_gib"]) * GIB,
            )
