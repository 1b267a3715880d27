"""The node's examination before the trainers start: worker and health.py for real, nvidia-smi with recorded texts."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from worker_bench import children_of, wait_dead

RECORDED = (Path(__file__).parent / "data" / "h200x2_gpus.csv").read_text()
CHECK = {"words": ["--gpus", "2", "--gpu-name", "H200", "--no-compute"], "timeout_seconds": 60}
HAS_DRIVER = os.path.exists("/dev/nvidiactl") or os.path.exists("/dev/dxg")


def smi(run, text=RECORDED, programs="", script=""):
    """Puts an nvidia-smi of these texts on the worker's PATH; each call adds a line to `calls`."""
    folder = run.path.parent / "bin"
    folder.mkdir()
    (folder / "gpus").write_text(text)
    (folder / "programs").write_text(programs)
    (folder / "nvidia-smi").write_text(
        f'#!/bin/sh\necho "$*" >> {folder}/calls\n{script}\n'
        f'case "$*" in *compute-apps*) cat {folder}/programs;; *) cat {folder}/gpus;; esac\n'
    )
    (folder / "nvidia-smi").chmod(0o755)
    run.environ["PATH"] = f"{folder}:{run.environ['PATH']}"
    return folder


def levels(run):
    return {each["name"]: each["level"] for each in run.json("health-node0.json")["findings"]}


def has_started(run):
    return (run.path / "attempts/1/rank0.log").exists()


def test_a_fit_node_trains(run):
    smi(run)
    done = run.write({"node_check": CHECK}).worker()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[worker] the node check passed in " in done.stdout
    assert levels(run)["ECC"] == "ok"
    assert not list((run.path / "bundle" / "node").glob("__pycache__")), "the bundle must stay as rendered"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("Enabled, 0, No, No", "Enabled, 3, No, No", "ECC: GPU 0: 3 uncorrected errors"),
        (RECORDED.splitlines(keepends=True)[1], "", "GPUs: 1 x NVIDIA H200, wanted 2 x H200"),
        ("NVIDIA H200", "NVIDIA A100", "wanted 2 x H200"),
    ],
)
def test_a_bad_node_starts_no_trainer(run, old, new, told):
    changed = RECORDED.replace(old, new, 1)
    assert changed != RECORDED
    smi(run, changed)
    done = run.write({"node_check": CHECK}).worker()
    assert done.returncode == 79, done.stdout + done.stderr
    result = run.result()
    assert result["outcome"] == "bad_node"
    assert told in result["reason"]
    assert result["reason"].startswith(run.json("attempt.json")["host"] + ": ")
    assert not has_started(run)
    assert "fail" in levels(run).values()


@pytest.mark.parametrize(("wrong", "code"), [("[1]", 79), ("[]", 0)])
def test_the_computation_runs_in_the_trainers_python(run, wrong, code):
    smi(run)
    python = run.path.parent / "python"
    answer = f'{{"jax": "1", "platform": "gpu", "devices": 2, "matmul_tflops": 700, "wrong": {wrong}}}'
    python.write_text(f'#!/bin/sh\ncase "$*" in *standin_trainer*) exec {run.python} "$@";; esac\necho \'{answer}\'\n')
    python.chmod(0o755)
    words = [word for word in CHECK["words"] if word != "--no-compute"]
    done = run.write({"node_check": {**CHECK, "words": words}}).worker(trainer_python=str(python))
    assert done.returncode == code, done.stdout
    assert run.json("health-node0.json")["speeds"] == {"matmul_tflops": 700}
    assert has_started(run) == (code == 0)
    assert ("wrong results: [1]" in run.result()["reason"]) == (code == 79)


def test_a_busy_gpu_is_asked_again_and_then_bad(run):
    folder = smi(run, programs="GPU-42a6b275, 804, python3, 2658 MiB\n")
    done = run.write({"node_check": CHECK}).worker()
    assert done.returncode == 79, done.stdout
    assert "804, python3" in run.result()["reason"]
    assert (folder / "calls").read_text().count("compute-apps") == 3
    assert not has_started(run)


