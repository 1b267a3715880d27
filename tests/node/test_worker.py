"""The worker end to end, from a copied folder, with a stand-in that speaks MaxText's texts."""

import ast
import json
import os
import re
import signal
import subprocess
import sys

import pytest
from worker_bench import HERE, NODE, children_of, is_alive, wait_dead

CHECKPOINTS = "output/demo-0a1b2c3d/checkpoints"


def shown(run, rank):
    """What the stand-in's mode=show printed: its environment's variables and its argv."""
    lines = run.log(f"rank{rank}.log").splitlines()
    env = next(line for line in lines if line.startswith("SHOW "))
    argv = next(line for line in lines if line.startswith("ARGV "))
    return json.loads(env[5:]), json.loads(argv[5:])


def test_finishes_and_records(run):
    done = run.write(checkpoint_period=5).worker()
    assert done.returncode == 0, done.stdout + done.stderr
    result = run.result()
    assert (result["outcome"], result["code"]) == ("finished", 0)
    assert (result["first_step"], result["last_step"], result["steps"], result["checkpoint"]) == (0, 7, 8, 7)
    assert result["ranks"] == [{"rank": 0, "returncode": 0}, {"rank": 1, "returncode": 0}]
    assert result["started"] <= result["ended"]
    attempt = run.json("attempt.json")
    assert (attempt["attempt"], attempt["node"]) == (1, 0)
    assert attempt["coordinator"].startswith("127.0.0.1:")
    assert attempt["command"][1:4] == ["-u", str(run.path / "bundle/node/trainer.py"), "standin_trainer"]
    assert re.search(r"^\[1\] I\d{4} ", done.stdout, re.MULTILINE)
    assert "[worker] finished (0): all 8 steps completed" in done.stdout
    assert not list((run.path / "bundle" / "node").glob("__pycache__")), "the bundle must stay as rendered"


def test_versions_that_crash_together_are_refused_once_for_all(run, tmp_path):
    package = tmp_path / "site" / "jaxlib-0.11.2.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: jaxlib\nVersion: 0.11.2\n")
    paths = f"{HERE}{os.pathsep}{tmp_path / 'site'}"
    done = run.write({"workarounds": {"te_scan_constants": False}}, env={"PYTHONPATH": paths}).worker()
    assert done.returncode == 78, done.stdout
    result = run.result()
    assert result["outcome"] == "config_refused"
    assert result["reason"].startswith("trainer.py refuses: jaxlib 0.11.2 crashes")
    assert "importing" not in run.log("rank0.log")
    allowed = run.write({"workarounds": {"te_scan_constants": True}}, env={"PYTHONPATH": paths}).worker(attempt=2)
    assert allowed.returncode == 0, allowed.stdout


def test_a_finished_run_is_finished_again(run):
    run.write(checkpoint_period=5).worker()
    again = run.worker(attempt=2)
    assert again.returncode == 0, again.stdout
    assert run.result(2)["reason"] == "all 8 steps were completed before this attempt"


def test_quiet_writes_the_rank_logs_alone(run):
    done = run.write().worker("--quiet")
    assert (done.returncode, done.stdout) == (0, "")
    assert "completed step: 7" in run.log("rank1.log")
    assert "finished" in run.log("worker0.log")


def test_output_of_any_bytes(run):
    done = run.write(mode="bytes").worker()
    assert done.returncode == 0
    raw = (run.path / "attempts/1/rank0.log").read_bytes()
    assert b"caf\xe9 \xff\xfe\r\nhalf a line\n" in raw
    assert raw.endswith(b"no newline at the end")
    assert "[0] caf\ufffd \ufffd\ufffd\n" in done.stdout
    assert "[0] half a line\n" in done.stdout
    assert "[1] no newline at the end\n" in done.stdout


def test_dead_rank_ends_the_others(run):
    done = run.write(mode="die", rank=1, at=3).worker()
    assert done.returncode == 1
    result = run.result()
    assert result["outcome"] == "trainer"
    assert result["reason"] == (
        "rank 1 ended with return code 1: ValueError: NCCL operation failed: unhandled system error"
    )
    assert {end["rank"]: end["returncode"] for end in result["ranks"]} == {0: -9, 1: 1}
    assert "SIGKILL to rank(s) 0: killed 10 s after rank 1 failed" in done.stdout


