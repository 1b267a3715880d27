"""launch.json and adjust.json: what the bundle and the monitor tell the worker and the supervisor."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Union

from .budgets import BUDGETS, Budgets
from .codes import refused
from .policy import STOP, WORDS, Policy
from .trainer import WORKAROUNDS

PLATFORMS = ("gpu", "cpu")
STARTS = ("env", "autodetect")
VERSION = 1

_Kind = Union[type, tuple[type, ...]]


@dataclass(frozen=True)
class Container:
    """What pyxis is told. mounts: FROM:TO[:FLAGS]. env: the variables whose value must not be the image's.

    file: on a shared file system, where the image is imported to once; None = each node imports it by itself.
    """

    image: str
    mounts: tuple[str, ...] = ()
    workdir: str | None = None
    env: tuple[str, ...] = ()
    file: str | None = None


@dataclass(frozen=True)
class NodeCheck:
    """What health.py is asked before the trainers start, and how long it gets. only: none is started after it."""

    words: tuple[str, ...]
    timeout_seconds: float
    only: bool = False


@dataclass(frozen=True)
class Launch:
    """launch.json, checked. `arguments` are MaxText keys that must stand on its command line.

    nodes, processes_per_node: how many processes make the job (one a device, as TE's MoE block wants).
    start: "env" = the worker gives each process its coordinates; "autodetect" = JAX finds them in SLURM's variables.
    steps: the step count that means finished. checkpoint_period: in steps.
    output_directory: MaxText's base_output_directory, None = the run's own folder.
    stop_grace_seconds: from the first stop signal to SIGKILL. coordinator_timeout_seconds: wait for its name.
    numa: GPUs of one NUMA node, None = processes are not bound.
    signal_seconds: before the end of the time limit, when SLURM sends its signal; None = not said.
    overflow: of the MoE receive buffers: "act" = enlarge them for the next attempt; "warn" = start again as it was; "stop" =
    leave it to a person. policy: what else is watched.
    node_check: None = the trainers start unasked.
    largest_factor: ragged_buffer_factor that fits the GPU by the plan; -1 = all fit, None = not known. data_seed: MaxText's
    data_shuffle_seed, None = no other seed would bring other data.
    workarounds: those of trainer.py that concern this experiment -> whether each may be applied.
    For the supervisor alone: restarts; nodes_per_domain and expert_nodes, which must share an NVLink domain; srun, its
    first words; container, None = the node's own files.
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
    numa: int | None = None
    restarts: Budgets = field(default_factory=Budgets)
    nodes_per_domain: int = 1
    expert_nodes: int = 1
    srun: tuple[str, ...] = ()
    container: Container | None = None
    signal_seconds: float | None = None
    overflow: str = STOP
    node_check: NodeCheck | None = None
    policy: Policy = field(default_factory=Policy)
    largest_factor: float | None = None
    data_seed: int | None = None
    workarounds: dict[str, bool] = field(default_factory=dict)

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

    def value(key: str, kind: _Kind, wanted: str, least: float | None = None) -> Any:
        return _value(data, key, kind, wanted, least, path=path)

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
        workarounds=_workarounds(data, path) if "workarounds" in data else {},
        **_optional(data, path),
    )


def _value(data: dict[str, Any], key: str, kind: _Kind, wanted: str, least: float | None, *, path: Path) -> Any:
    seen: Any = data.get(key)
    fits = key in data and isinstance(seen, kind) and (kind is bool or not isinstance(seen, bool))
    if not fits or (least is not None and seen is not None and seen < least):
        found = json.dumps(seen) if key in data else "nothing"
        raise refused(f"{path}: {key} is {found}, wanted {wanted}; render the bundle again")
    return seen


def _word(data: dict[str, Any], key: str, path: Path) -> str:
    seen: str = _value(data, key, str, f"one of {', '.join(WORDS[key])}", None, path=path)
    if seen not in WORDS[key]:
        raise refused(f"{path}: {key} is {json.dumps(seen)}, wanted one of {', '.join(WORDS[key])}")
    return seen


