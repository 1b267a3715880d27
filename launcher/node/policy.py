"""What is done about what is seen while the trainers run: the words of monitor.*, as launch.json's `monitor` has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Optional

NONE, WARN, STOP, ROLLBACK, ACT, EXCLUDE = "none", "warn", "stop", "rollback", "act", "exclude"

_NUMBERS = (WARN, ROLLBACK, STOP)
WORDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "overflow": (ACT, WARN, STOP),
        "nan": _NUMBERS,
        "loss_spike": _NUMBERS,
        "grad_spike": _NUMBERS,
        "imbalance": _NUMBERS,
        "stall": (ACT, WARN, NONE),
        "straggler": (WARN, EXCLUDE),
    }
)
"""Which words each of them takes, the default or mildest in no particular place."""


@dataclass(frozen=True)
class Policy:
    """launch.json's `monitor`. The words are WORDS's; what a bundle does not say is as mild as can be.

    stall_seconds: between two steps, None = from what was seen. first_step_seconds: from the start to the first step.
    metrics_port: None = no endpoint. webhook: the name of the environment variable that holds the URL, None = none.
    """

    nan: str = STOP
    loss_spike: str = WARN
    grad_spike: str = WARN
    imbalance: str = WARN
    stall: str = NONE
    straggler: str = WARN
    stall_seconds: Optional[float] = None
    first_step_seconds: float = 3600.0
    metrics_port: Optional[int] = None
    webhook: Optional[str] = None
