"""The bundle for GPU machines without a network: pruning, parts, setup and undo, with small real files; `slow`: the real bundle."""

import ast
import ctypes
import dataclasses
import importlib.metadata
import importlib.util
import io
import json
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest

from gpu import build, stages
from gpu.compress import compress_all
from gpu.parts import Item, Manifest, NotAPart, Piece, read_manifest, read_slices, write_parts
from gpu.prune import FATBIN_MAGIC, KIND_CUBIN, ZSTD_HEADER_MAX, Unreadable, prune
from gpu.setup import Refused, State, has_room, take
from gpu.unpack import release
from gpu.versions import Versions, read
from gpu.work import Failed, Work

ROOT = Path(__file__).resolve().parents[2]
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
MIB = 1 << 20
NOBODY = "a-package-that-nobody-has"


# ---- versions


def test_the_versions_keep_the_rules_that_doctor_checks() -> None:
    gpu_stack = pytest.importorskip("launcher.preflight.gpu_stack", reason="doctor's rules are not there yet")
    versions = read()
    te = versions.transformer_engine
    stack = {
        **versions.image,
        **versions.libraries,
        "maxtext": versions.maxtext,
        "transformer_engine": te,
        "transformer_engine_cu13": te,
        "transformer_engine_jax": te,
        "jax-cuda13-plugin": versions.image["jax"],
        "jax-cuda13-pjrt": versions.image["jax"],
    }

    def wrong(packages: dict[str, str]) -> set[str]:
        seen = gpu_stack.from_packages(packages, compute_capability=f"{versions.sm // 10}.{versions.sm % 10}")
        findings = gpu_stack.judge(seen)
        assert {"NCCL", "cuBLAS"} <= {found.name for found in findings}
        return {found.name for found in findings if found.mark == "WRONG"}

    assert wrong(stack) == set()
    # The image as it is breaks them: this is why the bundle exists.
    assert wrong(stack | versions.image) >= {"NCCL", "cuBLAS"}


def test_no_version_stands_twice() -> None:
    """In versions.toml each package has one line to carry it; the programs hold none of its numbers."""
    versions = read()
    numbers = {
        v for group in (versions.libraries, versions.carried, versions.build, versions.headers) for v in group.values()
    }
    numbers = {number for number in numbers if number.count(".") > 1}
    assert len(numbers) > 20
    for path in sorted((ROOT / "gpu").glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        told = {
            ast.get_docstring(node, clean=False)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.FunctionDef)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value not in told:
                assert not any(number in node.value for number in numbers), f"{path.name}: {node.value!r}"
    assert not any(number in (ROOT / "gpu/binding.mk").read_text(encoding="utf-8") for number in numbers)


def test_every_table_says_why_and_whence() -> None:
    data = tomllib.loads((ROOT / "gpu/versions.toml").read_text(encoding="utf-8"))
    for name, table in data.items():
        assert name == "gpu" or table["source"], name
        assert name == "image" or table["why"], name


def test_a_package_that_is_carried_twice_is_refused(tmp_path: Path) -> None:
    text = (ROOT / "gpu/versions.toml").read_text(encoding="utf-8")
    text = text.replace('hydra-core = "', 'Annotated_Types = "0.7.0"\nhydra-core = "')
    (tmp_path / "versions.toml").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match="annotated-types twice"):
        read(tmp_path / "versions.toml")


