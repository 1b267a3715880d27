"""experiment.yaml: the composed experiment, complete, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from omegaconf import OmegaConf

from launcher.config.schema import Axes, Experiment
from launcher.render.yaml_text import scalar


def text(experiment: Experiment) -> str:
    """The experiment as YAML, groups in the schema's order, names that the user chose sorted.

    A field that is null, and null by default, is left out: it means MaxText's own default.
    """
    lines = ["# What was asked, composed. `launcher diff` and Hydra read it."]
    return "\n".join(lines + _lines(experiment, 0)) + "\n"


def _lines(node: Any, indent: int) -> list[str]:
    """One dataclass as block YAML; a mesh part is one line, a dictionary one line an entry."""
    pad, lines = " " * indent, []
    for field in dataclasses.fields(node):
        value = getattr(node, field.name)
        if value is None and field.default is None:
            continue
        if isinstance(value, Axes):
            lines.append(f"{pad}{field.name}: {scalar(dataclasses.asdict(value))}")
        elif dataclasses.is_dataclass(value):
            inner = _lines(value, indent + 2)
            lines += [f"{pad}{field.name}:", *inner] if inner else [f"{pad}{field.name}: {{}}"]
        elif isinstance(value, Mapping) and value:
            lines.append(f"{pad}{field.name}:")
            lines += [f"{pad}  {scalar(key)}: {scalar(value[key])}" for key in sorted(value)]
        else:
            lines.append(f"{pad}{field.name}: {scalar(value)}")
    return lines


def load(content: str) -> Experiment:
    """The typed experiment of an experiment.yaml.

    Raises:
        omegaconf.errors.OmegaConfBaseException: a key that the schema lacks, or a value of another type.
    """
    loaded = OmegaConf.merge(OmegaConf.structured(Experiment), OmegaConf.create(content))
    experiment: Any = OmegaConf.to_object(loaded)
    if not isinstance(experiment, Experiment):
        raise TypeError(f"wanted an experiment's mapping, found a {type(experiment).__name__}")
    return experiment
