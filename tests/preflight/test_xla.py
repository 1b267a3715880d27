"""XLA's own parser on an experiment's flags, and what can be read of its names from jaxlib's library."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.config.compose import Composer
from launcher.preflight import xla, xla_names

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("jaxlib") is None, reason="jaxlib is not installed in this Python"
)


@pytest.fixture(scope="module")
def names() -> dict[str, xla_names.Flag]:
    spec = importlib.util.find_spec("jaxlib")
    assert spec is not None
    assert spec.submodule_search_locations
    folder = Path(spec.submodule_search_locations[0])
    return xla_names.known(next(folder / name for name in xla.LIBRARIES if (folder / name).is_file()))


@pytest.mark.parametrize("name", ["dsv3_128gpu", "moe_tiny_cpu", "mixtral_8x7b_16gpu"])
def test_flags_of_shipped_experiments_are_accepted(name: str) -> None:
    composed = Composer().compose([f"+exp={name}"])
    assert composed.experiment is not None
    verdict = xla.check(composed.experiment.xla.flags)
    assert verdict.issues == ()
    assert verdict.jaxlib


def test_every_mistake_is_told_at_once_with_its_cure() -> None:
    verdict = xla.check(
        {
            "xla_gpu_memory_limit_slop_factor": "lots",
            "xla_gpu_enable_latency_hidding_scheduler": True,
            "xla_gpu_triton_gem_any": True,
            "xla_gpu_enable_command_buffer": "FUSION,CUBLASS",
            "xla_gpu_enable_while_loop_double_buffering": "maybe",
            "xla_gpu_autotune_level": 4,
            "--xla_gpu_autotune_level": 4,
        }
    )
    told = {issue.field.removeprefix("xla.flags."): (issue.code, issue.hint) for issue in verdict.issues}
    assert {name: code for name, (code, _) in told.items()} == {
        "xla_gpu_memory_limit_slop_factor": "XLA_FLAG_VALUE",
        "xla_gpu_enable_latency_hidding_scheduler": "XLA_FLAG_UNKNOWN",
        "xla_gpu_triton_gem_any": "XLA_FLAG_UNKNOWN",
        "xla_gpu_enable_command_buffer": "XLA_FLAG_VALUE",
        "xla_gpu_enable_while_loop_double_buffering": "XLA_FLAG_VALUE",
        "--xla_gpu_autotune_level": "XLA_FLAG_TEXT",
    }
    assert told["xla_gpu_memory_limit_slop_factor"][1] == "wanted a whole number"
    assert "xla_gpu_enable_latency_hiding_scheduler" in told["xla_gpu_enable_latency_hidding_scheduler"][1]
    assert "xla_gpu_triton_gemm_any" in told["xla_gpu_triton_gem_any"][1]
    assert "CUBLAS," in told["xla_gpu_enable_command_buffer"][1]
    assert "INVALID" not in told["xla_gpu_enable_command_buffer"][1]
    assert told["xla_gpu_enable_while_loop_double_buffering"][1] == "wanted true or false"


@pytest.mark.parametrize("value", ["'FUSION,CUBLAS'", "FUSION,CUBLAS", "", '"FUSION"'])
def test_one_pair_of_quotes_is_right(value: str) -> None:
    assert xla.check({"xla_gpu_enable_command_buffer": value}).accepted


def test_quotes_inside_quotes_are_told() -> None:
    (issue,) = xla.check({"xla_gpu_enable_command_buffer": "\"'FUSION,CUBLAS'\""}).issues
    assert (issue.code, issue.hint) == ("XLA_FLAG_TEXT", "leave out the quotes inside the quotes")
    (issue,) = xla.check({"xla_gpu_enable_command_buffer": "FUSION,'CUBLAS'"}).issues
    assert issue.code == "XLA_FLAG_VALUE"


def test_a_python_without_jaxlib_or_none_at_all(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
    bare.chmod(0o755)
    (issue,) = xla.check({}, str(bare)).issues
    assert (issue.code, "launcher[local]" in issue.hint) == ("JAX_MISSING", True)
    (issue,) = xla.check({}, str(tmp_path / "nothing")).issues
    assert (issue.code, "does not start" in issue.message) == ("JAX_MISSING", True)


def test_names_types_and_enumerations_come_from_the_library(names: dict[str, xla_names.Flag]) -> None:
    assert len(names) > 200
    assert names["xla_gpu_memory_limit_slop_factor"].kind == "int32"
    assert names["xla_gpu_mock_custom_calls"].kind == "bool"
    buffers = names["xla_gpu_enable_command_buffer"]
    assert buffers.many
    assert {"FUSION", "CUBLAS", "CUDNN", "DYNAMIC_SLICE_FUSION"} <= set(buffers.values)


@pytest.mark.parametrize("data", [b"", b"\xff" * 40, b"\n\x7fshort", b"\x12\x03xla" + b"\x22\x02"])
def test_bytes_that_describe_nothing_give_nothing(data: bytes, tmp_path: Path) -> None:
    assert xla_names.read(data) == {}
    library = tmp_path / "lib.so"
    library.write_bytes(b"ELF" + data)
    assert xla_names.known(library) == {}


def test_the_command_says_it_for_people_and_scripts() -> None:
    command = [sys.executable, "-m", "launcher", "preflight", "xla", "+exp=dsv3_128gpu"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, "reads the 7 flags" in done.stdout, "container" in done.stdout) == (0, True, True), (
        done.stderr
    )
    wrong = [*command, "+xla.flags.xla_gpu_bogus=1", "--json"]
    done = subprocess.run(wrong, capture_output=True, text=True, timeout=60)
    told = json.loads(done.stdout)
    assert (done.returncode, told["accepted"], [issue["code"] for issue in told["issues"]]) == (
        1,
        False,
        ["XLA_FLAG_UNKNOWN"],
    )