def test_the_launcher_can_be_imported_from_what_is_carried() -> None:
    """What pyproject.toml asks for at least is carried, or stays in use where the image's is new enough."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    versions = read()
    carried = {name.lower(): version for name, version in (versions.carried | versions.unless_there).items()}
    for line in project:
        name, least = re.fullmatch(r"([A-Za-z-]+)>=([\d.]+).*", line).groups()
        assert release(carried[name.lower()]) >= release(least), line
        if (limit := re.search(r"<([\d.]+)", line)) is not None:
            assert release(carried[name.lower()]) < release(limit.group(1)), line
        if name.lower() in versions.at_least:
            assert versions.at_least[name.lower()] == least, line


# ---- pruning


def fatbin(*entries: tuple[int, int, bytes]) -> bytes:
    """A container of (kind, architecture, payload)."""
    body = b"".join(
        struct.pack("<HHIQ", kind, 0x101, 64, len(payload)).ljust(28, b"\0")
        + struct.pack("<I", arch).ljust(36, b"\0")
        + payload
        for kind, arch, payload in entries
    )
    return FATBIN_MAGIC + struct.pack("<HHQ", 1, 16, len(body)) + body


def cubin(arch: int, newer: bool, size: int) -> bytes:
    flags = arch << 8 | 2 if newer else arch
    return (b"\x7fELF\x02\x01".ljust(48, b"\0") + struct.pack("<I", flags)).ljust(64, b"\0") + random.Random(
        arch
    ).randbytes(size)


def library(folder: Path, **section: bytes) -> Path:
    """A shared library whose function `answer` gives 42, with these bytes in sections of these names."""
    source = ["int answer(void) { return 42; }"]
    for name, content in section.items():
        (folder / name).write_bytes(content)
        source.append(f'__asm__(".section {name},\\"aw\\"\\n.incbin \\"{folder / name}\\"\\n.text");')
    (folder / "made.c").write_text("\n".join(source))
    subprocess.run(["gcc", "-shared", "-fPIC", folder / "made.c", "-o", folder / "libmade.so"], check=True)
    return folder / "libmade.so"


KEPT, OTHER, PTX = (random.Random(seed).randbytes(4000) for seed in (90, 100, 1))


def test_pruning_zeroes_what_the_architecture_does_not_need_and_moves_nothing(tmp_path: Path) -> None:
    by_chance = b"before" + FATBIN_MAGIC + b"\xff" * 40
    content = (
        by_chance
        + fatbin((KIND_CUBIN, 90, KEPT), (KIND_CUBIN, 100, OTHER), (1, 90, PTX))
        + fatbin((KIND_CUBIN, 90, PTX))
    )
    path = library(tmp_path, nv_fatbin=content, linked_by_nvcc=OTHER)
    before = path.read_bytes()
    done = prune(path, 90, zero_section="linked_by_nvcc")
    assert done == {
        ("kept", "sm90"): 8000,
        ("zeroed", "sm100"): 4000,
        ("zeroed", "ptx90"): 4000,
        ("zeroed", "linked_by_nvcc"): 4000,
    }
    expected = before.replace(OTHER, bytes(4000))
    # The PTX of the first container goes; the same bytes as a cubin of the second stay.
    expected = expected.replace(PTX, bytes(4000), 1)
    assert path.read_bytes() == expected
    assert ctypes.CDLL(str(path)).answer() == 42


def test_kernels_in_zstd_frames_are_pruned_too(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    frames = {
        (arch, newer): zstandard.compress(cubin(arch, newer, 5000)) for arch in (90, 100) for newer in (True, False)
    }
    no_cubin = zstandard.compress(b"a table of kernels" * 100)
    content = (
        b"head" + frames[90, True] + frames[100, True] + no_cubin + b"\x28\xb5\x2f\xfdnot a frame" + frames[100, False]
    )
    path = library(tmp_path, ldata=content + frames[90, False], nv_fatbin=fatbin((KIND_CUBIN, 90, KEPT)))
    before = path.read_bytes()
    done = prune(path, 90, zstd_section="ldata")
    after = path.read_bytes()
    assert done["kept", "zstd-sm90"] == len(frames[90, True]) + len(frames[90, False])
    assert done["zeroed", "zstd-sm100"] == len(frames[100, True]) + len(frames[100, False])
    assert len(after) == len(before)
    for (arch, _), frame in frames.items():
        at = before.index(frame)
        rest = slice(at + ZSTD_HEADER_MAX, at + len(frame))
        assert after[rest] == (before[rest] if arch == 90 else bytes(len(frame) - ZSTD_HEADER_MAX))
    assert no_cubin in after
    assert ctypes.CDLL(str(path)).answer() == 42


def test_a_library_that_cannot_be_pruned_is_refused(tmp_path: Path) -> None:
    path = library(tmp_path, nv_fatbin=fatbin((KIND_CUBIN, 100, OTHER)))
    with pytest.raises(Unreadable, match="no section nowhere"):
        prune(path, 90, zero_section="nowhere")
    with pytest.raises(Unreadable, match="no code for sm90; it had sm100"):
        prune(path, 90)
    broken = bytearray(fatbin((KIND_CUBIN, 90, KEPT)))
    broken[20:24] = struct.pack("<I", 5)
    (tmp_path / "broken").mkdir()
    with pytest.raises(Unreadable, match="unknown fatbin entry"):
        prune(library(tmp_path / "broken", nv_fatbin=bytes(broken)), 90)
    (tmp_path / "text").write_bytes(b"no library" * 100)
    with pytest.raises(Unreadable, match="ELF"):
        prune(tmp_path / "text", 90, zero_section=".data")


# ---- parts and setup


@dataclasses.dataclass(frozen=True)
class Made:
    """A small bundle, made by the stages of the real build, and what it was made from."""

    parts: list[Path]
    work: Work
    manifest: Manifest


def small_versions() -> Versions:
    at_least = {"pytest": "1", NOBODY: "2.5"}
    return dataclasses.replace(read(), python=HERE, unless_there=dict.fromkeys(at_least, "9.9"), at_least=at_least)


def make(folder: Path, seed: int = 0, part_bytes: int = MIB) -> Made:
    work = Work(folder / "work", small_versions(), jobs=1, piece_bytes=500_000)
    work.empty(work.libraries, work.tree / "site/maxtext", work.tree / "nccl_include", work.packed)
    chance = random.Random(seed)
    for name in stages.TARGETS:
        # Incompressible, as GPU code nearly is, and zeros where code was pruned.
        (work.libraries / name).write_bytes(chance.randbytes(1_600_000 if "Lt" in name else 200_000) + bytes(300_000))
    (work.tree / "site/maxtext/__init__.py").write_text("")
    (work.tree / "nccl_include/nccl.h").write_text("#define NCCL_MAJOR 2\n")
    for name in work.versions.unless_there:
        package = work.tree / "unless_there" / name / name.replace("-", "_")
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("carried = True\n")
    stages.tar(work.tree, work.folder / stages.TREE)
    stages.pack(work)
    manifest = stages.manifest(work, part_bytes)
    return Made(write_parts(manifest, work.packed, folder / "parts"), work, manifest)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make(tmp_path_factory.mktemp("bundle"))


class Machine:
    """A GPU machine's folders: site-packages as pip fills it, and a destination."""

    def __init__(self, folder: Path) -> None:
        self.site, self.dest = folder / "image/site-packages", folder / "a stack"
        self.copies = {self.site / place: f"the image's {name}".encode() for name, place in stages.IN_WHEELS.items()}
        for path, content in self.copies.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def setup(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "gpu.setup", *words, "--dest", self.dest, "--site-packages", self.site]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    def untouched(self) -> bool:
        return all(not path.is_symlink() and path.read_bytes() == content for path, content in self.copies.items())


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_parts_stay_below_the_limit_and_hold_everything(made: Made) -> None:
    assert len(made.parts) >= 3
    sizes = [path.stat().st_size for path in made.parts]
    assert max(sizes) <= MIB
    # Filled up: all but the last one are nearly full.
    assert min(sizes[:-1]) > 0.85 * MIB
    slices = [each for part in made.manifest.parts for each in part]
    for piece in {each.piece for each in slices}:
        mine = sorted((s.begin, s.size) for s in slices if s.piece == piece)
        assert [begin for begin, _ in mine] == [sum(size for _, size in mine[:i]) for i in range(len(mine))]
        assert sum(size for _, size in mine) == (made.work.packed / piece).stat().st_size
    assert any(sum(s.piece == p for s in slices) > 1 for p in {s.piece for s in slices}), "no piece goes over parts"
    assert any(len(item.pieces) > 1 for item in made.manifest.items), "no file has several pieces"


