"""What a trainer's output says, gathered line by line in bounded memory."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .steps import parse_step
from .trainer import MEMORY, REFUSES

_REASON = 600  # characters kept of one error text
_REFUSAL_LINES = 6  # of a pydantic message that spreads over several lines

# Source: maxtext 0.2.5 trainers/pre_train/train.py, train_loop (the text is on every rank).
_OVERFLOW = re.compile(
    r"receive capacity overflow at training step (\d+) \(detected at the (\d+)-step check ending at step (\d+)\): "
    r"observed padded receive demand (\d+) exceeds recv_capacity_per_rank (\d+) \(ragged_buffer_factor=([-+.\deE]+)\)"
)
# utils/max_utils.py, maybe_bootstrap_te_moe: before the first step.
_BUFFERS = re.compile(r"Bootstrapping TE MoE EP: .*?\bep=(\d+) num_experts=(\d+) max_tokens_per_rank=(\d+)")
_STOPPED = re.compile(r"Training stopped: (.*)")  # train.py: the loop ended early, with return code 0
_DONE = re.compile(r"Requested training up to step (\d+), but a checkpoint already exists at step (\d+)")
_CONFIG_ERROR = re.compile(r"MAXTEXT CONFIG ERROR: (.*)")  # configs/pyconfig.py
_UNKNOWN_KEY = re.compile(r"('[^']*') not in '")  # the list of the 2,000 keys that it knows follows

# What no retry with the same configuration cures, as long as no step was completed. Sources: maxtext 0.2.5
# utils/max_utils.py (mesh, TE start), types.py, layers/quantizations.py; jaxlib's parse_flags_from_env.cc; Python's -m; jax's pjit.
_REFUSALS = re.compile(
    r"Unknown flags? in XLA_FLAGS"
    r"|Number of devices per slice \d+ does not match"
    r"|Number of slices \d+ does not match"
    r"|DCN parallelism requested but only one slice available"
    r"|Found unspecified values \(-1\) for more than one"
    r"|Unspecified value unable to be determined"
    r"|requires one local device per process"
    r"|te_moe_block=True (?:requires|did not produce)"
    r"|TE MoE EP per-call batch size"
    r"|must be divisible by EP size"
    r"|IndivisibleError"
    r"|No module named (?!'transformer_engine')"
    r"|is not compatible with the stored shape"
    r"|Einsum is not yet supported for TransformerEngine quantization"
    rf"|^{re.escape(REFUSES)}"
)
# Exceptions that stand in a chain with the real one and hide it: MaxText's utils/max_utils.py wraps the whole training
# in `try: import transformer_engine ... yield; except Exception: yield`, so where TE cannot be imported, for whatever reason,
# every traceback begins with that, and where it can every one ends in contextlib's complaint.
_TRIED = "from transformer_engine.jax.sharding import global_shard_guard"
_MASKS = re.compile(r"No module named 'transformer_engine'|generator didn't stop after throw\(\)")
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?:: .*)?$")
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_FATAL = re.compile(r"F\d{4} [\d:.]+ +\d+ (.*)|(Fatal Python error: .*)")
_ERROR = re.compile(r"E\d{4} [\d:.]+ +\d+ [^\]]*\] (.*)")


@dataclass(frozen=True)
class Overflow:
    """MaxText's overflow report. step: the first one that overflowed; detected: the step whose check saw it.

    demand, capacity: token rows in one rank's receive buffer, wanted and there. factor: the ragged_buffer_factor.
    """

    step: int
    detected: int
    demand: int
    capacity: int
    factor: float

    @property
    def text(self) -> str:
        """The report in one line."""
        return (
            f"MoE receive buffer overflow at step {self.step} (seen at step {self.detected}): "
            f"demand {self.demand} rows, capacity {self.capacity} at ragged_buffer_factor={self.factor:g}"
        )


@dataclass(frozen=True)
class Buffers:
    """The sizes behind TE's receive buffers. ep: ranks of an expert group. tokens: of one rank in one model call."""

    ep: int
    experts: int
    tokens: int

    @property
    def local_experts(self) -> int:
        """Experts of one rank."""
        return self.experts // self.ep


