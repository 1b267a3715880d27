"""Faults that the monitor sees while the trainers run: MoE buffers that overflow, numbers that go wrong, steps that do not come."""

from fault_bench import Fault
from fault_deeds import LONG, RESTARTED, TWICE, do

from launcher.runs.attempts import State

NAN, INF = "nan", "inf"
FALLBACK = (
    "Step 4: MoE ragged buffer overflow detected in 2 layer(s); "
    "in-layer dropless fallback was used (no tokens dropped)."
)

# ---- experts overflow. 98304 rows at factor 1; a checkpoint after 4 is clean when step 5 overflows

OVERFLOWS = [
    Fault(
        "overflow_is_healed",
        every=[do("demand", "start", rows={5: 101120})],
        steps=("0-7", "5-11"),
        decisions=RESTARTED,
        events=("overflow", "overflowing", "adjusted", "decided_restart"),
        never=("unknown_failure",),
        adjusted=(1.29,),
    ),
    Fault(
        "overflow_in_the_first_step",
        every=[do("demand", "start", rows={0: 101120})],
        steps=("0-3", "0-11"),
        decisions=RESTARTED,
        events=("overflow", "adjusted"),
        adjusted=(1.29,),
    ),
    Fault(
        "overflow_in_a_tainted_checkpoint",
        every=[do("demand", "start", rows={8: 101120})],
        steps=("0-11", "5-11"),
        decisions=RESTARTED,
        events=("overflow", "adjusted"),
        aside=("8.attempt1",),
        adjusted=(1.29,),
    ),
    Fault(
        "overflow_before_a_tainted_checkpoint",
        every=[do("demand", "start", rows={6: 101120, 7: 100000})],
        words=("checkpoint.checkpoint_period=7",),
        steps=("0-7", "0-11"),
        decisions=RESTARTED,
        events=("overflow", "adjusted"),
        aside=("7.attempt1",),
        adjusted=(1.29,),
    ),
    Fault(
        "overflow_at_the_last_step",
        every=[do("demand", "start", rows={11: 101120})],
        steps=("0-11", "9-11"),
        decisions=RESTARTED,
        events=("overflow", "adjusted"),
        adjusted=(1.29,),
    ),
    Fault(
        "overflow_twice_to_the_worst_case",
        every=[do("demand", "start", rows={5: 101120, 9: 196000})],
        steps=("0-7", "5-11", "9-11"),
        decisions=TWICE,
        events=("overflow", "adjusted"),
        adjusted=(1.29, -1.0),
    ),
    Fault(
        "overflow_of_all_on_one_rank",
        every=[do("demand", "start", rows={5: 196608})],
        steps=("0-7", "5-11"),
        decisions=RESTARTED,
        events=("overflow", "adjusted"),
        adjusted=(-1.0,),
    ),
    Fault(
        "overflow_of_the_worst_case",
        every=[do("demand", "start", rows={5: 400000})],
        words=("moe.ragged_buffer_factor=-1",),
        steps=("0-7",),
        decisions=("stop",),
        state=State.FAILED,
        events=("overflow",),
        never=("adjusted",),
        said="worst case already",
    ),
    Fault(
        "overflow_that_a_person_wants_to_see",
        every=[do("demand", "start", rows={5: 101120})],
        words=("monitor.overflow=stop",),
        steps=("0-7",),
        decisions=("stop",),
        state=State.OVERFLOW,
        events=("overflow",),
        never=("adjusted", "decided_restart"),
        said="set moe.ragged_buffer_factor=1.29",
    ),
    Fault(
        "overflow_that_is_only_told",
        [[do("demand", "start", rows={5: 101120})]],
        words=("monitor.overflow=warn",),
        steps=("0-7", "5-11"),
        decisions=RESTARTED,
        events=("overflow",),
        never=("adjusted",),
    ),
    Fault(
        "overflow_told_until_the_budget_ends",
        every=[do("demand", "start", rows={5: 101120})],
        words=("monitor.overflow=warn", "monitor.max_failures=1"),
        steps=("0-7", "5-8"),
        decisions=("restart failures", "stop failures"),
        state=State.OVERFLOW,
        events=("overflow",),
        never=("adjusted",),
        said="monitor.max_failures",
        aside=("8.attempt2",),
    ),
    Fault(
        "overflow_without_a_budget",
        every=[do("demand", "start", rows={5: 101120})],
        words=("monitor.max_failures=0",),
        steps=("0-7",),
        decisions=("stop failures",),
        state=State.OVERFLOW,
        events=("overflow",),
        said="monitor.max_failures",
        adjusted=(1.29,),
    ),
    Fault(
        "fallback_of_maxtext_itself",
        [[do("log", 5, None, text=FALLBACK, where="metric_logger.py:285")]],
        events=("fallback",),
        never=("overflow", "decided_restart"),
    ),
    Fault(
        "headroom_shrinks",
        every=[do("demand", "start", rows={step: int(98304 * (0.6 + step / 100)) for step in range(40)})],
        words=("trainer.steps=40", "checkpoint.checkpoint_period=20"),
        steps=("0-39",),
        events=("headroom",),
        never=("overflow", "overflowing", "decided_restart"),
    ),
]

