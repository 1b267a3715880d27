"""Tables of the user's own: TOML files of one name in the folders of $LAUNCHER_CONF, which come before the launcher's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from launcher.config.groups import CONF_DIR, search_path
from launcher.issue import Issue, Refused

Row = TypeVar("Row")
Read = Callable[[str, str], tuple[tuple[Row, ...], list[Issue]]]
"""Text and name of a file -> its rows, and what is wrong with it."""


def users_rows(file: str, read: Read[Row]) -> tuple[Row, ...]:
    """The rows of all files of that name. Raises Refused: one of them is wrong; all that is, at once."""
    found: list[Row] = []
    issues: list[Issue] = []
    for path in (folder / file for folder in search_path() if folder != CONF_DIR):
        if path.is_file():
            rows, wrong = read(path.read_text(encoding="utf-8"), str(path))
            found += rows
            issues += wrong
    if issues:
        raise Refused(*issues)
    return tuple(found)
