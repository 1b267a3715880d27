"""What a compilation says of an experiment: memory against what a GPU has, traffic, names that matched, and how it compares."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from launcher.issue import Issue, Severity
from launcher.plan.memory import DEFAULT_FRACTION, FRACTION, Verdict
from launcher.plan.plan import Plan
from launcher.preflight.aot_traffic import Flow

GIB = 2**30

HOST_LIMIT = "XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB"

TIGHT = 0.95
"""Share of the limit above which little room is left for what XLA's compiler cannot see here: the workspaces of cuDNN and of
autotuned kernels, and the allocator's gaps (guess: no real run has been compared yet)."""


@dataclass(frozen=True)
class Names:
    """Names that a remat policy can speak of: `present` in the step with their counts, `kept` and `offloaded` that matched
    one, and `idle` those configured that match nothing."""

    present: Mapping[str, int]
    kept: tuple[str, ...]
    offloaded: tuple[str, ...]
    idle: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """Bytes of one GPU, and of one process' host memory.

    Attributes:
        arguments: state and batch; temporary: what the step allocates at its peak; device: all of it together.
        limit: XLA_PYTHON_CLIENT_MEM_FRACTION x the GPU's memory.
        host: host memory that the step's offloaded tensors take.
        flows: collectives and the expert exchange, the largest first.
        seconds: of each stage, and of the whole as `total`.
        cached: it was not compiled now.
    """

    gpu: str
    versions: Mapping[str, str]
    mesh: Mapping[str, int]
    arguments: int
    temporary: int
    device: int
    limit: int
    fraction: float
    host: int
    names: Names
    flows: tuple[Flow, ...]
    seconds: Mapping[str, float]
    cached: bool

    @property
    def verdict(self) -> Verdict:
        """Of the compiled step's memory against the limit."""
        if self.device > self.limit:
            return Verdict.OVER
        return Verdict.TIGHT if self.device > TIGHT * self.limit else Verdict.FITS

    @property
    def repeated(self) -> tuple[int, int, int]:
        """All-gathers that XLA makes again to save memory: instructions, their calls a step, and bytes of their results."""
        chosen = [flow for flow in self.flows if flow.kind == "all-gather"]
        return (
            sum(flow.repeated for flow in chosen),
            sum(flow.repeated_calls for flow in chosen),
            sum(flow.repeated_bytes for flow in chosen),
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON, with what follows from the numbers."""
        instructions, calls, size = self.repeated
        return {
            **dataclasses.asdict(self),
            "verdict": self.verdict,
            "repeated_all_gathers": {"instructions": instructions, "calls": calls, "bytes": size},
        }


def fraction_of(plan: Plan) -> float:
    """The share of a GPU's memory that JAX may take in this experiment."""
    variables = {**plan.experiment.fabric.vars, **plan.experiment.env.vars}
    try:
        share = float(variables.get(FRACTION, DEFAULT_FRACTION))
    except (TypeError, ValueError):
        return DEFAULT_FRACTION
    return share if 0 < share <= 1 else DEFAULT_FRACTION


def names_of(answer: Mapping[str, Any], custom: bool) -> Names:
    """What the remat policy keeps, offloads, and speaks of in vain; MaxText reads the names for `custom` alone."""
    present = dict(answer["names"])
    device, host = (tuple(answer[where]) if custom else () for where in ("on_device", "to_host"))
    return Names(
        present,
        tuple(name for name in device if name in present),
        tuple(name for name in host if name in present),
        tuple(name for name in (*device, *host) if name not in present),
    )


def build(answer: Mapping[str, Any], plan: Plan, gpu: tuple[str, int], cached: bool) -> Report:
    """The report of one answer of the probe. `gpu`: its name, and its memory in bytes."""
    memory, keys = answer["memory"], plan.settings.keys if plan.settings else {}
    fraction = fraction_of(plan)
    device = memory["argument"] + memory["temp"] + memory["output"] - memory["alias"]
    return Report(
        gpu=gpu[0],
        versions=answer["versions"],
        mesh={name: n for name, n in answer["mesh"].items() if n > 1},
        arguments=memory["argument"],
        temporary=memory["temp"],
        device=device,
        limit=int(fraction * gpu[1]),
        fraction=fraction,
        host=memory["host_temp"] + memory["host_argument"],
        names=names_of(answer, keys.get("remat_policy") == "custom"),
        flows=tuple(Flow(**{**flow, "axes": tuple(flow["axes"])}) for flow in answer["flows"]),
        seconds=answer["seconds"],
        cached=cached,
    )


def _host_issues(report: Report, plan: Plan) -> list[Issue]:
    hardware, variables = plan.experiment.hardware, {**plan.experiment.fabric.vars, **plan.experiment.env.vars}
    issues = []
    each, has = hardware.gpus_per_node, hardware.host_memory_bytes
    if has and report.host * each > has:
        message = f"{each} x {report.host / GIB:.1f} GiB are offloaded on a node, which has {has / GIB:.0f} GiB"
        issues.append(Issue("AOT_HOST_OVER", Severity.ERROR, "remat", message, "offload less"))
    try:
        limit = float(variables.get(HOST_LIMIT, "inf"))
    except (TypeError, ValueError):
        limit = float("inf")
    if report.host > limit * GIB:
        message = f"{report.host / GIB:.1f} GiB are offloaded a process, {HOST_LIMIT}={limit:g} allows less"
        hint = f"type env.vars.{HOST_LIMIT}={report.host // GIB + 8}"
        issues.append(Issue("AOT_HOST_LIMIT", Severity.WARNING, f"env.vars.{HOST_LIMIT}", message, hint))
    return issues


def issues_of(report: Report, plan: Plan) -> list[Issue]:
    """What the compiler found wrong: an error when the step cannot be allocated, warnings for what costs speed or does nothing."""
    issues = _host_issues(report, plan)
    sizes = f"{report.device / GIB:.2f} GiB of {report.limit / GIB:.1f} ({report.fraction:g} of the GPU's)"
    fewer = "keep less for the backward pass (remat.context=offload), or type a smaller trainer.per_device_batch_size"
    if report.verdict is Verdict.OVER:
        message = f"the step needs {sizes}: it cannot be allocated"
        issues.append(Issue("AOT_OVER", Severity.ERROR, "trainer.per_device_batch_size", message, fewer))
    elif report.verdict is Verdict.TIGHT:
        message = f"the step needs {sizes}; cuDNN's and autotuned kernels' workspaces are not seen here"
        issues.append(Issue("AOT_TIGHT", Severity.WARNING, "trainer.per_device_batch_size", message, fewer))
    instructions, calls, size = report.repeated
    if instructions:
        message = (
            f"XLA repeats {instructions} all-gathers instead of keeping their results ({calls} calls, {size / 1e9:.0f} GB a GPU and "
            "step): the want of memory became traffic"
        )
        issues.append(Issue("AOT_REPEATED", Severity.WARNING, "remat", message, fewer))
    if report.names.idle:
        message = f"no tensor of the step has the name {', '.join(report.names.idle)}: these keys do nothing"
        issues.append(
            Issue("AOT_NAMES", Severity.WARNING, "remat", message, "`plan` says what to type for each of them")
        )
    return sorted(issues, key=Issue.rank)
