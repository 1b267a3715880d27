"""Faults that end an attempt: deaths, what the failure table knows, signals, ends without an error; and what must not end one."""

from fault_bench import Fault
from fault_deeds import EXAMPLE, RESTARTED, TWICE, do

from launcher.node.failures import Signature
from launcher.render.failure_table import own_signatures
from launcher.runs.attempts import State

QUIET = ("decided_restart", "unknown_failure", "overflow", "nan", "loss_spike", "stalled", "slow_step")
_CONFIG = do(
    "log",
    "start",
    0,
    text="MAXTEXT CONFIG ERROR: 'pgle' not in 'emb_dim', 'mlp_dim'",
    where="pyconfig.py:393",
    level="E",
)

# ---- a rank, the worker, the supervisor is killed

DEATHS = [
    Fault(
        f"{name.lower()}_of_rank_{rank}",
        [[do("kill", 6, rank, name=name)]],
        steps=("0-4", "5-11"),
        decisions=RESTARTED,
        events=("attempt_ended", "heartbeat", "decided_restart"),
    )
    for rank in (0, 1)
    for name in ("SIGKILL", "SIGABRT", "SIGSEGV")
] + [
    Fault(
        "sigkill_before_the_first_step",
        [[do("kill", "compiled", 1, name="SIGKILL")]],
        steps=("", "0-11"),
        decisions=RESTARTED,
    ),
    Fault(
        "sigkill_within_a_checkpoint",
        [[do("kill", "save8", 0, name="SIGKILL")]],
        steps=("0-6", "5-11"),
        decisions=RESTARTED,
    ),
    Fault(
        "sigkill_at_the_last_step",
        [[do("kill", 11, 0, name="SIGKILL")]],
        steps=("0-9", "9-11"),
        decisions=RESTARTED,
    ),
    Fault(
        "each_attempt_gets_a_little_further",
        [[do("kill", 6, 0, name="SIGKILL")], [do("kill", 10, 1, name="SIGKILL")]],
        steps=("0-4", "5-8", "9-11"),
        decisions=TWICE,
    ),
    Fault(
        "the_worker_is_killed",
        [[do("hang", 6, None, seconds=0.5), do("kill", 6, 0, name="SIGKILL", whom="worker")]],
        steps=("0-4", "5-11"),
        decisions=RESTARTED,
    ),
    Fault(
        "the_worker_is_killed_early",
        [[do("hang", 2, None, seconds=0.5), do("kill", 2, 0, name="SIGKILL", whom="worker")]],
        steps=("0-0", "0-11"),
        decisions=RESTARTED,
    ),
]

DEATHS += [
    Fault(
        "the_supervisor_is_killed",
        [[do("hang", 6, None, seconds=0.5), do("kill", 6, 0, name="SIGKILL", whom="supervisor")]],
        steps=("0-4", "5-11"),
        decisions=("none", "stop"),
        state=State.DIED,
        resumed=True,
    ),
    Fault(
        "one_node_fails_twice",
        [[do("kill", 6, 1, name="SIGKILL")], [do("kill", 10, 1, name="SIGKILL")]],
        steps=("0-4", "5-8", "9-11"),
        decisions=TWICE,
    ),
]

# ---- what the failure table knows, by its own examples

_NUMBERS_OF_ITS_OWN = ("moe_overflow", "nan_loss")
"""Rows whose texts are acted upon before the table is asked: below, with numbers that fit."""


def _by_its_example(row: Signature) -> Fault:
    goes_on = row.action in ("retry", "raise_factor")
    return Fault(
        f"table_{row.name}",
        [[do("say", 6, 0, text=row.example), do("leave", 6, 0, code=1)]],
        steps=("0-4", "5-11") if goes_on else ("0-4",),
        # Of one machine nothing is left when it is excluded.
        decisions=RESTARTED if goes_on else ("stop failures",) if row.action == "exclude" else ("stop",),
        state=State.FINISHED if goes_on else State.FAILED,
        events=(row.name,),
        never=("unknown_failure",),
        cause=row.name,
    )


