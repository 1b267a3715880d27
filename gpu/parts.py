"""The parts that travel: what a part file holds, how pieces are split over parts, and how a part is read.

A part is a tar file. Its first member, manifest.json, describes the whole bundle: every file with its pieces (xz streams) and which
slice of which piece lies in which part, each with its SHA-256. The other members are this part's slices. So any part says what it
belongs to and what is missing beside it, and a piece may go on in the next part. Standard library only, like all that `setup` uses.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

FORMAT = 1
MANIFEST = "manifest.json"
_BLOCK = 4 << 20
_TAR_BLOCK = 512
# What a part holds besides slices: the manifest (20 to 30 KiB for ten pieces in three parts) and tar's end of at most 10 KiB.
_RESERVED = 128 << 10


class NotAPart(Exception):
    """A file is no part of a bundle, or not all of one; the message says which, what was seen, and what to do."""


@dataclass(frozen=True)
class Piece:
    """Bytes begin to begin+size of a file. ``sha256`` is of them, not of the xz stream."""

    name: str
    begin: int
    size: int
    sha256: str


@dataclass(frozen=True)
class Item:
    """One file that `setup` makes in its destination."""

    target: str
    size: int
    mode: int
    pieces: tuple[Piece, ...]
    tree: bool = False
    """It is a tar of files, unpacked in the destination and then removed."""


@dataclass(frozen=True)
class Slice:
    """Bytes begin to begin+size of the xz stream of a piece."""

    piece: str
    begin: int
    size: int
    sha256: str

    @property
    def name(self) -> str:
        """Its name as a member of a part and as a file."""
        return f"{self.piece}@{self.begin}"


@dataclass(frozen=True)
class Manifest:
    """What a bundle is: the same in each of its parts."""

    python: str
    """Of the machine that unpacks it, as 3.12: the binding is compiled for it."""
    machine: str
    sm: int
    versions: dict[str, str]
    """For readers: what it brings."""
    items: tuple[Item, ...]
    links: dict[str, str]
    """File in site-packages -> file of the destination that takes its place."""
    unless_there: dict[str, str]
    """Package -> the version from which on the machine's own stays in use."""
    parts: tuple[tuple[Slice, ...], ...]

    @property
    def bundle(self) -> str:
        """Its identity: two builds with the same bytes are the same bundle."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:12]


def manifest_from(data: dict[str, Any]) -> Manifest:
    """The inverse of asdict."""
    items = tuple(
        Item(**{**item, "pieces": tuple(Piece(**piece) for piece in item["pieces"])}) for item in data["items"]
    )
    parts = tuple(tuple(Slice(**each) for each in part) for part in data["parts"])
    return Manifest(**{**data, "items": items, "parts": parts})


def digest(file: IO[bytes], size: int) -> str:
    """SHA-256 of the next ``size`` bytes of ``file``."""
    found = hashlib.sha256()
    while size:
        block = file.read(min(_BLOCK, size))
        if not block:
            break
        size -= len(block)
        found.update(block)
    return found.hexdigest()


def split(pieces: list[tuple[str, int]], part_bytes: int) -> list[list[tuple[str, int, int]]]:
    """Fill parts one after the other; a piece goes on in the next. ``pieces``: (name, bytes).

    Returns (name, begin, size) of the slices of each part, whose tar file stays within ``part_bytes``.

    >>> split([("a", 600_000), ("b", 600_000)], 1 << 20)
    [[('a', 0, 600000), ('b', 0, 316416)], [('b', 316416, 283584)]]
    """
    room_of_a_part = part_bytes - _RESERVED
    if room_of_a_part < 1 << 16:
        raise ValueError(
            f"a part of {part_bytes} bytes has no room beside its manifest: 1 MiB is the least that makes sense"
        )
    parts: list[list[tuple[str, int, int]]] = [[]]
    room = room_of_a_part
    for name, size in pieces:
        begin = 0
        while begin < size:
            if room <= 2 * _TAR_BLOCK:
                parts.append([])
                room = room_of_a_part
            length = min(size - begin, (room - _TAR_BLOCK) // _TAR_BLOCK * _TAR_BLOCK)
            parts[-1].append((name, begin, length))
            begin += length
            room -= _TAR_BLOCK + -(-length // _TAR_BLOCK) * _TAR_BLOCK
    return parts


def cut(folder: Path, pieces: list[str], part_bytes: int) -> tuple[tuple[Slice, ...], ...]:
    """The slices of each part, for xz streams named ``pieces`` in ``folder``."""
    parts = []
    for part in split([(name, (folder / name).stat().st_size) for name in pieces], part_bytes):
        slices = []
        for name, begin, size in part:
            with (folder / name).open("rb") as file:
                file.seek(begin)
                slices.append(Slice(name, begin, size, digest(file, size)))
        parts.append(tuple(slices))
    return tuple(parts)


def write_parts(manifest: Manifest, folder: Path, out: Path) -> list[Path]:
    """Write a bundle's parts to ``out``: gpu-stack-ID-1of3.tar and so on. The xz streams lie in ``folder``."""
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for index, slices in enumerate(manifest.parts):
        path = out / f"gpu-stack-{manifest.bundle}-{index + 1}of{len(manifest.parts)}.tar"
        head = {"format": FORMAT, "part": index + 1, "bundle": manifest.bundle, "manifest": asdict(manifest)}
        text = json.dumps(head, indent=1).encode()
        unfinished = path.with_suffix(".tmp")
        with tarfile.open(unfinished, "w", format=tarfile.USTAR_FORMAT) as tar:
            _add(tar, MANIFEST, len(text), io.BytesIO(text))
            for each in slices:
                with (folder / each.piece).open("rb") as file:
                    file.seek(each.begin)
                    _add(tar, each.name, each.size, file)
        unfinished.rename(path)
        written.append(path)
    return written


