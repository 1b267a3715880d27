"""What this machine can do: each finding is what was seen and, where something is missing, the command that cures it."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.config import maxtext_schema

TIMEOUT_S = 60
"""Bound in seconds for asking another program; importing nothing heavy, each answers within a few."""

LOCAL_EXTRA = "python3.12 -m pip install 'launcher[local]'"

AOT_EXTRA = "python3.12 -m pip install 'launcher[aot]'"

ASK_PYTHON = """
import importlib.metadata, importlib.util, json, sys
def version(name):
    try: return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError: return None
names = ["maxtext", "jax", "jaxlib", "flax", "orbax-checkpoint", "transformer_engine", "jax-cuda13-pjrt", "submitit", "kubernetes"]
print(json.dumps({"python": sys.version.split()[0], "versions": {n: version(n) for n in names}}))
"""


@dataclass(frozen=True)
class Finding:
    """`optional` ones are only needed for what `what_for` says; `cure` is what to type."""

    name: str
    ok: bool
    seen: str
    cure: str = ""
    optional: bool = False
    what_for: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return dataclasses.asdict(self)


def _output(*command: str) -> str | None:
    """What a program says; None when it is not there, fails, or does not answer."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S)
    except (subprocess.TimeoutExpired, OSError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _python(python: str) -> list[Finding]:
    """The Python that shall train: its version, MaxText and what belongs to it."""
    text = _output(python, "-c", ASK_PYTHON)
    if text is None:
        return [
            Finding(
                "trainer Python",
                False,
                f"{python} does not start",
                "name another with --python",
                what_for="training on this machine",
            )
        ]
    answer = json.loads(text)
    have: dict[str, str | None] = answer["versions"]
    new_enough = tuple(int(part) for part in answer["python"].split(".")[:2]) >= (3, 12)
    found = [
        Finding(
            "trainer Python",
            new_enough,
            f"{answer['python']} ({python})",
            "" if new_enough else f"MaxText needs Python >= 3.12: {LOCAL_EXTRA}",
            what_for="training on this machine",
        ),
    ]
    known = maxtext_schema.versions()
    version = have["maxtext"]
    fits = version in known
    cure = "" if fits else f"pip install maxtext=={known[-1]}" if version else LOCAL_EXTRA
    seen = f"{version or 'not installed'}{'' if fits or not version else f', the launcher knows {known}'}"
    found.append(Finding("MaxText", fits, seen, cure, what_for="training on this machine"))
    found.append(
        Finding(
            "jax",
            have["jax"] is not None,
            f"jax {have['jax']}, jaxlib {have['jaxlib']}" if have["jax"] else "not installed",
            "" if have["jax"] else LOCAL_EXTRA,
            what_for="training on this machine",
        )
    )
    return found + _for_gpus(have)


def _for_gpus(have: dict[str, str | None]) -> list[Finding]:
    """What the same Python has for GPUs: their compiler, and Transformer Engine."""
    compiler = have["jax-cuda13-pjrt"]
    found = [
        Finding(
            "XLA's GPU compiler",
            compiler is not None and compiler == have["jax"],
            f"jax-cuda13-pjrt {compiler}" if compiler else "not installed",
            AOT_EXTRA
            if not compiler
            else ""
            if compiler == have["jax"]
            else f"pip install --no-deps jax-cuda13-pjrt=={have['jax']}",
            True,
            "preflight aot: memory and traffic without a GPU",
        )
    ]
    engine = have["transformer_engine"]
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


def _machine(runs: Path) -> list[Finding]:
    """Cores, memory, disk under the folder of runs, GPUs."""
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
    gpus = [line for line in (_output("nvidia-smi", "-L") or "").splitlines() if line.startswith("GPU")]
    seen = f"{len(gpus)}: {gpus[0].partition(' (UUID')[0]}" if gpus else "none (nvidia-smi shows no GPU)"
    found.append(
        Finding(
            "GPUs",
            bool(gpus),
            seen,
            "" if gpus else "run where GPUs are, or train on CPUs: +exp=moe_tiny_cpu",
            True,
            "experiments with hardware.platform=gpu, target=local",
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
    """Everything that can be seen without starting a trainer; takes about a second."""
    launcher = Finding("launcher", sys.version_info >= (3, 11), f"Python {sys.version.split()[0]} ({sys.executable})")
    return [launcher, *_python(python), *_machine(runs.absolute()), *_slurm(), *_kubernetes()]


def text(findings: list[Finding]) -> str:
    """The findings as people read them, one block each, the cures below."""
    width = max(len(finding.name) for finding in findings)
    lines = []
    for finding in findings:
        mark = "ok     " if finding.ok else "absent " if finding.optional else "MISSING"
        lines.append(f"{mark}  {finding.name:{width}}  {finding.seen}")
        indent = " " * (width + 11)
        if not finding.ok:
            lines += (
                textwrap.wrap(f"needed for {finding.what_for}", 118, initial_indent=indent, subsequent_indent=indent)
                if finding.what_for
                else []
            )
            lines += (
                textwrap.wrap(f"cure: {finding.cure}", 118, initial_indent=indent, subsequent_indent=indent)
                if finding.cure
                else []
            )
    return "\n".join(lines)
