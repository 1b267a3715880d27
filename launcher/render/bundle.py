"""A plan as the bundle of everything that will run. Pure: the same plan gives the same bytes on any machine and day."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

from launcher.issue import Issue, Refused, Severity
from launcher.plan.mesh import MeshPlan
from launcher.plan.plan import Plan
from launcher.render import env, experiment, failure_table, launch, local, maxtext, plan_text, slurm, xla
from launcher.render.folder import Bundle, read, seal, verify, write

__all__ = ["Bundle", "read", "render", "seal", "verify", "write"]

NODE = Path(__file__).resolve().parent.parent / "node"


@functools.cache
def _node_sources() -> Mapping[str, bytes]:
    """The worker, as it will lie in the bundle: `python3 node/worker.py` runs with nothing installed."""
    return {f"node/{file.name}": file.read_bytes() for file in sorted(NODE.glob("*.py"))}


def _artefact(plan: Plan, mesh: MeshPlan, texts: Mapping[str, str]) -> dict[str, str]:
    """The target's own file, and no other target's: there is one way to start a bundle."""
    asked = plan.experiment
    if asked.target.kind == "slurm":
        return {"job.sbatch": slurm.script(asked, mesh)}
    if asked.target.kind == "kubernetes":
        from launcher.render import kubernetes

        files = {name: texts[name] for name in kubernetes.PODS_READ}
        worker = {name: data.decode() for name, data in _node_sources().items()}
        return {"jobset.yaml": kubernetes.text(asked, mesh, files | worker)}
    each = mesh.processes // mesh.nodes
    return {"run.sh": local.script(mesh.nodes, each, asked.trainer.coordinator_timeout_seconds)}


def _texts(plan: Plan, mesh: MeshPlan, file: Mapping[str, object]) -> dict[str, str]:
    asked = plan.experiment
    texts = {
        "experiment.yaml": experiment.text(asked),
        "maxtext.yml": maxtext.text(file),
        "env": env.text(env.variables(asked)),
        "xla_flags": xla.text(asked.xla.flags),
        "launch.json": launch.json_text(launch.launch(plan)),
        "failures.json": launch.json_text(failure_table.table_json()),
        "plan.txt": plan_text.plan_text(plan),
        "plan.json": launch.json_text(plan_text.plan_json(plan)),
    }
    return texts | _artefact(plan, mesh, texts)


def render(plan: Plan) -> Bundle:
    """Everything that will run.

    Raises Refused when the plan has errors (it carries them), or holds a value that no file can express.
    """
    if plan.errors or plan.mesh is None or plan.settings is None:
        raise Refused(*plan.errors)
    try:
        texts = _texts(plan, plan.mesh, plan.settings.file)
    except (ValueError, TypeError) as error:
        raise Refused(Issue("VALUE_NOT_WRITABLE", Severity.ERROR, "", str(error), "give that value as text")) from error
    return seal(plan.experiment.name, {name: text.encode() for name, text in texts.items()} | dict(_node_sources()))
