"""The supervisor on a real Slurm: each way an attempt can end, and what follows."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from supervised import Supervised

from launcher.node.step import expand
from slurm.testbed.cluster import Cluster
from slurm.testbed.settings import VERSIONS

TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def patient_cluster(start_cluster: Callable[..., Cluster]) -> Cluster:
    """Nodes that are slow to answer stay up: a busy machine is no lost node."""
    return start_cluster("slurm-patient", lines=())


@pytest.fixture(scope="session")
def patient_racks(start_cluster: Callable[..., Cluster]) -> Cluster:
    return start_cluster("slurm-patient-racks", nodes=36, racks=2, lines=())


@pytest.fixture
def run(patient_cluster: Cluster, tmp_path: Path) -> Supervised:
    patient_cluster.reset()
    return Supervised(patient_cluster, tmp_path / "runs" / "demo-0a1b2c3d")


@pytest.fixture(scope="session")
def patient_old_cluster(start_cluster: Callable[..., Cluster]) -> Cluster:
    return start_cluster("slurm-patient-22.05", version="22.05", lines=())


@pytest.fixture(params=VERSIONS)
def each_run(request: pytest.FixtureRequest, tmp_path: Path) -> Supervised:
    """For what SLURM's versions may see differently."""
    name = {"24.11": "patient_cluster", "22.05": "patient_old_cluster"}[request.param]
    cluster: Cluster = request.getfixturevalue(name)
    cluster.reset()
    return Supervised(cluster, tmp_path / "runs" / "demo-0a1b2c3d")


@pytest.fixture
def rack_run(patient_racks: Cluster, tmp_path: Path) -> Supervised:
    patient_racks.reset()
    return Supervised(patient_racks, tmp_path / "runs" / "demo-0a1b2c3d")


def test_a_run_that_finishes_ends_its_job(run: Supervised) -> None:
    run.write().submit().wait("COMPLETED")
    assert run.attempts() == [1]
    assert run.result()["outcome"] == "finished"
    decision = run.decision()
    assert (decision["action"], decision["charged"]) == ("stop", None)
    assert run.json("attempt-node1.json")["node"] == 1
    assert "attempt 1: stop: all 8 steps completed" in run.log()
    assert not list((run.path / "bundle").rglob("__pycache__"))


def test_a_killed_rank_is_restarted_in_the_allocation(run: Supervised) -> None:
    run.write("hold=4 attempt=1 checkpoint_period=2").submit()
    run.wait_line("completed step: 3,", rank=0)
    run.wait_line("completed step: 3,", rank=1)
    os.kill(trainer_pid(run, rank=1), signal.SIGKILL)
    run.wait("COMPLETED")
    assert run.attempts() == [1, 2]
    decision = run.decision(1)
    assert (decision["action"], decision["charged"], decision["pause_seconds"]) == ("restart", "failures", 1)
    assert decision["host"] == "n1"
    assert "was killed by SIGKILL" in decision["reason"]
    assert run.result(2)["outcome"] == "finished"
    assert run.result(2)["first_step"] in (3, 5)  # the checkpoint of step 2, or that of the SIGTERM before the end
    ports = {run.json("attempt.json", number)["coordinator"] for number in (1, 2)}
    assert len(ports) == 2
    assert run.cluster.job(run.job, "Restarts") == "0"


def trainer_pid(run: Supervised, rank: int, attempt: int = 1) -> int:
    """The trainer's process of a rank: of all processes here, the one whose environment says so and whose run it is."""
    for folder in Path("/proc").iterdir():
        try:
            environ = (folder / "environ").read_bytes().split(b"\0") if folder.name.isdigit() else []
            command = (folder / "cmdline").read_bytes() if environ else b""
        except OSError:
            continue
        if f"NODE_RANK={rank}".encode() in environ and str(run.path).encode() in command:
            return int(folder.name)
    raise AssertionError(f"no process of rank {rank}")


def test_a_refused_configuration_is_not_tried_again(run: Supervised) -> None:
    run.write("mode=config").submit().wait("FAILED")
    assert run.attempts() == [1]
    decision = run.decision()
    assert (decision["action"], decision["charged"]) == ("stop", None)
    assert decision["reason"] == "no retry helps: this MaxText has no key 'pgle'"
    assert run.cluster.job(run.job, "ExitCode") == "78:0"


