"""Compile an experiment's real train step for its GPUs with none of them here, and say what XLA allocates and moves.

The work is done by aot_probe/ in the trainer's Python (MaxText, jax, jax-cuda13-pjrt, Transformer Engine's Python part): a bad
flag, a partial GPU description or a fault of the compiler kills a process, and it must not be this one.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.issue import Issue, Refused, Severity
from launcher.node.environment import PROGRAM
from launcher.plan.plan import Plan
from launcher.preflight import aot_cache, aot_process, aot_report, aot_traffic, gpu, hlo, xla
from launcher.preflight.aot_report import Report
from launcher.render.bundle import render

PROBE = Path(__file__).with_name("aot_probe")

TIMEOUT_S = 1800
"""Bound of one compilation. Seen on two shared cores: 1 to 3 minutes for DeepSeek-V3 on 128 GPUs."""

OVERRIDES: Mapping[str, object] = {
    # No process group, no data, nothing written: the step's shapes and shardings are what is compiled.
    "skip_jax_distributed_system": True,
    "dataset_type": "synthetic",
    "enable_checkpointing": False,
    "run_name": "preflight",
    "jax_cache_dir": "",
}
"""Keys that are set for the compilation alone, whatever the bundle says."""

ALWAYS_FLAGS = ("--xla_gpu_mock_custom_calls=true",)
"""XLA then takes TE's custom calls by name. It assigns buffers before it looks at them, so memory is not affected."""

HEARD = ("M_", "NVTE_")
"""Variables of the bundle that MaxText or TE read while the step is traced."""

TE_KEYS = ("te_moe_block", "quantization", "te_gmm_quantization", "attention")
"""Keys by which MaxText takes something of Transformer Engine."""


@dataclass(frozen=True)
class Asked:
    """How it shall be compiled. `gpu`: a description instead of the hardware's own. `say`: told what is being done."""

    python: str = sys.executable
    gpu: Path | None = None
    dump: Path | None = None
    fresh: bool = False
    timeout_s: float = TIMEOUT_S
    say: Callable[[str], None] = lambda _line: None


@dataclass(frozen=True)
class _Work:
    """One compilation: what decides the answer. `variables` are the bundle's that are heard; `arguments` are MaxText's; `allowed`:
    workarounds that the trainer may apply.
    """

    plan: Plan
    asked: Asked
    target: gpu.Gpu
    files: Mapping[str, bytes]
    arguments: Mapping[str, object]
    allowed: Sequence[str]
    devices: int
    domains: int
    variables: Mapping[str, str]
    packages: Mapping[str, str]

    def key(self) -> str:
        """By content: another account on SLURM is the same compilation, another flag is not."""
        probe = {file.name: file.read_text(encoding="utf-8") for file in sorted(PROBE.glob("*.py"))}
        return aot_cache.key(
            {
                "config": self.files["maxtext.yml"].decode(),
                "flags": self.files["xla_flags"].decode(),
                "arguments": dict(self.arguments),
                "allowed": [*self.allowed, *([PROGRAM.read_text(encoding="utf-8")] if self.allowed else [])],
                "shape": [self.devices, self.domains],
                "ici": dict(self.plan.mesh.ici) if self.plan.mesh else {},
                "variables": dict(self.variables),
                "packages": dict(self.packages),
                "gpu": self.target.text,
                "probe": probe,
                "readers": [Path(module.__file__ or "").read_text(encoding="utf-8") for module in (hlo, aot_traffic)],
            }
        )


def _error(code: str, where: str, message: str, hint: str) -> Refused:
    return Refused(Issue(code, Severity.ERROR, where, message, hint))


def _uses_engine(keys: Mapping[str, object]) -> bool:
    return any(keys.get(key) is True or str(keys.get(key, "")).startswith(("te_", "cudnn_flash_te")) for key in TE_KEYS)


def _heard(env: str) -> dict[str, str]:
    words = [word.partition("=") for word in shlex.split(env, comments=True) if "=" in word]
    return {name: value for name, _, value in words if name.startswith(HEARD)}


def _work(plan: Plan, asked: Asked) -> _Work:
    """Everything that can be found wrong before the compiler is asked.

    Raises Refused: an unknown or broken GPU description, a Python that lacks something.
    """
    target = gpu.of(plan.experiment.hardware, asked.gpu)
    bundle = render(plan)
    launch = json.loads(bundle.files["launch.json"])
    devices = launch["nodes"] * launch["processes_per_node"]
    domains = plan.mesh.domains if plan.mesh else 1
    keys = plan.settings.keys if plan.settings else {}
    packages = aot_process.packages(asked.python, _uses_engine(keys))
    variables = _heard(bundle.files["env"].decode())
    allowed = [name for name, may in launch["workarounds"].items() if may]
    return _Work(plan, asked, target, bundle.files, launch["arguments"], allowed, devices, domains, variables, packages)


