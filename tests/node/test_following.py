"""One judging for all targets: causes and their actions, suspects, what was healed, budgets of kinds, and the record of it."""

import json
import re
from pathlib import Path

import pytest

from launcher.node import history
from launcher.node.budgets import Action, Allocation, Budgets
from launcher.node.causes import read_table
from launcher.node.codes import WorkerError
from launcher.node.ending import End, Facts
from launcher.node.failures import ACTIONS
from launcher.node.following import Submission, change, follow
from launcher.node.launch import Launch
from launcher.node.layout import RunFolder
from launcher.render.failure_table import own_signatures, table_json

HOSTS = ("n0", "n1", "n2", "n3")
DIED = "rank 3 ended with return code 1: it was so"
ROWS = [row for row in own_signatures() if row.where & {"rank", "worker"}]


def launch_with(**more) -> Launch:
    fixed = {
        **{"nodes": 4, "processes_per_node": 2, "platform": "cpu", "start": "env", "module": "x", "arguments": {}},
        **{"steps": 8, "checkpointing": True, "checkpoint_period": 4, "output_directory": None},
        **{"stop_grace_seconds": 1, "coordinator_timeout_seconds": 1},
    }
    return Launch(**{**fixed, **more})


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "failures.json"
    path.write_text(json.dumps(table_json()))
    return read_table(path)


class Case:
    """One run on four nodes, whose attempts end as a test says."""

    def __init__(self, folder: Path, table, **launch):
        self.run = RunFolder(folder / "demo")
        self.submission = Submission(self.run, launch_with(**launch), 1, table)
        self.said = []

    def end(self, end, *lines, rank=3, number=1, allocation=None, spare=4, **result):
        """Follows an attempt that ended so; `lines`: the rank's last ones."""
        attempt = self.run.attempt(number)
        attempt.path.mkdir(parents=True, exist_ok=True)
        attempt.result().write_text(json.dumps({"code": end.code, **result}))
        attempt.rank_log(rank).write_text("".join(f"{line}\n" for line in lines))
        facts = Facts({}, {node: {} for node in range(4)}, None, [], HOSTS)
        decision = follow(
            self.submission,
            attempt,
            facts,
            end,
            allocation or Allocation(),
            suffice=lambda excluded: len(excluded) <= spare,
            say=self.said.append,
        )
        return decision, json.loads(history.decision_file(attempt).read_text())


@pytest.fixture
def case(tmp_path, table):
    return Case(tmp_path, table)


def test_the_table_survives_the_bundle(table):
    own = own_signatures()
    assert [row.name for row in table] == [row.name for row in own]
    for kept, row in zip(table, own, strict=True):
        assert (kept.where, kept.action, kept.kind, kept.consequence) == (
            row.where,
            row.action,
            row.kind,
            row.consequence,
        )
        assert [pattern.pattern for pattern in kept.patterns] == [pattern.pattern for pattern in row.patterns]


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", '{"failures": [{}]}', '{"failures": 7}', '{"failures": [7]}'),
        '{"failures": [{"name": "x", "where": ["rank"], "patterns": ["("], "cause": "x", "action": "stop"}]}',
        '{"failures": [{"name": "x", "where": ["rank"], "patterns": ["a"], "cause": "x", "action": "dance"}]}',
    ],
)
def test_a_damaged_table_is_refused(tmp_path, text):
    path = tmp_path / "failures.json"
    path.write_text(text)
    with pytest.raises(WorkerError, match=re.escape(f"{path} is no table of failures")) as refused:
        read_table(path)
    assert refused.value.code == 78


