"""Does a step fit into a GPU and its host? Not a rule among the others: what would fit has to pass those first."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from launcher.config.schema import Experiment, Remat
from launcher.issue import Issue
from launcher.plan import activations, memory
from launcher.plan.case import Case, note, of, warning
from launcher.plan.check_remat import DEFAULT_LIMIT_GIB, GIB, LIMIT

Legal = Callable[[Experiment], bool]
"""Does nothing forbid this experiment?"""


@dataclass(frozen=True)
class Change:
    """Override words, and the memory that they lead to."""

    words: str
    memory: memory.Memory


def host_limit(case: Case) -> int:
    """Bytes of host memory that one process may use for what is offloaded."""
    variables = {**case.experiment.fabric.vars, **case.experiment.env.vars}
    text = str(variables.get(LIMIT, DEFAULT_LIMIT_GIB))
    pool = (int(text) if text.isascii() and text.isdigit() else DEFAULT_LIMIT_GIB) * GIB
    hardware = case.experiment.hardware
    if hardware.host_memory_bytes > 0 and hardware.gpus_per_node > 0:
        pool = min(pool, hardware.host_memory_bytes // hardware.gpus_per_node)
    return pool


def _fits(case: Case, changed: Experiment, legal: Legal) -> memory.Memory | None:
    """The memory of a changed experiment on the same mesh, if it fits GPU and host and nothing forbids it."""
    other = of(changed, case.mesh, case.schema)
    needed = memory.estimate(other)
    if needed is None or needed.verdict is not memory.Verdict.FITS or needed.host > host_limit(other):
        return None
    return needed if legal(changed) else None


def _offloads(case: Case) -> Iterator[tuple[str, Experiment]]:
    """One kept tensor sent to the host, the smallest first."""
    if case.values.text("remat_policy") != "custom":
        return
    for kept in reversed(activations.kept(case)):
        if kept.where == "device" and hasattr(case.experiment.remat, kept.name):
            remat = dataclasses.replace(case.experiment.remat, **{kept.name: "offload"})
            rest = {key: value for key, value in case.experiment.maxtext.items() if key != kept.name}
            yield f"remat.{kept.name}=offload", dataclasses.replace(case.experiment, remat=remat, maxtext=rest)


def _batches(case: Case) -> Iterator[tuple[str, Experiment]]:
    """The largest smaller batch whose memory fits; found by halving, since memory grows with the batch."""

    def smaller(batch: int) -> Experiment:
        trainer = dataclasses.replace(case.experiment.trainer, per_device_batch_size=float(batch))
        return dataclasses.replace(case.experiment, trainer=trainer)

    low, high = 0, math.ceil(case.experiment.trainer.per_device_batch_size) - 1
    while low < high:
        middle = (low + high + 1) // 2
        needed = memory.estimate(of(smaller(middle), case.mesh, case.schema))
        fits = needed is not None and needed.verdict is memory.Verdict.FITS
        low, high = (middle, high) if fits else (low, middle - 1)
    if low:
        yield f"trainer.per_device_batch_size={low}", smaller(low)


def _recomputed(case: Case) -> Iterator[tuple[str, Experiment]]:
    """Everything computed again."""
    if case.values.text("remat_policy") != "full":
        yield "remat=full", dataclasses.replace(case.experiment, remat=Remat())


def cures(case: Case, legal: Legal) -> list[Change]:
    """One change each that makes the experiment fit: an offload, a smaller batch, more recomputation; found by trying."""
    found = []
    for candidates in (_offloads, _batches, _recomputed):
        for words, changed in candidates(case):
            needed = _fits(case, changed, legal)
            if needed is not None:
                found.append(Change(words, needed))
                break
    return found


def gib(size: float) -> str:
    """Bytes as GiB with one digit.

    >>> gib(2**30 * 1.25)
    '1.2'
    """
    return f"{size / GIB:,.1f}"


def _said(change: Change) -> str:
    host = f" and {gib(change.memory.host)} GiB of host memory a process" if change.memory.host else ""
    return f"{change.words} ({gib(change.memory.total)} GiB{host})"


def _hint(case: Case, legal: Legal) -> str:
    found = cures(case, legal)
    if not found:
        return "`python -m launcher search` with the same words looks for another mesh"
    return "type " + " or ".join(map(_said, found))


def issues(case: Case, needed: memory.Memory | None, legal: Legal) -> Iterator[Issue]:
    """What does not fit, or only just. Warnings: the estimate may be wrong, and `preflight aot` is the judge."""
    if needed is None:
        return
    field = "trainer.per_device_batch_size"
    may = f"XLA may use {gib(needed.limit)} ({needed.fraction:g} x {gib(case.experiment.hardware.hbm_bytes)})"
    if needed.verdict is memory.Verdict.OVER:
        message = f"OVER: the step needs {gib(needed.total)} GiB a GPU (+-{needed.error:.0%}), {may}"
        yield warning("MEMORY_OVER", field, message, _hint(case, legal))
    if needed.verdict is memory.Verdict.TIGHT:
        message = f"TIGHT: the step needs {gib(needed.total)} GiB a GPU (+-{needed.error:.0%}), {may}"
        yield note(
            "MEMORY_TIGHT", field, message, "`python -m launcher preflight aot` with the same words asks XLA's compiler"
        )
    pool = host_limit(case)
    if needed.host > pool and not case.cpu:
        names = ", ".join(part.name for part in needed.offloaded)
        message = f"{names}: {gib(needed.host)} GiB of host memory a process, and {gib(pool)} are allowed"
        yield warning("HOST_OFFLOAD_OVER", f"env.vars.{LIMIT}", message, f"raise env.vars.{LIMIT}, or offload less")
