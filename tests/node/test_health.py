"""A node's own examination: nvidia-smi's texts as recorded on two H200s (driver 580.159.04), and changed in one place each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.node import health

DATA = Path(__file__).parent / "data"
RECORDED = (DATA / "h200x2_gpus.csv").read_text()
UUID = "00000000-0000-0000-0000-000000000000"
RACK = "b1c2d3e4-0000-4000-8000-123456789abc"


def rows(text: str = RECORDED) -> list[dict[str, str]]:
    return health.gpu_rows(text, health.FIELDS)


def test_two_recorded_gpus_are_fit() -> None:
    found = [health.present(rows(), 2, "H200"), health.idle(rows(), ""), health.ecc(rows()), health.throttled(rows())]
    linked, domain = health.fabric(rows())
    assert [each["level"] for each in [*found, linked]] == ["ok"] * 5
    assert found[0]["seen"] == "2 x NVIDIA H200"
    assert domain == "", "an HGX node is a domain of its own, and says so by a UUID of zeros"


@pytest.mark.parametrize(
    ("old", "new", "check", "level", "told"),
    [
        ("Enabled, 0, No, No", "Enabled, 3, No, No", "ecc", "fail", "GPU 0: 3 uncorrected errors"),
        ("Enabled, 0, No, No", "Enabled, 0, Yes, No", "ecc", "fail", "GPU 0: rows wait for a reset"),
        ("Enabled, 0, No, No", "Enabled, 0, No, Yes", "ecc", "fail", "GPU 0: a row could not be replaced"),
        ("Enabled, 0, No, No", "Disabled, [N/A], No, No", "ecc", "warn", "off on GPU 0"),
        ("Not Active, Not Active", "Active, Not Active", "throttled", "warn", "GPU 0: hw_slowdown"),
        ("Not Active, Not Active", "Active, Active", "throttled", "warn", "hw_thermal_slowdown"),
    ],
)
def test_one_gpu_out_of_order(old: str, new: str, check: str, level: str, told: str) -> None:
    changed = RECORDED.replace(old, new, 1)
    assert changed != RECORDED
    found = getattr(health, check)(rows(changed))
    assert (found["level"], told in found["seen"]) == (level, True), found


@pytest.mark.parametrize(
    ("wanted", "name", "level"), [(2, "H200", "ok"), (4, "H200", "fail"), (2, "GB200", "fail"), (0, "", "ok")]
)
def test_number_and_kind_of_gpus(wanted: int, name: str, level: str) -> None:
    assert health.present(rows(), wanted, name)["level"] == level


def test_more_gpus_than_wanted_are_no_fault_and_may_be_anothers() -> None:
    assert health.present(rows(), 1, "H200")["level"] == "warn"
    busy = "GPU-42a6b275-9567-04b1-14f6-71b18a014370, 804, python3, 2658 MiB"
    assert [health.idle(rows(), busy, wanted)["level"] for wanted in (0, 1, 2)] == ["fail", "warn", "fail"]


@pytest.mark.parametrize(
    ("wanted", "why", "device", "level"),
    [
        (0, "no nvidia-smi here", "", "ok"),
        (2, "no nvidia-smi here", "nvidiactl", "warn"),
        (2, "no nvidia-smi here", "dxg", "warn"),
        (2, "no nvidia-smi here", "", "fail"),
        (2, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", "nvidiactl", "fail"),
        (2, "nvidia-smi did not answer within 30 s", "nvidiactl", "fail"),
    ],
)
def test_no_answer_of_nvidia_smi(wanted: int, why: str, device: str, level: str, tmp_path: Path) -> None:
    if device:
        (tmp_path / device).touch()
    assert health.unasked(wanted, why, str(tmp_path))["level"] == level


def test_gpus_in_use() -> None:
    # As recorded beside a program that held 2 GiB on one of the two.
    found = health.idle(rows(), "GPU-42a6b275-9567-04b1-14f6-71b18a014370, 804, python3, 2658 MiB\n")
    assert found["level"] == "fail"
    assert "804, python3" in found["seen"]
    full = RECORDED.replace("143771, 0,", "143771, 9000,", 1)
    assert health.idle(rows(full), "") == health.finding("idle", "fail", "memory in use: GPU 0: 9000 MiB")
    assert health.idle(rows(RECORDED.replace("143771, 0,", "143771, 521,")), "")["level"] == "ok"


def test_the_domain_of_a_rack_and_gpus_that_did_not_join_it() -> None:
    rack = RECORDED.replace(f"0, {UUID}", f"7, {RACK}")
    assert health.fabric(rows(rack))[1] == f"{RACK}.7"
    found, domain = health.fabric(rows(rack.replace("Completed, Success", "In Progress, N/A", 1)))
    assert (found["level"], "GPU 0: In Progress" in found["seen"], domain) == ("fail", True, "")
    found, _ = health.fabric(rows(rack.replace(f"7, {RACK}", f"8, {RACK}", 1)))
    assert (found["level"], "several domains" in found["seen"]) == ("fail", True)
    # As one H200 of a virtual machine answers, which has no fabric (driver 580.159.04).
    none = [{**row, "fabric.cliqueId": "N/A", "fabric.clusterUuid": "N/A"} for row in rows()]
    assert (health.fabric(none)[0]["level"], health.fabric(none)[1]) == ("ok", "")
    old_driver = [{key: value for key, value in row.items() if not key.startswith("fabric")} for row in rows()]
    assert health.fabric(old_driver)[0]["level"] == "warn"


@pytest.mark.parametrize(
    ("log", "level", "told"),
    [
        ("", "ok", "none"),
        ("NVRM: Persistence mode is deprecated", "ok", "none"),
        ("[1] NVRM: Xid (PCI:0000:18:00): 31, pid=7, MMU Fault\n[2] NVRM: Xid (PCI:0000:18:00): 13, x", "ok", "13, 31"),
        (
            "[1] NVRM: Xid (PCI:0009:01:00): 79, pid='<unknown>', GPU has fallen off the bus.",
            "fail",
            "Xid 79 at 0009:01:00",
        ),
        ("[1] NVRM: Xid (PCI:0009:01:00): 31, x\n[2] NVRM: Xid (PCI:0008:06:00): 48, y", "fail", "double-bit"),
        ("[1] NVRM: Xid (PCI:0009:01:00): 63, x\n[2] NVRM: Xid (PCI:0008:06:00): 31, y", "warn", "row remapping event"),
        ("[1] NVRM: Xid (PCI:0009:01:00): 94, x\n[2] NVRM: Xid (PCI:0008:06:00): 79, y", "fail", "Xid 79 at 0008"),
    ],
)
def test_errors_in_the_kernels_log(log: str, level: str, told: str) -> None:
    found = health.xids(log)
    assert (found["level"], told in found["seen"]) == (level, True), found


def test_imex_channels(tmp_path: Path) -> None:
    assert health.imex(True, str(tmp_path / "none"))["level"] == "fail"
    assert health.imex(False, str(tmp_path / "none"))["level"] == "ok"
    (tmp_path / "channel0").touch()
    assert health.imex(True, str(tmp_path))["seen"] == "channel0"


@pytest.mark.parametrize(
    ("free_gib", "wanted_gib", "level"), [(900, 894, "ok"), (900, 0, "ok"), (300, 894, "warn"), (900, 1800, "fail")]
)
def test_host_memory(free_gib: int, wanted_gib: int, level: str) -> None:
    text = f"MemTotal:       {940 * 2**20} kB\nMemFree:  1 kB\nMemAvailable:   {free_gib * 2**20} kB\n"
    assert health.host_memory(text, wanted_gib * 2**30)["level"] == level


def test_disk(tmp_path: Path) -> None:
    assert health.disk([str(tmp_path)])["level"] in ("ok", "warn")
    assert health.disk([str(tmp_path / "nothing")])["level"] == "fail"


def smi(folder: Path, text: str) -> dict[str, str]:
    """An environment with an nvidia-smi of this text, of a driver that does not know the fabric's fields."""
    (folder / "gpus").write_text(text)
    program = folder / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *compute-apps*) exit 0;; esac\n'
        'for f in fabric.state fabric.status fabric.cliqueId fabric.clusterUuid; do case "$*" in\n'
        "  *$f*) printf 'Field \"%s\" is not a valid field to query.\\n\\n' $f; exit 2;; esac; done\n"
        f"cut -d, -f1-12 {folder / 'gpus'}\n"
    )
    program.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "SLURMD_NODENAME": "n7"}


