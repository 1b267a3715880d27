"""Zero, in place, the GPU code of a shared library that one SM architecture does not need.

The file keeps its size and every offset, so the loader and the CUDA run time see the same library; the bytes of the other
architectures become zeros, which xz then removes. GPU code lies in fatbin containers anywhere in the file, and in cublasLt
also as cubins in zstd frames. Needs the package zstandard for the second kind only.

    python -m gpu.prune LIBRARY --sm 90 [--zero-section NAME] [--zstd-section NAME]

Layouts: fatbin headers as `cuobjdump` lists them (magic 0xBA55ED50, version 1; entries: kind, header and payload sizes,
architecture), e_flags of a cubin's ELF header, zstd frames by RFC 8878, section headers by the ELF-64 object file format.
"""

from __future__ import annotations

import argparse
import mmap
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FATBIN_MAGIC = struct.pack("<I", 0xBA55ED50)
FATBIN_HEADER = 16  # magic u32, version u16, header size u16, size of all entries u64
ENTRY_HEADER_MIN = 64
KIND_CUBIN = 2  # kind 1 is PTX
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
ZSTD_HEADER_MAX = 18  # 4 bytes of magic, at most 14 of frame header
SHORT_FRAME = 4_000_000  # nearly every frame of cublasLt is shorter; copying more is what costs time

Done = Counter[tuple[str, str]]
"""Bytes by ("kept" or "zeroed", architecture)."""


class Unreadable(Exception):
    """A library is not built as it should be: pruning it blindly would break it."""


class Entry(NamedTuple):
    """One entry of a fatbin: its payload's place in the file and what it is for."""

    first: int
    last: int
    kind: int
    arch: int


def sections(data: mmap.mmap) -> dict[str, tuple[int, int]]:
    """Name -> (file offset, size) of the sections of a little-endian ELF-64 file."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise Unreadable("not a little-endian ELF-64 file")
    (table,) = struct.unpack_from("<Q", data, 0x28)
    entry_size, count, names_index = struct.unpack_from("<HHH", data, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", data, table + i * entry_size) for i in range(count)]
    names = headers[names_index][4]
    return {data[names + h[0] : data.find(b"\0", names + h[0])].decode(): (h[4], h[5]) for h in headers}


def fatbin_entries(data: mmap.mmap) -> Iterator[Entry]:
    """Each entry of each fatbin container of the file, wherever it lies."""
    start = data.find(FATBIN_MAGIC)
    while start >= 0:
        if start + FATBIN_HEADER > len(data):
            return
        _, version, header, size = struct.unpack_from("<IHHQ", data, start)
        if version != 1 or header != FATBIN_HEADER or start + header + size > len(data):
            start = data.find(FATBIN_MAGIC, start + 4)  # the four bytes by chance
            continue
        entry, end = start + header, start + header + size
        while entry + ENTRY_HEADER_MIN <= end:
            kind, _, entry_header, payload = struct.unpack_from("<HHIQ", data, entry)
            (arch,) = struct.unpack_from("<I", data, entry + 28)
            first, last = entry + entry_header, entry + entry_header + payload
            if not 32 <= entry_header <= 4096 or last > end:
                raise Unreadable(f"unknown fatbin entry at {entry:#x}: header {entry_header}, payload {payload} bytes")
            yield Entry(first, last, kind, arch)
            entry = last
        start = data.find(FATBIN_MAGIC, end)


def prune_fatbins(data: mmap.mmap, sm: int) -> Done:
    """Zero the payload of each fatbin entry that is not a cubin for ``sm``."""
    done: Done = Counter()
    for entry in fatbin_entries(data):
        keep = entry.kind == KIND_CUBIN and entry.arch == sm
        name = f"{'sm' if entry.kind == KIND_CUBIN else 'ptx'}{entry.arch}"
        done["kept" if keep else "zeroed", name] += entry.last - entry.first
        if not keep:
            data[entry.first : entry.last] = bytes(entry.last - entry.first)
    return done


def cubin_arch(cubin: bytes) -> int:
    """The SM architecture that a cubin is for, by its ELF header's e_flags in the newer or the older layout."""
    flags: int = struct.unpack_from("<I", cubin, 48)[0]
    return flags >> 8 & 0xFF if flags & 0xFF == 2 else flags & 0xFF


