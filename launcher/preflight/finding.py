"""What `doctor` found about one thing, and how a list of it is written."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

WIDTH = 118
"""Columns of a line that is broken; the first line of a finding is not: a path in it stays whole."""


@dataclass(frozen=True)
class Finding:
    """`optional` ones are only needed for what `what_for` says; `cure` is what to type.

    why: one sentence, for those whose `seen` does not say it all. mark: the word before it where neither "absent" (optional) nor
    "MISSING" is right: "WRONG" = it is there and does not fit, "careful" = it works, but not for everything.
    """

    name: str
    ok: bool
    seen: str
    cure: str = ""
    optional: bool = False
    what_for: str = ""
    why: str = ""
    mark: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return dataclasses.asdict(self)


def _mark(finding: Finding) -> str:
    if finding.ok:
        return "ok"
    return finding.mark or ("absent" if finding.optional else "MISSING")


def text(findings: Sequence[Finding]) -> str:
    """The findings as people read them, one block each, the cures below."""
    width = max(len(finding.name) for finding in findings)
    indent = " " * (width + 11)
    lines = []
    for finding in findings:
        lines.append(f"{_mark(finding):7}  {finding.name:{width}}  {finding.seen}")
        needed = f"needed for {finding.what_for}" if finding.what_for else ""
        cure = f"cure: {finding.cure}" if finding.cure else ""
        for told in (finding.why, needed, cure) if not finding.ok else ():
            lines += textwrap.wrap(
                told,
                WIDTH,
                initial_indent=indent,
                subsequent_indent=indent,
                break_long_words=False,
                break_on_hyphens=False,
            )
    return "\n".join(lines)
