"""Kubernetes objects as YAML: the same bytes everywhere, read alike by kubectl (YAML 1.1), PyYAML and people.

No anchors, no folding; text that another reader might take for a number, a bool or nothing is quoted, and the values of
labels, annotations, selectors and variables always are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from launcher.render import yaml_text
from launcher.render.yaml_text import PLAIN, YAML_WORDS

ALWAYS_QUOTED = ("labels", "annotations", "nodeSelector", "matchLabels")
"""Mappings of text to text: a value of another kind is refused by the server."""

WIDTH = 110
"""Characters up to which a list of plain values, or an element of plain values, stands on one line."""

_VALUE = "value"

_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r", "\0": "\\0"}
_UNPRINTABLE = re.compile(r'["\\\x00-\x1f\x7f-\xa0\u2028\u2029\ufeff\ufffe\uffff]')
_NO_BLOCK = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\xa0\u2028\u2029\ufeff\ufffe\uffff]")

Comments = Mapping[str, str]
"""Dotted path (an element of a list by its name, else its index) -> what stands in comment lines above it."""


def quoted(text: str) -> str:
    r"""Text between double quotes.

    >>> print(quoted('say "a\\tb"'))
    "say \"a\\tb\""

    Raises:
        ValueError: text that is no Unicode (half a surrogate pair, from a command line that is not UTF-8).
    """
    if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
        raise ValueError(f"{text!r} is not valid Unicode, wanted UTF-8 text")

    def escape(match: re.Match[str]) -> str:
        char = match.group()
        return _ESCAPES.get(char) or f"\\u{ord(char):04x}"

    return f'"{_UNPRINTABLE.sub(escape, text)}"'


def scalar(value: object, bare: bool = True) -> str:
    """One value on one line; text bare where no reader can mistake it, and `bare` allows it.

    >>> scalar("Never"), scalar("True"), scalar(16), scalar("16"), scalar("a", bare=False), scalar(True), scalar([])
    ('Never', '"True"', '16', '"16"', '"a"', 'true', '[]')

    Raises:
        TypeError: a value that JSON does not have.
    """
    if isinstance(value, str):
        plain = bare and PLAIN.fullmatch(value) and value.lower() not in YAML_WORDS
        return value if plain else quoted(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return yaml_text.scalar(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(scalar(one) for one in value)}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{scalar(str(key))}: {scalar(one, key != _VALUE)}' for key, one in value.items())}}}"
    raise TypeError(
        f"{value!r} is a {type(value).__name__}: an object holds text, numbers, true/false, lists and mappings"
    )


def _block_text(text: str, indent: int) -> list[str] | None:
    """The header and the lines of a literal block, None where only quotes are exact."""
    if "\n" not in text or _NO_BLOCK.search(text) or not text.strip("\n"):
        return None
    body = text.rstrip("\n")
    ends = len(text) - len(body)
    hint = "2" if text[0] in " \n" else ""
    header = f"|{hint}{'' if ends == 1 else '-' if ends == 0 else '+'}"
    lines = text.split("\n")[: -1 if ends else None]
    return [header, *(f"{' ' * indent}{line}" if line else "" for line in lines)]


def _short(value: object) -> bool:
    """A list or mapping of plain values that fits on a line."""
    inner = list(value.values()) if isinstance(value, Mapping) else value
    return (
        isinstance(inner, list | tuple)
        and not any(isinstance(one, Mapping | list | tuple) for one in inner)
        and len(scalar(value)) <= WIDTH
    )


def _entry(head: str, value: Any, path: str, bare: bool, comments: Comments) -> Iterator[str]:
    """`head` is `key:` or `-`, already indented."""
    indent = len(head) - len(head.lstrip())
    if isinstance(value, Mapping) and value:
        inner = _mapping(value, indent + 2, path, comments)
        yield from [head, *inner]
    elif isinstance(value, list | tuple) and value and not _short(value):
        yield head
        yield from _sequence(value, indent + (2 if head.endswith("-") else 0), path, comments)
    else:
        block = _block_text(value, indent + 2) if isinstance(value, str) else None
        yield f"{head} {block[0] if block else scalar(value, bare)}"
        yield from block[1:] if block else ()


def _above(path: str, indent: int, comments: Comments) -> Iterator[str]:
    for line in comments.get(path, "").splitlines():
        yield f"{' ' * indent}# {line}"


def _mapping(values: Mapping[str, Any], indent: int, path: str, comments: Comments) -> Iterator[str]:
    last = path.rpartition(".")[2]
    for key, value in values.items():
        inner = f"{path}.{key}" if path else str(key)
        yield from _above(inner, indent, comments)
        bare = last not in ALWAYS_QUOTED and key != _VALUE
        yield from _entry(f"{' ' * indent}{scalar(str(key))}:", value, inner, bare, comments)


def _sequence(values: Sequence[Any], indent: int, path: str, comments: Comments) -> Iterator[str]:
    """Elements at their key's own indentation, as kubectl writes them."""
    for number, value in enumerate(values):
        name = value.get("name", number) if isinstance(value, Mapping) else number
        inner = f"{path}.{name}"
        yield from _above(inner, indent, comments)
        if isinstance(value, Mapping) and _short(value):
            yield f"{' ' * indent}- {scalar(value)}"
        elif isinstance(value, Mapping):
            first, *rest = _mapping(value, indent + 2, inner, comments)
            yield f"{' ' * indent}- {first[indent + 2 :]}"
            yield from rest
        else:
            yield from _entry(f"{' ' * indent}-", value, inner, True, comments)


def document(values: Mapping[str, Any], comments: Comments | None = None) -> str:
    """One object as a YAML document, without the line of dashes before it."""
    return "\n".join(_mapping(values, 0, "", comments or {})) + "\n"
