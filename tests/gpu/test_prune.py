"""Device code that an architecture does not need becomes zeros, on small real libraries made with gcc."""

import ctypes
import random
import struct
import subprocess
from pathlib import Path

import pytest

from gpu.prune import FATBIN_MAGIC, KIND_CUBIN, ZSTD_HEADER_MAX, Unreadable, prune


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
