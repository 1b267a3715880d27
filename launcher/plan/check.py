"""All rules over one experiment: every problem at once, each once, worst first."""

from __future__ import annotations

from launcher.config import secrets
from launcher.config.maxtext_schema import Schema
from launcher.config.schema import Experiment
from launcher.issue import Issue
from launcher.plan import (
    check_container,
    check_env,
    check_keys,
    check_kubernetes,
    check_kubernetes_nodes,
    check_moe,
    check_monitor,
    check_pod,
    check_remat,
    check_run,
    check_secrets,
    check_shards,
    check_slurm,
    check_te,
    check_workarounds,
)
from launcher.plan.case import Rule, of
from launcher.plan.mesh import MeshPlan

RULES: tuple[Rule, ...] = (
    *check_run.RULES, *check_monitor.RULES, *check_keys.RULES, *check_env.RULES, *check_secrets.RULES,
    *check_moe.RULES, *check_te.RULES, *check_workarounds.RULES, *check_shards.RULES, *check_remat.RULES,
    *check_slurm.RULES, *check_container.RULES,
    *check_kubernetes.RULES, *check_kubernetes_nodes.RULES, *check_pod.RULES,
)  # fmt: skip
"""A rule takes a case and yields issues; it raises nothing, whatever the values are."""


def check(experiment: Experiment, mesh: MeshPlan | None, schema: Schema) -> list[Issue]:
    """Every issue of an experiment but those of the mesh's layout, worst first.

    Args:
        mesh: from `lay_out`; None when the mesh is impossible, and the rules about it are silent.
        schema: the keys of the MaxText version that will run.
    """
    case = of(experiment, mesh, schema)
    literals = secrets.find(experiment)
    issues = {secrets.hide_in(issue, literals) for rule in RULES for issue in rule(case)}
    return sorted(issues, key=Issue.rank)
