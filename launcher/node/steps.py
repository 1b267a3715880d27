"""MaxText's step lines, read back into numbers.

Source of the texts: maxtext 0.2.5 common/metric_logger.py `_log_training_metrics`; variants in older builds stop after
`loss:`, the ramp-up phase has no TFLOP/s, a hidden profiler step has no seconds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_STEP = re.compile(r"completed (?:profiler activation/deactivation )?step: (\d+)(.*)")
_FIELD = re.compile(r"([A-Za-z][A-Za-z0-9_/ ]*?)[:=] *([-+]?(?:\d[\d.]*(?:[eE][-+]?\d+)?|nan|inf))(?=[,\s]|$)")

_NAMES = {"seconds": "seconds", "TFLOP/s/device": "tflops", "Tokens/s/device": "tokens", "total_weights": "weights"}


@dataclass(frozen=True)
class StepLine:
    """One completed step. A value is None when this variant of the line does not print it.

    seconds: wall time that MaxText measured (junk for the first three steps: async dispatch).
    tflops, tokens: model TFLOP/s and tokens/s of one device. weights: target tokens of the global batch.
    others: every further number under MaxText's own name (lm_loss, perplexity, moe_lb_loss, mtp_loss, ...).
    """

    step: int
    seconds: float | None = None
    tflops: float | None = None
    tokens: float | None = None
    weights: float | None = None
    loss: float | None = None
    others: dict[str, float] = field(default_factory=dict)


def parse_step(line: str) -> StepLine | None:
    """The step that a log line reports, or None for any other line (evaluation lines included).

    >>> parse_step("completed step: 7, seconds: 0.194, TFLOP/s/device: 238.3, loss: 10.5").loss
    10.5
    """
    match = _STEP.search(line)
    if match is None:
        return None
    known: dict[str, float] = {}
    others: dict[str, float] = {}
    for name, text in _FIELD.findall(match.group(2)):
        if name in _NAMES:
            known[_NAMES[name]] = float(text)
        elif name == "loss":
            known["loss"] = float(text)
        else:
            others[name] = float(text)
    return StepLine(step=int(match.group(1)), others=others, **known)
