"""Does MaxText itself accept a bundle: its configuration code reads it, on as many fake CPU devices as there are GPUs.

Takes a few seconds, no GPU, no network. It cannot see what MaxText checks only once the trainer builds its model.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from launcher.issue import Issue, Severity

PROBE = Path(__file__).with_name("maxtext_probe.py")

TIMEOUT_S = 180
"""Bound for one check. Seen on two idle cores: 3 s for 128 devices, 4 s for 1,024."""

OVERRIDES: Mapping[str, object] = {
    # No process group: this process stands for all of them.
    "skip_jax_distributed_system": True,
    "run_name": "preflight",
    "jax_cache_dir": "",
}
"""Keys that are set for the check alone, whatever the bundle says; base_output_directory and num_slices come on top."""


@dataclass(frozen=True)
class Resolved:
    """What MaxText made of the configuration. Axes of size 1 are left out; global_batch is in sequences."""

    ici: Mapping[str, int]
    dcn: Mapping[str, int]
    devices: int
    domains: int
    global_batch: int
    tensors_on_device: tuple[str, ...] = ()
    tensors_to_offload: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """`accepted` with what it came to, or an Issue with MaxText's words. `version` is MaxText's, "" if not found."""

    accepted: bool
    version: str = ""
    resolved: Resolved | None = None
    issue: Issue | None = None


def _domains(keys: Mapping[str, Any], devices: int) -> int:
    """Number of NVLink domains that the keys ask for: the product of the dcn_* axes; a -1 there is what ICI leaves."""
    product, open_axis = {"ici": 1, "dcn": 1}, {"ici": False, "dcn": False}
    for name, size in keys.items():
        part = name[:3]
        if part in product and name.endswith("_parallelism") and isinstance(size, int):
            product[part] *= max(size, 1)
            open_axis[part] |= size == -1
    if open_axis["dcn"] and not open_axis["ici"]:
        return max(devices // product["ici"], 1)
    return product["dcn"]


def _environment(bundle: Path, devices: int) -> dict[str, str]:
    """This process's environment without what would steer JAX or MaxText, plus the M_<KEY> variables of the bundle."""
    steering = ("M_", "JAX_", "XLA_", "MAXTEXT_", "SLURM_", "LIBTPU_", "JOB_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(steering)}
    file = bundle / "env"
    words = shlex.split(file.read_text(encoding="utf-8"), comments=True) if file.exists() else []
    kept |= {n: v for n, _, v in (w.partition("=") for w in words if "=" in w) if n.startswith("M_")}
    return kept | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "DECOUPLE_GCLOUD": "TRUE",
    }


def _issue(code: str, where: str, message: str, hint: str) -> Verdict:
    return Verdict(False, issue=Issue(code, Severity.ERROR, where, message, hint))


def _verdict(answer: Mapping[str, Any], python: str) -> Verdict:
    if "missing" in answer:
        hint = "name a Python >= 3.12 that has it with --python, or make one: pip install 'launcher[local]'"
        return _issue("MAXTEXT_MISSING", "python", f"{python} cannot import MaxText ({answer['missing']})", hint)
    version = answer["version"]
    if "resolved" in answer:
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in answer["resolved"].items()}
        return Verdict(True, version, Resolved(**values))
    refused = answer["refused"]
    where = f"maxtext.{refused['keys'][0]}" if refused["keys"] else "maxtext"
    hint = "correct the key, or take it out" if refused["keys"] else "correct the keys that the text names"
    issue = Issue("MAXTEXT_REFUSED", Severity.ERROR, where, f"MaxText {version} refuses this: {refused['text']}", hint)
    return Verdict(False, version, issue=issue)


def _ask(
    request: Mapping[str, Any], python: str, environment: Mapping[str, str], folder: Path, timeout_s: float
) -> Verdict:
    """Run the probe in `folder`, an empty one, and read its answer."""
    asked, answered = folder / "request.json", folder / "answer.json"
    asked.write_text(json.dumps(request), encoding="utf-8")
    # A copy: Python puts the program's folder first on its path, and beside the original lies this very maxtext.py.
    probe = shutil.copy(PROBE, folder)
    if os.sep in python:
        python = os.path.abspath(python)  # the working folder is another one; a venv's link must stay a link
    command = [python, probe, str(asked), str(answered)]
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=dict(environment),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        hint = "try again on an idle machine"
        return _issue("PREFLIGHT_TIMEOUT", "maxtext", f"MaxText did not answer within {timeout_s:.0f} s", hint)
    except OSError as error:
        message = f"{python} does not start: {error.strerror}"
        return _issue("MAXTEXT_MISSING", "python", message, "name another with --python")
    if not answered.exists():
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        hint = f"does this work? {shlex.join([python, '-c', 'import maxtext.configs.pyconfig'])}"
        message = f"the check ended with {done.returncode} before it answered: {last}"
        return _issue("PREFLIGHT_DIED", "maxtext", message, hint)
    return _verdict(json.loads(answered.read_text(encoding="utf-8")), python)


def check(bundle: Path, python: str = sys.executable, timeout_s: float = TIMEOUT_S) -> Verdict:
    """MaxText's own word on a rendered bundle.

    Args:
        bundle: folder with maxtext.yml, launch.json and env, as rendered.
        python: the interpreter to ask; needs MaxText (>= 3.12) and nothing of the launcher.
        timeout_s: bound in seconds.

    Raises:
        OSError: the bundle lacks maxtext.yml or launch.json.
    """
    config = (bundle / "maxtext.yml").resolve()
    keys = yaml.safe_load(config.read_text(encoding="utf-8"))
    launch = json.loads((bundle / "launch.json").read_text(encoding="utf-8"))
    devices = launch["nodes"] * launch["processes_per_node"]
    domains = _domains({**keys, **launch["arguments"]}, devices)
    with tempfile.TemporaryDirectory(prefix="preflight-") as name:
        given = {**launch["arguments"], **OVERRIDES, "base_output_directory": name, "num_slices": domains}
        # MaxText reads each value as YAML: JSON keeps strings strings.
        arguments = [f"{key}={json.dumps(value)}" for key, value in given.items()]
        request = {"config": str(config), "arguments": arguments, "domains": domains}
        return _ask(request, python, _environment(bundle, devices), Path(name), timeout_s)
