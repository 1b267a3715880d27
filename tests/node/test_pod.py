"""The worker in the pods of a JobSet: numbers, gang restarts, budgets, and what is said on standard output."""

import json
import signal
import time

import pytest
from pods import Pods

from launcher.node import pod
from launcher.node.codes import Code, WorkerError
from launcher.node.ending import End, Facts
from launcher.node.place import Asked, find_place


@pytest.fixture
def pods(tmp_path, stop_leftovers):
    """Four pods of two processes; whatever still runs at the end is killed."""
    return Pods(tmp_path / "volume", leftovers=stop_leftovers)


ALL_WELL = {0: 0, 1: 0, 2: 0, 3: 0}


def test_a_gang_whose_pods_begin_one_by_one_trains_to_the_end(pods):
    pods.write("checkpoint_period=4")
    for node in (3, 1, 0, 2):
        pods.start(node)
        time.sleep(0.2)
    assert pods.end() == ALL_WELL, pods.texts()
    for rank in range(8):
        assert "completed step: 7," in pods.rank(rank)
    result = pods.json("result.json")
    assert (result["outcome"], result["checkpoint"], result["start"]) == ("finished", 7, "6a7d4b1c/0")
    started = pods.json("attempt-node3.json")
    assert (started["node"], started["host"], started["pod"]) == (3, "tray-3", "demo-0a1b2c3d-w-0-3-x7k2p")


def test_node_0_says_what_others_must_know(pods):
    pods.write("checkpoint_period=4").start().end()
    said = pods.said()
    assert [record.file for record in said if record.file != "checkpoints.json"] == ["attempt.json", "result.json"]
    assert {record.attempt for record in said} == {1}
    for record in said:
        if record.file != "checkpoints.json":
            assert record.content == json.loads(record.path(pods.run).read_text())
    saved = [record.content for record in said if record.file == "checkpoints.json"]
    assert saved[-1]["steps"] == [4, 7]
    assert abs(saved[-1]["at"] - time.time()) < 60
    assert [record.file for record in pods.said(3)] == ["attempt-node3.json", "node3.json"]


def test_a_killed_pod_brings_all_back_and_the_run_goes_on_from_its_checkpoint(pods):
    pods.write("hold=4 attempt=1 checkpoint_period=2").start()
    pods.wait_step(3)
    pods.signal(signal.SIGKILL, 2)
    codes = pods.end()
    assert codes[2] == -9
    assert codes[0] == 75
    assert pods.start().end() == ALL_WELL, pods.texts()
    assert pods.json("result.json", 2)["first_step"] in (3, 5)  # the periodic checkpoint, or that of the SIGTERM
    decision = pods.json("decision.json", 1)
    assert (decision["action"], decision["charged"], decision["host"]) == ("restart", "preemptions", "tray-2")
    assert "the pod of node 2 (tray-2) ended without a word" in decision["reason"]
    told = [(record.attempt, record.file) for record in pods.said(0, restart=1)]
    assert [file for attempt, file in told if attempt == 1] == ["attempt.json", "result.json", "decision.json"]
    assert told.index((1, "decision.json")) < told.index((2, "attempt.json"))


def test_a_rank_that_fails_is_blamed_by_all_pods_and_charged_as_a_failure(pods):
    pods.write("mode=die at=3 rank=5 attempt=1 checkpoint_period=2").start()
    assert pods.end()[2] == 1
    assert pods.json("failure.json")["host"] == "tray-2"
    assert pods.json("result.json")["reason"].startswith(
        "node 2 (tray-2) failed first: rank 5 ended with return code 1"
    )
    assert pods.said()[-2].file == "failure.json"
    assert pods.start().end() == ALL_WELL
    decision = pods.json("decision.json")
    assert (decision["action"], decision["charged"], decision["host"]) == ("restart", "failures", "tray-2")
    assert "once more in new pods (failures: 1 of 3)" in decision["reason"]


def test_a_disruption_that_brought_something_is_a_preemption(pods):
    pods.write("hold=4 attempt=1").start()
    pods.wait_step(3)
    pods.signal(signal.SIGTERM)
    assert set(pods.end().values()) == {75}
    assert pods.start().end() == ALL_WELL
    assert pods.json("result.json", 2)["first_step"] == 5
    assert pods.json("decision.json")["charged"] == "preemptions"


def test_a_jobset_that_was_suspended_goes_on_in_the_same_attempt(pods):
    """As Kueue does it: the pods are taken, and come again with the same number. A failure from then is not one of now."""
    pods.write("hold=4").start()
    pods.wait_step(3)
    pods.signal(signal.SIGTERM)
    pods.end()
    failure = {
        "node": 2,
        "host": "tray-2",
        "code": 1,
        "reason": "a peer went away",
        "at": time.time(),
        "start": "6a7d4b1c/0",
    }
    pods.run.attempt(1).failure.write_text(json.dumps(failure))
    (pods.run.output / "go").touch()
    pods.restart = 0
    assert pods.start().end() == ALL_WELL, pods.texts()
    assert pods.run.attempt_numbers() == [1]
    assert pods.json("result.json")["first_step"] == 5


