"""Secrets are variables of the submitting shell; every target refuses to start without them."""

from __future__ import annotations

import os
from collections.abc import Sequence

from launcher.issue import Issue, Severity


def unset_secrets(names: Sequence[str]) -> list[Issue]:
    """An issue for each secret that this shell does not have."""
    return [
        Issue(
            "SECRET_MISSING",
            Severity.ERROR,
            "env.secrets",
            f"the variable {name} is not set in this shell",
            f"export {name}=...",
        )
        for name in names
        if name not in os.environ
    ]
