"""What the tables of mistakes have in common: each gives its issue, and typing what the hint says makes it go away."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Protocol

from launcher.issue import Issue, Severity
from launcher.plan.plan import Plan


class Mistake(Protocol):
    """A row. `typed`: a part of the hint; typed after the overrides it cures the issue. `message`: a part of the message."""

    experiment: str
    overrides: str
    code: str
    field: str
    typed: str
    severity: Severity
    message: str


def assert_its_hint_cures(row: Mistake, plan: Callable[..., Plan]) -> None:
    """`plan`: from an experiment's name and override words."""
    words = row.overrides.split()
    issues = plan(row.experiment, *words).issues
    found = [i for i in _of(row, issues) if row.message in i.message]
    assert len(found) == 1, issues
    assert found[0].severity is row.severity
    assert row.typed in found[0].hint
    typed = shlex.split(row.typed)
    if typed:
        cured = plan(row.experiment, *_replaced(words, typed), *typed).issues
        assert not _of(row, cured)


def _of(row: Mistake, issues: tuple[Issue, ...]) -> list[Issue]:
    return [i for i in issues if i.code == row.code and i.field == row.field]


def _replaced(words: list[str], typed: list[str]) -> list[str]:
    """The words as a user edits them: a key that is typed anew, or a choice of a group, replaces what stood there."""
    keys = {word.lstrip("+~").partition("=")[0] for word in typed}
    return [
        word
        for word in words
        if word.lstrip("+").partition("=")[0] not in keys or any(t.startswith("~") for t in typed)
    ]