def test_an_overflow_is_healed_without_a_person(run: Supervised) -> None:
    run.write("mode=overflow at=3 checkpoint_period=2", overflow="act", steps=10).submit().wait("COMPLETED")
    assert run.attempts() == [1, 2]
    decision = run.decision(1)
    assert (decision["action"], decision["charged"]) == ("restart", "failures")
    assert "ragged_buffer_factor 1 -> 1.29 for the next attempt" in decision["reason"]
    assert "ragged_buffer_factor=1.29" in run.json("attempt.json", 2)["command"]
    saved = run.path / "output" / run.path.name
    assert [path.name for path in (saved / "checkpoints.overflow").iterdir()] == ["4.attempt1"]
    assert (run.result(2)["first_step"], run.result(2)["outcome"]) == (3, "finished")
    assert json.loads((run.path / "adjust.json").read_text())["history"][0]["step"] == 3


def test_an_overflow_that_is_left_to_a_person_is_not_tried_again(run: Supervised) -> None:
    run.write("mode=overflow at=3", overflow="stop", steps=10).submit().wait("FAILED")
    assert run.attempts() == [1]
    assert run.decision()["reason"].startswith("a larger ragged_buffer_factor is left to a person")
    assert run.cluster.job(run.job, "ExitCode") == "76:0"
    assert not (run.path / "adjust.json").exists()


def test_a_budget_that_is_used_up_stops_with_the_trainers_code(run: Supervised) -> None:
    run.write("mode=die at=0", nodes=1, restarts={"failures": 2, "pause_seconds": 0.2}).submit().wait("FAILED")
    assert run.attempts() == [1, 2, 3]
    assert [run.decision(number)["action"] for number in (1, 2, 3)] == ["restart", "restart", "stop"]
    assert [run.decision(number)["pause_seconds"] for number in (1, 2)] == [0.2, 0.4]
    assert "failures: 3 of 2 allowed (monitor.max_failures)" in run.decision(3)["reason"]
    assert "NCCL operation failed" in run.decision(3)["reason"]
    assert run.decision(3)["spent"]["failures"] == 3
    assert run.cluster.job(run.job, "ExitCode") == "1:0"


def test_the_time_limits_signal_leads_through_the_queue_to_the_last_step(each_run: Supervised) -> None:
    run = each_run
    run.write("hold=4 attempt=1").submit()
    run.wait_line("completed step: 3,", rank=0)
    run.wait_line("completed step: 3,", rank=1)
    run.cluster.run("scancel", "--signal=USR1", run.job)
    run.wait("PENDING")
    assert run.result(1)["code"] == 75
    decision = run.decision(1)
    assert (decision["action"], decision["charged"], decision["pause_seconds"]) == ("requeue", "preemptions", 0.0)
    run.cluster.start_soon(run.job)
    run.wait("COMPLETED")
    assert run.attempts() == [1, 2]
    assert run.result(2)["first_step"] == 5
    assert run.result(2)["outcome"] == "finished"
    assert run.cluster.job(run.job, "Restarts") == "1"


def test_preemptions_without_progress_use_up_the_failures(run: Supervised) -> None:
    # The signal comes before a step is done, and the only checkpoint is an old one.
    checkpoint = run.path / "output" / run.path.name / "checkpoints" / "2"
    checkpoint.mkdir(parents=True)
    (checkpoint / "commit_success.txt").touch()
    run.write("hold=0", {"enable_autocheckpoint": "false"}, nodes=1, restarts={"failures": 1}).submit()
    for number in (1, 2):
        run.wait_line("Num_devices", attempt=number)
        run.wait_for(lambda: run.cluster.job(run.job, "JobState") == "RUNNING")
        # The stand-in takes the signal once it is past its start; the first attempt has made progress: the old checkpoint.
        run.wait_for(lambda: trainer_is_ready(run))
        run.cluster.run("scancel", "--signal=USR1", run.job)
        run.wait_for(lambda number=number: (run.path / f"attempts/{number}/decision.json").exists())
        if number == 1:
            run.cluster.start_soon(run.job)
    assert [run.decision(number)["charged"] for number in (1, 2)] == ["preemptions", "failures"]


def trainer_is_ready(run: Supervised) -> bool:
    """Whether rank 0 catches SIGTERM by now (SigCgt of proc(5))."""
    try:
        status = Path(f"/proc/{trainer_pid(run, 0)}/status").read_text()
    except (AssertionError, OSError):
        return False
    caught = int(next(line for line in status.splitlines() if line.startswith("SigCgt")).split()[1], 16)
    return bool(caught >> (signal.SIGTERM - 1) & 1)