def test_memory_that_an_earlier_attempt_gives_back_late(run):
    # The first program's question is answered with a program, the later ones with none.
    folder = smi(run, programs="GPU-42a6b275, 804, python3, 2658 MiB\n")
    tool = folder / "nvidia-smi"
    tool.write_text(
        tool.read_text().replace(f"cat {folder}/programs;;", f"cat {folder}/programs; : > {folder}/programs;;")
    )
    done = run.write({"node_check": CHECK}).worker()
    assert done.returncode == 0, done.stdout
    assert "asks again in 5 s: idle: 1 programs" in done.stdout
    assert levels(run)["idle"] == "ok"


def test_no_answer_in_time_is_said_and_training_goes_on(run):
    folder = smi(run, script="echo $$ >> " + str(run.path.parent / "pids") + "; exec sleep 300")
    done = run.write({"node_check": {**CHECK, "timeout_seconds": 2}}).worker()
    assert done.returncode == 0, done.stdout
    assert "the node check could not be made: no answer within 2 s; training goes on without it" in done.stdout
    assert has_started(run)
    assert not (run.path / "attempts/1/health-node0.json").exists()
    pids = [int(word) for word in (folder.parent / "pids").read_text().split()]
    assert pids
    assert wait_dead(pids) == [], "what it had started ends with it"


def test_a_check_that_breaks_is_said_and_training_goes_on(run):
    (run.path / "bundle" / "node" / "health.py").write_text(
        'PREFIX, FAIL, WARN = "launcher-health ", "fail", "warn"\nif __name__ == "__main__":\n    raise ValueError("broken")\n'
    )
    done = run.write({"node_check": CHECK}).worker()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "health.py ended without a report: ValueError: broken; training goes on" in done.stdout


def test_a_stop_signal_ends_the_check(run, stop_leftovers):
    folder = smi(run, script="exec sleep 300")
    process = run.write({"node_check": CHECK}).start()
    stop_leftovers.append(process.pid)
    end = time.monotonic() + 30
    while not (folder / "calls").exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    children = children_of(process.pid)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=20)
    assert "no answer" not in output
    assert not has_started(run)
    assert process.returncode not in (0, 79), output
    assert wait_dead(children) == []


def test_unasked_is_as_before(run):
    folder = smi(run)
    done = run.write({"node_check": None}).worker()
    assert done.returncode == 0
    assert "node check" not in done.stdout
    assert not (folder / "calls").exists()
    assert not (run.path / "attempts/1/health-node0.json").exists()


@pytest.mark.skipif(HAS_DRIVER, reason="this machine has NVIDIA's driver")
def test_a_node_without_a_driver_is_bad(run):
    done = run.write({"node_check": CHECK}).worker(PATH="/nowhere")
    assert done.returncode == 79, done.stdout
    assert "no /dev/nvidiactl: no driver, or no GPU is given to this container" in run.result()["reason"]


def test_all_nodes_are_told_which_one_is_bad(run):
    smi(run, RECORDED.replace("Enabled, 0, No, No", "Enabled, 3, No, No", 1))
    done = run.write({"node_check": CHECK, "nodes": 2}).worker(
        "--nodes=2", "--node-rank=1", "--coordinator=localhost", "--port=9"
    )
    assert done.returncode == 79, done.stdout
    failure = run.json("failure.json")
    assert (failure["node"], failure["code"]) == (1, 79)
    assert "3 uncorrected errors" in failure["reason"]


@pytest.mark.parametrize(
    ("check", "told"),
    [
        ({"words": "x", "timeout_seconds": 1}, "words is"),
        ({"words": []}, "timeout_seconds is nothing"),
        ({"words": [], "timeout_seconds": 1, "only": 1}, "only is 1, wanted true or false"),
        ("quick", "node_check is"),
    ],
)
def test_a_launch_json_that_cannot_be_read(run, check, told):
    done = run.write({"node_check": check}).worker()
    assert done.returncode == 78
    assert told in run.result()["reason"]