def test_signals_that_come_all_the_time_do_not_change_the_exit_code(pods):
    """The others' deletion comes at any moment, also in the worker's last one."""
    pods.write("", nodes=1).start()
    while pods.running[0].poll() is None:
        if "finished (0)" in pods.log(0).read_text():
            pods.signal(signal.SIGTERM)
    assert pods.end() == {0: 0}


def test_a_budget_that_is_used_up_refuses_the_next_start_and_resume_begins_anew(pods):
    pods.write("mode=die at=0", nodes=1, restarts={"failures": 1}).start()
    for _ in range(2):
        assert pods.end() == {0: 1}
        pods.start()
    assert pods.end() == {0: 78}
    reason = pods.json("result.json", 3)["reason"]
    assert reason.startswith("not started, attempt 2 was the last: failures: 2 of 1 allowed (monitor.max_failures)")
    assert not pods.rank(0, 3)
    assert pods.said(0, restart=2)[-1].content["code"] == 78
    resumed = Pods(pods.volume, uid="another", first=4, leftovers=pods.leftovers)
    resumed.write("", nodes=1)
    assert resumed.start().end() == {0: 0}
    assert resumed.json("attempt.json", 4)["attempt"] == 4


def test_preemptions_without_progress_use_up_the_failures(pods):
    pods.write("mode=early", nodes=1, restarts={"failures": 1, "preemptions": 1000})
    for restart in range(3):
        pods.start()
        deadline = time.monotonic() + 60
        while restart < 2 and "importing" not in pods.rank(0, restart + 1):
            assert time.monotonic() < deadline, pods.texts()
            time.sleep(0.02)
        if restart < 2:
            pods.signal(signal.SIGTERM)
        code = pods.end()[0]
    assert code == 78
    assert "failures: 2 of 1 allowed" in pods.json("result.json", 3)["reason"]


def test_attempts_without_a_word_count(pods):
    """Nothing ran at all in two starts (no node took the pods): the third judges both."""
    pods.write("", nodes=1, restarts={"failures": 1})
    pods.restart = 2
    assert pods.start().end() == {0: 78}
    assert pods.json("result.json", 1)["reason"].startswith("no worker began: its pods were not started")
    assert [pods.json("decision.json", number)["action"] for number in (1, 2)] == ["restart", "stop"]


def test_a_finished_run_that_is_started_again_stays_finished(pods):
    pods.write("checkpoint_period=4", nodes=1).start()
    assert pods.end() == {0: 0}
    assert pods.start().end() == {0: 0}
    assert pods.json("result.json", 2)["reason"] == "all 8 steps were completed before this attempt"


def test_a_number_that_another_jobset_has_used_is_refused_and_its_files_stay(pods):
    pods.write("mode=die at=0", nodes=1).start()
    pods.end()
    before = {path: path.read_bytes() for path in pods.run.attempt(1).path.iterdir()}
    again = Pods(pods.volume, uid="another", leftovers=pods.leftovers)
    assert again.start().end() == {0: 78}
    assert {path: path.read_bytes() for path in pods.run.attempt(1).path.iterdir()} == before
    said = again.log(0, 0).read_text()
    assert "attempt 1 of demo-0a1b2c3d was made by another JobSet" in said
    assert 'launcher/first-attempt: "2"' in said
    assert [record.file for record in again.said()] == ["attempt.json", "result.json"]


def test_leftovers_of_an_attempt_that_never_began_are_not_its_own(pods):
    """Attempt 2 has files of another submission; in ours no worker began there."""
    other = Pods(pods.volume, uid="another", first=2, leftovers=pods.leftovers)
    other.write("mode=die at=0", nodes=1, restarts={"failures": 0}).start().end()
    pods.write("", nodes=1)
    pods.start().end()
    pods.restart = 2
    assert pods.start().end() == {0: 0}
    assert pods.json("result.json", 2)["reason"].startswith("no worker began")


def test_one_job_for_each_domain_counts_on(pods):
    pods.per_job = 2
    assert pods.write("").start().end() == ALL_WELL
    assert pods.json("attempt-node3.json")["pod"] == "demo-0a1b2c3d-w-1-1-x7k2p"
    assert "completed step: 7," in pods.rank(7)


PLACE = {"LAUNCHER_COORDINATOR": "c", "LAUNCHER_NODES": "4"}