def _request(work: _Work, folder: Path) -> dict[str, Any]:
    """Files in `folder` and the probe's request."""
    (folder / "maxtext.yml").write_bytes(work.files["maxtext.yml"])
    (folder / "gpu.txtpb").write_text(work.target.text, encoding="utf-8")
    given = {**work.arguments, **OVERRIDES, "base_output_directory": str(folder)}
    return {
        "config": str(folder / "maxtext.yml"),
        # MaxText reads each value as YAML: JSON keeps strings strings.
        "arguments": [f"{key}={json.dumps(value)}" for key, value in given.items()],
        "domains": work.domains,
        "devices": work.devices,
        "gpu": str(folder / "gpu.txtpb"),
        "compute_capability": work.target.compute_capability,
        "packages": dict(work.packages),
        "trainer": str(PROGRAM),
        "workarounds": list(work.allowed),
        "hlo": str(folder / "module.txt"),
    }


def _environment(work: _Work) -> dict[str, str]:
    """This process's environment without what would steer JAX, MaxText or TE, and the bundle's own flags and variables."""
    steering = ("M_", "JAX_", "XLA_", "MAXTEXT_", "SLURM_", "LIBTPU_", "NVTE_", "TF_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(steering)}
    flags = [*work.files["xla_flags"].decode().splitlines(), *ALWAYS_FLAGS]
    if work.asked.dump is not None:
        flags.append(f"--xla_dump_to={shlex.quote(str((work.asked.dump / 'xla').absolute()))}")
    return (
        kept
        | dict(work.variables)
        | {
            "JAX_PLATFORMS": "cpu",
            "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
            "DECOUPLE_GCLOUD": "TRUE",
            "XLA_FLAGS": " ".join(flags),
        }
    )


def _said(work: _Work, last: float | None) -> str:
    mesh, model = work.plan.mesh, work.plan.experiment.model.name
    axes = " x ".join(f"{axis} {mesh.size(axis)}" for axis in mesh.ici if mesh.size(axis) > 1) if mesh else ""
    before = f"it took {last:.0f} s last time" if last else "minutes for a large model, remembered afterwards"
    return (
        f"compiling the train step of {model} for {work.devices} x {work.target.name} ({axes or 'one GPU'}); {before}"
    )


def _compile(work: _Work) -> dict[str, Any]:
    """The probe's answer with the flows read from the module in it.

    Raises Refused when MaxText, JAX or XLA refuse, crash, or do not end.
    """
    asked, name = work.asked, work.plan.experiment.name
    asked.say(_said(work, aot_cache.last_seconds(name)))
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="launcher-aot-") as temporary:
        folder = Path(temporary)
        job = aot_process.Job(asked.python, _environment(work), folder, asked.timeout_s, asked.say)
        try:
            answer = aot_process.run(PROBE, _request(work, folder), job)
        finally:
            if asked.dump is not None and (folder / aot_process.ERRORS).exists():
                asked.dump.mkdir(parents=True, exist_ok=True)
                shutil.copy(folder / aot_process.ERRORS, asked.dump / aot_process.ERRORS)
        module = (folder / "module.txt").read_text(encoding="utf-8")
        if asked.dump is not None:
            _dump(asked.dump, answer, module)
    where = (
        aot_traffic.layout(answer["mesh"], work.plan.mesh) if work.plan.mesh else aot_traffic.Layout(answer["mesh"], {})
    )
    if math.prod(where.sizes.values()) != work.devices:
        raise _error(
            "AOT_MESH", "mesh", f"MaxText made a mesh of {answer['mesh']} for {work.devices} GPUs", "report it"
        )
    collectives, custom = hlo.read(module)
    flows = aot_traffic.flows(collectives, where)
    exchange = aot_traffic.exchange(custom, answer["exchange"], where)
    answer["flows"] = [dataclasses.asdict(flow) for flow in ([exchange] if exchange else []) + flows]
    answer["seconds"]["total"] = round(time.monotonic() - began, 1)
    aot_cache.remember_seconds(name, answer["seconds"]["total"])
    return answer


def _dump(folder: Path, answer: Mapping[str, Any], module: str) -> None:
    """What was seen, for people who want to look: XLA's own files are in `xla`.

    Raises OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "module.txt").write_text(module, encoding="utf-8")
    (folder / "answer.json").write_text(json.dumps(answer, indent=2) + "\n", encoding="utf-8")


def check(plan: Plan, asked: Asked) -> Report:
    """XLA's own word on a sound plan; what it found wrong is told by aot_report.issues_of.

    Raises:
        Refused: it cannot be compiled as it stands, with the reason as Issues.
        OSError: the dump cannot be written.
    """
    work = _work(plan, asked)
    key = work.key()
    about = (work.target.name, work.target.memory_bytes)
    if not asked.fresh and asked.dump is None and (before := aot_cache.load(key)):
        return aot_report.build(before, plan, about, cached=True)
    flags = xla.check(plan.experiment.xla.flags, asked.python)
    if not flags.accepted:
        raise Refused(*flags.issues)
    answer = _compile(work)
    aot_cache.store(key, answer)
    return aot_report.build(answer, plan, about, cached=False)
