"""The GPU machine's side: parts in any order, links, env.sh, undo, and what is refused."""

import dataclasses
import importlib.metadata
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from small_bundle import HERE, NOBODY, Machine, Made, make

from gpu import stages
from gpu.parts import Item, NotAPart, Piece, read_manifest, write_parts
from gpu.setup import Refused, State, has_room, take
from gpu.unpack import release

ROOT = Path(__file__).resolve().parents[2]


def test_parts_come_in_any_order_and_any_number_of_calls(made: Made, machine: Machine) -> None:
    total = len(made.parts)
    assert "holds no bundle" in machine.setup("--status").stderr
    last_first = made.parts[::-1]
    for number, part in enumerate(last_first[:-1], start=1):
        done = machine.setup(part)
        assert done.returncode == 0, done.stderr
        assert f"still missing: part {', '.join(str(n + 1) for n in range(total - number))} of {total}" in done.stdout
        assert machine.setup(part).returncode == 0, "a second time"
        assert machine.untouched()
        assert not (machine.dest / "env.sh").exists()
        assert machine.setup("--status").returncode == 1
    done = machine.setup(*made.parts)
    assert (done.returncode, done.stdout.count("was taken before")) == (0, total - 1), done.stdout
    for name, target in stages.TARGETS.items():
        assert (machine.dest / target).read_bytes() == (made.work.libraries / name).read_bytes()
    assert (machine.dest / "nccl_include/nccl.h").exists()
    assert not list((machine.dest / "incoming").iterdir()), "slices that are not needed any more"
    status = machine.setup("--status")
    assert (status.returncode, "whole" in status.stdout) == (0, True)
    assert f"NCCL {made.work.versions.libraries['nvidia-nccl-cu13']}" in status.stdout


def test_setup_replaces_the_images_libraries_and_undo_brings_them_back(made: Made, machine: Machine) -> None:
    (machine.dest).mkdir()
    (machine.dest / "mine").write_text("the reader's own")
    assert machine.setup(*made.parts).returncode == 0
    for name, place in stages.IN_WHEELS.items():
        copy = machine.site / place
        assert copy.is_symlink()
        assert copy.resolve() == machine.dest / stages.TARGETS[name]
        assert copy.with_name(copy.name + ".orig").read_bytes() == machine.copies[copy]
    listed = sorted(str(path.relative_to(machine.site)) for path in machine.site.rglob("*"))
    stamps = {path: path.stat().st_mtime_ns for path in machine.dest.rglob("*.so*")}
    again = machine.setup(*made.parts)
    assert "->" not in again.stdout, "a second time there is nothing to replace"
    assert listed == sorted(str(path.relative_to(machine.site)) for path in machine.site.rglob("*"))
    assert stamps == {path: path.stat().st_mtime_ns for path in machine.dest.rglob("*.so*")}

    assert machine.setup("--undo").returncode == 0
    assert machine.untouched()
    assert [path.name for path in machine.dest.iterdir()] == ["mine"]
    assert not list(machine.site.rglob("*.orig"))
    assert machine.setup("--undo").returncode == 0, "a second time"
    (machine.dest / "mine").unlink()
    assert machine.setup(*made.parts).returncode == 0, "and once more from the start"
    assert machine.setup("--undo").returncode == 0
    assert (machine.untouched(), machine.dest.exists()) == (True, False)


def test_a_destination_that_was_lost_is_made_again(made: Made, machine: Machine) -> None:
    """A machine that is given back may keep its Python and lose the destination: links to nothing are left."""
    assert machine.setup(*made.parts).returncode == 0
    first = machine.dest
    shutil.rmtree(first)
    machine.dest = first.with_name("another")
    assert machine.setup(*made.parts).returncode == 0
    copy = machine.site / stages.IN_WHEELS["libnccl.so.2"]
    assert copy.resolve() == machine.dest / stages.TARGETS["libnccl.so.2"]
    assert machine.setup("--undo").returncode == 0
    assert machine.untouched()


