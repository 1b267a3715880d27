"""MaxText's keys, wherever they were written, and the launcher's own words."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from launcher.config.maxtext_schema import Schema
from launcher.config.overrides import maxtext_home
from launcher.config.schema import Experiment
from launcher.issue import Issue
from launcher.node.launch import PLATFORMS, STARTS
from launcher.plan.case import Case, Rule, error, note, shown
from launcher.plan.key_check import check_keys
from launcher.plan.mesh import AXES
from launcher.plan.model import check_name
from launcher.plan.settings import ALWAYS, group_keys
from launcher.suggest import suggest

TARGETS = ("local", "slurm", "kubernetes")

OWNED = {
    "run_name": "the run's name follows from name and the bundle's content; type name=NAME",
    "model_name": "type model.name=NAME",
    "base_output_directory": "type checkpoint.directory=/PATH, or nothing for the run's own folder",
    "hardware": "it follows from trainer.start; type trainer.start=env or trainer.start=autodetect",
    "metrics_file": "the worker gives rank 0 its own file, attempts/N/metrics.jsonl",
    "jax_cache_dir": "the runs' folder has one compile cache",
    "skip_jax_distributed_system": "the worker always starts JAX's distributed system",
    "num_slices": "it follows from mesh.dcn",
    "mesh_axes": "the launcher knows MaxText's own axes only",
    "override_model_config": "it is set when a key of the model changes; type model.overrides.KEY=VALUE",
    "base_config": "the bundle begins with base.yml",
}
"""Keys that the launcher or the worker writes, with what to do instead."""

READ_HERE = (
    "steps", "per_device_batch_size", "max_target_length", "gradient_accumulation_steps", "enable_checkpointing",
    "checkpoint_period",
)  # fmt: skip
"""Keys of the groups that the plan or the worker reads by itself: they have one place, their group."""


DEFAULT_IS = "MaxText's default is "
"""How the key check's hint begins when it knows nothing better than the default."""


def _sources(experiment: Experiment) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Where MaxText keys are written: by their own names, for the model, and in the groups ('' = each key's own home)."""
    yield "maxtext", experiment.maxtext
    yield "model.overrides", {k: v for k, v in experiment.model.overrides.items() if k not in experiment.maxtext}
    own = {**experiment.maxtext, **experiment.model.overrides}
    yield "", {k: v for k, v in group_keys(experiment).items() if k not in own}


def _axis_home(key: str) -> str | None:
    """mesh.ici.fsdp for ici_fsdp_parallelism; mesh for an axis that the launcher does not lay out."""
    for part in ("ici", "dcn"):
        if key.startswith(f"{part}_") and key.endswith("_parallelism"):
            axis = key.removeprefix(f"{part}_").removesuffix("_parallelism")
            return f"mesh.{part}.{axis}" if axis in AXES else "mesh"
    return None


def _owned(source: str, key: str, value: object) -> Issue | None:
    """A key that has another place here, whatever its value."""
    field, axis = f"{source}.{key}", _axis_home(key)
    home = maxtext_home(key)
    if key in OWNED:
        return error("MAXTEXT_KEY_OWNED", field, f"{key} is the launcher's to write: {OWNED[key]}", f"type ~{field}")
    if axis == "mesh":
        return error("MAXTEXT_KEY_OWNED", field, f"{key}: the launcher does not lay out that axis", f"type ~{field}")
    if axis:
        return error(
            "MAXTEXT_KEY_OWNED", field, f"{key} is written from the mesh", f"type ~{field} {axis}={shown(value)}"
        )
    if key in READ_HERE and home:
        return error(
            "MAXTEXT_KEY_OWNED",
            field,
            f"{key} is read from {home}, by the plan and by the worker",
            f"type ~{field} {home}={shown(value)}",
        )
    return None


def _typed_here(issue: Issue, source: str, schema: Schema) -> Issue:
    """An issue of the key check with the field and the hint as this user types them."""
    key = issue.field.removeprefix("maxtext.")
    field = f"{source}.{key}" if source else maxtext_home(key) or issue.field
    hint = issue.hint
    if issue.code == "MAXTEXT_KEY_UNKNOWN" and key not in schema.keys:
        near = suggest(key, (name for name, entry in schema.keys.items() if not entry.derived))
        if near and hint.startswith("did you mean"):
            typed = " or ".join(f"{maxtext_home(name) or f'{source}.{name}'}=VALUE" for name in near)
            hint = f"type ~{field}, and if that was meant {typed}"
    elif hint.startswith(f"did you mean {key}="):
        hint = hint.replace(f"did you mean {key}=", f"did you mean {field}=", 1)
    elif hint.startswith("remove it"):
        hint = hint.replace("remove it", f"type ~{field}", 1).replace(" and type", "", 1)
    elif hint.startswith(DEFAULT_IS) and not source:
        hint = f"type {field}=null to have MaxText's default, {hint.removeprefix(DEFAULT_IS)}"
    return dataclasses.replace(issue, field=field, hint=hint)


def maxtext_keys(case: Case) -> Iterator[Issue]:
    """Each key once: does the launcher own it, would MaxText take it?"""
    for source, keys in _sources(case.experiment):
        checked = {}
        for key, value in keys.items():
            issue = _owned(source, key, value) if source else None
            if issue:
                yield issue
            else:
                checked[key] = value
        for found in check_keys(checked, case.schema):
            yield _typed_here(found, source, case.schema)


def wins(case: Case) -> Iterator[Issue]:
    """A key by its MaxText name wins over the group's field; two values for one key deserve a word."""
    groups, written = group_keys(case.experiment), {**case.experiment.model.overrides, **case.experiment.maxtext}
    for key, value in written.items():
        owned = key in OWNED or key in READ_HERE or _axis_home(key)
        if not owned and key in groups and groups[key] != value:
            home = maxtext_home(key)
            message = f"{case.field(key)}={shown(value)} wins over {home}={shown(groups[key])}"
            yield note(
                "MAXTEXT_KEY_WINS",
                case.field(key),
                message,
                f"type ~{case.field(key)} {home}={shown(value)} to have it in one place",
            )
        elif key in ALWAYS and ALWAYS[key] != value:
            message = f"{key}={shown(value)}: the launcher relies on {shown(ALWAYS[key])} to bring a stopped run back"
            yield note("MAXTEXT_KEY_WINS", case.field(key), message, f"type ~{case.field(key)}")
        elif (
            key in case.experiment.model.overrides
            and key in case.experiment.maxtext
            and case.experiment.model.overrides[key] != value
        ):
            message = f"maxtext.{key}={shown(value)} wins over model.overrides.{key}={shown(case.experiment.model.overrides[key])}"
            yield note("MAXTEXT_KEY_WINS", f"maxtext.{key}", message, f"type ~model.overrides.{key}")


def words(case: Case) -> Iterator[Issue]:
    """The launcher's own words have a few legal values each."""
    experiment = case.experiment
    for field, value, legal in (
        ("trainer.start", experiment.trainer.start, STARTS),
        ("hardware.platform", experiment.hardware.platform, PLATFORMS),
        ("target.kind", experiment.target.kind, TARGETS),
    ):
        if value not in legal:
            near = suggest(value, legal) or list(legal)
            typed = " or ".join(f"{field}={word}" for word in near)
            yield error("WORD_UNKNOWN", field, f"{field}={value}: there is {', '.join(legal)}", f"type {typed}")


def model(case: Case) -> Iterator[Issue]:
    """The model's name."""
    yield from check_name(case.experiment, case.schema)


RULES: tuple[Rule, ...] = (model, maxtext_keys, wins, words)
