"""A stall as `events` and `status` tell it, from what the nodes left."""

import json

import pytest
from handmade import add_attempt, gone, make_run, step_line

from launcher.cli.main import main
from launcher.runs import events as told


def summary(node, at, *, step=7, why="no step for 301 s after step 7"):
    rank = {"rank": node, "pid": 1, "last_step": step, "top": "wait (pjit.py:7)", "state": "S", "wchan": "futex"}
    return {"node": node, "host": f"n{node}", "at": at, "why": why, "ranks": [rank], "gpus": [], "xids": []}


@pytest.fixture
def run(tmp_path):
    run = make_run(tmp_path)
    result = {"outcome": "stalled", "code": 77, "reason": "no step for 301 s after step 7"}
    attempt = add_attempt(run, handle=gone(), log="".join(map(step_line, range(8))), result=result)
    for node, (at, step) in enumerate([(150.0, 7), (148.0, 7), (152.0, 6)]):
        attempt.flight_summary(node).write_text(json.dumps(summary(node, at, step=step)))
    attempt.flight(0).mkdir(parents=True)
    return run


def test_the_first_to_see_it_and_who_stands_out(run):
    found = [event for event in told.events(told.read(run)[1], run) if event.kind in ("stalled", "flight")]
    assert [(event.at, event.kind, event.attempt) for event in found] == [(148.0, "stalled", 1), (152.0, "flight", 1)]
    assert found[0].text == "stalled: no step for 301 s after step 7"
    assert found[1].text == (
        "evidence of 3 node(s): node 2 (n2) stands out: its last step is 6, the others' 7; all 3 rank(s) are in wait (pjit.py)"
    )


def test_half_a_file_is_passed_over(run):
    run.layout.attempt(1).flight_summary(1).write_text('{"node": 1, ')
    found = [event for event in told.events(told.read(run)[1], run) if event.kind == "stalled"]
    assert [event.at for event in found] == [150.0]


def test_status_says_where_it_hung_and_where_to_look(run, capsys):
    assert main(["status", run.name, "--runs", str(run.folder.parent)]) == 0
    shown = capsys.readouterr().out
    assert "state       stalled, attempt 1" in shown
    assert "cause       node 2 (n2) stands out: its last step is 6, the others' 7" in shown
    assert f"next        the evidence of each node is in {run.layout.attempt(1).path / 'flight'}" in shown