def test_a_person_who_asks_for_the_end_is_obeyed(run: Supervised) -> None:
    run.write("hold=4").submit()
    run.wait_line("completed step: 3,", rank=1)
    (run.path / "attempts/1/cancel.json").write_text(json.dumps({"asked": 1.0, "given_up": False}))
    run.wait("FAILED")  # the supervisor passes the wish on by itself
    assert run.attempts() == [1]
    decision = run.decision(1)
    assert decision["action"] == "stop"
    assert decision["reason"].startswith("a person asked for the end: stopped by SIGUSR1 after step 3")
    assert run.cluster.job(run.job, "ExitCode") == "75:0"
    assert run.cluster.job(run.job, "Restarts") == "0"


def test_a_wish_in_the_pause_is_obeyed(run: Supervised) -> None:
    run.write("mode=die at=0", nodes=1, restarts={"failures": 2, "pause_seconds": 300}).submit()
    run.wait_for((run.path / "attempts/1/decision.json").exists)
    (run.path / "attempts/1/cancel.json").write_text(json.dumps({"asked": 1.0, "given_up": False}))
    run.wait("FAILED")
    assert run.decision(1)["reason"].startswith("a person asked for the end: ")


def test_a_cancelled_job_is_not_brought_back(each_run: Supervised) -> None:
    run = each_run
    run.write("hold=4").submit()
    run.wait_line("completed step: 3,", rank=1)
    run.cluster.run("scancel", run.job)
    assert run.wait("CANCELLED") == "CANCELLED"
    assert run.cluster.job(run.job, "Restarts") == "0"
    assert not (run.path / "attempts/1/decision.json").exists()


def test_scontrol_requeue_goes_on_with_a_new_attempt(run: Supervised) -> None:
    run.write("hold=4 attempt=1").submit()
    run.wait_line("completed step: 3,", rank=1)
    run.wait_line("completed step: 3,", rank=0)
    run.cluster.run("scontrol", "requeue", run.job)
    run.cluster.start_soon(run.job)
    run.wait("COMPLETED")
    assert run.attempts() == [1, 2]
    assert run.decision(1)["action"] == "requeue"
    assert run.result(2)["outcome"] == "finished"


def test_a_job_that_has_stopped_does_nothing_when_it_is_started_again(run: Supervised) -> None:
    run.write("mode=die at=0", nodes=1, restarts={"failures": 0}).submit().wait("FAILED")
    run.cluster.run("scontrol", "requeue", run.job)
    run.cluster.start_soon(run.job)
    run.wait("FAILED")
    assert run.attempts() == [1]
    assert "attempt 1 was the last: failures: 1 of 0 allowed" in run.log()
    run.write().submit(attempt=2).wait("COMPLETED")  # resume: a new submission, with budgets of its own
    assert run.attempts() == [1, 2]
    assert run.result(2)["outcome"] == "finished"


def test_a_broken_bundle_leaves_its_reason_where_the_state_is_looked_for(run: Supervised) -> None:
    run.write()
    (run.path / "bundle" / "launch.json").write_text('{"version": 1, "nodes": 2}')
    run.submit().wait("FAILED")
    assert run.result()["outcome"] == "config_refused"
    assert (
        "processes_per_node is nothing, wanted a whole number >= 1; render the bundle again" in run.decision()["reason"]
    )


def test_a_container_that_cannot_start_is_a_bad_node(run: Supervised) -> None:
    container = {"image": "ghcr.io#no/such", "mounts": [], "workdir": None, "env": []}
    run.write(nodes=1, container=container, restarts={"bad_nodes": 1, "pause_seconds": 0.1}).submit().wait("FAILED")
    assert run.attempts() == [1, 2]
    assert [run.decision(number)["action"] for number in (1, 2)] == ["restart", "stop"]
    assert run.decision(2)["charged"] == "bad_nodes"
    assert run.decision(2)["spent"] == {"failures": 0, "preemptions": 0, "bad_nodes": 2, "rollbacks": 0}
    result = run.result(2)
    assert (result["code"], result["outcome"], result["ranks"]) == (79, "bad_node", [])
    assert result["reason"].startswith("no worker began: pyxis: failed to import docker image: ghcr.io#no/such")
    assert run.cluster.job(run.job, "ExitCode") == "79:0"


