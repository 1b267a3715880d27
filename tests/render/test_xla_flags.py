import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.config.compose import Composer
from launcher.config.groups import options
from launcher.node.environment import read_xla_flags
from launcher.render import xla

needs_jax = pytest.mark.skipif(importlib.util.find_spec("jaxlib") is None, reason="jaxlib is not installed")
START = "import jax; jax.devices()"
COMPILE = "import jax, jax.numpy as jnp; jax.jit(lambda x: x + 1)(jnp.ones(4)).block_until_ready()"


def jaxlib(flags: list[str], program: str = START) -> subprocess.CompletedProcess[str]:
    """The real XLA on the CPU, started with these flags as the worker would join them."""
    environ = {**os.environ, "XLA_FLAGS": " ".join(flags), "JAX_PLATFORMS": "cpu"}
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environ)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (False, "false"),
        (6442450944, "6442450944"),
        (0.5, "0.5"),
        ("", ""),
        ("FUSION,CUBLAS", "FUSION,CUBLAS"),
        ("'FUSION,CUBLAS'", "'FUSION,CUBLAS'"),
        ('"FUSION, CUBLAS"', '"FUSION, CUBLAS"'),
        ("FUSION, CUBLAS", "'FUSION, CUBLAS'"),
        ("/tmp/a b", "'/tmp/a b'"),
        ("$HOME", "'$HOME'"),
        ("a#b", "'a#b'"),
        ('say "no"', "'say \"no\"'"),
        ("it's", '"it\'s"'),
        ("it's\\", '"it\'s\\\\"'),
        ("C:\\new", "'C:\\new'"),
        ("'open", '"\'open"'),
        ("日本", "'日本'"),
    ],
)
def test_a_value_is_quoted_only_where_xla_needs_it(value: object, text: str) -> None:
    assert xla.flags({"xla_dump_to": value}) == [f"--xla_dump_to={text}"]


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ('it\'s "both"', "both kinds"),
        ("\"'A'\"", "both kinds"),
        ("a\nb", "line break"),
        ("a\n", "line break"),
        ("a\u2028", "line break"),
        (["a"], "list"),
        (None, "NoneType"),
    ],
)
def test_what_cannot_be_one_flag_on_one_line_is_refused(value: object, told: str) -> None:
    with pytest.raises(ValueError, match=rf"xla\.flags\.xla_dump_to: .*{told}"):
        xla.flags({"xla_dump_to": value})


def test_a_name_with_dashes_is_refused() -> None:
    with pytest.raises(ValueError, match="without dashes"):
        xla.flags({"--xla_dump_to": "x"})


def test_flags_are_sorted() -> None:
    assert xla.flags({"xla_b": 1, "xla_a": 2}) == ["--xla_a=2", "--xla_b=1"]
    assert xla.text({}) == ""


def test_the_worker_joins_the_file_to_one_line(tmp_path: Path) -> None:
    file = tmp_path / "xla_flags"
    chosen = {"xla_b": "x  y", "xla_a": "'FUSION,CUBLAS'", "xla_c": "it's"}
    file.write_bytes(xla.text(chosen).encode())
    assert read_xla_flags(file) == "--xla_a='FUSION,CUBLAS' --xla_b='x  y' --xla_c=\"it's\""


@needs_jax
@pytest.mark.maxtext
@pytest.mark.parametrize("group", options("xla"))
def test_xla_accepts_every_group_of_flags(group: str) -> None:
    composed = Composer().compose(["+exp=dsv3_128gpu", f"xla={group}"])
    assert composed.experiment is not None, composed.issues
    done = jaxlib(xla.flags(composed.experiment.xla.flags))
    assert done.returncode == 0, done.stderr


@needs_jax
@pytest.mark.maxtext
def test_xla_judges_what_we_pass_and_not_something_else() -> None:
    unknown = jaxlib(xla.flags({"xla_gpu_no_such_flag": True}))
    assert unknown.returncode != 0
    assert "xla_gpu_no_such_flag" in unknown.stderr
    bad_value = jaxlib(xla.flags({"xla_gpu_enable_command_buffer": "'FUSION,BOGUS'"}))
    assert bad_value.returncode != 0


@needs_jax
@pytest.mark.maxtext
@pytest.mark.parametrize("name", ["two  words", "$HOME", "it's", 'say "no"', "back\\slash", "a#b", "it's \\ odd", "äö"])
def test_xla_reads_a_quoted_value_as_it_was_meant(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    done = jaxlib(xla.flags({"xla_dump_to": str(folder), "xla_dump_hlo_as_text": True}), COMPILE)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert any(folder.iterdir())
