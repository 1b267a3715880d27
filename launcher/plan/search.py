"""Every mesh, batch, rematerialization and offload choice for an experiment's GPUs: rejected with a reason, or ranked.

The GPUs of a domain stay as the experiment has them; data, FSDP and expert parallelism share them out, inside the domain and between
domains; the other axes stay. Memory grows with the batch, so of each mesh and policy only the largest batch that fits is kept,
and the batch that was asked for. Ranked by expected tokens a second; what lies within the prediction's noise is a tie, and ties
are in the order of fewest changes, then most free memory.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from launcher.config.maxtext_schema import Schema
from launcher.config.schema import Axes, Experiment, Mesh, Remat
from launcher.issue import Severity
from launcher.plan import activations, memory, throughput
from launcher.plan.case import Case, of
from launcher.plan.check import check
from launcher.plan.check_memory import host_limit
from launcher.plan.mesh import AXES, MeshPlan, lay_out
from launcher.plan.model import Values, values
from launcher.plan.shards import cuts

SHARED_OUT = ("data", "fsdp", "expert")
"""The axes that the search sizes."""

OFFLOADED = 3
"""So many of the largest kept tensors are tried in host memory, in every combination."""

MOST_BATCH = 16

LARGEST_BATCH = 512
"""Twice this is the largest batch that is tried."""

CROSSING = "expert groups cross NVLink domains"


@dataclass(frozen=True)
class Choice:
    """One legal choice. `words` are the overrides on top of the experiment; empty = as asked. `rate`: tokens/s a GPU."""

    words: tuple[str, ...]
    mesh: MeshPlan
    batch: float
    memory: memory.Memory
    rate: float
    expected: float

    @property
    def headroom(self) -> int:
        """Bytes left of what XLA may use."""
        return self.memory.limit - self.memory.total


@dataclass(frozen=True)
class Found:
    """`ties`: choices that the prediction cannot tell from the fastest; `slower`: the rest; `rejected`: reason -> choices."""

    fastest: Choice | None
    ties: tuple[Choice, ...]
    slower: tuple[Choice, ...]
    rejected: Mapping[str, int]
    looked_at: int
    gpus: int


def _triples(total: int) -> Iterator[tuple[int, int, int]]:
    """All (data, fsdp, expert) with this product."""
    for data in (n for n in range(1, total + 1) if total % n == 0):
        rest = total // data
        for fsdp in (n for n in range(1, rest + 1) if rest % n == 0):
            yield data, fsdp, rest // fsdp


def _meshes(asked: MeshPlan) -> Iterator[dict[str, dict[str, int]]]:
    """Every way to share the GPUs of a domain, and the domains, out to the three axes."""
    parts = {}
    for part, sizes in (("ici", asked.ici), ("dcn", asked.dcn)):
        free = 1
        for axis in SHARED_OUT:
            free *= sizes[axis]
        parts[part] = [dict(sizes) | dict(zip(SHARED_OUT, triple, strict=True)) for triple in _triples(free)]
    for ici, dcn in itertools.product(parts["ici"], parts["dcn"]):
        yield {"ici": ici, "dcn": dcn}


def _mesh_words(sizes: Mapping[str, Mapping[str, int]], asked: MeshPlan) -> tuple[str, ...]:
    before = {"ici": asked.ici, "dcn": asked.dcn}
    return tuple(
        f"mesh.{part}.{axis}={sizes[part][axis]}"
        for part in ("ici", "dcn")
        for axis in AXES
        if sizes[part][axis] != before[part][axis]
    )


def _with_mesh(experiment: Experiment, sizes: Mapping[str, Mapping[str, int]]) -> Experiment:
    return dataclasses.replace(experiment, mesh=Mesh(ici=Axes(**sizes["ici"]), dcn=Axes(**sizes["dcn"])))


def remats(case: Case) -> list[tuple[tuple[str, ...], Remat]]:
    """As asked, with the largest kept tensors in host memory, with more kept, and with everything computed again."""
    asked = case.experiment.remat
    found: list[tuple[tuple[str, ...], Remat]] = [((), asked)]
    if case.values.text("remat_policy") == "custom":
        names = [k.name for k in activations.kept(case) if k.where == "device" and hasattr(asked, k.name)][:OFFLOADED]
        for size in range(1, len(names) + 1):
            for chosen in itertools.combinations(names, size):
                words = tuple(f"remat.{name}=offload" for name in chosen)
                found.append((words, dataclasses.replace(asked, **dict.fromkeys(chosen, "offload"))))
    for policy in ("full", "minimal"):
        if case.values.text("remat_policy") != policy:
            found.append(((f"remat={policy}",), Remat(remat_policy=policy)))
    return found


def _mesh_fault(case: Case) -> str | None:
    """Why a mesh is out of the question, by rules that cost little."""
    mesh, shape = case.mesh, case.shape
    assert mesh is not None
    if shape.moe and shape.experts % mesh.expert_parallel:
        return "the experts do not divide over the expert axis"
    if not shape.moe and mesh.expert_parallel > 1:
        return "an expert axis without experts"
    if not mesh.experts_in_domain:
        return CROSSING
    uneven = next((cut for cut in cuts(case) if cut.size % cut.shards), None)
    return f"{uneven.tensor} does not divide over its shards" if uneven else None


class _Search:
    """One search: what was asked, what is remembered between choices, and the counts of what was looked at."""

    def __init__(self, experiment: Experiment, mesh: MeshPlan, schema: Schema) -> None:
        self.experiment, self.mesh, self.schema = experiment, mesh, schema
        self.rejected: Counter[str] = Counter()
        self.looked_at = 0
        asked = min(int(experiment.trainer.per_device_batch_size), LARGEST_BATCH)
        self.batches = sorted(
            {float(n) for n in range(1, max(MOST_BATCH, 2 * asked) + 1)} | {experiment.trainer.per_device_batch_size}
        )
        case = of(experiment, mesh, schema)
        self.shape, self.host_limit, self.remats = case.shape, host_limit(case), remats(case)
        self._asked: list[Remat] = []
        self._values: list[Values] = []
        self._fitting: dict[tuple[tuple[int, ...], int], tuple[int, str]] = {}

    def _reject(self, reason: str, choices: int) -> None:
        self.rejected[reason] += choices

    def _forbidden(self, experiment: Experiment, mesh: MeshPlan) -> str | None:
        """The first error of the launcher's own checks."""
        errors = (i for i in check(experiment, mesh, self.schema) if i.severity is Severity.ERROR)
        first = next(errors, None)
        return f"{first.code}: {first.message}" if first else None

    def choices(self) -> Iterator[Choice]:
        """Every choice that is legal and fits, of each mesh and policy the largest batch and the one asked for."""
        each = len(self.batches) * len(self.remats)
        for sizes in _meshes(self.mesh):
            self.looked_at += each
            if sizes["dcn"]["expert"] > self.mesh.dcn["expert"]:
                self._reject(CROSSING, each)
                continue
            experiment = _with_mesh(self.experiment, sizes)
            mesh, issues = lay_out(experiment)
            if mesh is None:
                self._reject(issues[0].code, each)
                continue
            fault = _mesh_fault(self._case(mesh, experiment.remat, experiment.trainer.per_device_batch_size))
            if fault:
                self._reject(fault, each)
                continue
            words = _mesh_words(sizes, self.mesh)
            for number, (more, _) in enumerate(self.remats):
                yield from self._batches(mesh, number, (*words, *more))

    def _case(self, mesh: MeshPlan, remat: Remat, batch: float) -> Case:
        """The case of one choice; only what differs between choices is worked out again."""
        if remat not in self._asked:
            self._asked.append(remat)
            self._values.append(values(dataclasses.replace(self.experiment, remat=remat), self.schema))
        asked = self._values[self._asked.index(remat)]
        changed = dataclasses.replace(asked, asked={**asked.asked, "per_device_batch_size": batch})
        return Case(self.experiment, mesh, changed, self.shape, self.schema)

    def _fault(self, case: Case) -> str | None:
        """Why a case does not fit its memory."""
        needed = memory.estimate(case)
        if needed is None:
            return memory.missing(case) or "no estimate"
        if needed.verdict is not memory.Verdict.FITS:
            return f"memory {needed.verdict}"
        return "host memory" if needed.host > self.host_limit else None

    def _largest(self, mesh: MeshPlan, number: int) -> tuple[int, str]:
        """How many of the batches fit, and why the next does not; found by halving, once for equal sizes of the axes."""
        key = (tuple(mesh.size(axis) for axis in SHARED_OUT), number)
        if key not in self._fitting:
            low, high, why = 0, len(self.batches), ""
            while low < high:
                middle = (low + high) // 2
                fault = self._fault(self._case(mesh, self.remats[number][1], self.batches[middle]))
                low, high, why = (middle + 1, high, why) if fault is None else (low, middle, fault)
            self._fitting[key] = low, why
        return self._fitting[key]

    def _batches(self, mesh: MeshPlan, number: int, words: tuple[str, ...]) -> Iterator[Choice]:
        """The largest batch that fits, and the batch asked for if that is smaller."""
        fitting, why = self._largest(mesh, number)
        if why:
            self._reject(why, len(self.batches) - fitting)
        if not fitting:
            return
        asked = self.experiment.trainer.per_device_batch_size
        largest = self.batches[fitting - 1]
        for batch in sorted({largest, min(asked, largest)}):
            case = self._case(mesh, self.remats[number][1], batch)
            time, needed = throughput.estimate(case), memory.estimate(case)
            assert needed is not None
            if time is not None:
                changed = () if batch == asked else (f"trainer.per_device_batch_size={batch:g}",)
                yield Choice((*words, *changed), mesh, batch, needed, time.tokens / time.expected, time.expected)

    def legal(self, choice: Choice) -> bool:
        """Does nothing forbid it? Counts the reason when something does."""
        experiment = applied(self.experiment, self.remats, choice)
        reason = self._forbidden(experiment, choice.mesh)
        if reason:
            self._reject(reason.partition(":")[0], 1)
        return reason is None


