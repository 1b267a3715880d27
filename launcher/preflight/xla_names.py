"""Which flags a jaxlib knows, read from its library: nothing is started, and no protobuf package is needed.

Every XLA flag is a field of the message DebugOptions, and compiled protobuf code carries the description of its own file
(google.protobuf.FileDescriptorProto, here of xla/xla.proto) as plain bytes.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

FILE = b"xla/xla.proto"
MESSAGE = "DebugOptions"

KINDS: Mapping[int, str] = {
    1: "number",
    2: "number",
    3: "int64",
    4: "int64",
    5: "int32",
    8: "bool",
    9: "text",
    13: "int32",
    14: "enum",
}
"""FieldDescriptorProto.Type -> the word for it, for the types that flags have."""

NO_VALUES = frozenset({"INVALID"})
"""What an enumeration has because protobuf wants a zero, and no flag takes."""

LONGEST = 1 << 20
"""Bytes: a file's description is far below it (xla.proto's is 40 KiB)."""


@dataclass(frozen=True)
class Flag:
    """`values` are the names of its enumeration, () for other kinds; `many` = several, separated by commas."""

    kind: str
    values: tuple[str, ...] = ()
    many: bool = False

    @property
    def wanted(self) -> str:
        """What a value has to be, for people."""
        if self.values:
            return f"{'some' if self.many else 'one'} of {', '.join(self.values)}"
        kinds = {"bool": "true or false", "int32": "a whole number", "int64": "a whole number", "number": "a number"}
        return kinds.get(self.kind, "text")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A base-128 number and where it ends; bytes that are none end the data."""
    value = 0
    for n, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << 7 * n
        if byte < 0x80:
            return value, at + n + 1
    return 0, len(data)


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field of a serialized message; ends quietly where the bytes are none.

    A file's description is followed by other bytes, and its length stands nowhere.
    """
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if number == 0 or wire not in (0, 1, 2, 5):
            return
        if wire == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        size, at = _varint(data, at) if wire == 2 else ({1: 8, 5: 4}[wire], at)
        if at + size > len(data):
            return
        yield number, data[at : at + size]
        at += size


def _texts(data: bytes, number: int) -> list[bytes]:
    return [value for field, value in _fields(data) if field == number and isinstance(value, bytes)]


def _one(data: bytes, number: int) -> str:
    return next((text.decode("utf-8", "replace") for text in _texts(data, number)), "")


def _enumerations(message: bytes, number: int, prefix: str) -> dict[str, tuple[str, ...]]:
    """Full name -> value names of the enumerations of a file (field 5) or a message (field 4)."""
    return {
        f"{prefix}.{_one(each, 1)}": tuple(
            _one(value, 1) for value in _texts(each, 2) if _one(value, 1) not in NO_VALUES
        )
        for each in _texts(message, number)
    }


def read(description: bytes) -> dict[str, Flag]:
    """Name -> kind of every field of DebugOptions whose name is a flag's, from a serialized FileDescriptorProto.

    Empty when there is no such message.
    """
    package = f".{_one(description, 2)}"
    options = next((m for m in _texts(description, 4) if _one(m, 1) == MESSAGE), b"")
    enumerations = _enumerations(description, 5, package) | _enumerations(options, 4, f"{package}.{MESSAGE}")
    found = {}
    for field in _texts(options, 2):
        numbers = {number: value for number, value in _fields(field) if isinstance(value, int)}
        kind = KINDS.get(numbers.get(5, 0))
        name = _one(field, 1)
        if kind and name.startswith("xla_"):
            values = enumerations.get(_one(field, 6), ()) if kind == "enum" else ()
            found[name] = Flag(kind, values, numbers.get(4) == 3)
    return found


def known(library: Path) -> dict[str, Flag]:
    """The flags of a jaxlib by its shared library; empty when the library does not say.

    Raises:
        OSError: it cannot be read.
    """
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for place in re.finditer(b"\n" + bytes([len(FILE)]) + FILE + b"\x12", data):
            found = read(data[place.start() : place.start() + LONGEST])
            if found:
                return found
    return {}
