"""Everything that a plan says in numbers: parameters, FLOP, memory, traffic, time."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from launcher.plan import flops, memory, params, throughput, traffic
from launcher.plan.case import Case


@dataclass(frozen=True)
class Kind:
    """What measured / expected is taken over: one cluster, one container image, one class of models."""

    cluster: str
    container: str
    model: str


@dataclass(frozen=True)
class Numbers:
    """`throughput` is None for hardware whose rates are not known (CPUs)."""

    parameters: params.Parameters
    flops: flops.Flops
    memory: memory.Memory
    traffic: traffic.Traffic
    throughput: throughput.Throughput | None
    kind: Kind


def kind(case: Case) -> Kind:
    """Target, hardware and fabric; image; decoder, expert path and what the GEMMs are quantised to."""
    experiment = case.experiment
    quantised = dict.fromkeys(case.values.text(key) for key in ("quantization", "te_gmm_quantization"))
    parts = [case.shape.decoder_block, memory.path(case), *(word for word in quantised if word)]
    return Kind(
        f"{experiment.target.kind} {experiment.hardware.name} {experiment.fabric.name}",
        experiment.container.image or "no container",
        " ".join(parts),
    )


def of(case: Case) -> Numbers | None:
    """The numbers of a case; None when `memory.missing` says why there are none."""
    counted, needed, moved = params.count(case), memory.estimate(case), traffic.estimate(case)
    if counted is None or needed is None or moved is None:
        return None
    each = flops.per_token(case.shape, case.values.whole("max_target_length"))
    return Numbers(counted, each, needed, moved, throughput.estimate(case), kind(case))


def calibrated(numbers: Numbers, case: Case, factor: float, runs: int) -> Numbers:
    """The same with the time of this cluster: measured / expected was `factor` over that many runs."""
    return dataclasses.replace(numbers, throughput=throughput.estimate(case, factor, runs))