def test_a_node_that_fails_its_check_is_left_out_for_a_spare(run: Supervised) -> None:
    run.write(
        node_check={"words": ["--gpus", "2", "--no-compute"], "timeout_seconds": 60},
        restarts={"bad_nodes": 1, "pause_seconds": 0.1},
    )
    recorded = (TESTS / "node" / "data" / "h200x2_gpus.csv").read_text()
    for name, text in (("fit", recorded), ("bad", recorded.replace("Enabled, 0, No, No", "Enabled, 3, No, No", 1))):
        (run.path / name).write_text(text)
    tool = run.path.parent / "bin" / "nvidia-smi"
    tool.write_text(
        '#!/bin/sh\ncase "$*" in *compute-apps*) exit 0;; esac\n'
        f'[ "$SLURMD_NODENAME" = n1 ] && exec cat {run.path}/bad\nexec cat {run.path}/fit\n'
    )
    tool.chmod(0o755)
    run.submit("-N3").wait("COMPLETED")
    assert run.attempts() == [1, 2]
    first = run.decision(1)
    assert (first["action"], first["charged"], first["exclude"]) == ("restart", "bad_nodes", ["n1"])
    assert "ECC: GPU 0: 3 uncorrected errors" in run.result(1)["reason"]
    assert [run.json("attempt-node1.json", number)["host"] for number in (1, 2)] == ["n1", "n2"]
    assert {each["level"] for each in run.json("health-node1.json", 2)["findings"]} <= {"ok", "warn"}


def test_a_node_whose_gpus_idle_in_a_stall_is_left_out_for_a_spare(run: Supervised) -> None:
    run.write(
        "mode=hang at=3 attempt=1",
        nodes=3,
        monitor={"stall": "act", "stall_seconds": 2},
        restarts={"failures": 1, "pause_seconds": 0.1},
    )
    tool = run.path.parent / "bin" / "nvidia-smi"
    tool.write_text(
        "#!/bin/sh\ngrep -q flight/node1/ /proc/$PPID/cmdline && busy=0 || busy=100\n"
        'case "$*" in *query-gpu*) echo "0, 200.00, 700.00, $busy, 1980, 1980, 41, 1024, 0x0";; esac\n'
    )
    tool.chmod(0o755)
    run.submit("-N4").wait("COMPLETED", seconds=120)
    assert run.attempts() == [1, 2]
    assert [run.json(f"flight-node{node}.json", 1)["complete"] for node in range(3)] == [True] * 3
    first = run.decision(1)
    assert (first["action"], first["charged"], first["exclude"]) == ("restart", "failures", ["n1"])
    assert "no step for" in first["reason"]
    assert "node 1 (n1) stands out: a GPU of it is at 0 %, the others work" in first["reason"]
    assert run.json("attempt-node1.json", 2)["host"] == "n2"


def test_it_runs_in_the_container(run: Supervised) -> None:
    shared = run.cluster.folder / "shared"
    inside = Supervised(run.cluster, shared / "runs" / "demo-0a1b2c3d")
    (run.cluster.folder / "images" / "ghcr.io_demo").write_text(
        f"PATH={Path(os.__file__).parents[2] / 'bin'}:{os.defpath}\n"
    )
    container = {
        "image": "ghcr.io#demo",
        "mounts": [f"{TESTS}:{TESTS}"],
        "workdir": "/tmp",
        "env": ["STANDIN"],
    }
    inside.write(container=container).submit().wait("COMPLETED")
    assert inside.result()["outcome"] == "finished"


def test_a_node_that_fails_first_twice_is_left_out_for_a_spare(run: Supervised) -> None:
    run.write("mode=die rank=1 at=2", restarts={"failures": 2, "pause_seconds": 0.1}).submit("-N3").wait("FAILED")
    assert [run.json("attempt-node1.json", number)["host"] for number in (1, 2, 3)] == ["n1", "n1", "n2"]
    assert [run.decision(number)["exclude"] for number in (1, 2, 3)] == [[], ["n1"], ["n1"]]
    assert run.decision(2)["action"] == "restart"
    assert "once more on the other nodes" in run.decision(2)["reason"]


def test_without_a_spare_the_job_is_queued_again_without_that_node(each_run: Supervised) -> None:
    run = each_run
    run.write("mode=die rank=1 at=2", restarts={"failures": 2, "pause_seconds": 0.1}).submit("--exclude=n3")
    run.wait_for((run.path / "attempts/2/decision.json").exists)
    assert [run.decision(number)["action"] for number in (1, 2)] == ["restart", "requeue"]
    assert "without n1 too few nodes are left" in run.decision(2)["reason"]
    run.wait_for(lambda: sorted(expand(run.cluster.job(run.job, "ExcNodeList"))) == ["n1", "n3"])
    run.wait("FAILED")  # after Slurm's own pause
    assert run.json("attempt-node1.json", 3)["host"] == "n2"