def test_overflow_on_all_ranks(run):
    done = run.write(mode="overflow", at=2).worker()
    assert done.returncode == 76
    result = run.result()
    assert result["outcome"] == "overflow"
    assert result["reason"] == (
        "MoE receive buffer overflow at step 2 (seen at step 5): demand 101120 rows, capacity 98304 "
        "at ragged_buffer_factor=1; 1.029 would have held: set moe.ragged_buffer_factor=1.29, or monitor.overflow=act"
    )
    assert {end["returncode"] for end in result["ranks"]} == {1}


def test_config_refused(run):
    done = run.write(mode="config").worker()
    assert done.returncode == 78
    assert run.result()["reason"] == "this MaxText has no key 'pgle'"


def test_data_exhausted_is_not_finished(run):
    done = run.write(mode="exhausted", at=4).worker()
    assert done.returncode == 1
    assert "ended with return code 0 but the last completed step is 3 of 0..7: You may have run out" in done.stdout


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP])
def test_stop_signal_with_checkpoint(run, number, stop_leftovers):
    run.write({"steps": 5000}, pause=0.02, autocheckpoint=True)
    process = run.start()
    stop_leftovers.append(process.pid)
    run.wait_for("completed step: 2,", rank=1)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 75, output
    result = run.result()
    assert result["outcome"] == "preempted"
    assert result["checkpoint"] >= result["last_step"]
    assert result["reason"].startswith(f"stopped by {number.name} after step {result['last_step']}; the checkpoint of")
    run.write({"steps": result["checkpoint"] + 3}, autocheckpoint=True)
    assert run.worker(attempt=2).returncode == 0
    assert run.result(2)["first_step"] == result["checkpoint"] + 1


def test_stop_signal_without_checkpoint_is_no_preemption(run, stop_leftovers):
    run.write({"steps": 5000}, pause=0.02, autocheckpoint=False)
    process = run.start()
    stop_leftovers.append(process.pid)
    run.wait_for("completed step: 2,", rank=1)
    process.terminate()
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1, output
    assert "there is no checkpoint: steps up to" in run.result()["reason"]


def test_a_trainer_that_ignores_sigterm_is_killed(run, stop_leftovers):
    run.write({"steps": 5000, "checkpointing": False}, mode="deaf", pause=0.02)
    process = run.start()
    stop_leftovers.append(process.pid)
    run.wait_for("completed step: 2,", rank=1)
    trainers = children_of(process.pid)
    process.terminate()
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1, output
    assert "killed 5 s after SIGTERM, MaxText without checkpointing ignores SIGTERM" in run.result()["reason"]
    assert len(trainers) == 2
    assert not wait_dead(trainers)


def test_stop_while_jax_is_not_yet_there(run, stop_leftovers):
    run.write({"steps": 5000}, mode="early")
    process = run.start()
    stop_leftovers.append(process.pid)
    run.wait_for("importing")
    run.wait_for("importing", rank=1)
    process.terminate()
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1, output
    assert run.result()["reason"] == (
        "stopped by SIGTERM before the first step; there is no checkpoint: nothing is lost"
    )


def test_no_trainer_survives_a_killed_worker(run, stop_leftovers):
    run.write(mode="early")  # it prints nothing more, so that no closed pipe ends it
    process = run.start(start_new_session=True)
    stop_leftovers.append(process.pid)
    run.wait_for("importing")
    run.wait_for("importing", rank=1)
    trainers = children_of(process.pid)
    assert len(trainers) == 2
    assert all(is_alive(pid) for pid in trainers)
    stop_leftovers.extend(trainers)
    process.kill()
    process.communicate(timeout=60)
    assert not wait_dead(trainers)


def test_what_a_trainer_leaves_behind_is_ended(run, stop_leftovers):
    done = run.write(mode="grandchild").worker()
    assert done.returncode == 0
    pids = [int(line.split()[-1]) for line in done.stdout.splitlines() if "GRANDCHILD" in line]
    stop_leftovers.extend(pids)
    assert len(pids) == 2
    assert not wait_dead(pids)