def _policy(data: dict[str, Any], path: Path) -> Policy:
    found: dict[str, Any] = {key: _word(data, key, path) for key in WORDS if key in data}
    for key in ("stall_seconds", "first_step_seconds", "metrics_port"):
        if data.get(key) is not None:
            found[key] = _value(data, key, (int, float), "a number >= 1", 1, path=path)
    if data.get("webhook") is not None:
        found["webhook"] = _value(data, "webhook", str, "a variable's name", None, path=path)
    return Policy(**found)


def _workarounds(data: dict[str, Any], path: Path) -> dict[str, bool]:
    known = _value(data, "workarounds", dict, "an object of true and false", None, path=path)
    for name in known:
        if name not in WORKAROUNDS:
            raise refused(f"{path}: workarounds names {name}, this worker knows {', '.join(WORKAROUNDS)}")
    return {name: _value(known, name, bool, "true or false", None, path=path) for name in known}


def _optional(data: dict[str, Any], path: Path) -> dict[str, Any]:
    """The keys that a bundle may lack, as Launch's fields; only those that are there."""
    found: dict[str, Any] = {}

    def number(source: dict[str, Any], key: str, least: int, kind: _Kind = int) -> Any:
        return _value(source, key, kind, f"a number >= {least}", least, path=path)

    def texts(source: dict[str, Any], key: str) -> tuple[str, ...]:
        words = _value(source, key, list, "a list of texts", None, path=path)
        if not all(isinstance(word, str) for word in words):
            raise refused(f"{path}: {key} is {json.dumps(words)}, wanted a list of texts; render the bundle again")
        return tuple(words)

    for key in ("nodes_per_domain", "expert_nodes"):
        if key in data:
            found[key] = number(data, key, 1)
    for key, least in (("numa", 1), ("signal_seconds", 0), ("data_seed", 0), ("largest_factor", -1)):
        if data.get(key) is not None:
            found[key] = number(data, key, least, (int, float) if key == "largest_factor" else int)
    if "overflow" in data:
        found["overflow"] = _word(data, "overflow", path)
    if "monitor" in data:
        found["policy"] = _policy(
            _value(data, "monitor", dict, "an object of words and numbers", None, path=path), path
        )
    if data.get("node_check") is not None:
        check = _value(data, "node_check", dict, "an object with words and timeout_seconds, or null", None, path=path)
        seconds = number(check, "timeout_seconds", 1, (int, float))
        only = "only" in check and _value(check, "only", bool, "true or false", None, path=path)
        found["node_check"] = NodeCheck(texts(check, "words"), seconds, only)
    if "srun" in data:
        found["srun"] = texts(data, "srun")
    if "restarts" in data:
        restarts = _value(data, "restarts", dict, "an object of numbers", None, path=path)
        limits: dict[str, Any] = {key: number(restarts, key, 0) for key in BUDGETS if key in restarts}
        if "pause_seconds" in restarts:
            limits["pause_seconds"] = number(restarts, "pause_seconds", 0, (int, float))
        if "kinds" in restarts:
            kinds = _value(restarts, "kinds", dict, "an object of numbers", None, path=path)
            limits["kinds"] = {kind: number(kinds, kind, 0) for kind in kinds}
        found["restarts"] = Budgets(**limits)
    if data.get("container") is not None:
        container = _value(data, "container", dict, "an object with an image, or null", None, path=path)
        found["container"] = Container(
            _value(container, "image", str, "an image's name", None, path=path),
            texts(container, "mounts") if "mounts" in container else (),
            container.get("workdir"),
            texts(container, "env") if "env" in container else (),
            container.get("file"),
        )
    return found


def read_adjustments(path: Path) -> dict[str, Any]:
    """The MaxText keys that the monitor changed (adjust.json); empty when there is no such file."""
    if not path.exists():
        return {}
    keys = read_json(path).get("maxtext", {})
    if not isinstance(keys, dict):
        raise refused(f"{path}: maxtext is {json.dumps(keys)}, wanted an object of MaxText keys")
    return keys
