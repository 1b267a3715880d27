"""The workaround te_compile_cache: JAX's own compile cache, and a package with TE's name that partitions as TE does."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from trainer_folder import Folder

from launcher.node.environment import PROGRAM

ALLOWED = ("--workaround", "te_compile_cache=allowed")

ENGINE = """
    import os
    from functools import partial
    from jax.experimental.custom_partitioning import custom_partitioning

    @partial(custom_partitioning, static_argnums=(1,))
    def scaled(x, factor):
        return x * factor

    def partition(factor, mesh, arguments, result):
        by = factor * float(os.environ.get("NVTE_SCALE", "1")) * SOURCE
        return mesh, lambda x: x * by, result.sharding, (arguments[0].sharding,)

    SOURCE = 1.0
    scaled.def_partition(partition, sharding_rule="i -> i")
"""

WORK = """
    import json, sys
    import jax, numpy
    keys = dict(word.split("=", 1) for word in sys.argv[2:])
    jax.config.update("jax_compilation_cache_dir", keys["jax_cache_dir"].strip('"'))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    seen = []
    jax.monitoring.register_event_listener(lambda name, **_: seen.append(name.rpartition("/")[2]))
    from transformer_engine import scaled
    here = jax.sharding.NamedSharding(jax.sharding.Mesh(numpy.array(jax.devices()), ("data",)), jax.P("data"))
    x = jax.device_put(jax.numpy.ones(4), here)
    seen.clear()
    y = jax.jit(lambda x: scaled(x, float(keys["factor"])))(x)
    print(json.dumps([float(numpy.asarray(y)[0]), "cache_hits" in seen, keys["jax_cache_dir"]]))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    if importlib.util.find_spec("jax") is None:
        pytest.skip("no jax in this Python: pip install 'launcher[local]'")
    folder = Folder(tmp_path)
    folder.module("transformer_engine.__init__", ENGINE)
    folder.module("work", WORK)
    (tmp_path / "maxtext.yml").write_text("base_config: base.yml\n")
    return folder


def train(folder: Folder, *options: str, run: str = "one", factor: str = "3", cache: str = "cache", **environ: str):
    """What a step gives, whether JAX found it in its cache, the cache's folder as MaxText gets it."""
    keys = [f"run_name={run}", f"base_output_directory=/runs/{run}", f"jax_cache_dir={cache}", f"factor={factor}"]
    flags = "--xla_force_host_platform_device_count=2"
    done = folder.trainer(*options, "work", "maxtext.yml", *keys, JAX_PLATFORMS="cpu", XLA_FLAGS=flags, **environ)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_without_it_a_step_is_compiled_anew_at_each_start(folder: Folder) -> None:
    """When this fails, JAX has learnt it: the workaround can go."""
    assert [train(folder)[:2] for _ in range(2)] == [[3.0, False], [3.0, False]]


@pytest.mark.parametrize("cache", ["cache", '"with space"'])
def test_with_it_the_next_start_finds_the_step(folder: Folder, cache: str) -> None:
    (folder.path / "transformer_engine" / ".#ep.py").symlink_to("an editor's lock, no file")
    first, again, another_run = (train(folder, *ALLOWED, run=run, cache=cache) for run in ("one", "one", "two"))
    assert (first[:2], again[:2], another_run[:2]) == ([3.0, False], [3.0, True], [3.0, True])
    (entry,) = (folder.path / cache.strip('"')).iterdir()
    assert first[2] == (f'"with space/{entry.name}"' if " " in cache else f"cache/{entry.name}")


def test_what_is_in_no_text_of_a_program_never_gets_another_ones_step(folder: Folder) -> None:
    """An argument, a variable, a source of TE's: JAX's key is the same for them all, the results are not."""
    assert train(folder, *ALLOWED)[:2] == [3.0, False]
    assert train(folder, *ALLOWED, factor="5")[:2] == [5.0, False]
    assert train(folder, *ALLOWED, NVTE_SCALE="2")[:2] == [6.0, False]
    file = folder.path / "transformer_engine" / "__init__.py"
    file.write_text(file.read_text().replace("SOURCE = 1.0", "SOURCE = 4.0"))
    assert train(folder, *ALLOWED)[:2] == [12.0, False]
    (folder.path / "maxtext.yml").write_text("base_config: other.yml\n")
    assert train(folder, *ALLOWED)[:2] == [12.0, False]
    assert train(folder, *ALLOWED)[:2] == [12.0, True]
    with_one_folder = {"JAX_REMOVE_CUSTOM_PARTITIONING_PTR_FROM_CACHE_KEY": "true"}
    train(folder, **with_one_folder)
    assert train(folder, factor="5", **with_one_folder)[:2] == [12.0, True], "the wrong step: why the folder is its own"


@pytest.mark.parametrize("options", [(), ("--workaround", "te_compile_cache=refused")])
def test_unasked_nothing_changes(folder: Folder, options: tuple[str, ...]) -> None:
    assert train(folder, *options)[2] == "cache"


def test_without_an_engine_nothing_changes(folder: Folder) -> None:
    (folder.path / "transformer_engine" / "__init__.py").rename(folder.path / "other.py")
    (folder.path / "transformer_engine").rmdir()
    folder.module("work", "import os, sys; print(sys.argv[2:], 'JAX_REMOVE' in ''.join(os.environ))")
    done = folder.run("-S", str(PROGRAM), *ALLOWED, "work", "maxtext.yml", "jax_cache_dir=c")
    assert done.stdout == "['jax_cache_dir=c'] False\n", done.stderr