class Observed:
    """The facts of one rank's output. Feed it every line; read the attributes at the end.

    first_step, last_step: the steps that this attempt completed. stopped: MaxText's reason for ending early with
    return code 0. done_up_to: its refusal to train a finished run, as the last completed step. refusal: a text that
    no retry cures. error: the line that names the failure best.
    """

    def __init__(self) -> None:
        self.first_step: int | None = None
        self.last_step: int | None = None
        self.buffers: Buffers | None = None
        self.overflow: Overflow | None = None
        self.stopped: str | None = None
        self.done_up_to: int | None = None
        self.refusal: str | None = None
        self._exception: str | None = None
        self._fatal: str | None = None
        self._logged: str | None = None
        self._last_line: str | None = None
        self._in_traceback = False
        self._tried = False  # the traceback goes through _TRIED
        self._is_mask = False  # the exception
        self._chained = False
        self._refusal_lines_left = 0

    @property
    def failure(self) -> str | None:
        """`error`, unless that is no more than the last line, or what hides an exception that the lines do not reach."""
        return (None if self._chained and self._is_mask else self._exception) or self._fatal or self._logged

    @property
    def error(self) -> str | None:
        """The root exception of the last traceback chain, else a fatal error, else a logged one, else the last line
        that is no step's."""
        return self.failure or self._last_line

    def feed(self, line: str) -> None:
        """Takes in one line, without its newline."""
        text = line.strip()
        if not text or text.startswith(MEMORY):
            return
        step = parse_step(line)
        if step is not None:
            self.first_step = step.step if self.first_step is None else self.first_step
            self.last_step = step.step
            return
        self._last_line = text[:_REASON]
        self._feed_events(text)
        self._feed_errors(line.rstrip(), text)

    def _feed_events(self, text: str) -> None:
        buffers = _BUFFERS.search(text)
        if buffers is not None:
            sizes = [int(number) for number in buffers.groups()]
            self.buffers = Buffers(*sizes) if all(sizes) and sizes[0] <= sizes[1] else None
        overflow = _OVERFLOW.search(text)
        if overflow is not None and self.overflow is None:
            step, _, detected, demand, capacity, factor = overflow.groups()
            self.overflow = Overflow(int(step), int(detected), int(demand), int(capacity), float(factor))
        stopped = _STOPPED.search(text)
        if stopped is not None:
            self.stopped = stopped.group(1)
        done = _DONE.search(text)
        if done is not None:
            self.done_up_to = int(done.group(2))

    def _feed_errors(self, line: str, text: str) -> None:
        config_error = _CONFIG_ERROR.search(text)
        if config_error is not None and self.refusal is None:
            unknown = _UNKNOWN_KEY.match(config_error.group(1))
            if unknown is not None:
                self.refusal = f"this MaxText has no key {unknown.group(1)}"
            else:
                self.refusal = config_error.group(1)[:_REASON]
                self._refusal_lines_left = _REFUSAL_LINES
            return
        if self._refusal_lines_left:
            self._continue_refusal(text)
        elif self.refusal is None and _REFUSALS.search(text):
            self.refusal = text[:_REASON]
        if text.startswith("Traceback (most recent call last)"):
            self._in_traceback, self._tried = True, False
        elif text.startswith(_TRIED):
            self._tried = True
        elif text.startswith(_CHAINED):
            self._chained = True
        elif self._in_traceback and line == text and _EXCEPTION.match(line):
            self._in_traceback = False
            if self._exception is None or not self._chained or self._is_mask:
                self._exception = text[:_REASON]
                self._is_mask = self._tried or bool(_MASKS.search(text))
            self._chained = False
        fatal = _FATAL.match(text)
        if fatal is not None and self._fatal is None:
            self._fatal = (fatal.group(1) or fatal.group(2))[:_REASON]
        logged = _ERROR.match(text)
        if logged is not None:
            self._logged = logged.group(1)[:_REASON]

    def _continue_refusal(self, text: str) -> None:
        self._refusal_lines_left -= 1
        if "=====" in text or text.startswith("For further information"):
            self._refusal_lines_left = 0
        elif self.refusal is not None:
            self.refusal = f"{self.refusal} / {text}"[:_REASON]
