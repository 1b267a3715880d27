"""What a trainer's log says besides its steps and its errors: how far the start is, checkpoints, evaluations, its end.

Texts: maxtext 0.2.5 utils/maxtext_utils.py, common/checkpointing.py, utils/max_utils.py, trainers/pre_train/train.py,
common/metric_logger.py; orbax-checkpoint's path/atomicity.py for a checkpoint that is complete, its
logging/event_tracking.py for one that was read.
"""

from __future__ import annotations

import re
from typing import NamedTuple

STARTED = "started"  # JAX runs on all ranks
FRESH = "fresh"  # there was no checkpoint
RESTORING = "restoring"  # from the checkpoint of `step`
RESTORED = "restored"  # `text` seconds after orbax began to read
COMPILED = "compiled"
SAVING = "saving"  # what the training waits for is done; the rest happens in the background
SAVED = "saved"
EVALUATED = "evaluated"
OVERFLOW = "overflow"
FALLBACK = "fallback"  # MaxText's own dropless fallback stepped in
ABORTED = "aborted"  # on a loss that is no number
STOPPED = "stopped"


DISPATCHED = "Memstats: After params initialized"
"""In the log once the first step of an attempt is compiled and under way (train.py, training_loop_iteration at start_step)."""


class Mark(NamedTuple):
    """One such line. at: Unix seconds, None without a stamp. step: the one that it is about. text: what it says of it."""

    kind: str
    at: float | None
    step: int | None
    text: str


_KINDS = (
    (STARTED, re.compile(r"Num_devices: (?P<text>\d+)")),
    (FRESH, re.compile(r"No existing checkpoints found, not restoring")),
    (RESTORING, re.compile(r"restoring from this run's directory step (?P<step>\d+)")),
    (RESTORED, re.compile(r"Finished load in (?P<text>[\d.]+) seconds")),
    (COMPILED, re.compile(r"Total estimated memory size: (?P<text>[\d.]+ GB)")),
    (SAVED, re.compile(r"Finished saving checkpoint \(finalized tmp dir\) to `[^`]*/(?P<step>\d+)`")),
    (SAVING, re.compile(r"Started an asynchronous checkpoint save for step (?P<step>\d+)")),
    (SAVED, re.compile(r"Saved a checkpoint at step (?P<step>\d+)\.")),
    (EVALUATED, re.compile(r"Completed eval after train step (?P<step>\d+), (?P<text>.*)")),
    (OVERFLOW, re.compile(r"TE MoE receive capacity overflow at training step (?P<step>\d+) (?P<text>.*)")),
    (FALLBACK, re.compile(r"Step (?P<step>\d+): MoE ragged buffer overflow detected in (?P<text>\d+ layer)")),
    (ABORTED, re.compile(r"Aborting training due to (?P<text>NaN|Inf) loss")),
    (STOPPED, re.compile(r"Training stopped: (?P<text>.*)")),
)
PREFILTER = re.compile(
    b"Num_devices: |No existing checkpoints|restoring from this run|Finished load in|Total estimated memory|Finished saving checkpoint"
    b"|Started an asynchronous|Saved a checkpoint|Completed eval after|TE MoE receive cap|MoE ragged buffer"
    b"|Aborting training|Training stopped: "
)
"""Every line of a mark holds one of these: bytes are looked through before anything is decoded."""


def parse_mark(line: str, at: float | None) -> Mark | None:
    """The mark in one line, or None. An exception's own line repeats its error: of an overflow, the logged line counts.

    >>> parse_mark("restoring from this run's directory step 9", None).step
    9
    """
    for kind, pattern in _KINDS:
        match = pattern.search(line)
        if match is not None:
            if kind == OVERFLOW and line.startswith("RuntimeError"):
                return None
            groups = match.groupdict()
            step = groups.get("step")
            return Mark(kind, at, None if step is None else int(step), (groups.get("text") or "")[:300])
    return None
