"""Which nodes hold the others up: made numbers for the comparison, and a stand-in for nvidia-smi for the sampling."""

import json
import os
import time
from pathlib import Path

import pytest

from launcher.node import pace, sampling
from launcher.node.layout import AttemptFolder, RunFolder
from launcher.node.said import Said
from launcher.node.speech import Speaker

H200 = "0, 345, 108.36, 36, 0, 0x0000000000000001\n"  # at rest: driver 580.159.04, 2026-11-30


def gpu(number, clock=1980.0, *, slowed=0.0, samples=60, by=()):
    return {"gpu": str(number), "samples": samples, "clock": clock, "slowed": slowed, "by": list(by)}


def nodes(count, each=4, **other):
    """Reports of `count` nodes; other: node -> its GPUs' numbers instead."""
    reports = {node: {"gpus": [gpu(i, 1965 + 5 * ((node + i) % 4)) for i in range(each)]} for node in range(count)}
    return {**reports, **{int(name[1:]): report for name, report in other.items()}}


def test_what_an_h200_says():
    (sample,) = pace.parse(H200)
    assert sample == pace.Sample("0", 345.0, 1, 0.0)
    assert pace.summary([[sample]] * 60) == [], "at rest a low clock says nothing"
    assert pace.parse("0, [N/A], 1, 1, 1, 0x1\nnonsense\n\n") == []
    assert pace.parse("0, 1980\n", pace.FIELDS[:2]) == [pace.Sample("0", 1980.0, 0, pace.BUSY)]


def test_a_gpu_that_its_board_slows_down():
    usual, slow = (pace.Sample("0", 1980.0, 0x4, 100.0), pace.Sample("0", 1200.0, 0x48, 100.0))
    (seen,) = pace.summary([[usual], [slow], [slow], [slow]])
    assert seen == {
        "gpu": "0",
        "samples": 4,
        "clock": 1200.0,
        "slowed": 0.75,
        "by": ["hardware slowdown", "heat (hardware)"],
    }


@pytest.mark.parametrize(
    ("reports", "out"),
    [
        (nodes(8), []),
        (nodes(1), []),
        (nodes(256), []),
        (nodes(8, n3={"gpus": [gpu(0), gpu(1, 1410), gpu(2), gpu(3)]}), [3]),
        (nodes(8, n3={"gpus": [gpu(0), gpu(1, 1410, samples=2)]}), []),
        (nodes(8, n3={"gpus": [gpu(0, 1900)]}), []),
        (nodes(8, n0={"gpus": [gpu(0, slowed=0.9, by=["power brake"])]}), [0]),
        (nodes(8, n0={"gpus": [gpu(0, slowed=0.1, by=["power brake"])]}), []),
        (nodes(4, **{f"n{i}": {"gpus": [gpu(0, slowed=1.0, by=["power brake"])]} for i in range(2)}), []),
        (nodes(8, n5={"gpus": [], "late": {"21": 0.2}}), [5]),
        (nodes(8, n5={"gpus": [], "late": {"21": 0.01}}), []),
        (nodes(2, n1={"gpus": [gpu(i, 1000) for i in range(4)]}), []),
        ({}, []),
    ],
)
def test_who_stands_out(reports, out):
    assert sorted(pace.standing_out(reports)) == out


def test_the_reason_has_the_numbers():
    why = pace.standing_out(nodes(8, n3={"gpus": [gpu(1, 1410, slowed=0.9, by=["heat (hardware)"])]}))[3]
    assert why == (
        "GPU 1 is slowed down by heat (hardware) most of the time; GPU 1 at 1410 MHz against a median of 1970, 28 % below"
    )


@pytest.mark.parametrize(("behind", "told"), [(0.0, {}), (0.01, {}), (0.3, {"2": 0.3})])
def test_a_rank_that_is_always_the_last_of_its_node(behind, told):
    lateness = pace.Lateness(range(4))
    for step in range(20):
        for rank in (1, 0, 3, 2):
            lateness.feed(rank, step, step * 2.0 + (2.0 * behind if rank == 2 else 0.0))
    assert lateness.shares() == told


def test_one_rank_is_not_late_and_missing_lines_confuse_nobody():
    alone = pace.Lateness([7])
    holes = pace.Lateness(range(3))
    for step in range(20):
        alone.feed(7, step, float(step))
        for rank in range(3):
            if (step, rank) != (9, 1):
                holes.feed(rank, step, float(step))
    assert (alone.shares(), holes.shares()) == ({}, {})


@pytest.fixture
def attempt(tmp_path):
    made = RunFolder(tmp_path / "demo").attempt(1)
    made.path.mkdir(parents=True)
    return made


