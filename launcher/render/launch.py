"""launch.json: what supervisor and worker need to know to start the trainer's processes."""

from __future__ import annotations

import json
from collections.abc import Mapping

from launcher.config import maxtext_schema
from launcher.config.schema import Monitor
from launcher.plan import check_workarounds, memory
from launcher.plan.case import Case, of
from launcher.plan.plan import Plan
from launcher.render import slurm
from launcher.render.container import container
from launcher.render.node_check import node_check

VERSION = 1
"""Of the file's layout; the worker refuses another one (launcher/node/launch.py)."""


def launch(plan: Plan) -> dict[str, object]:
    """The content of launch.json. `secrets` are names: their values stay in the worker's environment.

    steps, checkpointing and checkpoint_period are those that MaxText will see, also when set by +maxtext.KEY.
    `signal_seconds` (before the time limit), `srun` and `container` are for the slurm target's supervisor, and empty for the others.

    Raises:
        ValueError: the plan has no mesh.
    """
    if plan.mesh is None or plan.settings is None:
        raise ValueError("a plan without a mesh cannot be launched")
    experiment, mesh, keys = plan.experiment, plan.mesh, plan.settings.keys
    case = of(experiment, mesh, maxtext_schema.load(experiment.trainer.maxtext))
    monitor, on_slurm = experiment.monitor, experiment.target.kind == "slurm"
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
        "workarounds": check_workarounds.concerned(case),
        "secrets": sorted(experiment.env.secrets),
        "overflow": monitor.overflow,
        "monitor": {
            "nan": monitor.nan,
            "loss_spike": monitor.loss_spike,
            "grad_spike": monitor.grad_spike,
            "imbalance": monitor.imbalance,
            "stall": monitor.stall,
            "stall_seconds": monitor.stall_seconds,
            "first_step_seconds": monitor.first_step_seconds,
            "straggler": monitor.straggler,
            "metrics_port": monitor.metrics_port,
            "webhook": monitor.webhook,
        },
        "largest_factor": memory.largest_factor(case),
        "data_seed": data_seed(case),
        "node_check": node_check(experiment, mesh),
        "restarts": _restarts(monitor),
        "signal_seconds": experiment.target.slurm.signal_seconds if on_slurm else None,
        "nodes_per_domain": mesh.nodes_per_domain,
        "expert_nodes": mesh.expert_nodes,
        "numa": experiment.hardware.gpus_per_numa,
        "srun": slurm.srun_words(experiment) if on_slurm else [],
        "container": container(experiment) if on_slurm else None,
    }


def _restarts(monitor: Monitor) -> dict[str, object]:
    return {
        "failures": monitor.max_failures,
        "preemptions": monitor.max_preemptions,
        "bad_nodes": monitor.max_bad_nodes,
        "rollbacks": monitor.max_rollbacks,
        "kinds": dict(sorted(monitor.max_of_kind.items())),
        "pause_seconds": monitor.restart_pause_seconds,
    }


def data_seed(case: Case) -> int | None:
    """MaxText's data_shuffle_seed, where another one brings other data after a rollback; None where it does not.

    By input_pipeline/ of maxtext 0.2.5: synthetic data is one batch for ever; unshuffled data comes in the files' order;
    Grain's mmap_npy makes an index of its own for each seed, and a position in one means nothing in another.
    """
    values = case.values
    one_order = values.text("dataset_type") == "synthetic" or not values.flag("enable_data_shuffling")
    if one_order or (values.text("dataset_type") == "grain" and values.text("grain_file_type") == "mmap_npy"):
        return None
    return max(values.whole("data_shuffle_seed"), 0)


def json_text(data: Mapping[str, object]) -> str:
    """JSON as every file of the bundle has it: two spaces, ASCII, keys in the order given, a newline at the end."""
    return json.dumps(data, indent=2) + "\n"
