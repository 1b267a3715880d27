"""Issues as a table for a reader and as a list for a script."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from launcher.issue import Issue, Severity
from launcher.render.layout import WIDTH, count, fold


def issue_table(issues: Sequence[Issue]) -> list[str]:
    """All issues, errors first: severity, field over code, message over hint; at most WIDTH columns."""
    if not issues:
        return ["No issues."]
    ordered = sorted(issues, key=Issue.rank)
    numbers = {severity: sum(issue.severity is severity for issue in ordered) for severity in Severity}
    counts = [count(number, severity.value) for severity, number in numbers.items() if number]
    width = min(40, max(max(len(i.field), len(i.code)) for i in ordered))
    lines = [f"Issues: {', '.join(counts)}"]
    for issue in ordered:
        left = [issue.field, issue.code]
        right = _cell(issue.message, width) + (_cell(issue.hint, width, "-> ") if issue.hint else [])
        for row in range(max(len(left), len(right))):
            severity = issue.severity.value if row == 0 else ""
            name = left[row] if row < len(left) else ""
            told = right[row] if row < len(right) else ""
            lines.append(f"  {severity:<7}  {name:<{width}}  {told}".rstrip())
    return lines


def _cell(text: str, width: int, first: str = "") -> list[str]:
    """The right-hand column, wrapped to what the left one leaves."""
    room = WIDTH - (2 + 7 + 2 + width + 2)
    return fold(text, room, first, " " * len(first))


def issues_json(issues: Sequence[Issue]) -> list[dict[str, str]]:
    """Issues for a script, errors first."""
    return [{**dataclasses.asdict(i), "severity": i.severity.value} for i in sorted(issues, key=Issue.rank)]