def test_where_the_image_has_no_such_library_none_is_replaced(made: Made, machine: Machine) -> None:
    shutil.rmtree(machine.site)
    machine.site.mkdir()
    done = machine.setup(*made.parts)
    assert (done.returncode, done.stdout.count("nothing to replace")) == (0, 3), done.stderr
    assert not list(machine.site.iterdir())


def test_env_sh_puts_the_bundle_first(made: Made, machine: Machine) -> None:
    assert machine.setup(*made.parts).returncode == 0
    script = '. "$0" && echo "$GPU_STACK" && echo "$PYTHONPATH" && echo "$LD_LIBRARY_PATH" && echo "$NCCL_EP_JIT_NVCC" && echo "$NCCL_NVLS_ENABLE"'
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": "/theirs", "CUDA_HOME": "/cuda"}
    done = subprocess.run(["sh", "-euc", script, machine.dest / "env.sh"], env=environ, capture_output=True, text=True)
    assert done.stderr == ""
    stack, python, loader, nvcc, nvls = done.stdout.splitlines()
    assert stack == str(machine.dest)
    assert python == f"{machine.dest / 'site'}:/theirs"
    assert loader.split(":")[0] == str(machine.dest / "lib")
    assert not loader.endswith(":"), "an empty entry is the current folder"
    assert (nvcc, nvls) == ("/cuda/bin/nvcc", "0")


def test_a_package_is_unpacked_only_where_it_is_missing_or_too_old(made: Made, machine: Machine) -> None:
    done = machine.setup(*made.parts)
    assert f"{NOBODY}: this Python has none, 2.5 is the least" in done.stdout
    assert (machine.dest / "site" / NOBODY.replace("-", "_") / "__init__.py").exists()
    assert not (machine.dest / "site/pytest").exists()
    assert machine.setup(*made.parts).returncode == 0


