"""Kernels that NCCL EP compiled: kept from attempt to attempt, but none that an attempt may have died of."""

import json
import os

import pytest
from launches import LAUNCH

from launcher.node import jit_cache
from launcher.node.launch import read_launch
from launcher.node.layout import RunFolder


@pytest.fixture
def attempt_folder(tmp_path):
    """Opens the folder of an attempt on GPUs, as the worker does."""
    path = tmp_path / "launch.json"
    path.write_text(json.dumps({**LAUNCH, "platform": "gpu"}))
    run = RunFolder(tmp_path / "run")
    return lambda number=1: jit_cache.fresh(
        read_launch(path), run.attempt(number), {"NCCL_EP_JIT_CACHE_DIR": str(tmp_path / "jit")}
    )


def kernel(folder, name, **files):
    """A kernel's folder as NCCL EP of Transformer Engine 2.20.2 leaves it."""
    place = folder / name
    place.mkdir()
    whole = {
        "compile.lock": "",
        "compile.log": "nvcc",
        "kernel.cu": "//",
        "kernel.cubin": "code",
        "metadata.json": "{}",
    }
    for part, text in {**whole, **files}.items():
        if text is not None:
            (place / part).write_text(text)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_finished_kernels_are_in_the_next_attempts_folder_and_nowhere_else(attempt_folder, tmp_path):
    with attempt_folder() as first:
        kernel(first, "18a5")
        kernel(first, "2d85")
        jit_cache.keep(first)
    with attempt_folder(2) as second:
        assert second != first
        assert names(second) == ["18a5", "2d85"]
        assert names(second / "18a5") == ["compile.log", "kernel.cu", "kernel.cubin", "metadata.json"]
        with attempt_folder(3) as beside:
            assert names(beside) == []
    assert [path for path in (tmp_path / "jit").iterdir() if names(path)] == []  # the second attempt made no step


@pytest.mark.parametrize(
    "files",
    [{"compile.failed": ""}, {"kernel.cubin": None}, {"kernel.cubin": ""}, {"metadata.json": None}],
    ids=["poisoned", "no code", "empty", "unfinished"],
)
def test_a_kernel_that_is_not_whole_is_not_kept(attempt_folder, files):
    with attempt_folder() as first:
        kernel(first, "whole")
        kernel(first, "broken", **files)
        jit_cache.keep(first)
    with attempt_folder(2) as second:
        assert names(second) == ["whole"]


def test_an_attempt_without_kernels_leaves_nothing(attempt_folder, tmp_path):
    with attempt_folder() as first:
        jit_cache.keep(first)
    assert names(tmp_path / "jit") == []


def test_two_runs_on_one_node_leave_each_kernel_once(attempt_folder):
    with attempt_folder() as one, attempt_folder() as other:
        for folder in (one, other):
            kernel(folder, "18a5")
        kernel(other, "2d85")
        jit_cache.keep(one)
        jit_cache.keep(other)
    with attempt_folder(2) as third:
        assert names(third) == ["18a5", "2d85"]


@pytest.mark.parametrize("trouble", ["others can write", "a link", "a file"])
def test_no_code_is_taken_from_what_another_may_have_put_there(attempt_folder, tmp_path, trouble):
    with attempt_folder() as first:
        kernel(first, "18a5")
        jit_cache.keep(first)
    (kept,) = (tmp_path / "jit").iterdir()
    assert kept.stat().st_mode & 0o777 == 0o700
    if trouble == "others can write":
        kept.chmod(0o777)
    else:
        kept.rename(tmp_path / "theirs")
        kept.symlink_to(tmp_path / "theirs") if trouble == "a link" else kept.write_text("")
    with attempt_folder(2) as second:
        assert names(second) == []
        kernel(second, "2d85")
        jit_cache.keep(second)  # nor left there
        assert names(second) == ["2d85"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to another user")
def test_no_code_is_taken_from_another_users_folder(attempt_folder, tmp_path):
    with attempt_folder() as first:
        kernel(first, "18a5")
        jit_cache.keep(first)
    (kept,) = (tmp_path / "jit").iterdir()
    os.chown(kept, 65534, 65534)
    with attempt_folder(2) as second:
        assert names(second) == []
