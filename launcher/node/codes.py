"""The worker's exit codes: one table for the worker, the supervisor and the JobSet's podFailurePolicy.

The numbers 74 to 79 are sysexits.h's last ones (EX_IOERR 74, EX_CONFIG 78) and their neighbour: no shell, Python,
MaxText or signal death (128 + n) uses them, so a code names its cause without a log.
"""

from enum import Enum, IntEnum


class Code(IntEnum):
    """Exit codes with a meaning of ours. Any other code is the trainer's own (its return code, or 128 + signal)."""

    FINISHED = 0
    DIVERGED = 74
    PREEMPTED = 75
    OVERFLOW = 76
    STALLED = 77
    CONFIG_REFUSED = 78
    BAD_NODE = 79


class Outcome(Enum):
    """The word for a code, as result.json and every command's output spell it."""

    FINISHED = "finished"
    DIVERGED = "diverged"
    PREEMPTED = "preempted"
    OVERFLOW = "overflow"
    STALLED = "stalled"
    CONFIG_REFUSED = "config_refused"
    BAD_NODE = "bad_node"
    TRAINER = "trainer"


OUTCOMES = {
    Code.FINISHED: Outcome.FINISHED,
    Code.DIVERGED: Outcome.DIVERGED,
    Code.PREEMPTED: Outcome.PREEMPTED,
    Code.OVERFLOW: Outcome.OVERFLOW,
    Code.STALLED: Outcome.STALLED,
    Code.CONFIG_REFUSED: Outcome.CONFIG_REFUSED,
    Code.BAD_NODE: Outcome.BAD_NODE,
}

MEANINGS = {
    Outcome.FINISHED: "the last step was completed",
    Outcome.DIVERGED: "the loss, the gradients or the router left their usual range: an earlier checkpoint is clean",
    Outcome.PREEMPTED: "stopped by a signal; a checkpoint exists, a new attempt goes on from it",
    Outcome.OVERFLOW: "the MoE receive buffers were too small: a larger ragged_buffer_factor is needed",
    Outcome.STALLED: "no step was completed for too long",
    Outcome.CONFIG_REFUSED: "the same configuration will be refused again: no retry helps",
    Outcome.BAD_NODE: "this node or its network cannot run the trainer: try another",
    Outcome.TRAINER: "the trainer failed by itself: the code is its own",
}


def outcome_of(code: int) -> Outcome:
    """The outcome that an exit code of the worker stands for; every unlisted code is the trainer's own."""
    return OUTCOMES[Code(code)] if code in list(Code) else Outcome.TRAINER


def exit_code_of(returncode: int) -> int:
    """A process's exit code as a shell counts it: subprocess gives -n for a death by signal n, a shell 128 + n."""
    return 128 - returncode if returncode < 0 else returncode


class WorkerError(Exception):
    """The worker cannot go on. `code` is what it exits with; the text says what was seen, wanted, and what to do."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code


def refused(message: str) -> WorkerError:
    """A WorkerError that no retry cures (exit code 78)."""
    return WorkerError(Code.CONFIG_REFUSED, message)