def applied(experiment: Experiment, choices: Sequence[tuple[tuple[str, ...], Remat]], choice: Choice) -> Experiment:
    """The experiment with a choice in it."""
    remat = next((r for words, r in reversed(choices) if words and set(words) <= set(choice.words)), experiment.remat)
    changed = _with_mesh(experiment, {"ici": dict(choice.mesh.ici), "dcn": dict(choice.mesh.dcn)})
    trainer = dataclasses.replace(experiment.trainer, per_device_batch_size=choice.batch)
    return dataclasses.replace(changed, remat=remat, trainer=trainer)


def search(experiment: Experiment, mesh: MeshPlan, schema: Schema, most: int = 10) -> Found:
    """Look at every choice; the first `most` of the ties, and of the slower ones, have passed every check of `plan`."""
    doing = _Search(experiment, mesh, schema)
    found = sorted(doing.choices(), key=lambda c: (-c.rate, c.words))
    best = next((c for c in found if doing.legal(c)), None)
    if best is None:
        return Found(None, (), (), dict(doing.rejected), doing.looked_at, mesh.gpus)
    noise = throughput.constants()["band"]["tie"]
    near = [c for c in found if c.rate >= best.rate * (1 - noise)]
    near.sort(key=lambda c: (len(c.words), -round(c.rate / best.rate, 2), -c.headroom, c.words))
    far = [c for c in found if c.rate < best.rate * (1 - noise)]
    ties, slower = (tuple(itertools.islice(filter(doing.legal, group), most)) for group in (near, far))
    return Found(best, ties, slower, dict(doing.rejected), doing.looked_at, mesh.gpus)
