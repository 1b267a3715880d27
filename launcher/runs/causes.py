"""The cause of a failed attempt, looked up with the tables as they are now: a run's bundle keeps those of its submission."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.node.causes import tails
from launcher.node.failures import Finding, Signature, recognise
from launcher.node.layout import AttemptFolder
from launcher.render.failure_table import signatures


def cause_of(attempt: AttemptFolder, reason: str = "", table: Sequence[Signature] | None = None) -> Finding | None:
    """What an attempt that failed died of; None when it left no words at all.

    `reason`: what the cluster says of its end. The ranks of the node that failed first come first. Raises Refused.
    """
    return recognise(tails(attempt, reason), signatures() if table is None else table)