def test_environment_values_arrive_unchanged(run):
    values = {
        "QUOTES": 'it\'s "quoted"',
        "SPACES": "  two  spaces ",
        "DOLLAR": "$HOME ${X} $(id) `id`",
        "HASH": "a #b c#d",
        "NEWLINE": "one\ntwo\n",
        "COMMAS": "a,b;c\\d",
        "EMPTY": "",
    }
    flags = ["--xla_gpu_enable_command_buffer='FUSION,CUBLAS'", "--xla_gpu_autotune_level=0"]
    names = ["XLA_FLAGS", "M_METRICS_FILE", "CUDA_VISIBLE_DEVICES", "NODE_RANK", "JAX_LOCAL_DEVICE_IDS", *values]
    run.write(env=values, xla_flags=flags, mode="show", names=",".join(names))
    done = run.worker(CUDA_VISIBLE_DEVICES="1", QUOTES="the shell's", M_METRICS_FILE="/else", XLA_FLAGS="--stray")
    assert done.returncode == 0, done.stdout + done.stderr
    argvs = []
    for rank in (0, 1):
        seen, argv = shown(run, rank)
        argvs.append(argv)
        assert {name: seen[name] for name in values} == values
        assert seen["XLA_FLAGS"] == " ".join(flags)
        assert seen["CUDA_VISIBLE_DEVICES"] is None
        assert (seen["NODE_RANK"], seen["JAX_LOCAL_DEVICE_IDS"]) == (str(rank), str(rank))
        expected = str(run.path / "attempts/1/metrics.jsonl") if rank == 0 else None
        assert seen["M_METRICS_FILE"] == expected
    assert argvs[0] == argvs[1]
    for name in ("CUDA_VISIBLE_DEVICES", "QUOTES", "XLA_FLAGS"):
        assert f"{name} of this shell or image is not passed on" in done.stdout


def test_adjustments_stand_after_everything(run):
    run.write(mode="show", names="NODE_RANK", ragged_buffer_factor=1.0)
    (run.path / "adjust.json").write_text(json.dumps({"maxtext": {"ragged_buffer_factor": 1.25}}))
    run.worker()
    _, argv = shown(run, 0)
    assert argv[0] == str(run.path / "bundle/maxtext.yml")
    assert argv[1:4] == [
        "run_name=demo-0a1b2c3d",
        f"base_output_directory={run.path}/output",
        f"jax_cache_dir={run.path.parent}/.cache/jax",
    ]
    assert [word for word in argv if word.startswith("ragged")] == ["ragged_buffer_factor=1.25"]


def test_autodetect_gives_each_process_its_slurm_place(run):
    names = ["SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_JOB_ID", "JAX_COORDINATOR_IP", "NODE_RANK"]
    run.write({"start": "autodetect"}, mode="show", names=",".join(names))
    slurm = {
        "SLURM_JOB_ID": "77",
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_NNODES": "1",
        "SLURM_NODEID": "0",
        "SLURM_NTASKS": "1",
        "SLURM_PROCID": "0",
    }
    done = run.worker(**slurm)
    assert done.returncode == 0, done.stdout + done.stderr
    seen = dict.fromkeys(names)
    seen.update(SLURM_NTASKS="2", SLURM_PROCID="1", SLURM_LOCALID="1", SLURM_JOB_ID="77")
    assert shown(run, 1)[0] == seen


def test_autodetect_outside_slurm_is_refused(run):
    done = run.write({"start": "autodetect"}).worker()
    assert done.returncode == 78
    assert "SLURM_JOB_ID and SLURM_STEP_NODELIST is not set" in done.stderr
    assert run.result()["outcome"] == "config_refused"


def test_gpu_gets_a_fresh_jit_cache_that_goes_again(run, tmp_path):
    parent = tmp_path / "jit"
    run.write(
        {"platform": "gpu"}, env={"NCCL_EP_JIT_CACHE_DIR": str(parent)}, mode="show", names="NCCL_EP_JIT_CACHE_DIR"
    )
    assert run.worker().returncode == 0
    first, second = (shown(run, rank)[0]["NCCL_EP_JIT_CACHE_DIR"] for rank in (0, 1))
    assert first == second
    assert os.path.dirname(first) == str(parent)
    assert list(parent.iterdir()) == []