def test_a_bundle_without_a_table_judges_as_before(tmp_path):
    assert read_table(tmp_path / "failures.json") == ()
    decision, kept = Case(tmp_path, ()).end(End(1, DIED), "boom")
    assert decision.reason == f"once more on these nodes (failures: 1 of 3): {DIED}"
    assert kept["cause"] is None


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_row_has_its_action(case, row):
    """By the row's own example, in the log of rank 3, which is on the second node."""
    place = "rank" if "rank" in row.where else "worker"
    if place == "worker":
        attempt = case.run.attempt(1)
        attempt.path.mkdir(parents=True)
        attempt.worker_log(1).write_text(f"{row.example}\n")
    decision, kept = case.end(End(1, DIED), *([row.example] if place == "rank" else []))
    assert (kept["cause"]["name"], kept["cause"]["action"]) == (row.name, row.action)
    assert kept["cause"]["who"] == ("rank 3" if place == "rank" else "worker 1")
    assert row.cause in decision.reason
    assert decision.reason.endswith(DIED)
    stops = row.action == "stop"
    assert decision.action is (Action.STOP if stops else Action.RESTART)
    assert decision.exclude == (("n1",) if row.action == "exclude" else ())
    assert decision.charged == (None if stops else "failures")
    assert case.said == [f"attempt 1: {decision.action.value}: {decision.reason}"]


def test_the_rows_show_every_action():
    assert {row.action for row in ROWS} == set(ACTIONS)


def test_an_unknown_failure_says_so(case):
    decision, kept = case.end(End(1, DIED), "Traceback (most recent call last):", "ZeroDivisionError: division by zero")
    assert decision.reason == f"once more on these nodes (failures: 1 of 3; cause unknown): {DIED}"
    assert (kept["cause"]["name"], kept["cause"]["line"]) == ("", "ZeroDivisionError: division by zero")
    assert kept["cause"]["who"] == "rank 3"


@pytest.mark.parametrize(
    ("lines", "step", "action"),
    [
        (("ValueError: no such einsum", "ValueError: no such einsum"), None, "stop"),
        (("jax.errors.KeyError: 'a'", "jax.errors.KeyError: 'a'"), None, "stop"),
        (("ValueError: no such einsum", "ValueError: another"), None, "restart"),
        (("ValueError: no such einsum", "ValueError: no such einsum"), 3, "restart"),  # it trained before
        (("RuntimeError: link down", "RuntimeError: link down"), None, "restart"),
        (("OSError: [Errno 5] Input/output error", "OSError: [Errno 5] Input/output error"), None, "restart"),
    ],
)
def test_what_a_program_says_twice_before_a_step_is_not_tried_again(case, lines, step, action):
    for number, line in enumerate(lines, start=1):
        decision, _ = case.end(End(1, DIED), "Traceback (most recent call last):", line, number=number, last_step=step)
        assert decision.action.value == (action if number == 2 else "restart")
    assert ("no retry helps" in decision.reason) is (action == "stop")
    assert DIED in decision.reason


@pytest.mark.parametrize("code", [0, 75, 77, 78, 79])
def test_a_code_of_ours_is_not_looked_up(case, code):
    line = next(row.example for row in ROWS if row.action == "stop")
    decision, kept = case.end(End(code, "so it is"), line, checkpoint=4)
    assert kept["cause"] is None
    assert decision.action is {0: Action.STOP, 75: Action.REQUEUE, 78: Action.STOP}.get(code, Action.RESTART)


def test_an_excluded_node_that_cannot_be_spared(case):
    line = next(row.example for row in ROWS if row.action == "exclude" and "rank" in row.where)
    decision, _ = case.end(End(1, DIED), line, rank=7, spare=0)
    assert (decision.action, decision.exclude) == (Action.REQUEUE, ("n3",))
    decision, _ = case.end(End(1, DIED), line, rank=7, spare=0, allocation=Allocation(is_machine=True))
    assert (decision.action, decision.exclude) == (Action.STOP, ("n3",))


def test_the_same_host_twice_is_suspect(case):
    assert case.end(End(1, DIED, "n2"))[0].exclude == ()
    assert case.end(End(1, DIED, "n3"), number=2)[0].exclude == ()
    assert case.end(End(1, DIED, "n2"), number=3)[0].exclude == ("n2",)