def test_an_older_driver_is_asked_for_what_it_knows(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-", "--gpus", "2", "--gpu-name", "H200", "--no-compute"],
        input=Path(health.__file__).read_text(), env=smi(tmp_path, RECORDED), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    report = json.loads(done.stdout.removeprefix(health.PREFIX))
    levels = {each["name"]: each["level"] for each in report["findings"]}
    assert (report["node"], levels["GPUs"], levels["NVLink"], done.returncode) == ("n7", "ok", "warn", 0), done.stderr


def test_a_bad_node_ends_with_its_own_code(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, health.__file__, "--gpus", "4"],
        env=smi(tmp_path, RECORDED),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == health.BAD_NODE == 79
    report = json.loads(done.stdout.removeprefix(health.PREFIX))
    assert not any(each["name"] == "compute" for each in report["findings"]), "what has failed is not burdened further"


@pytest.mark.parametrize(
    ("program", "level", "told"),
    [
        ('echo noise; echo \'{"jax": "1", "platform": "gpu", "devices": 2, "matmul_tflops": 700.04, "wrong": []}\'', "ok", "matmul_tflops 700"),
        ('echo \'{"jax": "1", "platform": "gpu", "devices": 2, "matmul_tflops": 700, "wrong": [1]}\'', "fail", "wrong results: [1]"),
        ("echo \"ModuleNotFoundError: No module named 'jax'\" >&2; exit 1", "warn", "not measured"),
        ("echo 'CUDA_ERROR_ECC_UNCORRECTABLE' >&2; exit 1", "fail", "CUDA_ERROR_ECC"),
    ],
)  # fmt: skip
def test_what_the_computation_says(program: str, level: str, told: str, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{program}\n")
    python.chmod(0o755)
    found, _ = health.compute(str(python))
    assert (found["level"], told in found["seen"]) == (level, True), found


def test_the_computation_is_right_on_cpus_too() -> None:
    pytest.importorskip("jax", reason="jax is not installed in this Python")
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    done = subprocess.run(
        [sys.executable, "-c", health.COMPUTE], env=environment, capture_output=True, text=True, timeout=120
    )
    answer = json.loads(done.stdout.strip().splitlines()[-1])
    assert (answer["devices"], answer["wrong"]) == (2, []), done.stderr
    assert answer["matmul_tflops"] > 0
    assert answer["all_reduce_gb_s"] > 0