def test_a_worker_that_is_killed_is_named(run: Supervised) -> None:
    run.write("hold=4 attempt=1", restarts={"failures": 1, "pause_seconds": 0.1}).submit()
    run.wait_line("completed step: 3,", rank=0)
    run.wait_line("completed step: 3,", rank=1)
    os.kill(run.json("attempt-node1.json")["pid"], signal.SIGKILL)
    run.wait("COMPLETED")
    decision = run.decision(1)
    assert (decision["action"], decision["charged"], decision["host"]) == ("restart", "failures", "n1")
    assert "the worker on node 1 (n1) ended without a word: Killed" in decision["reason"]


def test_a_rank_that_dies_while_the_controller_is_away_costs_one_failure(run: Supervised) -> None:
    run.write("hold=4 attempt=1", restarts={"failures": 1, "bad_nodes": 0, "pause_seconds": 0.1}).submit()
    run.wait_line("completed step: 3,", rank=0)
    run.wait_line("completed step: 3,", rank=1)
    run.cluster.stop_controller()
    os.kill(trainer_pid(run, rank=1), signal.SIGKILL)
    run.wait_for((run.path / "attempts/1/failure.json").exists)
    run.cluster.start_controller()
    run.wait("COMPLETED", seconds=120)
    assert run.attempts() == [1, 2]
    assert (run.decision(1)["action"], run.decision(1)["charged"]) == ("restart", "failures")
    assert "rank 1 was killed by SIGKILL after step 3" in run.decision(1)["reason"]


def test_a_node_whose_daemon_dies_leads_to_a_new_attempt(start_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    # Half of the time until a node is down is MessageTimeout, which is too short here for a cluster that does something else.
    hasty = start_cluster("slurm-lost-node", requeue_delay=5, lines=("SlurmdTimeout=3", "MessageTimeout=4"))
    run = Supervised(hasty, tmp_path / "runs" / "demo-0a1b2c3d")
    run.write("hold=4 attempt=1").submit()
    run.wait_line("completed step: 3,", rank=1)
    hasty.kill_daemon("n1")
    run.wait_for(lambda: hasty.states()["n1"] == "down*")
    run.wait("COMPLETED", seconds=90)
    assert run.attempts() == [1, 2]
    assert run.decision(1)["action"] == "requeue"
    assert run.result(2)["outcome"] == "finished"
    assert run.json("attempt-node1.json", 2)["host"] != "n1"
    hasty.stop()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["finish", "deaf"])
def test_a_time_limit_that_comes_before_the_end_is_survived(run: Supervised, mode: str) -> None:
    # Without SLURM's warning the limit itself is what stops the trainers, and the job's state is no longer RUNNING. A deaf
    # trainer lives until SIGKILL, and with it everything of the job.
    run.write(f"hold=4 attempt=1 mode={mode}").submit("--time=1")
    run.wait_line("completed step: 3,", rank=1)
    run.wait("PENDING", seconds=150)
    run.cluster.start_soon(run.job)
    run.wait("COMPLETED")
    decision = run.decision(1)
    assert (decision["action"], decision["charged"]) == ("requeue", "preemptions" if mode == "finish" else "failures")
    assert run.result(2)["outcome"] == "finished"


MESH = {
    "nodes": 32,
    "nodes_per_domain": 16,
    "expert_nodes": 16,
    "srun": ["--ntasks-per-node=1", "--kill-on-bad-exit=1"],
}


def test_nodes_that_split_a_domain_are_refused(rack_run: Supervised) -> None:
    run = rack_run.write(**MESH).submit()
    run.wait("FAILED")
    assert run.cluster.job(run.job, "NodeList") == "n[0-13,18-35]"
    decision, result = run.decision(), run.result()
    assert (decision["action"], result["code"]) == ("stop", 79)
    assert "rack0: n[0-13]; rack1: n[18-19]; submit with --segment=16" in result["reason"]
    assert not (run.path / "attempts/1/attempt.json").exists()


def test_nodes_that_keep_the_domains_whole_pass(rack_run: Supervised) -> None:
    run = rack_run.write(**MESH).submit("--segment=16")
    run.wait("COMPLETED", seconds=180)
    told = [json.loads(line) for line in (run.path / "attempts/1/domains.jsonl").read_text().splitlines()]
    assert sorted(node["block"] for node in told) == ["rack0"] * 16 + ["rack1"] * 16
    assert run.result()["outcome"] == "finished"


def test_spare_nodes_are_chosen_in_each_domain(rack_run: Supervised) -> None:
    run = rack_run.write(**{**MESH, "nodes": 20, "nodes_per_domain": 10}).submit("-N22", "--segment=11")
    run.wait("COMPLETED")
    hosts = [run.json(f"attempt-node{node}.json" if node else "attempt.json")["host"] for node in range(20)]
    assert hosts == [f"n{i}" for i in (*range(10), *range(18, 28))]
