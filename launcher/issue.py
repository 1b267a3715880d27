"""A problem as a value: every check returns these, and all of them are shown at once."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """An error forbids a submission, a warning does not, a note only informs."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


_ORDER = tuple(Severity)


@dataclass(frozen=True)
class Issue:
    """One problem.

    Attributes:
        code: what kind, SCREAMING_SNAKE, stable for scripts.
        severity: error, warning or note.
        field: the override path that a user would type, e.g. mesh.ici.expert.
        message: what was seen and what was wanted, with the numbers.
        hint: what to type.
    """

    code: str
    severity: Severity
    field: str
    message: str
    hint: str = ""

    def rank(self) -> tuple[int, str, str, str]:
        """Sort key: errors first, then by field, code and message."""
        return _ORDER.index(self.severity), self.field, self.code, self.message


class Refused(Exception):
    """What was asked cannot be done as it stands; `issues` say why, all at once. Never a fault of the system."""

    def __init__(self, *issues: Issue) -> None:
        super().__init__("; ".join(issue.message for issue in issues))
        self.issues = issues
