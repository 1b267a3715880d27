"""What was found about slow nodes is told once, with what to type, and the next attempt does without them where that was asked for."""

import json

import pytest
from handmade import add_attempt, gone, make_run

from launcher.node import history
from launcher.node.budgets import Allocation
from launcher.node.ending import End, Facts
from launcher.node.following import Submission, follow
from launcher.node.launch import Launch
from launcher.node.policy import Policy
from launcher.runs import events

HOSTS = ("n0", "n1", "n2", "n3", "n4")
WHY = "GPU 0 at 1400 MHz against a median of 1980, 29 % below"


@pytest.fixture
def run(tmp_path):
    """Five nodes of which node 3 is slow, and an attempt that died after it was found."""
    run = make_run(tmp_path)
    attempt = add_attempt(run, handle=gone(), result={"outcome": "trainer", "code": 1, "reason": "rank 0 died"})
    for node, host in enumerate(HOSTS):
        clock = 1400 if node == 3 else 1980
        gpus = [{"gpu": "0", "samples": 60, "clock": clock, "slowed": 0.0, "by": []}]
        found = [{"node": 3, "host": "n3", "at": 120.0, "why": WHY}] if node == 0 else []
        attempt.pace(node).write_text(
            json.dumps({"node": node, "host": host, "at": 150.0, "gpus": gpus, "found": found})
        )
    return run


def told(run):
    return [event for event in events.events(events.read(run)[1], run) if event.kind == "straggler"]


def test_it_is_told_once_with_what_to_type(run):
    (event,) = told(run)
    assert (event.at, event.attempt) == (120.0, 1)
    assert event.text == f"node 3 (n3): {WHY}; monitor.straggler=exclude would have the next attempt do without it"


def test_nothing_is_to_be_typed_where_it_was_typed(run):
    launch = json.loads(run.layout.bundle.launch.read_text())
    run.layout.bundle.launch.write_text(json.dumps({**launch, "monitor": {"straggler": "exclude"}}))
    assert [event.text for event in told(run)] == [f"node 3 (n3): {WHY}"]


@pytest.mark.parametrize(("word", "code", "excluded"), [("exclude", 1, ("n3",)), ("warn", 1, ()), ("exclude", 0, ())])
def test_the_next_attempt(run, word, code, excluded):
    launch = Launch(
        nodes=5,
        processes_per_node=1,
        platform="gpu",
        start="env",
        module="x",
        arguments={},
        steps=20,
        checkpointing=True,
        checkpoint_period=4,
        output_directory=None,
        stop_grace_seconds=1,
        coordinator_timeout_seconds=1,
        policy=Policy(straggler=word),
    )
    attempt = run.layout.attempt(1)
    facts = Facts({}, {node: {} for node in range(5)}, None, [], HOSTS)
    decision = follow(
        Submission(run.layout, launch, 1, ()),
        attempt,
        facts,
        End(code, "it was so"),
        Allocation(),
        suffice=lambda without: len(without) < 2,
        say=lambda _: None,
    )
    assert decision.exclude == excluded
    assert json.loads(history.decision_file(attempt).read_text())["exclude"] == list(excluded)