UNREPORTED = [
    Fault(
        "signal_before_the_overflow_check",
        [[do("kill", 6, 0, name="SIGTERM", whom="worker"), do("hang", 6, None, seconds=0.4)]],
        every=[do("demand", "start", rows={5: 101120})],
        words=("moe.ragged_buffer_factor=1.0",),
        steps=("0-5", "5-11"),
        decisions=("restart preemptions", "stop"),
        events=("overflowing", "adjusted"),
        aside=("6.attempt1",),
        adjusted=(1.29,),
    ),
    Fault(
        "death_before_the_overflow_check",
        [[do("hang", 10, None, seconds=0.4), do("kill", 10, 0, name="SIGKILL")]],
        every=[do("demand", "start", rows={8: 101120})],
        words=("moe.ragged_buffer_factor=1.0",),
        steps=("0-8", "5-11"),
        decisions=RESTARTED,
        events=("overflowing", "adjusted"),
        aside=("8.attempt1",),
        adjusted=(1.29,),
    ),
]
"""Overflows that MaxText does not come to report: a checkpoint holds one, and the attempt ends before the next check."""

# ---- numbers

_ROLLED_BACK = ("restart rollbacks", "stop")
_GOES_ON = ("+maxtext.abort_on_nan_loss=false", "+maxtext.abort_on_inf_loss=false")

