"""launch.json: what the worker needs to know to start the trainer's processes."""

from __future__ import annotations

import json
from collections.abc import Mapping

from launcher.plan.plan import Plan

VERSION = 1
"""Of the file's layout; the worker refuses another one (launcher/node/launch.py)."""


def launch(plan: Plan) -> dict[str, object]:
    """The content of launch.json. `secrets` are names: their values stay in the worker's environment.

    steps, checkpointing and checkpoint_period are those that MaxText will see, also when set by +maxtext.KEY.

    Raises:
        ValueError: the plan has no mesh.
    """
    if plan.mesh is None or plan.settings is None:
        raise ValueError("a plan without a mesh cannot be launched")
    experiment, mesh, keys = plan.experiment, plan.mesh, plan.settings.keys
    return {
        "version": VERSION,
        "nodes": mesh.nodes,
        "processes_per_node": mesh.processes // mesh.nodes,
        "platform": experiment.hardware.platform,
        "start": experiment.trainer.start,
        "module": experiment.trainer.module,
        "arguments": dict(sorted(plan.settings.arguments.items())),
        "steps": keys["steps"],
        "checkpointing": keys["enable_checkpointing"],
        "checkpoint_period": keys["checkpoint_period"],
        "output_directory": experiment.checkpoint.directory,
        "stop_grace_seconds": experiment.trainer.stop_grace_seconds,
        "coordinator_timeout_seconds": experiment.trainer.coordinator_timeout_seconds,
        "secrets": sorted(experiment.env.secrets),
    }


def json_text(data: Mapping[str, object]) -> str:
    """JSON as every file of the bundle has it: two spaces, ASCII, keys in the order given, a newline at the end."""
    return json.dumps(data, indent=2) + "\n"
