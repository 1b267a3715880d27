"""maxtext.yml: the keys of `Settings.file`, grouped as the experiment is, with a reason where a choice is not obvious."""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Mapping

from launcher.config.schema import MAXTEXT_GROUPS, OWN_WORDS, Experiment
from launcher.plan.settings import ALWAYS
from launcher.render.yaml_text import block

BASE = "base.yml"
"""MaxText's own defaults; it looks beside this file first, then in its package, so a bundle must hold no base.yml."""

TITLES: Mapping[str, str] = {
    "start": "Model, and how its processes find each other",
    "mesh": "Mesh: ici = inside one NVLink domain, dcn = between domains",
    "trainer": "Training loop",
    "precision": "Precision",
    "moe": "Mixture of experts",
    "remat": "Rematerialization: where each named tensor waits for the backward pass",
    "data": "Data",
    "checkpoint": "Checkpoints",
    "monitor": "Profile",
    "always": "Set by the launcher for every run",
    "own": "Set by their MaxText names (+maxtext.KEY=VALUE)",
}
"""Section -> its title, in the order of the file."""

REASONS: Mapping[str, str] = {
    "hardware": "gpu: coordinator and rank come from the worker's variables (on CPUs too); gpu_multiprocess: from the scheduler.",
    "override_model_config": "Some keys of the model are overridden; they stand on the command line (launch.json: arguments),\n"
    "because the model's own yml wins over this file.",
    "dcn_data_parallelism": "MaxText's default is -1 (what is left).",
    "capacity_factor": "Slots of an expert over an even share, on the paths that drop tokens; -1: none is dropped.",
    "shard_exp_on_fsdp": "Whether the experts are spread over the fsdp axis too.",
    "ragged_buffer_factor": "Receive buffer of the expert exchange, as a multiple of a perfectly balanced load.",
    "te_ep_overflow_check_every_n_steps": "An overflow of those buffers is noticed at every n-th step only.",
    "prefuse_moe_weights": "The TE block takes both input projections as one tensor.",
    "skip_first_n_steps_for_profiler": "The first steps compile, and with PGLE they are profiled and compiled again: no speed to see.",
    "enable_autocheckpoint": "Save on SIGTERM: without it a preempted run ends with exit code 0 and nothing saved.",
    "save_checkpoint_on_start": "MaxText would write the whole state at step 0.",
    "enable_goodput_recording": "Google Cloud services that are not here.",
    "log_config": "MaxText's printout of all its keys; the bundle holds those that were chosen.",
}
"""Key -> why it is here or what it does, for a reader of the file."""


@functools.cache
def _sections() -> Mapping[str, str]:
    """MaxText key -> section, for every key that the schema's groups hold."""
    classes = typing.get_type_hints(Experiment)
    found = {"model_name": "start", "hardware": "start", "override_model_config": "start"}
    for group in MAXTEXT_GROUPS:
        own = OWN_WORDS.get(group, frozenset())
        found |= {field.name: group for field in dataclasses.fields(classes[group]) if field.name not in own}
    return found | dict.fromkeys(ALWAYS, "always")


def section_of(key: str) -> str:
    """Which of TITLES a MaxText key belongs to."""
    if key.startswith(("ici_", "dcn_")) and key.endswith("_parallelism"):
        return "mesh"
    return _sections().get(key, "own")


def text(file: Mapping[str, object]) -> str:
    """maxtext.yml of these keys. Keys keep their order inside a section; those set by name are sorted."""
    lines = [
        "# What MaxText runs. Rendered from experiment.yaml: change the experiment, not this file.",
        f"base_config: {BASE}",
    ]
    for section, title in TITLES.items():
        keys = [key for key in file if section_of(key) == section]
        if keys:
            chosen = {key: file[key] for key in (sorted(keys) if section == "own" else keys)}
            lines += ["", f"# {title}", *block(chosen, comments=REASONS)]
    return "\n".join(lines) + "\n"
