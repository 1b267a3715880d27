"""Why something waits on Kubernetes, in plain words with what would help: its reasons as a table (launcher/data/)."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TABLE = Path(__file__).resolve().parent.parent / "data" / "kubernetes_reasons.toml"
_SHOWN = 240  # characters of the cluster's own words: a scheduler counts up every kind of node


@functools.cache
def table() -> tuple[Mapping[str, Any], ...]:
    """The rows: place, word, said, why, help."""
    return tuple(tomllib.loads(TABLE.read_text(encoding="utf-8"))["reason"])


def sentence(place: str, word: str, message: str, pod: str = "") -> str:
    """One line: why it waits, and what would help.

    >>> sentence("waiting", "InvalidImageName", "couldn't parse image", "demo-w-0-0-x1")
    "the name of its image is none: couldn't parse image; check container.image"
    """
    detail = " ".join(message.split())
    detail = detail if len(detail) <= _SHOWN else f"{detail[:_SHOWN]}..."
    row = next(row for row in table() if row["place"] == place and _fits(row, word, message))
    words = {"pod": pod, "word": word or "no reason told", "detail": detail or "it says nothing more"}
    return f"{row['why'].format(**words)}; {row['help'].format(**words)}"


def _fits(row: Mapping[str, Any], word: str, message: str) -> bool:
    return row["word"] in ("*", word) and re.search(row.get("said", ""), message) is not None