def test_a_kind_with_a_budget_of_its_own(tmp_path, table):
    restarts = Budgets(failures=1, kinds={"crash": 2}, pause_seconds=0)
    case = Case(tmp_path, table, restarts=restarts)
    line = next(row.example for row in ROWS if row.name == "segfault")
    actions = [case.end(End(139, DIED), line, number=number)[0].action.value for number in (1, 2, 3)]
    assert actions == ["restart", "restart", "stop"]
    _, kept = case.end(End(139, DIED), line, number=3)
    assert (kept["charged"], kept["spent"]["kinds.crash"], kept["spent"]["failures"]) == ("kinds.crash", 3, 0)
    assert "crash: 3 of 2 allowed (monitor.max_of_kind.crash)" in kept["reason"]


@pytest.mark.parametrize(("code", "kind"), [(76, "overflow"), (77, "stall")])
def test_a_code_is_a_kind_too(tmp_path, table, code, kind):
    case = Case(tmp_path, table, restarts=Budgets(kinds={kind: 1}), overflow="warn")
    _, kept = case.end(End(code, "x"))
    assert (kept["action"], kept["charged"]) == ("restart", f"kinds.{kind}")


@pytest.mark.parametrize(
    "told",  # code, policy, whether adjust.json has an entry of this attempt; action, part of the reason
    [
        (76, "act", True, "restart", "failures: 1 of 3"),
        (76, "act", False, "stop", "a larger ragged_buffer_factor was not set"),
        (76, "stop", False, "stop", "is left to a person (monitor.overflow=stop)"),
        (76, "warn", False, "restart", "failures: 1 of 3"),
        (74, "act", True, "restart", "rollbacks: 1 of 2"),
        (74, "act", False, "stop", "to go back to an earlier checkpoint is left to a person"),
        (74, "warn", False, "stop", "to go back to an earlier checkpoint is left to a person"),
    ],
)
def test_only_what_was_healed_goes_on(tmp_path, table, told):
    code, policy, adjusted, action, said = told
    case = Case(tmp_path, table, overflow=policy)
    case.run.path.mkdir()
    entries = [{"attempt": 1 if adjusted else 7, "key": "x"}]
    case.run.adjust.write_text(json.dumps({"maxtext": {}, "history": entries}))
    decision, kept = case.end(End(code, "it was so"))
    assert (kept["action"], said in kept["reason"]) == (action, True), kept["reason"]
    assert decision.charged == (None if action == "stop" else "rollbacks" if code == 74 else "failures")


def test_whoever_sees_a_stall_first_is_not_to_blame_for_it(case):
    for number in (1, 2):
        decision, kept = case.end(End(77, "no step for 300 s", "n2"), number=number)
        assert (decision.exclude, kept["host"]) == ((), "")


def test_the_one_node_that_stands_out_in_a_stall_is_suspect(case):
    attempt = case.run.attempt(1)
    attempt.path.mkdir(parents=True)
    for node in range(4):
        ranks = [{"rank": 2 * node + i, "pid": 7, "last_step": 4 if node == 2 else 5, "top": "wait"} for i in (0, 1)]
        summary = {"node": node, "host": f"own-name-{node}", "at": 1.0, "why": "x", "ranks": ranks, "gpus": []}
        attempt.flight_summary(node).write_text(json.dumps(summary))
    decision, _ = case.end(End(77, "no step for 300 s"))
    assert (decision.action, decision.exclude) == (Action.RESTART, ("n2",))
    assert "own-name-2" in decision.reason


def test_a_person_comes_before_all_else(case):
    attempt = case.run.attempt(1)
    attempt.path.mkdir(parents=True)
    (attempt.path / "cancel.json").write_text("{}")
    decision, _ = case.end(End(1, DIED), "boom", number=2)
    assert (decision.action, decision.reason) == (Action.STOP, f"a person asked for the end: {DIED}")


def test_a_changed_decision_keeps_its_cause(case):
    decision, kept = case.end(End(1, DIED), next(row.example for row in ROWS if row.name == "segfault"))
    change(case.submission, case.run.attempt(1), decision, say=case.said.append)
    again = json.loads(history.decision_file(case.run.attempt(1)).read_text())
    assert again["cause"] == kept["cause"] is not None
    assert again["spent"] == kept["spent"]