def test_a_restart_finds_the_kernels_of_an_attempt_that_trained_and_none_of_one_that_did_not(run, tmp_path):
    where = {"NCCL_EP_JIT_CACHE_DIR": str(tmp_path / "jit")}
    gpu = {"platform": "gpu"}
    run.write(gpu, env=where, kernel="18a5", mode="die", rank=0, at=5).worker()
    assert "kernel compiled" in run.log("rank0.log")
    assert run.result()["last_step"] == 4
    run.write(gpu, env=where, kernel="18a5", mode="die", rank=0, at=0).worker(attempt=2)
    assert "kernel found" in run.log("rank0.log", attempt=2)
    assert run.result(attempt=2)["last_step"] is None
    run.write(gpu, env=where, kernel="18a5").worker(attempt=3)
    assert "kernel compiled" in run.log("rank0.log", attempt=3)
    assert [path.name for path in (tmp_path / "jit").iterdir()] == [f"nccl-ep-kernels-{os.getuid()}"]


def test_refusals_are_one_clear_line(run, tmp_path):
    broken = run.write()
    (run.path / "bundle/launch.json").write_text('{"version": 1, "nodes": "two"}')
    done = broken.worker()
    assert done.returncode == 78
    assert done.stderr.count("\n") == 1
    assert 'launch.json: nodes is "two", wanted a whole number >= 1' in done.stderr
    assert run.result()["outcome"] == "config_refused"


def test_bad_arguments(run):
    done = subprocess.run(
        [run.python, str(run.path / "bundle/node/worker.py"), "--run", "x"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 78
    assert "--bundle" in done.stderr
    assert done.stderr.count("\n") == 1


def test_nodes_that_contradict_the_bundle(run):
    done = run.write({"nodes": 32}).worker(SLURM_STEP_NODELIST="n[0-3]", SLURM_STEP_NUM_NODES="4", SLURM_NODEID="0")
    assert done.returncode == 78
    assert "launch.json wants 32 node(s), SLURM gives 4: start the step with srun --nodes=32" in done.stderr


def test_a_python_that_is_not_there(run):
    done = subprocess.run(
        run.write().command(python="/nowhere/python"), env=run.environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 78
    assert "cannot start /nowhere/python: No such file or directory" in done.stderr


def test_coordinator_that_never_resolves(run):
    run.write({"nodes": 2})
    done = run.worker("--nodes", "2", "--node-rank", "1", "--coordinator", "no-such-host.invalid")
    assert done.returncode == 79
    assert "no-such-host.invalid did not resolve in" in done.stderr
    assert run.json("node1.json")["outcome"] == "bad_node"


def test_second_node_writes_its_own_files(run):
    run.write({"nodes": 2})
    done = run.worker("--nodes", "2", "--node-rank", "1", "--coordinator", "127.0.0.1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path.name for path in (run.path / "attempts/1").iterdir()} == {
        "attempt-node1.json",
        "node1.json",
        "rank2.log",
        "rank3.log",
        "worker1.log",
    }


def test_a_rank_that_dies_on_one_node_ends_the_other_node_and_is_named(run, stop_leftovers):
    run.write({"nodes": 2, "processes_per_node": 1}, mode="die", rank=1, at=3)
    place = ["--nodes", "2", "--coordinator", "127.0.0.1", "--port", "23456", "--node-rank"]
    other = run.start(*place, "0")
    stop_leftovers.append(other.pid)
    run.wait_for("completed step: 2,", rank=0)
    failing = run.worker(*place, "1")
    output, _ = other.communicate(timeout=60)
    assert (failing.returncode, other.returncode) == (1, 1), output
    reason = "rank 1 ended with return code 1: ValueError: NCCL operation failed: unhandled system error"
    assert run.json("failure.json")["reason"] == reason
    assert run.json("node1.json")["reason"] == reason
    assert run.result()["reason"].startswith("node 1 (")
    assert run.result()["reason"].endswith(f") failed first: {reason}")
    assert run.result()["ranks"] == [{"rank": 0, "returncode": -9}]


def test_a_reader_that_goes_away_stops_nothing(run, stop_leftovers):
    process = run.write({"steps": 200}, pause=0.005).start()
    stop_leftovers.append(process.pid)
    run.wait_for("completed step: 2,")
    process.stdout.close()
    assert process.wait(timeout=60) == 0
    assert run.result()["last_step"] == 199


@pytest.mark.parametrize("path", sorted(NODE.glob("*.py")), ids=lambda path: path.name)
def test_standard_library_and_old_syntax_only(path):
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert {name.name.split(".")[0] for name in node.names} <= set(sys.stdlib_module_names)
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            assert node.module.split(".")[0] in sys.stdlib_module_names