NUMBERS = [
    Fault(
        f"{bad}_ends_maxtext",
        [[do("loss", "start", values={6: bad})]],
        steps=("0-6", "5-11"),
        decisions=_ROLLED_BACK,
        events=("nan", "aborted", "decided_restart"),
    )
    for bad in (NAN, INF)
] + [
    Fault(
        "nan_in_the_step_of_a_checkpoint",
        [[do("loss", "start", values={8: NAN})]],
        steps=("0-8", "5-11"),
        decisions=_ROLLED_BACK,
        events=("nan",),
        aside=("8.attempt1",),
    ),
    Fault(
        "nan_before_the_first_checkpoint",
        [[do("loss", "start", values={2: NAN})]],
        steps=("0-2", "0-11"),
        decisions=_ROLLED_BACK,
        events=("nan",),
    ),
    Fault(
        "nan_that_comes_again",
        every=[do("loss", "start", values={6: NAN})],
        steps=("0-6", "5-6", "0-6"),
        decisions=("restart rollbacks", "restart rollbacks", "stop"),
        state=State.FAILED,
        events=("nan",),
        aside=("4.attempt2",),
        said="an earlier rollback",
    ),
    Fault(
        "nan_until_the_budget_ends",
        every=[do("loss", "start", values={6: NAN})],
        words=("monitor.max_rollbacks=1",),
        steps=("0-6", "5-6"),
        decisions=("restart rollbacks", "stop rollbacks"),
        state=State.FAILED,
        events=("nan",),
        aside=("4.attempt2",),
        said="monitor.max_rollbacks",
    ),
    Fault(
        "nan_that_stops",
        [[do("loss", "start", values={6: NAN})]],
        words=("monitor.nan=stop",),
        steps=("0-6",),
        decisions=("stop",),
        state=State.FAILED,
        events=("nan",),
        never=("decided_restart",),
    ),
    Fault(
        "nan_that_maxtext_does_not_mind",
        [[do("loss", "start", values={6: NAN, 7: NAN}), do("pause", 7, None, seconds=0.3)]],
        words=_GOES_ON,
        steps=("0-6", "5-11"),
        decisions=_ROLLED_BACK,
        events=("nan",),
    ),
    Fault(
        "nan_that_nobody_minds",
        [[do("loss", "start", values={6: NAN})]],
        words=(*_GOES_ON, "monitor.nan=warn"),
        events=("nan",),
        never=("decided_restart",),
    ),
    Fault(
        "loss_spike_is_told",
        [[do("loss", "start", values={25: 20.0})]],
        words=LONG,
        steps=("0-39",),
        events=("loss_spike",),
        never=("decided_restart",),
    ),
    Fault(
        "loss_spike_is_rolled_back",
        [[do("loss", "start", values={25: 20.0}), do("hang", 27, None)]],
        words=(*LONG, "monitor.loss_spike=rollback"),
        steps=("0-25", "21-39"),
        decisions=_ROLLED_BACK,
        events=("loss_spike", "decided_restart"),
    ),
    Fault(
        "loss_spike_stops",
        [[do("loss", "start", values={25: 20.0}), do("hang", 27, None)]],
        words=(*LONG, "monitor.loss_spike=stop"),
        steps=("0-25",),
        decisions=("stop",),
        state=State.FAILED,
        events=("loss_spike",),
    ),
    Fault(
        "grad_spike_is_told",
        [[do("grad", "start", values={25: 50.0})]],
        words=LONG,
        steps=("0-39",),
        events=("grad_spike",),
        never=("decided_restart",),
    ),
    Fault(
        "grad_spike_is_rolled_back",
        [[do("grad", "start", values={25: 50.0}), do("hang", 27, None)]],
        words=(*LONG, "monitor.grad_spike=rollback"),
        steps=("0-25", "21-39"),
        decisions=_ROLLED_BACK,
        events=("grad_spike", "decided_restart"),
    ),
    Fault(
        "imbalance_is_told",
        [[do("ratio", "start", values=dict.fromkeys(range(20, 40), 6.0))]],
        words=LONG,
        steps=("0-39",),
        events=("imbalance",),
        never=("decided_restart",),
    ),
]

# ---- stalls

# Near a checkpoint and the end a step may take half an hour; 16 is near none.
_SOON = (*LONG, "monitor.stall_seconds=3")
STALLS = [
    Fault(
        name,
        [[do("hang", at, rank)]],
        words=(*_SOON, "monitor.first_step_seconds=4") if isinstance(at, str) else _SOON,
        steps=steps,
        decisions=RESTARTED,
        events=("stalled", "decided_restart"),
        flight=True,
    )
    for name, at, rank, steps in (
        ("stall_before_jax", "start", None, ("", "0-39")),
        ("stall_in_the_compiler", "compiled", None, ("", "0-39")),
        ("stall_between_steps", 16, None, ("0-14", "11-39")),
        ("stall_of_one_rank", 16, 1, ("0-14", "11-39")),
    )
] + [
    Fault(
        "stall_that_is_only_told",
        [[do("hang", 16, None, seconds=6.0)]],
        words=(*_SOON, "monitor.stall=warn"),
        steps=("0-39",),
        events=("stalled",),
        never=("decided_restart",),
        flight=True,
    ),
    Fault(
        "stall_that_nobody_minds",
        [[do("hang", 16, None, seconds=4.0)]],
        words=(*_SOON, "monitor.stall=none"),
        steps=("0-39",),
        never=("stalled", "decided_restart"),
    ),
    Fault(
        "stall_in_every_attempt",
        every=[do("hang", 16, 0)],
        words=(*_SOON, "monitor.max_failures=1"),
        steps=("0-14", "11-14"),
        decisions=("restart failures", "stop failures"),
        state=State.STALLED,
        events=("stalled",),
        flight=True,
    ),
    Fault(
        "stall_with_a_budget_of_its_own",
        [[do("hang", 16, 0)]],
        words=(*_SOON, "+monitor.max_of_kind.stall=0"),
        steps=("0-14",),
        decisions=("stop kinds.stall",),
        state=State.STALLED,
        events=("stalled",),
        flight=True,
    ),
    Fault(
        "a_checkpoint_that_takes_long",
        [[do("hang", "save10", 0, seconds=4.0)]],
        words=_SOON,
        steps=("0-39",),
        never=("stalled",),
    ),
]