TABLE = [
    _by_its_example(row) for row in own_signatures() if "rank" in row.where and row.name not in _NUMBERS_OF_ITS_OWN
] + [
    Fault(
        "unknown_failure",
        [[do("fail", 6, 1, text="the flux capacitor is out of plutonium")]],
        steps=("0-4", "5-11"),
        decisions=RESTARTED,
        events=("unknown_failure",),
        cause="",
    ),
    Fault(
        "the_cause_is_on_another_rank",
        [
            [
                do("say", 5, 1, text=EXAMPLE["nccl_system"]),
                do("say", 6, 0, text=EXAMPLE["heartbeat"]),
                do("leave", 6, 0, code=134),
            ]
        ],
        steps=("0-4", "5-11"),
        decisions=RESTARTED,
        events=("nccl_system",),
        never=("heartbeat",),
        cause="nccl_system",
    ),
    Fault(
        "a_kind_with_a_budget_of_its_own",
        every=[do("say", 6, 0, text=EXAMPLE["segfault"]), do("leave", 6, 0, code=139)],
        words=("+monitor.max_of_kind.crash=1",),
        steps=("0-4", ""),
        decisions=("restart kinds.crash", "stop kinds.crash"),
        state=State.FAILED,
        events=("segfault",),
        said="monitor.max_of_kind.crash",
    ),
    Fault(
        "a_kind_that_may_never_happen",
        [[do("say", 6, 0, text=EXAMPLE["segfault"]), do("leave", 6, 0, code=139)]],
        words=("+monitor.max_of_kind.crash=0",),
        steps=("0-4",),
        decisions=("stop kinds.crash",),
        state=State.FAILED,
        events=("segfault",),
    ),
    Fault(
        "another_kind_has_the_budget",
        [[do("say", 6, 0, text=EXAMPLE["segfault"]), do("leave", 6, 0, code=139)]],
        words=("+monitor.max_of_kind.network=0",),
        steps=("0-4", "5-11"),
        decisions=RESTARTED,
        events=("segfault",),
    ),
]

# ---- signals, in every phase

PREEMPTED = ("restart preemptions", "stop")
SIGNALS = [
    Fault(
        f"signal_{word}",
        [[do("kill", at, 0, name=name, whom="worker"), do("hang", at, None, seconds=0.4)]],
        steps=steps,
        decisions=PREEMPTED,
        never=("unknown_failure",),
    )
    for word, name, at, steps in (
        ("before_the_first_step", "SIGTERM", "compiled", ("", "1-11")),
        ("between_steps", "SIGTERM", 6, ("0-5", "7-11")),
        ("usr1", "SIGUSR1", 6, ("0-5", "7-11")),
        ("hangup", "SIGHUP", 6, ("0-5", "7-11")),
        ("within_a_checkpoint", "SIGTERM", "save8", ("0-8", "10-11")),
    )
] + [
    Fault(
        "signal_in_the_last_step",
        [[do("kill", 11, 0, name="SIGTERM", whom="worker"), do("hang", 11, None, seconds=0.4)]],
        steps=("0-10",),
    ),
    Fault(
        "signal_before_maxtext_hears_it",
        [[do("mortal", "start"), do("kill", "start", 0, name="SIGTERM", whom="worker"), do("hang", "start")]],
        steps=("", "0-11"),
        decisions=RESTARTED,
    ),
    Fault(
        "signal_that_nobody_obeys",
        [[do("kill", 6, 0, name="SIGTERM", whom="worker"), do("hang", 6)]],
        words=("trainer.stop_grace_seconds=1",),
        steps=("0-4", "5-11"),
        decisions=PREEMPTED,
    ),
    Fault(
        "signal_to_the_supervisor",
        [[do("kill", 6, 0, name="SIGTERM", whom="supervisor"), do("hang", 6, seconds=0.4)]],
        steps=("0-5", "7-11"),
        decisions=("stop", "stop"),
        state=State.PREEMPTED,
        resumed=True,
    ),
]

