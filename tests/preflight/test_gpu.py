"""Descriptions of GPUs: complete, and in agreement with the hardware files."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from launcher.config.groups import CONF_DIR
from launcher.config.schema import Hardware
from launcher.issue import Refused
from launcher.preflight import gpu

HARDWARE = [
    yaml.safe_load(file.read_text()) for file in sorted((CONF_DIR / "hardware").glob("*.yaml")) if file.stem != "cpu"
]


@pytest.mark.parametrize("known", HARDWARE, ids=lambda h: h["name"])
def test_each_hardware_has_a_description_that_agrees_with_it(known: dict[str, object]) -> None:
    found = gpu.of(Hardware(name=str(known["name"]), gpu=str(known["gpu"])))
    assert found.memory_bytes == known["hbm_bytes"]
    assert found.compute_capability == known["compute_capability"]
    bandwidth = float(found.text.partition("memory_bandwidth: ")[2].split()[0])
    assert bandwidth == known["hbm_bytes_per_s"]


@pytest.mark.parametrize(
    ("text", "code", "told"),
    [
        ("", "GPU_EMPTY", "describes no GPU"),
        ("# nothing\n\n", "GPU_EMPTY", "describes no GPU"),
        ("gpu_device_info { core_count: 152 }", "GPU_INCOMPLETE", "device_memory_size"),
    ],
)
def test_what_would_kill_the_compiler_is_refused(text: str, code: str, told: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.txtpb"
    file.write_text(text)
    with pytest.raises(Refused) as refused:
        gpu.of(Hardware(name="x", gpu="GB200"), file)
    (issue,) = refused.value.issues
    assert issue.code == code
    assert told in issue.message


@pytest.mark.parametrize("field", gpu.NEEDED)
def test_every_number_is_wanted(field: str) -> None:
    text = (gpu.FOLDER / "gb200.txtpb").read_text()
    line = next(line for line in text.splitlines() if line.strip().startswith(f"{field}:"))
    for broken in (text.replace(line, ""), text.replace(line, f"  {field}: 0")):
        with pytest.raises(Refused) as refused:
            gpu.parse(broken, "mine")
        assert field in refused.value.issues[0].message


def test_a_gpu_without_a_description(tmp_path: Path) -> None:
    for hardware in (
        Hardware(name="x", gpu="MI300X"),
        Hardware(name="cpu", platform="cpu", gpu="CPU"),
        Hardware(name="y", gpu="../gb200"),
    ):
        with pytest.raises(Refused) as refused:
            gpu.of(hardware)
        assert refused.value.issues[0].code == "GPU_UNKNOWN"
    with pytest.raises(Refused) as refused:
        gpu.of(Hardware(name="x", gpu="GB200"), tmp_path / "nothing")
    assert refused.value.issues[0].code == "GPU_UNREADABLE"