def test_another_jaxlib_than_the_binding_was_compiled_for_is_told(made: Made, machine: Machine) -> None:
    done = machine.setup(*made.parts)
    jaxlib = importlib.util.find_spec("jaxlib") and importlib.metadata.version("jaxlib")
    wanted = made.work.versions.image["jaxlib"]
    assert done.returncode == 0
    assert (f"binding is compiled for {wanted}" in done.stdout) == (jaxlib != wanted)
    # A machine without any: Python's own modules alone.
    command = [
        sys.executable,
        "-S",
        "-m",
        "gpu.setup",
        *made.parts,
        "--dest",
        machine.dest,
        "--site-packages",
        machine.site,
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert f"this Python has no jaxlib, Transformer Engine's binding is compiled for {wanted}" in done.stdout


@pytest.mark.parametrize(("older", "newer"), [("13.7", "13.10.1"), ("6", "6.0.4"), ("0.12.4", "0.12.8rc1"), ("", "1")])
def test_versions_are_compared_as_numbers(older: str, newer: str) -> None:
    assert release(older) < release(newer)


@pytest.mark.parametrize("left", [100, 5_000, 300_000, -1])
def test_a_part_that_is_cut_off_is_refused_and_then_taken_whole(
    made: Made, machine: Machine, tmp_path: Path, left: int
) -> None:
    whole = made.parts[0].read_bytes()
    # -1: all but the last byte of the last slice.
    with tarfile.open(made.parts[0]) as tar:
        end = tar.getmembers()[-1]
    cut = tmp_path / made.parts[0].name
    cut.write_bytes(whole[: left if left > 0 else end.offset_data + end.size - 1])
    done = machine.setup(cut)
    assert done.returncode == 1
    assert "cut off" in done.stderr
    assert "copy it again" in done.stderr
    assert machine.untouched()
    assert machine.setup(*made.parts).returncode == 0
    assert machine.setup("--status").returncode == 0


def test_a_damaged_part_is_refused(made: Made, machine: Machine, tmp_path: Path) -> None:
    damaged = tmp_path / made.parts[1].name
    content = bytearray(made.parts[1].read_bytes())
    content[500_000] ^= 1
    damaged.write_bytes(content)
    done = machine.setup(damaged)
    assert done.returncode == 1
    assert "part 2 of" in done.stderr
    assert "is damaged in" in done.stderr
    assert "SHA-256" in done.stderr
    assert not list(machine.dest.rglob("*.tmp"))
    assert machine.setup(*made.parts).returncode == 0

    content = bytearray(made.parts[1].read_bytes())
    at = content.index(b'"sm": ')
    content[at + 6 : at + 8] = b"80"
    damaged.write_bytes(content)
    assert "manifest of" in machine.setup(damaged).stderr


def test_parts_of_two_builds_do_not_mix(made: Made, machine: Machine, tmp_path: Path) -> None:
    other = make(tmp_path / "other", seed=1)
    assert machine.setup(made.parts[0]).returncode == 0
    done = machine.setup(other.parts[1])
    assert done.returncode == 1
    assert f"belongs to bundle {other.manifest.bundle}" in done.stderr
    assert "--undo" in done.stderr
    assert machine.setup(*made.parts).returncode == 0


def test_a_folder_that_is_in_use_is_neither_filled_nor_emptied(made: Made, machine: Machine) -> None:
    (machine.dest / "lib").mkdir(parents=True)
    (machine.dest / "lib/theirs.so").touch()
    assert "holds lib, and no bundle put that there" in machine.setup(*made.parts).stderr
    assert machine.setup("--undo").returncode == 0
    assert [str(path.relative_to(machine.dest)) for path in machine.dest.rglob("*")] == ["lib", "lib/theirs.so"]


def test_what_is_no_part_is_refused(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no part at all" * 1000)
    with tarfile.open(tmp_path / "tar", "w") as tar:
        tar.addfile(tarfile.TarInfo("file"), io.BytesIO())
    assert "no part of a bundle" in machine.setup(tmp_path / "text").stderr
    assert "does not begin with manifest.json" in machine.setup(tmp_path / "tar").stderr
    assert "No such file" in machine.setup(tmp_path / "nowhere").stderr
    text = json.dumps({"format": 99, "manifest": {}}).encode()
    with tarfile.open(tmp_path / "newer", "w") as tar:
        info = tarfile.TarInfo("manifest.json")
        info.size = len(text)
        tar.addfile(info, io.BytesIO(text))
    with pytest.raises(NotAPart, match="format 99"):
        read_manifest(tmp_path / "newer")
    assert not machine.dest.exists()


def test_a_bundle_for_another_python_is_refused(made: Made, machine: Machine, tmp_path: Path) -> None:
    for changed in ({"python": "3.9"}, {"machine": "riscv64"}):
        manifest = dataclasses.replace(made.manifest, **changed)
        part = write_parts(manifest, made.work.packed, tmp_path / "parts")[0]
        done = machine.setup(part)
        assert done.returncode == 1
        assert f"this is Python {HERE}" in done.stderr
        assert "build for it" in done.stderr
    assert not machine.dest.exists()


def test_a_bundle_that_has_no_room_is_refused_before_anything_is_written(made: Made, tmp_path: Path) -> None:
    huge = Item("lib/huge", 1 << 60, 0o644, (Piece("huge.0.xz", 0, 1 << 60, ""),))
    manifest = dataclasses.replace(made.manifest, items=(*made.manifest.items, huge))
    part = write_parts(manifest, made.work.packed, tmp_path / "parts")[0]
    with pytest.raises(Refused, match=r"MB free, the bundle needs 1,152,921,50\d,\d+ MB there"):
        take(part, tmp_path / "dest")
    assert not list((tmp_path / "dest").iterdir())
    has_room(State(tmp_path, made.manifest), 1)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_libraries_that_may_not_be_replaced_are_told_first(made: Made, machine: Machine) -> None:
    folder = machine.site / "nvidia/nccl/lib"
    folder.chmod(0o555)
    done = machine.setup(made.parts[0])
    folder.chmod(0o755)
    assert done.returncode == 1
    assert "is not writable" in done.stderr
    assert not machine.dest.exists()