def tool(tmp_path, monkeypatch, script):
    folder = tmp_path / "bin"
    folder.mkdir(exist_ok=True)
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def sampler(attempt, node=0, told=None):
    heard = [] if told is None else told
    words = Said(Speaker(None), attempt, node)
    return sampling.Sampler(attempt, node, [node], said=words, say=heard.append, tell=lambda _: None, seconds=0.0)


def look_until(watcher, condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        assert watcher.look(time.monotonic()) is None
        time.sleep(0.005)
    watcher.close()


def test_a_slow_node_is_found_and_a_suspect(attempt, tmp_path, monkeypatch):
    """Node 0 is asked for real; the files of the others are there, node 3's board is hot."""
    tool(tmp_path, monkeypatch, "printf '0, 1980, 650, 60, 100, 0x4\\n1, 1975, 650, 60, 99, 0x4\\n'")
    for node, report in nodes(6, n3={"gpus": [gpu(0, 1400)]}).items():
        if node:
            attempt.pace(node).write_text(json.dumps({"node": node, "host": f"n{node}", **report}))
    told = []
    watcher = sampler(attempt, told=told)
    look_until(watcher, lambda: pace.found_in(attempt))
    (found,) = pace.found_in(attempt)
    assert (found["node"], found["host"]) == (3, "n3")
    assert found["why"].startswith("GPU 0 at 1400 MHz against a median of 1975, 29 % below")
    assert told == [f"straggler: node 3 (n3): {found['why']}"]
    assert pace.suspects(attempt) == (3,)
    attempt.pace(3).write_text(json.dumps({"node": 3, "host": "n3", **nodes(6)[3]}))
    assert pace.suspects(attempt) == (), "it has recovered"


def test_a_field_that_a_driver_does_not_know_is_asked_for_no_more(attempt, tmp_path, monkeypatch):
    script = """case "$*" in *clocks_event_reasons*)
        echo 'Field "clocks_event_reasons.active" is not a valid field to query.'; exit 2;; esac
        echo '0, 1980, 650, 60, 100'"""
    tool(tmp_path, monkeypatch, script)
    look_until(sampler(attempt), attempt.pace(0).exists)
    (seen,) = json.loads(attempt.pace(0).read_text())["gpus"]
    assert (seen["clock"], seen["slowed"]) == (1980.0, 0.0)


@pytest.mark.parametrize(
    ("script", "said"),
    [("exit 9", "nvidia-smi ended with 9"), ("echo 'No devices were found'; exit 6", "No devices were found")],
)
def test_without_an_answer_it_is_said_once(attempt, tmp_path, monkeypatch, script, said):
    folder = tool(tmp_path, monkeypatch, f"echo x >> {tmp_path}/calls\n{script}")
    told = []
    watcher = sampler(attempt, told=told)
    look_until(watcher, lambda: told)
    for _ in range(20):
        watcher.look(time.monotonic())
    assert told == [f"the GPUs' clocks are not sampled: {said}"]
    assert (folder.parent / "calls").read_text() == "x\n"


def test_a_driver_that_hangs_holds_nobody_up(attempt, tmp_path, monkeypatch):
    tool(tmp_path, monkeypatch, f"echo $$ > {tmp_path}/pid; exec sleep 300")
    told = []
    watcher = sampler(attempt, told=told)
    look_until(watcher, (tmp_path / "pid").exists)
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists(), "it ends with its watcher"
    watcher = sampler(attempt, told=told)
    watcher.look(0.0)
    watcher.look(sampling.PATIENCE + 1)
    assert told == [f"the GPUs' clocks are not sampled: nvidia-smi did not answer within {sampling.PATIENCE:g} s"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"found": 1}', '{"gpus": [{}], "found": [{"node": 1}]}'])
def test_damaged_files_are_nobodys_fault(tmp_path, text):
    attempt = AttemptFolder(tmp_path / "1")
    assert (pace.suspects(attempt), pace.read(attempt)) == ((), {})
    attempt.path.mkdir()
    attempt.pace(0).write_text(text)
    assert pace.suspects(attempt) == ()


def test_a_worker_on_gpus_samples_them(run, tmp_path):
    """No option asks for it: it costs a question a minute."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "nvidia-smi").write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/calls\nprintf "{H200}"\n')
    (folder / "nvidia-smi").chmod(0o755)
    run.environ["PATH"] = f"{folder}:{run.environ['PATH']}"
    launch = {"platform": "gpu", "processes_per_node": 1}
    done = run.write(launch, env={"NCCL_EP_JIT_CACHE_DIR": str(tmp_path)}, until=str(tmp_path / "calls")).worker()
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "calls").read_text().count("clocks.sm") == 1
