"""The environment and the command line of every trainer process.

All ranks get the same command line and the same XLA flags (XLA's programs must be identical on all of them); what
differs is in the environment: the process's coordinates and, for rank 0 alone, the metrics file.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .codes import refused
from .launch import Launch
from .layout import AttemptFolder, RunFolder
from .place import LOOPBACK, Place
from .trainer import ALLOWED, REFUSED

# MaxText (utils/max_utils.py initialize_jax_for_gpu) would take these for the process's devices, where an ordinal of
# an already masked list is wrong; JAX_LOCAL_DEVICE_IDS is what we set instead.
DEVICE_MASKS = ("CUDA_VISIBLE_DEVICES", "SLURM_STEP_GPUS")
# What decides how JAX starts: never taken over from the shell or the image.
JAX_START = (
    "JAX_COORDINATOR_ADDRESS",
    "JAX_COORDINATOR_BIND_ADDRESS",
    "JAX_COORDINATOR_IP",
    "JAX_COORDINATOR_PORT",
    "JAX_LOCAL_DEVICE_IDS",
    "JAX_PLATFORMS",
    "NNODES",
    "NODE_RANK",
    "XLA_FLAGS",
)
PROGRAM = Path(__file__).with_name("trainer.py")
METRICS = "M_METRICS_FILE"
JIT_CACHE = "NCCL_EP_JIT_CACHE_DIR"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAXTEXT_OVERRIDE = re.compile(r"M_[A-Z][A-Z0-9_]*")
_SLURM_START = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST")


def read_env(path: Path) -> dict[str, str]:
    """The bundle's `env` file: `export NAME=value` with shell quoting. Refuses (78) anything else."""
    try:
        # Bytes: reading as text would turn a carriage return inside a value into a line feed.
        words = shlex.split(path.read_bytes().decode("utf-8"), comments=True)
    except (OSError, ValueError) as error:
        raise refused(f"cannot read {path}: {error}; render the bundle again") from error
    variables: dict[str, str] = {}
    for word in words:
        if word == "export":
            continue
        name, equals, value = word.partition("=")
        if not equals or not _NAME.fullmatch(name):
            raise refused(f"{path}: {word!r} is no assignment, wanted export NAME=value; render the bundle again")
        variables[name] = value
    return variables


