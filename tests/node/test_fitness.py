"""monitor.node_check=only: the pods of a JobSet examine themselves for real (nvidia-smi with recorded texts), and nothing trains."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
from pods import Pods

from launcher.node import fitness
from launcher.preflight import node as nodes_check

RECORDED = (Path(__file__).parent / "data" / "h200x2_gpus.csv").read_text()
CHECK = {"words": ["--gpus", "2", "--gpu-name", "H200", "--no-compute"], "timeout_seconds": 60, "only": True}
BROKEN = RECORDED.replace("Enabled, 0, No, No", "Enabled, 3, No, No", 1)


@pytest.fixture
def pods(tmp_path, stop_leftovers):
    return Pods(tmp_path / "volume", leftovers=stop_leftovers)


@pytest.fixture
def path_with(tmp_path):
    """$PATH with an nvidia-smi that says this of the GPUs."""

    def made(name, text=RECORDED, script=""):
        folder = tmp_path / f"bin-{name}"
        folder.mkdir()
        (folder / "gpus").write_text(text)
        tool = folder / "nvidia-smi"
        tool.write_text(f'#!/bin/sh\n{script}\ncase "$*" in *compute-apps*) ;; *) cat {folder}/gpus;; esac\n')
        tool.chmod(0o755)
        return {"PATH": f"{folder}:{os.environ['PATH']}"}

    return made


def names(verdict):
    return {node.name: node.passed for node in verdict}


def test_nodes_that_are_all_fit(pods, path_with):
    pods.write(node_check=CHECK)
    for node in (3, 1, 0, 2):
        pods.start(node, **path_with(node))
        time.sleep(0.2)
    assert pods.end() == {0: 0, 1: 0, 2: 0, 3: 0}, pods.texts()
    result = pods.json("result.json")
    assert result["outcome"] == "finished"
    assert result["reason"] == "all 4 nodes are fit; no trainer was started (monitor.node_check=only)"
    assert not list(pods.run.attempt(1).path.glob("rank*.log"))
    said = {record.file for record in pods.said()}
    assert {f"health-node{node}.json" for node in range(4)} <= said, "who hears node 0 alone knows of all"
    verdict = nodes_check.of_attempt(pods.run.attempt(1), 4)
    assert names(verdict) == {f"tray-{node}": True for node in range(4)}


def test_bad_nodes_are_told_all_at_once_and_stop_no_other_examination(pods, path_with):
    """The controllers delete all pods when one fails: none fails before the slowest has answered."""
    pods.write(node_check=CHECK)
    for node, more in ((0, {}), (1, {"text": BROKEN}), (2, {"script": "sleep 2"}), (3, {"text": BROKEN})):
        pods.start(node, **path_with(node, **more))
    assert pods.end() == {0: 79, 1: 79, 2: 0, 3: 79}, pods.texts()
    reason = pods.json("result.json")["reason"]
    assert reason.startswith("2 of 4 nodes cannot train: tray-1: ECC: GPU 0: 3 uncorrected errors; tray-3: ECC: ")
    assert pods.json("node3.json")["reason"].startswith("tray-3: ECC: GPU 0: 3 uncorrected errors")
    assert fitness.suspects(pods.run.attempt(1)) == (1, 3)
    verdict = nodes_check.of_attempt(pods.run.attempt(1), 4)
    assert names(verdict) == {"tray-0": True, "tray-1": False, "tray-2": True, "tray-3": False}
    assert pods.start(0).end() == {0: 78}, "a controller that starts it again finds it decided"
    decision = pods.json("decision.json")
    assert decision["reason"].startswith("these nodes cannot run it: 2 of 4 nodes cannot train: tray-1: ECC: ")
    assert (decision["action"], decision["exclude"]) == ("stop", ["tray-1", "tray-3"])


def test_nodes_that_do_not_answer_are_not_fit(pods, path_with):
    """Node 1's tool hangs, node 2 cannot begin, node 3 never does; what an earlier start left of it does not count."""
    pods.write(node_check={**CHECK, "timeout_seconds": 6}, coordinator_timeout_seconds=10)
    attempt = pods.run.attempt(1)
    attempt.path.mkdir(parents=True)
    old = {"node": "tray-3", "findings": [], "speeds": {}, "start": "another/0"}
    attempt.health(3).write_text(json.dumps(old))
    pods.start(0, **path_with(0)).start(1, **path_with(1, script="exec sleep 60"))
    pods.start(2, LAUNCHER_COORDINATOR="no.such.host.invalid")
    codes = pods.end()
    assert codes == {0: 79, 1: 79, 2: 79}, pods.texts()
    reason = pods.json("result.json")["reason"]
    assert reason.startswith("3 of 4 nodes cannot train: ")
    assert "tray-1: check: no answer within 6 s" in reason
    assert "tray-2: " in reason
    assert "no.such.host.invalid" in reason
    assert "tray-3: it gave no answer" in reason
    assert fitness.suspects(attempt) == (), "where most of them fail it is not the nodes' fault"


@pytest.mark.parametrize("seconds", [0.0, 0.3, fitness._LOOK + 0.3])
def test_what_came_in_time_is_seen_however_long_ago_the_last_look_was(seconds):
    """Node 0 looks every two seconds; an answer between the last of those looks and the end is not a missing one."""
    end = time.monotonic() + seconds
    seen = []

    def is_over():
        seen.append(time.monotonic() >= end)
        return seen[-1]

    assert fitness.waiting(seconds, lambda: False)(is_over)
    assert seen[-1], "the end came without a look"


def test_a_stop_cuts_the_wait_short_but_not_the_first_look():
    assert not fitness.waiting(60.0, lambda: True)(lambda: False)
    assert fitness.waiting(60.0, lambda: True)(lambda: True)


def test_a_stop_before_all_have_answered_says_nothing_about_the_nodes(pods, path_with):
    pods.write(node_check=CHECK, coordinator_timeout_seconds=60)
    pods.start(0, **path_with(0))
    deadline = time.monotonic() + 30
    while not pods.run.attempt(1).health(0).exists():
        assert time.monotonic() < deadline, pods.texts()
        time.sleep(0.02)
    pods.signal(signal.SIGTERM)
    assert pods.end() == {0: 1}, pods.texts()
    assert pods.json("result.json")["reason"].startswith("stopped by SIGTERM before the first step")
