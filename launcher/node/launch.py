"""launch.json and adjust.json: what the bundle and the monitor tell the worker."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .codes import refused

PLATFORMS = ("gpu", "cpu")
STARTS = ("env", "autodetect")
VERSION = 1


@dataclass(frozen=True)
class Launch:
    """launch.json, checked. `arguments` are MaxText keys that must stand on its command line.

    nodes, processes_per_node: how many processes make the job (one a device, as TE's MoE block wants).
    start: "env" = the worker gives each process its coordinates; "autodetect" = JAX finds them in SLURM's variables.
    steps: the step count that means finished. checkpoint_period: in steps.
    output_directory: MaxText's base_output_directory, None = the run's own folder.
    stop_grace_seconds: from the first stop signal to SIGKILL. coordinator_timeout_seconds: wait for its name.
    """

    nodes: int
    processes_per_node: int
    platform: str
    start: str
    module: str
    arguments: dict[str, Any]
    steps: int
    checkpointing: bool
    checkpoint_period: int
    output_directory: str | None
    stop_grace_seconds: float
    coordinator_timeout_seconds: float

    @property
    def processes(self) -> int:
        """All processes of the job, over all nodes."""
        return self.nodes * self.processes_per_node


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; refuses (78) a file that is missing, unreadable or no object."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise refused(f"cannot read {path}: {error}; render the bundle again") from error
    if not isinstance(data, dict):
        raise refused(f"{path} holds a {type(data).__name__}, wanted an object; render the bundle again")
    return data


def read_launch(path: Path) -> Launch:
    """launch.json as a Launch; refuses (78) with the key, the value seen and the value wanted."""
    data = read_json(path)

    def value(key: str, kind: type | tuple[type, ...], wanted: str, least: float | None = None) -> Any:
        seen: Any = data.get(key)
        fits = key in data and isinstance(seen, kind) and (kind is bool or not isinstance(seen, bool))
        if not fits or (least is not None and seen < least):
            found = json.dumps(seen) if key in data else "nothing"
            raise refused(f"{path}: {key} is {found}, wanted {wanted}; render the bundle again")
        return seen

    def word(key: str, words: tuple[str, ...]) -> str:
        text: str = value(key, str, "one of " + ", ".join(words))
        if text not in words:
            raise refused(f"{path}: {key} is {json.dumps(text)}, wanted one of {', '.join(words)}")
        return text

    version = value("version", int, str(VERSION))
    if version != VERSION:
        raise refused(f"{path}: version {version}, this worker reads version {VERSION}; render the bundle again")
    return Launch(
        nodes=value("nodes", int, "a whole number >= 1", 1),
        processes_per_node=value("processes_per_node", int, "a whole number >= 1", 1),
        platform=word("platform", PLATFORMS),
        start=word("start", STARTS),
        module=value("module", str, "a Python module's name"),
        arguments=value("arguments", dict, "an object of MaxText keys"),
        steps=value("steps", int, "a whole number >= 1", 1),
        checkpointing=value("checkpointing", bool, "true or false"),
        checkpoint_period=value("checkpoint_period", int, "a whole number >= 0", 0),
        output_directory=value("output_directory", (str, type(None)), "a path or null"),
        stop_grace_seconds=value("stop_grace_seconds", (int, float), "seconds >= 0", 0),
        coordinator_timeout_seconds=value("coordinator_timeout_seconds", (int, float), "seconds >= 0", 0),
    )


def read_adjustments(path: Path) -> dict[str, Any]:
    """The MaxText keys that the monitor changed (adjust.json); empty when there is no such file."""
    if not path.exists():
        return {}
    keys = read_json(path).get("maxtext", {})
    if not isinstance(keys, dict):
        raise refused(f"{path}: maxtext is {json.dumps(keys)}, wanted an object of MaxText keys")
    return keys
