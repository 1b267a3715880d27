"""Experiment -> MaxText's own keys, and where each has to be written.

MaxText 0.2.5 merges base.yml < our file < the model's yml < command line, so a key that the model's yml also sets is heard
only on the command line (with `override_model_config: true`); every other key belongs in the file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from launcher.config.maxtext_schema import Schema
from launcher.config.schema import MAXTEXT_GROUPS, OWN_WORDS, Experiment
from launcher.plan.mesh import MeshPlan

ALWAYS_WRITTEN_AXES = ("data", "fsdp", "tensor", "expert")
"""Written even when 1: MaxText's defaults are ici_fsdp=-1 and dcn_data=-1, and a reader wants to see these four."""

ALWAYS: Mapping[str, object] = {
    # A preempted run is lost without it: SIGTERM then ends MaxText with rc 0 and no save.
    "enable_autocheckpoint": True,
    # MaxText's default writes the whole state at step 0.
    "save_checkpoint_on_start": False,
    # Google Cloud services that MaxText would look for.
    "enable_goodput_recording": False,
    "monitor_goodput": False,
    "enable_checkpoint_cloud_logger": False,
    "log_config": False,
}


@dataclass(frozen=True)
class Translation:
    """One word of the launcher and what it became in the trainer (a MaxText key, a variable, a number of processes)."""

    word: str
    value: object
    became: str


@dataclass(frozen=True)
class Settings:
    """MaxText's keys: `file` goes into maxtext.yml, `arguments` on the trainer's command line; `keys` is both."""

    file: Mapping[str, object]
    arguments: Mapping[str, object]
    translations: tuple[Translation, ...]

    @property
    def keys(self) -> dict[str, object]:
        """What MaxText will see, wherever it is written."""
        return {**self.file, **self.arguments}


def _plain(value: object) -> object:
    """6.0 -> 6: MaxText reads both, people read the second."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def group_keys(experiment: Experiment) -> dict[str, object]:
    """The MaxText keys that the groups set, before anything that the user wrote by its MaxText name."""
    keys: dict[str, object] = {}
    for group in MAXTEXT_GROUPS:
        own = OWN_WORDS.get(group, frozenset())
        for field in dataclasses.fields(getattr(experiment, group)):
            value = getattr(getattr(experiment, group), field.name)
            if field.name not in own and value is not None:
                keys[field.name] = _plain(value)
    return keys


def _axis_keys(mesh: MeshPlan) -> dict[str, object]:
    keys: dict[str, object] = {}
    for part, sizes in (("ici", mesh.ici), ("dcn", mesh.dcn)):
        keys |= {f"{part}_{axis}_parallelism": n for axis, n in sizes.items() if n != 1 or axis in ALWAYS_WRITTEN_AXES}
    return keys


def start_key(experiment: Experiment) -> str:
    """MaxText's `hardware`: `gpu` reads the coordinator from the worker's variables (on CPUs too), the other asks the scheduler."""
    return "gpu_multiprocess" if experiment.trainer.start == "autodetect" else "gpu"


def translations(experiment: Experiment, mesh: MeshPlan) -> tuple[Translation, ...]:
    """The launcher's own words that this experiment uses, with what they became."""
    found = [
        Translation(
            "nodes",
            mesh.nodes,
            f"{mesh.nodes} worker{'s' if mesh.nodes > 1 else ''} x {mesh.processes // mesh.nodes} processes, NNODES={mesh.processes}",
        ),
        Translation("trainer.start", experiment.trainer.start, f"hardware={start_key(experiment)}"),
    ]
    if experiment.xla.pgle:
        found.append(Translation("xla.pgle", True, "JAX_ENABLE_PGLE=true"))
    for part, sizes in (("ici", mesh.ici), ("dcn", mesh.dcn)):
        found += [Translation(f"mesh.{part}.{a}", n, f"{part}_{a}_parallelism={n}") for a, n in sizes.items() if n != 1]
    if experiment.remat.remat_policy == "custom":
        own = {
            f.name: getattr(experiment.remat, f.name)
            for f in dataclasses.fields(experiment.remat)
            if f.name != "remat_policy"
        }
        found += [
            Translation(f"remat.{name}", where, f"{name}={where}") for name, where in own.items() if where is not None
        ]
    return tuple(found)


def settings(experiment: Experiment, mesh: MeshPlan, schema: Schema) -> Settings:
    """Every MaxText key of this experiment, split into the file and the command line.

    `experiment.maxtext` wins over the groups: a key that the user wrote by its MaxText name is meant.
    """
    keys: dict[str, object] = {"model_name": experiment.model.name, "hardware": start_key(experiment)}
    keys |= group_keys(experiment) | _axis_keys(mesh) | dict(ALWAYS)
    keys |= experiment.model.overrides | experiment.maxtext
    model = schema.models.get(experiment.model.name, {})
    arguments = {k: v for k, v in keys.items() if k in model and model[k] != v}
    file = {k: v for k, v in keys.items() if k not in arguments}
    if arguments:
        file["override_model_config"] = True
    return Settings(file, arguments, translations(experiment, mesh))
