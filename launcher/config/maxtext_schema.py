"""The keys and models of one MaxText version, read from the snapshot that tools/maxtext_schema.py made."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

SNAPSHOTS = Path(__file__).resolve().parent.parent / "data" / "maxtext"


class Key(NamedTuple):
    """One MaxText key; tools/maxtext_schema.py says what each field means."""

    type: str
    default: Any
    in_base_yml: bool
    choices: Sequence[Any] | None = None
    choices_from: str | None = None
    minimum: float | None = None
    above: float | None = None
    maximum: float | None = None
    fields: Sequence[str] = ()
    derived: bool = False


@dataclass(frozen=True)
class Schema:
    """What MaxText `version` accepts: its keys, and what each model's yml sets (flat)."""

    version: str
    keys: Mapping[str, Key]
    models: Mapping[str, Mapping[str, Any]]

    def value(self, key: str, model: str) -> Any:
        """What a run of `model` gets for `key` when nobody says anything. KeyError for an unknown key."""
        return self.models.get(model, {}).get(key, self.keys[key].default)


@functools.cache
def versions() -> tuple[str, ...]:
    """MaxText versions that there is a snapshot of, oldest first."""
    names = (file.stem for file in SNAPSHOTS.glob("*.json"))
    return tuple(sorted(names, key=lambda name: [int(part) if part.isdigit() else 0 for part in name.split(".")]))


@functools.cache
def load(version: str) -> Schema:
    """The snapshot of MaxText `version`. LookupError, with the versions that there are, when there is none."""
    if version not in versions():
        raise LookupError(f"no key snapshot of MaxText {version}; there is: {', '.join(versions())}")
    data = json.loads((SNAPSHOTS / f"{version}.json").read_text(encoding="utf-8"))
    keys = {name: Key(**entry) for name, entry in data["keys"].items()}
    return Schema(version=data["version"], keys=keys, models=data["models"])
