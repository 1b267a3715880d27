"""Descriptions of GPUs for XLA's compiler: stream_executor.GpuTargetConfigProto in text form, one file a GPU.

A description that lacks a number is not refused by XLA: it divides by it and the process dies (SIGFPE). So it is read here first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from launcher.config.schema import Hardware
from launcher.issue import Issue, Refused, Severity

FOLDER = Path(__file__).resolve().parent.parent / "data" / "gpu"

NEEDED = (
    "core_count", "fpus_per_core", "clock_rate_ghz", "device_memory_size", "memory_bandwidth", "l2_cache_size",
    "threads_per_warp", "threads_per_block_limit", "threads_per_core_limit", "registers_per_core_limit",
    "registers_per_block_limit", "shared_memory_per_block", "shared_memory_per_block_optin", "shared_memory_per_core",
    "block_dim_limit_x", "block_dim_limit_y", "block_dim_limit_z", "thread_dim_limit_x", "thread_dim_limit_y",
    "thread_dim_limit_z",
)  # fmt: skip
"""Numbers above 0 that the compiler works with."""


@dataclass(frozen=True)
class Gpu:
    """`text` goes to XLA as it is. `memory_bytes` is the whole of the GPU's; `compute_capability` = major x 10 + minor."""

    name: str
    text: str
    memory_bytes: int
    compute_capability: int


def names() -> list[str]:
    """The GPUs that are described here, by the words of `hardware.gpu`."""
    return sorted(file.stem.upper() for file in FOLDER.glob("*.txtpb"))


def _numbers(text: str) -> dict[str, float]:
    return {name: float(value) for name, value in re.findall(r"\b(\w+):\s*(-?[\d.]+(?:[eE][+-]?\d+)?)", text)}


def _issue(code: str, message: str, hint: str) -> Issue:
    return Issue(code, Severity.ERROR, "hardware.gpu", message, hint)


def parse(text: str, where: str) -> Gpu:
    """A description, if it has every number that XLA divides by.

    Raises Refused: GPU_EMPTY, or GPU_INCOMPLETE with all that is missing.
    """
    plain = re.sub(r"#.*", "", text)
    if not plain.strip():
        raise Refused(_issue("GPU_EMPTY", f"{where} describes no GPU: it is empty", f"there are: {', '.join(names())}"))
    numbers = _numbers(plain)
    missing = [name for name in NEEDED if numbers.get(name, 0) <= 0]
    capability = re.search(r"cuda_compute_capability\s*\{([^}]*)\}", plain)
    version = _numbers(capability[1]) if capability else {}
    if "major" not in version:
        missing.append("cuda_compute_capability { major }")
    if missing:
        hint = "XLA would divide by zero; take launcher/data/gpu/gb200.txtpb as the pattern"
        raise Refused(_issue("GPU_INCOMPLETE", f"{where} lacks {', '.join(missing)}", hint))
    told = re.search(r'device_description_str:\s*"([^"]*)"', plain)
    minor = int(version.get("minor", 0))
    memory = int(numbers["device_memory_size"])
    return Gpu(told[1] if told else where, text, memory, int(version["major"]) * 10 + minor)


def of(hardware: Hardware, file: Path | None = None) -> Gpu:
    """The GPU of an experiment's hardware, or the one that a file describes.

    Raises Refused: GPU_UNKNOWN for hardware without a description, and what `parse` raises.
    """
    if file is None and (hardware.platform != "gpu" or hardware.gpu.upper() not in names()):
        message = f"XLA's compiler has no description of {hardware.gpu or 'the GPU'} ({hardware.name}); it has {', '.join(names())}"
        raise Refused(_issue("GPU_UNKNOWN", message, "choose hardware=gb200_nvl72, or give one with --gpu FILE.txtpb"))
    path = file or FOLDER / f"{hardware.gpu.lower()}.txtpb"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        message = f"{path} cannot be read: {error}"
        raise Refused(_issue("GPU_UNREADABLE", message, "name a GpuTargetConfigProto in text form")) from error
    return parse(text, path.name)
