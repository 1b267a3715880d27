"""What this machine can do: each finding is what was seen and, where something is missing, the command that cures it."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from launcher.config import maxtext_schema
from launcher.preflight import gpu_hardware, gpu_look, gpu_stack
from launcher.preflight.finding import Finding

TIMEOUT_S = 60
"""Bound in seconds for asking another program; importing nothing heavy, each answers within a few."""

LOCAL_EXTRA = "python3.12 -m pip install 'launcher[local]'"

AOT_EXTRA = "python3.12 -m pip install 'launcher[aot]'"


def _output(*command: str) -> str | None:
    """What a program says; None when it is not there, fails, or does not answer."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S)
    except (subprocess.TimeoutExpired, OSError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _python(python: str, look: gpu_look.Look) -> list[Finding]:
    """The Python that shall train: its version, MaxText and what belongs to it."""
    if look.problem or "python" not in look.seen:
        problem = look.problem or f"{python}: {look.died.get('python', 'it says nothing')}"
        cure = "name another with --python"
        return [Finding("trainer Python", False, problem, cure, what_for="training on this machine")]
    told = look.seen["python"]
    have: Mapping[str, str] = told["packages"]
    new_enough = tuple(int(part) for part in told["version"].split(".")[:2]) >= (3, 12)
    found = [
        Finding(
            "trainer Python",
            new_enough,
            f"{told['version']} ({python})",
            "" if new_enough else f"MaxText needs Python >= 3.12: {LOCAL_EXTRA}",
            what_for="training on this machine",
        ),
    ]
    known = maxtext_schema.versions()
    version = have.get("maxtext")
    fits = version in known
    cure = "" if fits else f"pip install maxtext=={known[-1]}" if version else LOCAL_EXTRA
    seen = f"{version or 'not installed'}{'' if fits or not version else f', the launcher knows {known}'}"
    found.append(Finding("MaxText", fits, seen, cure, what_for="training on this machine"))
    jax = have.get("jax")
    found.append(
        Finding(
            "jax",
            jax is not None,
            f"jax {jax}, jaxlib {have.get('jaxlib')}" if jax else "not installed",
            "" if jax else LOCAL_EXTRA,
            what_for="training on this machine",
        )
    )
    return found + _for_gpus(have)


def _for_gpus(have: Mapping[str, str]) -> list[Finding]:
    """What the same Python has for GPUs: their compiler, and Transformer Engine."""
    compiler, jax = have.get("jax-cuda13-pjrt"), have.get("jax")
    found = [
        Finding(
            "XLA's GPU compiler",
            compiler is not None and compiler == jax,
            f"jax-cuda13-pjrt {compiler}" if compiler else "not installed",
            AOT_EXTRA if not compiler else "" if compiler == jax else f"pip install --no-deps jax-cuda13-pjrt=={jax}",
            True,
            "preflight aot: memory and traffic without a GPU",
        )
    ]
    engine = have.get("transformer_engine")
    found.append(
        Finding(
            "Transformer Engine",
            engine is not None,
            engine or "not installed",
            "" if engine else "use the container image (container=nvidia_maxtext), which has it built in",
            True,
            "TE's MoE block and FP8, on GPUs",
        )
    )
    return found


def _gpus(look: gpu_look.Look) -> list[Finding]:
    """The GPUs, their hardware file, and whether the stack under the trainer's Python fits. Short where there is none of it."""
    told = look.seen.get("gpus")
    gpus = told if isinstance(told, list) else []
    kinds = sorted({f"{gpu['name']}, {gpu['memory_bytes'] / 2**30:.0f} GiB, driver {gpu['driver']}" for gpu in gpus})
    unsaid = told.get("error", "") if isinstance(told, dict) else look.died.get("gpus", "nvidia-smi shows no GPU")
    found = [
        Finding(
            "GPUs",
            bool(gpus),
            f"{len(gpus)}: {'; '.join(kinds)}" if gpus else f"none ({unsaid})",
            "" if gpus else "run where GPUs are, or train on CPUs: +exp=moe_tiny_cpu",
            True,
            "experiments with hardware.platform=gpu, target=local",
        )
    ]
    if gpus:
        found += gpu_hardware.hardware(gpus)
        found.append(gpu_hardware.memory_fraction(os.environ))
    stack = gpu_stack.from_probe(look.seen, look.died)
    return found + gpu_stack.judge(stack, gpu_stack.all_rules())


def _machine(runs: Path) -> list[Finding]:
    """Cores, memory, disk under the folder of runs."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cores = len(os.sched_getaffinity(0))
    found = [Finding("machine", True, f"{cores} cores, {memory / 2**30:.0f} GiB of memory")]
    existing = next(folder for folder in (runs, *runs.parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    writable = os.access(existing, os.W_OK)
    cure = "" if writable else "name a folder that you may write: --runs DIR or LAUNCHER_RUNS=DIR"
    found.append(
        Finding(
            "folder of runs",
            writable,
            f"{runs}, {free / 2**30:.0f} GiB free" + ("" if writable else ", not writable"),
            cure,
        )
    )
    return found


def _slurm() -> list[Finding]:
    """SLURM's commands, the cluster that they reach, and submitit."""
    version = _output("sbatch", "--version")
    config = _output("scontrol", "show", "config") if version is not None else None
    cluster = re.search(r"^ClusterName\s*=\s*(\S+)", config or "", re.MULTILINE)
    seen, cure = "no sbatch on the PATH", "work on a login node of the cluster (often after `module load slurm`)"
    if version is not None:
        seen, cure = (
            f"{version}, its controller does not answer",
            "scontrol ping tells which one is asked; see SLURM_CONF",
        )
    if cluster is not None:
        seen, cure = f"{version}, cluster {cluster[1]}", ""
    try:
        submitit: str | None = importlib.metadata.version("submitit")
    except importlib.metadata.PackageNotFoundError:
        submitit = None
    extra = "" if submitit else "python3 -m pip install 'launcher[slurm]'"
    return [
        Finding("SLURM", cluster is not None, seen, cure, True, "target=slurm"),
        Finding("submitit", submitit is not None, submitit or "not installed", extra, True, "target=slurm"),
    ]


def _kubernetes() -> list[Finding]:
    """The client and a kubeconfig; whether the cluster answers, `submit --dry-run=server` tells."""
    try:
        client: str | None = importlib.metadata.version("kubernetes")
    except importlib.metadata.PackageNotFoundError:
        client = None
    extra = "" if client else "python3 -m pip install 'launcher[kubernetes]'"
    named = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    files = [part for part in named.split(os.pathsep) if Path(part).is_file()]
    cure = "" if files else "export KUBECONFIG=..., or have your cluster's tool write one"
    seen = ", ".join(files) or f"no {named}"
    return [
        Finding("kubernetes", client is not None, client or "not installed", extra, True, "target=kubernetes"),
        Finding("kubeconfig", bool(files), seen, cure, True, "target=kubernetes"),
    ]


def examine(python: str = sys.executable, runs: Path = Path("runs")) -> list[Finding]:
    """Everything that can be seen without starting a trainer; about a second, ten where Transformer Engine is imported."""
    launcher = Finding("launcher", sys.version_info >= (3, 11), f"Python {sys.version.split()[0]} ({sys.executable})")
    look = gpu_look.look(python)
    return [launcher, *_python(python, look), *_gpus(look), *_machine(runs.absolute()), *_slurm(), *_kubernetes()]
