"""What a compilation showed, as people and scripts read it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from launcher.issue import Issue
from launcher.plan.plan import Plan
from launcher.preflight.aot_formulas import Difference, differences
from launcher.preflight.aot_report import GIB, Report
from launcher.preflight.aot_traffic import Flow


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns side by side: the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            f"{cell:<{w}}" if i == 0 else f"{cell:>{w}}" for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  " + "  ".join(cells).rstrip())
    return lines


def _fabric(flow: Flow) -> str:
    return "NVLink + network" if flow.network and flow.nvlink else "network" if flow.network else "NVLink"


def _flow_rows(flows: Iterable[Flow]) -> list[list[str]]:
    """One row a flow; those below a thousandth of the largest are left out of the text."""
    shown = list(flows)
    least = max((f.nvlink + f.network for f in shown), default=0) / 1000
    rows = [["collective", "axes", "calls", "results GB", "NVLink GB", "network GB", "over"]]
    for f in (f for f in shown if f.nvlink + f.network >= least):
        sizes = [f"{n / 1e9:.1f}" for n in (f.result, f.nvlink, f.network)]
        rows.append([f.kind, " x ".join(f.axes) or "other", f"{f.calls:,}", *sizes, _fabric(f)])
    return rows


def _names(report: Report) -> list[str]:
    names = report.names
    told = [
        ("kept in the GPU", names.kept),
        ("offloaded to the host", names.offloaded),
        ("configured, but no tensor has the name", names.idle),
    ]
    return [f"  {what}: {', '.join(which)}" for what, which in told if which]


def _difference_rows(found: Sequence[Difference]) -> list[list[str]]:
    rows = [["formulas of `plan`", "formula", "compiled", "off by"]]
    for each in found:
        unit, scale = ("GiB", GIB) if each.memory else ("GB", 10**9)
        off = f"{each.relative:+.1%}" if each.compiled else ("-" if not each.formula else "none")
        rows.append([each.what, f"{each.formula / scale:.2f} {unit}", f"{each.compiled / scale:.2f} {unit}", off])
    return rows


def text(report: Report, plan: Plan) -> str:
    """The whole report."""
    mesh = " x ".join(f"{axis} {n}" for axis, n in report.mesh.items()) or "one GPU"
    took = (
        "remembered; --fresh compiles anew" if report.cached else f"compiled in {report.seconds.get('total', 0):.0f} s"
    )
    versions = ", ".join(
        f"{name} {report.versions[name]}"
        for name in ("maxtext", "jax", "transformer_engine")
        if name in report.versions
    )
    lines = [
        f"{plan.experiment.name}: the train step on {report.gpu}, {mesh} ({took})",
        f"  {versions}; TE's operations are taken by name",
        "",
        *_table(
            [
                ["memory of a GPU", "GiB"],
                ["state and batch (arguments)", f"{report.arguments / GIB:.2f}"],
                ["the step's own peak (temporary)", f"{report.temporary / GIB:.2f}"],
                ["together", f"{report.device / GIB:.2f}"],
                [f"limit: {report.fraction:g} of the GPU's", f"{report.limit / GIB:.2f}"],
                ["host memory of a process", f"{report.host / GIB:.2f}"],
            ]
        ),
        f"  verdict: {report.verdict}",
        "",
        *_table(_flow_rows(report.flows)),
        "",
        "  tensors with a name (remat)",
        *_names(report),
    ]
    if found := differences(plan, report):
        lines += ["", *_table(_difference_rows(found))]
    return "\n".join(lines)


def json_of(report: Report, plan: Plan, issues: Sequence[Issue]) -> dict[str, Any]:
    """The same for scripts, bytes everywhere."""
    found = [{**dataclasses.asdict(each), "relative": each.relative} for each in differences(plan, report)]
    return {**report.as_dict(), "formulas": found, "issues": [dataclasses.asdict(issue) for issue in issues]}