def test_the_same_files_give_the_same_bundle(made: Made, tmp_path: Path) -> None:
    again = make(tmp_path)
    assert [path.name for path in again.parts] == [path.name for path in made.parts]
    assert [path.read_bytes() for path in again.parts] == [path.read_bytes() for path in made.parts]


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


def test_the_parts_can_be_read_without_setup(made: Made) -> None:
    for number, path in enumerate(made.parts, start=1):
        manifest, part = read_manifest(path)
        assert (manifest, part) == (made.manifest, number)
        assert [each.name for each, _ in read_slices(path, manifest, part)] == [
            s.name for s in manifest.parts[part - 1]
        ]


# ---- the build


def test_a_machine_that_cannot_build_is_told_all_reasons(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Failed) as failed:
        build.able(dataclasses.replace(read(), python="2.7"))
    assert "start the build with python2.7" in str(failed.value)
    assert "not found: g++, make, strip" in str(failed.value)


def test_a_second_start_goes_on_after_the_stages_that_are_done(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ran: list[str] = []

    def fails_once(_: Work) -> None:
        ran.append("b")
        if ran.count("b") == 1:
            raise Failed("no network")

    named = (build.Stage("a", "", lambda _: ran.append("a")), build.Stage("b", "", fails_once))
    monkeypatch.setattr(build, "STAGES", (*named, build.Stage("c", "", lambda _: ran.append("c"))))
    work = Work(tmp_path, read(), jobs=1)
    with pytest.raises(Failed):
        build.run_stages(work)
    build.run_stages(work)
    build.run_stages(work)
    assert ran == ["a", "b", "b", "c"]
    (tmp_path / "done-b").unlink()
    build.run_stages(work)
    assert ran == ["a", "b", "b", "c", "b", "c"], "a stage that ran makes the later ones undone"
    build.run_stages(dataclasses.replace(work, versions=dataclasses.replace(work.versions, maxtext="9.9.9")))
    assert ran[-3:] == ["a", "b", "c"]


def test_compressing_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    source = tmp_path / "library"
    source.write_bytes(random.Random(5).randbytes(5000))
    assert [path.name for path in compress_all([source], tmp_path / "xz", 1, piece_bytes=2000)] != []
    (tmp_path / "xz/library.1.xz").unlink()
    (tmp_path / "xz/library.2.xz.tmp").touch()
    assert [path.name for path in compress_all([source], tmp_path / "xz", 1, piece_bytes=2000)] == ["library.1.xz"]


def test_a_limit_that_no_part_can_keep_is_refused(made: Made) -> None:
    with pytest.raises(ValueError, match="1 MiB is the least"):
        stages.manifest(made.work, 100_000)


@pytest.mark.slow
def test_the_real_bundle_trains_on_a_cpu(tmp_path: Path) -> None:
    """Needs a package index and a quarter of an hour on two cores. GPU_BUILD_WORK names a work folder to keep, or to go on with."""
    try:
        build.able(read())
    except Failed as reason:
        pytest.skip(str(reason))
    work, out = Path(os.environ.get("GPU_BUILD_WORK", tmp_path / "work")), tmp_path / "parts"
    for words in (["gpu.build", "--out", out, "--work", work], ["gpu.check", out]):
        done = subprocess.run([sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": 3 steps") == 2
    assert "undo: the image is as it was" in done.stdout