# ---- ends without an error

ENDS = [
    Fault(
        "return_code_0_in_the_middle",
        [[do("leave", 6, 0, code=0), do("leave", 6, 1, code=0)]],
        steps=("0-4", "5-11"),
        decisions=RESTARTED,
        never=("overflow",),
    ),
    Fault(
        "return_code_0_at_once",
        every=[do("leave", "start", 0, code=0), do("leave", "start", 1, code=0)],
        words=("monitor.max_failures=1",),
        steps=("", ""),
        decisions=("restart failures", "stop failures"),
        state=State.FAILED,
    ),
    Fault(
        "one_failure_until_the_budget_ends",
        every=[do("fail", 2, 0, text="the flux capacitor is out of plutonium")],
        words=("monitor.max_failures=2",),
        steps=("0-0", "0-0", "0-0"),
        decisions=("restart failures", "restart failures", "stop failures"),
        state=State.FAILED,
        events=("unknown_failure",),
        said="monitor.max_failures",
    ),
    Fault(
        "configuration_refused",
        every=[_CONFIG, do("leave", "start", 0, code=2)],
        steps=("",),
        decisions=("stop",),
        state=State.FAILED,
        events=("config_refused",),
        never=("decided_restart",),
    ),
    Fault(
        "a_failure_of_no_budget",
        [[do("fail", 6, 0, text="the flux capacitor is out of plutonium")]],
        words=("monitor.max_failures=0",),
        steps=("0-4",),
        decisions=("stop failures",),
        state=State.FAILED,
        events=("unknown_failure",),
    ),
]

# ---- checkpoints

_CRASH = [do("kill", 6, 0, name="SIGKILL")]
CHECKPOINTS = [
    Fault(
        f"checkpoints_{name}",
        [[deed, *_CRASH]],
        steps=("0-4", steps),
        decisions=RESTARTED,
    )
    for name, deed, steps in (
        ("cut_off", do("unfinished", 6, 0, step=6), "5-11"),
        ("without_a_commit", do("uncommitted", 6, 0, step=6), "5-11"),
        ("with_a_stray_file", do("stray", 6, 0, name="lost+found"), "5-11"),
        ("with_a_stray_number", do("stray", 6, 0, name="6"), "5-11"),
        ("lost", do("without", 6, 0, step=4), "0-11"),
    )
] + [
    Fault(
        "checkpoints_in_no_folder",
        [[do("clobber", 2, 0)]],
        words=("monitor.max_failures=1",),
        steps=("0-2", "0-2"),
        decisions=("restart failures", "stop failures"),
        state=State.FAILED,
    ),
]

# ---- output of every kind is no failure

OUTPUT = [
    Fault(f"output_{name}", [deeds], steps=("0-11",), never=QUIET)
    for name, deeds in {
        "binary": [do("raw", 5, None, data=(bytes(range(256)) * 40).hex())],
        "without_a_newline": [do("raw", 5, None, data=b"half a line".hex())],
        "line_of_10_mb": [do("flood", 5, None, megabytes=10)],
        "of_a_cut_off_step": [do("raw", 5, 0, data=b"completed step: 4, seconds: 0.1, TFLOP".hex())],
        "that_quotes_a_step": [do("say", 5, 0, text="note: 'completed step' is what MaxText prints")],
        "that_quotes_failures": [do("say", 5, 1, text="RuntimeError: retried, ncclSystemError: fine again")],
        "ramp_up": [do("form", "start", None, name="rampup"), do("form", 6, None, name="new")],
        "profiled": [do("form", 4, None, name="hidden"), do("form", 6, None, name="new")],
        "of_older_builds": [do("form", "start", None, name="old")],
    }.items()
]
