"""GPUs as nvidia-smi tells them, against the hardware files: which is theirs, and what they lack."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from launcher.config.groups import CONF_DIR
from launcher.preflight import gpu_hardware

HARDWARE = gpu_hardware.files("hardware", (CONF_DIR,))
WITH_GPU = [name for name, row in HARDWARE.items() if row["platform"] == "gpu"]


def of(file: str, **more: object) -> dict[str, Any]:
    """A GPU of a hardware file, as nvidia-smi names it."""
    row = HARDWARE[file]
    capability = f"{row['compute_capability'] // 10}.{row['compute_capability'] % 10}"
    return {"name": f"NVIDIA {row['gpu']}", "memory_bytes": row["hbm_bytes"], "compute_capability": capability, **more}


@pytest.mark.parametrize("name", WITH_GPU)
def test_each_hardware_file_is_found_by_its_gpus(name: str) -> None:
    assert gpu_hardware.matching(of(name), HARDWARE) == [name]
    (found,) = gpu_hardware.hardware([of(name)] * HARDWARE[name]["gpus_per_node"], (CONF_DIR,))
    assert found.ok
    assert found.seen.partition(";")[0] == f"hardware={name}"
    assert ("no precision=mxfp8: type precision=" in found.seen) is (not HARDWARE[name]["mxfp8"])
    assert "gpus_per_node" not in found.seen


def test_fewer_gpus_than_the_file_has() -> None:
    (found,) = gpu_hardware.hardware([of("h200_hgx", name="NVIDIA H200", memory_bytes=143771 * 2**20)] * 2, (CONF_DIR,))
    assert "hardware.gpus_per_node=2 (the file has 8)" in found.seen


@pytest.mark.parametrize(
    ("gpus", "name", "told"),
    [
        (
            [of("h100_hgx", name="NVIDIA H100 NVL", memory_bytes=95830 * 2**20)] * 8,
            "GPU memory",
            "hardware=h100_hgx says",
        ),
        (
            [{"name": "NVIDIA A100-SXM4-80GB", "memory_bytes": 1, "compute_capability": "8.0"}],
            "hardware",
            "no file is for",
        ),
        ([of("h200_hgx"), of("b200_hgx")], "hardware", "GPUs of 2 kinds"),
    ],
)
def test_gpus_that_no_file_fits(gpus: list[dict[str, Any]], name: str, told: str) -> None:
    (found,) = [finding for finding in gpu_hardware.hardware(gpus, (CONF_DIR,)) if not finding.ok]
    assert (found.name, found.mark, found.optional) == (name, "careful", True)
    assert told in found.seen
    assert found.cure


def test_a_hardware_file_of_the_user_s_is_found(tmp_path: Path) -> None:
    (tmp_path / "hardware").mkdir()
    (tmp_path / "hardware" / "ours.yaml").write_text("gpu: A100\ncompute_capability: 80\ngpus_per_node: 1\n")
    gpu = {"name": "NVIDIA A100-SXM4-80GB", "memory_bytes": 85899345920, "compute_capability": "8.0"}
    (found,) = gpu_hardware.hardware([gpu], (tmp_path, CONF_DIR))
    assert found.seen.startswith(
        "hardware=ours; no precision=fp8_currentscaling, precision=mxfp8: type precision=te_bf16"
    )


def test_of_two_files_the_one_with_as_many_gpus_counts(tmp_path: Path) -> None:
    (tmp_path / "hardware").mkdir()
    (tmp_path / "hardware" / "an_h200_pair.yaml").write_text("gpu: H200\ncompute_capability: 90\ngpus_per_node: 2\n")
    for count, name in ((2, "an_h200_pair"), (8, "h200_hgx")):
        (found,) = gpu_hardware.hardware([of("h200_hgx")] * count, (tmp_path, CONF_DIR))
        assert found.seen.startswith(f"hardware={name};")


def test_what_xla_takes_of_the_memory() -> None:
    assert gpu_hardware.memory_fraction({gpu_hardware.MEMORY_FRACTION: "0.88"}).seen.startswith("88% of each GPU's")
    assert gpu_hardware.memory_fraction({}).seen.startswith("75% of each GPU's, XLA's own choice")
    assert gpu_hardware.memory_fraction({gpu_hardware.MEMORY_FRACTION: "most"}).mark == "WRONG"
