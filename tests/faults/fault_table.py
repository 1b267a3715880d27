"""The faults: what the trainer does, and what has to follow. Trained are the steps 0 to 11, with checkpoints after 4, 8 and 11.

A row tells of a fault in the trainer's or the system's own words, and of all that follows: see fault_bench.Fault.
"""

from fault_bench import Fault
from fault_ended import CHECKPOINTS, DEATHS, ENDS, OUTPUT, PREEMPTED, SIGNALS, TABLE
from fault_watched import NUMBERS, OVERFLOWS, STALLS, UNREPORTED

from launcher.runs.attempts import State

ALL = [*DEATHS, *TABLE, *OVERFLOWS, *UNREPORTED, *NUMBERS, *STALLS, *SIGNALS, *ENDS, *CHECKPOINTS, *OUTPUT]

# ---- on SLURM: two nodes of one rank each, and two more to go to


def _on_slurm(fault: Fault) -> Fault:
    """What differs there: what wants other nodes, or was preempted, goes through the queue."""
    if fault.decisions == ("stop failures",) and fault.name.startswith("table_"):
        return fault._replace(
            steps=("0-4", "5-11"),
            decisions=("requeue failures", "stop"),
            state=State.FINISHED,
        )
    if fault.decisions == PREEMPTED:
        return fault._replace(decisions=("requeue preemptions", "stop"))
    if fault.name in _SAME_NODE_TWICE:
        return fault._replace(decisions=("restart failures", "requeue failures", *fault.decisions[2:]))
    return fault


_SAME_NODE_TWICE = ("one_node_fails_twice", "one_failure_until_the_budget_ends")
_ON_ONE_MACHINE = ("signal_to_the_supervisor", "the_supervisor_is_killed")
ON_SLURM = [_on_slurm(fault) for fault in ALL if fault.name not in _ON_ONE_MACHINE]
ONE_OF_EACH_KIND = (
    "sigkill_of_rank_1",
    "the_worker_is_killed",
    "table_gpu_ecc",
    "table_gpu_memory",
    "unknown_failure",
    "a_kind_with_a_budget_of_its_own",
    "overflow_is_healed",
    "overflow_that_a_person_wants_to_see",
    "nan_ends_maxtext",
    "stall_of_one_rank",
    "return_code_0_in_the_middle",
    "output_line_of_10_mb",
)