def read_xla_flags(path: Path) -> str:
    """The bundle's `xla_flags` file (one flag a line) as the one line that XLA_FLAGS holds."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise refused(f"cannot read {path}: {error}; render the bundle again") from error
    flags = [line.strip() for line in lines if line.strip()]
    for flag in flags:
        if not flag.startswith("--"):
            raise refused(f"{path}: {flag!r} is no XLA flag, wanted --name=value on each line; render the bundle again")
    return " ".join(flags)


def overridden(environ: Mapping[str, str], bundle: Mapping[str, str]) -> list[str]:
    """The variables of the shell or image that the trainer will not see, sorted: they would change what was rendered.

    MaxText takes M_<KEY> for its key KEY, so a stray one is dropped too.
    """
    return sorted(
        name
        for name in environ
        if (name in bundle and environ[name] != bundle[name])
        or (name not in bundle and (name in DEVICE_MASKS or name in JAX_START or _MAXTEXT_OVERRIDE.fullmatch(name)))
    )


def trainer_environments(
    environ: Mapping[str, str],
    bundle: Mapping[str, str],
    xla_flags: str,
    launch: Launch,
    place: Place,
    *,
    attempt: AttemptFolder,
    jit_cache: Path | None,
) -> list[dict[str, str]]:
    """One environment for each process of this node, in the order of their local indexes.

    `environ`: the worker's own. `bundle`: read_env's. `xla_flags`: read_xla_flags'. `jit_cache`: a fresh folder for
    NCCL EP's run-time compiles (a SIGTERM during one poisons the folder for ever), None on the CPU.
    """
    dropped = set(overridden(environ, bundle)) | set(DEVICE_MASKS) | {METRICS}
    common = {name: value for name, value in environ.items() if name not in dropped}
    common.update({name: value for name, value in bundle.items() if name not in (*DEVICE_MASKS, METRICS)})
    if xla_flags:
        common["XLA_FLAGS"] = " ".join(filter(None, [bundle.get("XLA_FLAGS", ""), xla_flags]))
    if launch.platform == "cpu":
        common["JAX_PLATFORMS"] = "cpu"
    if jit_cache is not None:
        common[JIT_CACHE] = str(jit_cache)
    if place.coordinator == LOOPBACK:
        # JAX listens on all interfaces by default and asks nobody who they are.
        common["JAX_COORDINATOR_BIND_ADDRESS"] = place.address
    if launch.start == "autodetect":
        _check_autodetect(environ)
    environments = []
    for local in range(launch.processes_per_node):
        rank = place.node * launch.processes_per_node + local
        own = dict(common)
        own.update(_coordinates(launch, place, rank, local))
        if rank == 0:
            own[METRICS] = str(attempt.metrics)
        environments.append(own)
    return environments


def _coordinates(launch: Launch, place: Place, rank: int, local: int) -> dict[str, str]:
    """Who a process is: for MaxText's hardware=gpu, or for JAX's SLURM detection (hardware=gpu_multiprocess)."""
    if launch.start == "autodetect":
        return {
            "SLURM_NTASKS": str(launch.processes),
            "SLURM_PROCID": str(rank),
            "SLURM_LOCALID": str(local),
            "JAX_COORDINATOR_PORT": str(place.port),
        }
    return {
        "JAX_COORDINATOR_IP": place.coordinator,
        "JAX_COORDINATOR_PORT": str(place.port),
        "NNODES": str(launch.processes),
        "NODE_RANK": str(rank),
        "JAX_LOCAL_DEVICE_IDS": str(local),
    }


def _check_autodetect(environ: Mapping[str, str]) -> None:
    missing = [name for name in _SLURM_START if not environ.get(name)]
    if missing:
        raise refused(
            f"trainer.start=autodetect lets JAX find its processes in SLURM's variables, but {' and '.join(missing)} "
            "is not set: start under srun, or render with trainer.start=env"
        )


def maxtext_keys(run: RunFolder, launch: Launch, adjustments: Mapping[str, Any]) -> dict[str, Any]:
    """The MaxText keys of the command line, later sources winning: the run's own, the bundle's, the monitor's."""
    return {
        "run_name": run.name,
        "base_output_directory": launch.output_directory or str(run.output),
        "jax_cache_dir": str(run.compile_cache),
        **launch.arguments,
        **adjustments,
    }


def command(python: str, launch: Launch, maxtext_yml: Path, keys: Mapping[str, Any]) -> list[str]:
    """The trainer's command line, the same for all ranks."""
    known = [f"{name}={ALLOWED if allowed else REFUSED}" for name, allowed in launch.workarounds.items()]
    options = [word for each in known for word in ("--workaround", each)]
    arguments = [argument(key, keys[key]) for key in keys]
    return [python, "-u", str(PROGRAM), *options, launch.module, str(maxtext_yml), *arguments]


# Text that YAML 1.1 reads as itself; anything else is quoted, because MaxText (OmegaConf.from_cli) reads each value
# as YAML: 007 would become 7, "a: b" a mapping.
_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./@%+-]*(?::[A-Za-z0-9_./@%+-]+)*")
_YAML_WORDS = {"true", "false", "yes", "no", "on", "off", "y", "n", "null"}


def argument(key: str, value: Any) -> str:
    """KEY=VALUE as MaxText's command line reads it: true/false, numbers bare, text quoted only where YAML needs it.

    >>> argument("enable_checkpointing", True), argument("run_name", "dsv3-0a1b"), argument("run_name", "007")
    ('enable_checkpointing=true', 'run_name=dsv3-0a1b', 'run_name="007"')
    """
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _YAML_WORDS:
        return f"{key}={value}"
    # OmegaConf reads ${...} as an interpolation, in MaxText's command line too, unless a backslash stands before it.
    return f"{key}={json.dumps(value, ensure_ascii=False)}".replace("${", r"\\${")


def ranks_here(launch: Launch, place: Place) -> Sequence[int]:
    """The global ranks of this node's processes, in the order of their local indexes."""
    first = place.node * launch.processes_per_node
    return range(first, first + launch.processes_per_node)
