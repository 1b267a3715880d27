"""What follows an attempt's end: each case, and that no sequence of ends goes on for ever."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.node.budgets import BUDGETS as BUDGET_NAMES
from launcher.node.budgets import (
    LEAST_SECONDS,
    PAUSE_LIMIT,
    Action,
    Allocation,
    Budgets,
    Decision,
    Ending,
    Spent,
    decide,
    pause_before,
    plus,
)

BUDGETS = Budgets(
    failures=2, preemptions=3, bad_nodes=1, rollbacks=1, kinds={"network": 1, "stall": 0}, pause_seconds=10
)
WHOLE = Allocation()
SHORT = Allocation(enough_nodes=False)
STUCK = Allocation(may_requeue=False)
SHORT_AND_STUCK = Allocation(enough_nodes=False, may_requeue=False)
MACHINE = Allocation(is_machine=True)
NO_MACHINE = Allocation(is_machine=True, enough_nodes=False)
LATE = Allocation(seconds_left=LEAST_SECONDS + 5)
FAILURE, PREEMPTION, BAD_NODE, ROLLBACK = BUDGET_NAMES
NO_WORK = {"progressed": False}
WORK = {"progressed": True}


@pytest.mark.parametrize(
    "case",  # code, what else is known, spent, allocation; action, pause, charged, part of the reason
    [
        (0, WORK, {}, WHOLE, "stop", 0, None, "it ended"),
        (0, {"final": "enough"}, {}, WHOLE, "stop", 0, None, "it ended"),
        (78, NO_WORK, {}, WHOLE, "stop", 0, None, "no retry helps: it ended"),
        (
            75,
            {"final": "a person asked for the end"},
            {},
            WHOLE,
            "stop",
            0,
            None,
            "a person asked for the end: it ended",
        ),
        (1, {"final": "enough"}, {}, WHOLE, "stop", 0, None, "enough: it ended"),
        (79, {"final": "these nodes cannot run it"}, {}, WHOLE, "stop", 0, None, "these nodes cannot run it: it ended"),
        # failures of our own: in the allocation, with a pause that grows
        (1, WORK, {}, WHOLE, "restart", 10, FAILURE, "once more on these nodes (failures: 1 of 2)"),
        (139, NO_WORK, {"failures": 1}, WHOLE, "restart", 20, FAILURE, "failures: 2 of 2"),
        (76, WORK, {}, WHOLE, "restart", 10, FAILURE, "failures: 1 of 2"),
        (77, WORK, {}, WHOLE, "restart", 10, FAILURE, "failures: 1 of 2"),
        (1, WORK, {"failures": 2}, WHOLE, "stop", 0, FAILURE, "failures: 3 of 2 allowed (monitor.max_failures)"),
        (1, WORK, {"preemptions": 3, "bad_nodes": 1}, WHOLE, "restart", 10, FAILURE, "failures: 1 of 2"),
        (1, WORK, {}, LATE, "requeue", 0, FAILURE, "725 s of the time limit are left"),
        (
            1,
            WORK,
            {},
            Allocation(seconds_left=309, least_seconds=300),
            "requeue",
            0,
            FAILURE,
            "309 s of the time limit",
        ),
        (1, WORK, {}, Allocation(seconds_left=311, least_seconds=300), "restart", 10, FAILURE, "once more"),
        (1, WORK, {}, Allocation(is_over=True), "requeue", 0, FAILURE, "its job ended with it, back to the queue"),
        (1, WORK, {}, STUCK, "restart", 10, FAILURE, "once more"),
        # what was recognised, and budgets of their own
        (1, {"cause": "cause unknown"}, {}, WHOLE, "restart", 10, FAILURE, "(failures: 1 of 2; cause unknown)"),
        (1, {"kind": "crash"}, {}, WHOLE, "restart", 10, FAILURE, "(failures: 1 of 2)"),
        (1, {"kind": "network"}, {"failures": 2}, WHOLE, "restart", 10, "kinds.network", "(network: 1 of 1)"),
        (
            1,
            {"kind": "network", "cause": "cause: x"},
            {"kinds.network": 1},
            WHOLE,
            "stop",
            0,
            "kinds.network",
            "network: 2 of 1 allowed (monitor.max_of_kind.network), no further start; cause: x",
        ),
        (
            77,
            {"kind": "stall"},
            {},
            WHOLE,
            "stop",
            0,
            "kinds.stall",
            "stall: 1 of 0 allowed (monitor.max_of_kind.stall)",
        ),
        (79, {"kind": "network"}, {}, WHOLE, "restart", 10, BAD_NODE, "bad nodes: 1 of 1"),
        (74, WORK, {"failures": 2}, WHOLE, "restart", 10, ROLLBACK, "rollbacks: 1 of 1"),
        (74, WORK, {"rollbacks": 1}, WHOLE, "stop", 0, ROLLBACK, "rollbacks: 2 of 1 allowed (monitor.max_rollbacks)"),
        # one machine: no queue, no other node
        (1, WORK, {}, MACHINE, "restart", 10, FAILURE, "once more on this machine (failures: 1 of 2)"),
        (75, WORK, {}, MACHINE, "restart", 10, PREEMPTION, "once more on this machine (preemptions: 1 of 3)"),
        (79, {"suspects": ("n3",)}, {}, NO_MACHINE, "stop", 0, BAD_NODE, "there is no machine but this one"),
        # time limit and preemption: the queue
        (75, WORK, {}, WHOLE, "requeue", 0, PREEMPTION, "preemptions: 1 of 3"),
        (75, WORK, {"failures": 2}, WHOLE, "requeue", 0, PREEMPTION, "preemptions: 1 of 3"),
        (75, WORK, {"preemptions": 3}, WHOLE, "stop", 0, PREEMPTION, "preemptions: 4 of 3 allowed"),
        (75, WORK, {}, STUCK, "stop", 0, PREEMPTION, "target.slurm.requeue=false"),
        (75, NO_WORK, {}, WHOLE, "requeue", 0, FAILURE, "failures: 1 of 2"),
        (75, NO_WORK, {"failures": 2}, WHOLE, "stop", 0, FAILURE, "failures: 3 of 2 allowed"),
        # bad nodes: a spare, else the queue without the node
        (79, {"suspects": ("n3",)}, {}, WHOLE, "restart", 10, BAD_NODE, "once more on the other nodes"),
        (79, {"suspects": ("n3",)}, {}, SHORT, "requeue", 0, BAD_NODE, "without n3 too few nodes are left"),
        (79, {"suspects": ("n3",)}, {}, SHORT_AND_STUCK, "stop", 0, BAD_NODE, "may not be requeued"),
        (79, NO_WORK, {}, WHOLE, "restart", 10, BAD_NODE, "bad nodes: 1 of 1"),
        (
            79,
            NO_WORK,
            {"bad_nodes": 1},
            WHOLE,
            "stop",
            0,
            BAD_NODE,
            "bad nodes: 2 of 1 allowed (monitor.max_bad_nodes)",
        ),
        (79, NO_WORK, {"failures": 2}, WHOLE, "restart", 10, BAD_NODE, "bad nodes: 1 of 1"),
        (1, {"suspects": ("n3",)}, {}, SHORT, "requeue", 0, FAILURE, "without n3 too few nodes are left"),
    ],
)
def test_each_end(case: tuple[Any, ...]) -> None:
    code, more, spent, allocation, action, pause, charged, said = case
    decision = decide(Ending(code, "it ended", **more), spent, BUDGETS, allocation)
    assert (decision.action, decision.pause_seconds, decision.charged) == (Action(action), pause, charged)
    assert said in decision.reason
    assert decision.reason.endswith("it ended")
    assert set(decision.exclude) == set(more.get("suspects", ()))


def test_excluded_nodes_are_never_forgotten() -> None:
    decision = decide(Ending(79, "x", suspects=("n3", "n1")), {}, BUDGETS, WHOLE, ["n2", "n1"])
    assert decision.exclude == ("n1", "n2", "n3")


def test_the_pause_doubles_up_to_its_limit() -> None:
    pauses = [pause_before(number, Budgets(pause_seconds=10)) for number in range(1, 100)]
    assert pauses[:4] == [10, 20, 40, 80]
    assert pauses == sorted(pauses)
    assert pauses[-1] == PAUSE_LIMIT


ENDS = st.builds(
    Ending,
    code=st.sampled_from([74, 75, 76, 77, 79, 1, 2, 137]),
    kind=st.sampled_from(["", "stall", "network", "gpu"]),
    reason=st.just("it ended"),
    progressed=st.booleans(),
    suspects=st.sets(st.sampled_from(["n0", "n1"]), max_size=2).map(tuple),
)
ALLOCATIONS = st.builds(
    Allocation,
    enough_nodes=st.booleans(),
    seconds_left=st.none() | st.floats(-1e3, 1e6),
    may_requeue=st.booleans(),
)
COUNTS = st.integers(0, 6)
KINDS = st.dictionaries(st.sampled_from(["stall", "network"]), COUNTS)
LIMITS = st.builds(Budgets, COUNTS, COUNTS, COUNTS, COUNTS, st.floats(0, 100), KINDS)


@given(limits=LIMITS, data=st.data())
def test_nothing_goes_on_for_ever(limits: Budgets, data: st.DataObject) -> None:
    """Whatever ends follow each other, there are no more attempts than the budgets allow, and none is begun at the end of the time."""
    spent: Spent = {}
    attempts, excluded = 0, ()
    while True:
        attempts += 1
        own = sum(limits.kinds.values())
        assert attempts <= limits.failures + limits.preemptions + limits.bad_nodes + limits.rollbacks + own + 1
        allocation = data.draw(ALLOCATIONS)
        decision: Decision = decide(data.draw(ENDS), spent, limits, allocation, excluded)
        assert set(excluded) <= set(decision.exclude)
        if decision.action is Action.STOP:
            break
        assert decision.charged is not None
        assert 0 <= decision.pause_seconds <= PAUSE_LIMIT
        if decision.action is Action.REQUEUE:
            assert allocation.may_requeue
        else:
            assert allocation.enough_nodes
            assert allocation.seconds_left is None or allocation.seconds_left >= LEAST_SECONDS
        spent, excluded = plus(spent, decision.charged), decision.exclude
