"""Libraries and trees as xz streams, cut so that several cores compress them and, on the GPU machine, several unpack them."""

from __future__ import annotations

import lzma
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

# Bytes of a file that one xz stream holds. xz's own rule for blocks: three dictionaries; smaller ones compress worse.
PIECE_BYTES = 192 << 20
# Machine code: x86's branch filter before LZMA2. A dictionary of 64 MiB finds the copies that a GPU library holds of one kernel;
# a compressor then needs 674 MiB of memory (xz's manual: 10.5 times the dictionary), the unpacking machine 64 MiB.
FILTERS: list[dict[str, Any]] = [
    {"id": lzma.FILTER_X86},
    {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 64 << 20},
]
_BLOCK = 4 << 20


def spans(size: int, piece_bytes: int = PIECE_BYTES) -> list[tuple[int, int]]:
    """(first byte, length) of each piece of a file of ``size`` bytes."""
    return [(begin, min(piece_bytes, size - begin)) for begin in range(0, size, piece_bytes)]


def piece_path(folder: Path, source: Path, number: int) -> Path:
    """Where piece ``number`` of ``source`` lies, compressed."""
    return folder / f"{source.name}.{number}.xz"


def compress_piece(source: Path, begin: int, length: int, target: Path) -> None:
    """Compress source[begin:begin+length] into ``target``, which appears when it is whole."""
    compressor = lzma.LZMACompressor(format=lzma.FORMAT_XZ, check=lzma.CHECK_CRC64, filters=FILTERS)
    unfinished = target.with_name(target.name + ".tmp")
    with source.open("rb") as raw, unfinished.open("wb") as packed:
        raw.seek(begin)
        while length:
            block = raw.read(min(_BLOCK, length))
            length -= len(block)
            packed.write(compressor.compress(block))
        packed.write(compressor.flush())
    unfinished.rename(target)


def compress_all(sources: list[Path], folder: Path, jobs: int, piece_bytes: int = PIECE_BYTES) -> Iterator[Path]:
    """Compress every piece of ``sources`` that ``folder`` has not yet, ``jobs`` at a time, the large ones first; yields them as they end.

    The pieces of an earlier start that was stopped are kept. Python's lzma works without the interpreter's lock, so threads do.
    """
    folder.mkdir(parents=True, exist_ok=True)
    work = [
        (length, source, begin, piece_path(folder, source, number))
        for source in sources
        for number, (begin, length) in enumerate(spans(source.stat().st_size, piece_bytes))
    ]
    todo = sorted((w for w in work if not w[3].exists()), key=lambda w: w[0], reverse=True)
    with ThreadPoolExecutor(jobs) as pool:
        started = {pool.submit(compress_piece, source, begin, length, to): to for length, source, begin, to in todo}
        for done in as_completed(started):
            done.result()
            yield started[done]