def prune_zstd(data: mmap.mmap, sm: int, begin: int, size: int) -> Done:
    """Zero each zstd frame of data[begin:begin+size] that holds a cubin for another architecture; its header stays."""
    done: Done = Counter()
    frame = data.find(ZSTD_MAGIC, begin, begin + size)
    while frame >= 0:
        content, used = _frame(data, frame, begin + size)
        if content.startswith(b"\x7fELF"):
            arch = cubin_arch(content)
            done["kept" if arch == sm else "zeroed", f"zstd-sm{arch}"] += used
            if arch != sm:
                data[frame + ZSTD_HEADER_MAX : frame + used] = bytes(used - ZSTD_HEADER_MAX)
        frame = data.find(ZSTD_MAGIC, frame + used, begin + size)
    return done


def _frame(data: mmap.mmap, frame: int, end: int) -> tuple[bytes, int]:
    """What the zstd frame at ``frame`` holds, and its length in the file; where the magic stood by chance, nothing and 4."""
    import zstandard  # type: ignore[import-not-found, unused-ignore]  # in the build's own environment

    for length in (SHORT_FRAME, end - frame):
        chunk = data[frame : min(frame + length, end)]
        reader = zstandard.ZstdDecompressor().decompressobj()
        try:
            content = reader.decompress(chunk)
        except zstandard.ZstdError:
            break
        if reader.eof:
            return content, len(chunk) - len(reader.unused_data)
    return b"", len(ZSTD_MAGIC)


def prune(library: Path, sm: int, zero_section: str | None = None, zstd_section: str | None = None) -> Done:
    """Zero in ``library`` what ``sm`` does not need, and ``zero_section`` as a whole.

    Raises:
        Unreadable: no such section, an entry of an unknown form, or no code for ``sm`` at all.
    """
    done: Done = Counter()
    with library.open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        wanted = [name for name in (zero_section, zstd_section) if name]
        places = sections(data) if wanted else {}
        if unknown := [name for name in wanted if name not in places]:
            raise Unreadable(
                f"{library.name} has no section {', '.join(unknown)}; it has {' '.join(filter(None, places))}"
            )
        if zero_section:
            begin, size = places[zero_section]
            data[begin : begin + size] = bytes(size)
            done["zeroed", zero_section] = size
        done += prune_fatbins(data, sm)
        if zstd_section:
            done += prune_zstd(data, sm, *places[zstd_section])
    if not any(word == "kept" for word, _ in done):
        raise Unreadable(f"{library.name} has no code for sm{sm}; it had {' '.join(what for _, what in sorted(done))}")
    return done


def told(library: Path, done: Done) -> str:
    """One line a library: megabytes kept and zeroed by architecture."""
    words = []
    for word in ("kept", "zeroed"):
        parts = {what: size for (did, what), size in sorted(done.items()) if did == word}
        listed = " ".join(f"{what}:{size / 1e6:.1f}" for what, size in parts.items())
        words.append(f"{word} {sum(parts.values()) / 1e6:.1f} MB ({listed})")
    return f"{library.name}: {', '.join(words)}"


def main() -> None:
    """Prune one library from the command line."""
    parser = argparse.ArgumentParser(prog="python -m gpu.prune", description="Zero GPU code that one SM does not need.")
    parser.add_argument("library", type=Path)
    parser.add_argument("--sm", type=int, required=True)
    parser.add_argument("--zero-section", help="a section to zero as a whole")
    parser.add_argument("--zstd-section", help="a section of zstd frames with cubins")
    args = parser.parse_args()
    try:
        print(told(args.library, prune(args.library, args.sm, args.zero_section, args.zstd_section)))
    except Unreadable as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    main()
