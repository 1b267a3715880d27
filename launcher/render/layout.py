"""Lines for a terminal: wrapped words, aligned facts, counted nouns."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

WIDTH = 110
"""Columns of a line; only a single word can be longer."""


def count(number: int, noun: str) -> str:
    """1 node, 2 nodes, 1,024 nodes."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def figure(value: object) -> str:
    """1,024; what is no whole number as it is."""
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def wrap(text: str, first: str, rest: str | None = None) -> list[str]:
    """Lines of at most WIDTH columns: `first` before the first one, `rest` (as wide, blank) before the others."""
    indent = " " * len(first) if rest is None else rest
    lines: list[str] = []
    for number, part in enumerate(text.splitlines() or [""]):
        lead = indent if number else first
        lines += fold(part, WIDTH, lead, indent) or [lead.rstrip()]
    return lines


def fold(text: str, width: int, first: str, rest: str) -> list[str]:
    """textwrap without cutting words: a key or a path must stay one word."""
    words = textwrap.TextWrapper(width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)
    words.break_long_words = False
    return words.wrap(text)


def fact_lines(facts: Sequence[tuple[str, str]]) -> list[str]:
    """Name and sentence, the names in one column."""
    width = max(len(name) for name, _ in facts)
    return [line for name, text in facts for line in wrap(text, f"  {name:<{width}}  ")]


def packed(items: Sequence[str], room: int) -> str:
    """Items joined by commas, broken only between them, into lines of at most `room` columns.

    >>> packed(["one 1", "two 2", "three 3"], 14)
    'one 1, two 2,\\nthree 3'
    """
    lines = [""]
    for number, item in enumerate(items):
        word = item + ("," if number < len(items) - 1 else "")
        if lines[-1] and len(lines[-1]) + 1 + len(word) > room:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".lstrip()
    return "\n".join(lines)