def _add(tar: tarfile.TarFile, name: str, size: int, file: IO[bytes]) -> None:
    info = tarfile.TarInfo(name)
    info.size = size
    tar.addfile(info, file)


def read_manifest(path: Path) -> tuple[Manifest, int]:
    """The bundle that a part belongs to, and which part it is, from 1."""
    try:
        with tarfile.open(path, "r:") as tar:
            first = tar.next()
            file = tar.extractfile(first) if first is not None and first.name == MANIFEST else None
            if file is None:
                raise NotAPart(f"{path} is a tar file, but no part of a bundle: it does not begin with {MANIFEST}")
            head = json.loads(file.read())
    except OSError as error:
        raise NotAPart(f"cannot read {path}: {error.strerror}") from error
    except (tarfile.TarError, ValueError) as error:
        raise NotAPart(
            f"{path} is no part of a bundle, or is cut off within its first bytes ({error}): copy it again"
        ) from error
    if head.get("format") != FORMAT:
        raise NotAPart(
            f"{path} is a part of format {head.get('format')}, this setup reads {FORMAT}: use the checkout that built it"
        )
    manifest = manifest_from(head["manifest"])
    if manifest.bundle != head["bundle"]:
        raise NotAPart(
            f"the manifest of {path} is damaged (says {head['bundle']}, is {manifest.bundle}): copy the part again"
        )
    return manifest, head["part"]


def read_slices(path: Path, manifest: Manifest, part: int) -> Iterator[tuple[Slice, IO[bytes]]]:
    """Each slice of a part with its bytes. Raises NotAPart at the first that is not there as a whole."""
    try:
        with tarfile.open(path, "r:") as tar:
            tar.next()
            for wanted in manifest.parts[part - 1]:
                info = tar.next()
                if info is None or (info.name, info.size) != (wanted.name, wanted.size):
                    raise cut_off(path, part, manifest, wanted)
                if path.stat().st_size < info.offset_data + info.size:
                    raise cut_off(path, part, manifest, wanted)
                file = tar.extractfile(info)
                assert file is not None, "a regular member, by its name and size"
                yield wanted, file
    except tarfile.TarError as error:
        raise NotAPart(
            f"{path} (part {part} of {len(manifest.parts)}) cannot be read: {error}; copy it again"
        ) from error


def cut_off(path: Path, part: int, manifest: Manifest, wanted: Slice) -> NotAPart:
    """The error of a part that ends too early."""
    return NotAPart(
        f"{path} (part {part} of {len(manifest.parts)}) is cut off: it has {path.stat().st_size} bytes and lacks all or some of"
        f" {wanted.name} ({wanted.size} bytes); copy it again"
    )
