"""MaxText's step lines, read back into numbers. The one place that knows their form.

Source of the texts: maxtext 0.2.5 common/metric_logger.py `_log_training_metrics`; variants in older builds stop after
`loss:`, the ramp-up phase has no TFLOP/s, a hidden profiler step has no seconds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

MARK = "completed step: "
"""What every step line holds, but that of a hidden profiler step."""

JUNK_STEPS = 3
"""Steps at the start of an attempt whose `seconds` mean nothing (asynchronous dispatch; facts/maxtext.md section 3)."""

_HIDDEN = "completed profiler activation/deactivation step: "
_NUMBER = re.compile(r"(\d+)(?=,|\s|$)")
_FIELD = re.compile(r"([A-Za-z][A-Za-z0-9_/ ]*?)[:=] *([-+]?(?:\d[\d.]*(?:[eE][-+]?\d+)?|nan|inf))(?=[,\s]|$)")

_NAMES = {
    "seconds": "seconds",
    "TFLOP/s/device": "tflops",
    "Tokens/s/device": "tokens",
    "total_weights": "weights",
    "loss": "loss",
}


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

    Where a killed trainer's half line and the next one's first became one line, the last report in it counts; a number
    that is cut off is none.

    >>> parse_step("completed step: 7, seconds: 0.194, TFLOP/s/device: 238.3, loss: 10.5").loss
    10.5
    """
    at, mark = line.rfind(MARK), MARK
    if at < 0:
        at, mark = line.rfind(_HIDDEN), _HIDDEN
        if at < 0:
            return None
    number = _NUMBER.match(line, at + len(mark))
    if number is None:
        return None
    known: dict[str, float] = {}
    others: dict[str, float] = {}
    for name, value in _fields(line[number.end() :]):
        if name in _NAMES:
            known[_NAMES[name]] = value
        else:
            others[name] = value
    return StepLine(step=int(number.group(1)), others=others, **known)


def _fields(rest: str) -> list[tuple[str, float]]:
    """What follows the step's number: `, name: value, name: value`; anything else is searched for such pairs."""
    found = []
    try:
        for part in rest.rstrip().split(", ")[1:]:
            name, _, value = part.partition(": ")
            found.append((name, float(value)))
    except ValueError:
        return [(name, float(value)) for name, value in _FIELD.findall(rest) if _is_number(value)]
    return found


def _is_number(text: str) -> bool:
    return text.count(".") < 2