@pytest.mark.parametrize(("job", "index", "node"), [("0", "0", 0), ("0", "1", 1), ("1", "0", 2), ("1", "1", 3)])
def test_place_of_a_pod_in_one_of_several_jobs(job, index, node):
    environ = {"JOB_COMPLETION_INDEX": index, "LAUNCHER_JOB_INDEX": job, "LAUNCHER_NODES_PER_JOB": "2", **PLACE}
    place = find_place(Asked(), environ, 4, 1, "demo")
    assert (place.node, place.nodes) == (node, 4)
    assert place.port == find_place(Asked(), {**environ, "JOB_COMPLETION_INDEX": "0"}, 4, 1, "demo").port


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"JOB_COMPLETION_INDEX": "2", "LAUNCHER_JOB_INDEX": "0", "LAUNCHER_NODES_PER_JOB": "2"}, "each Job has"),
        ({"JOB_COMPLETION_INDEX": "0", "LAUNCHER_JOB_INDEX": "1"}, "without LAUNCHER_NODES_PER_JOB"),
        ({"JOB_COMPLETION_INDEX": "0", "LAUNCHER_NODES_PER_JOB": "2"}, "without LAUNCHER_JOB_INDEX"),
        (
            {"JOB_COMPLETION_INDEX": "0", "LAUNCHER_JOB_INDEX": "2", "LAUNCHER_NODES_PER_JOB": "2"},
            "node 4 by Kubernetes",
        ),
        ({"JOB_COMPLETION_INDEX": "0", "LAUNCHER_NODES": "3"}, "wants 4 node\\(s\\), Kubernetes gives 3"),
        ({"JOB_COMPLETION_INDEX": "٣"}, "wanted a whole number"),
    ],
)
def test_a_place_that_contradicts_itself_is_refused(environ, words):
    with pytest.raises(WorkerError, match=words) as caught:
        find_place(Asked(), {**PLACE, **environ}, 4, 1, "demo")
    assert caught.value.code == Code.CONFIG_REFUSED


COUNTS = {"JOB_COMPLETION_INDEX": "0", "LAUNCHER_FIRST_ATTEMPT": "3", "LAUNCHER_RESTART": "2"}


def test_the_attempts_number_and_its_starts_name():
    start = pod.read_start({**COUNTS, "LAUNCHER_JOBSET_UID": "u"})
    assert (start.attempt, start.name, start.name_of(4)) == (5, "u/2", "u/1")
    assert pod.read_start(COUNTS).name == ""


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"JOB_COMPLETION_INDEX": None}, "outside an indexed Job"),
        ({"LAUNCHER_FIRST_ATTEMPT": None}, "LAUNCHER_FIRST_ATTEMPT is not set"),
        ({"LAUNCHER_FIRST_ATTEMPT": "0"}, "wanted 1 or more"),
        ({"LAUNCHER_RESTART": ""}, "LAUNCHER_RESTART is ''"),
        ({"LAUNCHER_RESTART": "-1"}, "wanted a whole number"),
    ],
)
def test_a_start_without_its_numbers_is_refused(environ, words):
    given = {name: value for name, value in {**COUNTS, **environ}.items() if value is not None}
    with pytest.raises(WorkerError, match=words) as caught:
        pod.read_start(given)
    assert caught.value.code == Code.CONFIG_REFUSED


def started(*nodes):
    return {node: {"host": f"n{node}"} for node in nodes}


def said(code, reason="x"):
    return {"code": code, "reason": reason}


@pytest.mark.parametrize(
    ("results", "begun", "failure", "wanted"),
    [
        # the survivors fail over the silence of one that was killed, and one of them says so first
        ({0: said(1), 1: said(1)}, (0, 1, 2), {"node": 0, "host": "n0", "code": 1, "reason": "x"}, (75, "n2")),
        ({0: said(76), 1: said(76)}, (0, 1, 2), None, (76, "")),
        ({0: said(78)}, (0, 1, 2), None, (78, "")),
        ({0: said(75), 1: said(79), 2: said(75)}, (0, 1, 2), None, (79, "n1")),
        ({0: said(75), 1: said(75)}, (0, 1), None, (75, "")),
        ({1: said(1)}, (0, 1), None, (75, "n0")),
        ({}, (0, 1), None, (75, "")),
        ({}, (), None, (75, "")),
    ],
)
def test_whose_end_it_was(results, begun, failure, wanted):
    end = pod.end_of(Facts(results, started(*begun), failure, ()), 4)
    assert (end.code, end.host) == wanted


def test_an_unexplained_end_without_a_checkpoint_is_a_failure():
    assert pod.end_of(Facts({}, started(0), None, ()), None) == End(
        1, "its pods ended without a word (lost nodes, preemption, out of memory); there is no checkpoint"
    )
