"""The closed formulas of `plan` beside what the compiler did."""

from __future__ import annotations

from dataclasses import dataclass

from launcher.plan.plan import Plan
from launcher.preflight.aot_report import Report


@dataclass(frozen=True)
class Difference:
    """One quantity in bytes, by formula and as compiled; `memory` tells memory from traffic."""

    what: str
    formula: int
    compiled: int
    memory: bool = True

    @property
    def relative(self) -> float:
        """How far the formula is off, as a share of what was compiled; 0 where nothing was."""
        return self.formula / self.compiled - 1 if self.compiled else 0.0


def _planned(report: Report, fabric: str) -> int:
    """Bytes received over a fabric but for what XLA repeats to save memory, of which the formulas know nothing."""
    shares = (
        (getattr(flow, fabric), flow.repeated_bytes / flow.result if flow.result else 0.0) for flow in report.flows
    )
    return int(sum(received * (1 - repeated) for received, repeated in shares))


def differences(plan: Plan, report: Report) -> list[Difference]:
    """Memory and traffic of a step; empty where `plan` has no formula for this model."""
    if plan.numbers is None:
        return []
    memory, traffic = plan.numbers.memory, plan.numbers.traffic
    return [
        Difference("state", memory.state_bytes, report.arguments),
        Difference("GPU memory", memory.total, report.device),
        Difference("host memory", memory.host, report.host),
        Difference("NVLink, without repeats", traffic.nvlink, _planned(report, "nvlink"), memory=False),
        Difference("network, without repeats", traffic.network, _planned(report, "network"), memory=False),
    ]
