"""Which hardware file is for the GPUs that are here, and what they lack. What nvidia-smi said, against the files of conf/."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from launcher.config.groups import search_path
from launcher.preflight.finding import Finding

Row = Mapping[str, Any]

MEMORY_SLACK = 0.03
"""Share by which nvidia-smi's total may differ from the file: it counts without what the driver keeps (H200: 143,771 MiB against
the 151,397,597,184 bytes of XLA's description, 0.4 %)."""

MEMORY_FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION"

DEFAULT_FRACTION = 0.75
"""Share of each GPU's memory that XLA takes at its start when nothing is said (docs.jax.dev, GPU memory allocation)."""


def files(group: str, path: Sequence[Path]) -> dict[str, Row]:
    """The options of a group and what they say; the first folder wins."""
    found: dict[str, Row] = {}
    for folder in path:
        for file in sorted((folder / group).glob("*.yaml")):
            found.setdefault(file.stem, yaml.safe_load(file.read_text(encoding="utf-8")) or {})
    return found


def _capability(row: Row) -> int:
    """As the files write it: major x 10 + minor. 0 = not told."""
    told = re.fullmatch(r"(\d+)\.(\d+)", str(row.get("compute_capability", "")))
    return int(told[1]) * 10 + int(told[2]) if told else 0


def matching(gpu: Row, hardware: Mapping[str, Row]) -> list[str]:
    """The files that are for a GPU: its name has theirs as a word, and the compute capability is the same.

    >>> matching({"name": "NVIDIA GB200", "compute_capability": "10.0"}, {"b": {"gpu": "B200", "compute_capability": 100}})
    []
    """
    return [
        name
        for name, row in hardware.items()
        if row.get("gpu")
        and re.search(rf"\b{re.escape(str(row['gpu']))}\b", str(gpu["name"]))
        and row.get("compute_capability") == _capability(gpu)
    ]


def _lacks(row: Row, precision: Row) -> bool:
    # only where GPUs are: the checks of a plan load Hydra
    from launcher.plan.check_te import LEAST_CAPABILITY

    values = [str(precision.get(key) or "") for key in ("quantization", "te_gmm_quantization")]
    if "te_mxfp8" in values and not row.get("mxfp8"):
        return True
    return any(int(row["compute_capability"]) < LEAST_CAPABILITY.get(value, 0) for value in values)


def _precisions(row: Row, options: Mapping[str, Row]) -> str:
    """Which precisions of Transformer Engine this hardware does not have, and those that it has."""
    with_te = {name: option for name, option in options.items() if option.get("te_gmm_quantization")}
    missing = [name for name, option in with_te.items() if _lacks(row, option)]
    if not missing:
        return ""
    rest = [f"precision={name}" for name in with_te if name not in missing]
    return f"no {', '.join(f'precision={name}' for name in missing)}: type {' or '.join(rest)}"


def _memory(gpus: Sequence[Row], name: str, row: Row) -> Iterator[Finding]:
    seen, wanted = min(int(gpu["memory_bytes"]) for gpu in gpus), int(row.get("hbm_bytes", 0))
    if seen and wanted and abs(seen / wanted - 1) > MEMORY_SLACK:
        yield Finding(
            "GPU memory",
            False,
            f"{seen / 2**30:.1f} GiB a GPU; hardware={name} says {wanted / 2**30:.1f}",
            f"hardware.hbm_bytes={seen}",
            optional=True,
            what_for="`plan` and `preflight aot`, which tell whether a run fits",
            mark="careful",
        )


def hardware(gpus: Sequence[Row], path: Sequence[Path] | None = None) -> list[Finding]:
    """The file that is for these GPUs, what it lacks, and whether its memory is theirs. path: None = where configs are looked up."""
    folders = search_path() if path is None else path
    known, first = files("hardware", folders), gpus[0]
    names = sorted({str(gpu["name"]) for gpu in gpus})
    if len(names) > 1:
        cure = "CUDA_VISIBLE_DEVICES=... with those of one kind"
        return [
            Finding(
                "hardware",
                False,
                f"GPUs of {len(names)} kinds: {', '.join(names)}",
                cure,
                True,
                "training",
                mark="careful",
            )
        ]
    fitting = matching(first, known)
    fitting.sort(key=lambda name: known[name]["gpus_per_node"] != len(gpus))
    if not fitting:
        near = sorted(known, key=lambda name: abs(int(known[name].get("compute_capability", 0)) - _capability(first)))[
            0
        ]
        seen = f"no file is for {first['name']} (compute capability {first['compute_capability']})"
        cure = f"copy {near}.yaml to a folder hardware/ in $LAUNCHER_CONF, and put this GPU's numbers into it"
        return [Finding("hardware", False, seen, cure, True, "`plan` and its checks on these GPUs", mark="careful")]
    name, row = fitting[0], known[fitting[0]]
    told = [f"hardware={name}"]
    if int(row["gpus_per_node"]) != len(gpus):
        told.append(f"hardware.gpus_per_node={len(gpus)} (the file has {row['gpus_per_node']})")
    told += [lacking] if (lacking := _precisions(row, files("precision", folders))) else []
    return [Finding("hardware", True, "; ".join(told)), *_memory(gpus, name, row)]


def memory_fraction(environment: Mapping[str, str]) -> Finding:
    """What XLA takes of each GPU's memory at its start; the rest is NCCL's, cuBLAS' and Transformer Engine's."""
    text = environment.get(MEMORY_FRACTION)
    if text is None:
        seen = f"{DEFAULT_FRACTION:.0%} of each GPU's, XLA's own choice ({MEMORY_FRACTION} is not set here; env=article sets 0.88)"
        return Finding("XLA's memory", True, seen)
    try:
        return Finding("XLA's memory", True, f"{float(text):.0%} of each GPU's ({MEMORY_FRACTION}={text})")
    except ValueError:
        cure = f"unset {MEMORY_FRACTION}, or export {MEMORY_FRACTION}=0.88"
        return Finding(
            "XLA's memory",
            False,
            f"{MEMORY_FRACTION}={text} is no number",
            cure,
            what_for="training on GPUs",
            mark="WRONG",
        )
