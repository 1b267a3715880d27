"""From slices to files: joins the slices of a piece, decompresses pieces on several cores, unpacks trees."""

from __future__ import annotations

import hashlib
import importlib.metadata
import lzma
import os
import re
import shutil
import sys
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpu.parts import Item, Manifest, Piece, Slice

# More would wait for the disk; each needs 64 MiB for its dictionary.
MOST_THREADS = 16
_BLOCK = 1 << 20
UNLESS_THERE = "unless_there"
"""Folder of the packages that are for some machines only, a folder each."""


class Damaged(Exception):
    """What came out of a piece is not what went in."""


def slices_of(piece: Piece, manifest: Manifest) -> list[Slice]:
    """The slices of a piece over all parts, in order."""
    return sorted((s for part in manifest.parts for s in part if s.piece == piece.name), key=lambda s: s.begin)


def is_complete(item: Item, manifest: Manifest, incoming: Path) -> bool:
    """Whether every slice of every piece of a file is here."""
    return all((incoming / s.name).exists() for piece in item.pieces for s in slices_of(piece, manifest))


def _raw(files: list[Path]) -> Iterator[bytes]:
    decompressor = lzma.LZMADecompressor(format=lzma.FORMAT_XZ)
    for path in files:
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                yield decompressor.decompress(block)


def _write_piece(piece: Piece, files: list[Path], target: Path) -> None:
    found, size = hashlib.sha256(), 0
    with target.open("r+b") as out:
        out.seek(piece.begin)
        try:
            for block in _raw(files):
                found.update(block)
                size += len(block)
                out.write(block)
        except (lzma.LZMAError, EOFError) as error:
            raise Damaged(f"{piece.name} cannot be decompressed ({error}): {_AGAIN}") from error
    if (size, found.hexdigest()) != (piece.size, piece.sha256):
        raise Damaged(
            f"{piece.name} gave {size} bytes with another SHA-256 than was packed ({piece.size} bytes): {_AGAIN}"
        )


_AGAIN = "type python3 -m gpu.setup --undo, then bring the parts again"


def unpack(item: Item, manifest: Manifest, incoming: Path, dest: Path) -> None:
    """Make a file, or a tree of files, in ``dest``; a file appears when it is whole and its SHA-256 is right.

    Raises:
        Damaged: a piece's content is not what was packed.
    """
    target = dest / item.target
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(target.name + ".tmp")
    with unfinished.open("wb") as file:
        file.truncate(item.size)
    jobs = [(p, [incoming / s.name for s in slices_of(p, manifest)], unfinished) for p in item.pieces]
    # Threads: lzma, hashing and writing all leave the interpreter's lock.
    with ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1)) as pool:
        list(pool.map(_write_piece, *zip(*jobs, strict=True)))
    if item.tree:
        with tarfile.open(unfinished) as tar:
            tar.extractall(dest, filter="data")
        unfinished.unlink()
    else:
        unfinished.chmod(item.mode)
        unfinished.rename(target)


def drop_slices(item: Item, incoming: Path) -> None:
    """The slices of a file that is made: their room is needed for the next."""
    for piece in item.pieces:
        for path in incoming.glob(f"{piece.name}@*"):
            path.unlink()


def release(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with: 26.4.post1 -> (26, 4)."""
    numbers = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(number) for number in numbers.group().split(".")) if numbers else ()


def installed(package: str, dest: Path) -> str | None:
    """The version that this Python has without the bundle, None if it has none."""
    path = [entry for entry in sys.path if not Path(entry or ".").resolve().is_relative_to(dest.resolve())]
    for found in importlib.metadata.distributions(name=package, path=path):
        return found.version
    return None


def provide(package: str, least: str, dest: Path) -> str | None:
    """Put the carried ``package`` into use unless this Python has ``least`` or newer; says so when it does."""
    carried = dest / UNLESS_THERE / package
    if not carried.is_dir():
        return None
    here = installed(package, dest)
    if here is not None and release(here) >= release(least):
        shutil.rmtree(carried)
        return None
    for entry in sorted(carried.iterdir()):
        entry.replace(dest / "site" / entry.name)
    carried.rmdir()
    return f"{package}: this Python has {here or 'none'}, {least} is the least: the carried one is used"
