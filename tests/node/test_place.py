"""Where a node finds its place, and what it refuses."""

import socket

import pytest

from launcher.node.codes import WorkerError
from launcher.node.place import Asked, agreed_port, find_place, first_host, free_port

STEP = {
    "SLURM_STEP_NODELIST": "n[0-13,18-35],m3",
    "SLURM_STEP_NUM_NODES": "33",
    "SLURM_NODEID": "7",
    "SLURM_JOB_ID": "42",
}


def place(environ=None, nodes=1, attempt=1, **asked):
    return find_place(Asked(**asked), environ or {}, nodes, attempt, "demo-0a1b2c3d")


def refusal(*arguments, **keywords):
    with pytest.raises(WorkerError) as error:
        place(*arguments, **keywords)
    assert error.value.code == 78
    return str(error.value)


@pytest.mark.parametrize(
    ("nodelist", "host"),
    [
        ("n0", "n0"),
        ("n[0-13,18-35],m3", "n0"),
        ("n[008-013,18]", "n008"),
        ("m3,n[0-13]", "m3"),
        ("rack[2-3]n[5,7]", "rack2n5"),
        ("n[3,5-6]-ib.cluster", "n3-ib.cluster"),
        ("gb200-r01-n[01-16]", "gb200-r01-n01"),
    ],
)
def test_first_host(nodelist, host):
    assert first_host(nodelist) == host


def test_this_machine_alone():
    here = place()
    assert (here.source, here.nodes, here.node, here.coordinator) == ("local", 1, 0, "127.0.0.1")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", here.port))


def test_slurm():
    here = place(STEP, nodes=33, attempt=2)
    assert (here.source, here.nodes, here.node, here.coordinator) == ("SLURM", 33, 7, "n0")
    assert here.port == agreed_port("42", 2)


def test_slurm_without_step_counts():
    environ = {"SLURM_STEP_NODELIST": "n[0-1]", "SLURM_NNODES": "2", "SLURM_NODEID": "1", "SLURM_JOB_ID": "42"}
    assert place(environ, nodes=2).node == 1


def test_slurm_variables_outside_a_step_are_left_over():
    environ = {"SLURM_JOB_ID": "42", "SLURM_NNODES": "2", "SLURM_NODEID": "0", "SLURM_JOB_NODELIST": "n[0-1]"}
    assert place(environ).source == "local"
    assert "launch.json wants 2 node(s), local gives 1: start it under srun --nodes=2" in refusal(environ, nodes=2)


def test_slurm_with_the_wrong_number_of_nodes():
    text = refusal(STEP, nodes=32)
    assert "launch.json wants 32 node(s), SLURM gives 33" in text
    assert "srun --nodes=32 --ntasks-per-node=1" in text


def test_slurm_with_a_task_a_gpu():
    assert "srun started 132 tasks on 33 node(s), wanted one a node" in refusal(
        {**STEP, "SLURM_STEP_NUM_TASKS": "132"}, nodes=33
    )


def test_slurm_variable_missing():
    environ = {name: STEP[name] for name in STEP if name != "SLURM_NODEID"}
    assert "SLURM_NODEID is not set" in refusal(environ, nodes=33)


def test_jobset():
    environ = {"JOB_COMPLETION_INDEX": "3", "LAUNCHER_COORDINATOR": "demo-w-0-0.demo"}
    here = place(environ, nodes=4)
    assert (here.source, here.nodes, here.node, here.coordinator) == ("Kubernetes", 4, 3, "demo-w-0-0.demo")
    assert place({**environ, "JOB_COMPLETION_INDEX": "0"}, nodes=4).port == here.port


def test_jobset_refusals():
    assert "LAUNCHER_COORDINATOR is not" in refusal({"JOB_COMPLETION_INDEX": "3"}, nodes=4)
    environ = {"JOB_COMPLETION_INDEX": "4", "LAUNCHER_COORDINATOR": "w-0-0.w"}
    assert "this is node 4 by Kubernetes, of 4 node(s): indexes run from 0 to 3" in refusal(environ, nodes=4)
    assert "launch.json wants 4 node(s), Kubernetes gives 8" in refusal({**environ, "LAUNCHER_NODES": "8"}, nodes=4)
    assert place({"JOB_COMPLETION_INDEX": "0"}).coordinator == "127.0.0.1"


def test_slurm_on_kubernetes_is_slurm():
    assert place({**STEP, "JOB_COMPLETION_INDEX": "0"}, nodes=33).source == "SLURM"


def test_command_line_wins():
    here = find_place(Asked(2, 1, "head", 1234), STEP, 2, 1, "demo")
    assert (here.source, here.node, here.address) == ("command line", 1, "head:1234")
    assert find_place(Asked(nodes=1), STEP, 1, 1, "demo").coordinator == "127.0.0.1"


def test_command_line_refusals():
    for asked, text in [
        (Asked(nodes=2), "--nodes 2 without --node-rank"),
        (Asked(nodes=2, node=1), "--nodes 2 without --coordinator"),
        (Asked(nodes=2, node=2, coordinator="h"), "this is node 2 by command line, of 2 node(s)"),
        (Asked(nodes=3, node=2, coordinator="h"), "launch.json wants 2 node(s), command line gives 3"),
        (Asked(nodes=0), "--nodes 0: wanted 1 or more"),
    ]:
        with pytest.raises(WorkerError, match="^" + text.replace("(", r"\(").replace(")", r"\)")):
            find_place(asked, {}, 2, 1, "demo")


def test_agreed_ports_differ_between_attempts_and_stay_below_the_ephemeral_range():
    ports = [agreed_port("42", attempt) for attempt in range(1, 200)]
    assert len(set(ports)) == len(ports)
    assert all(20000 <= port < 30000 for port in ports)
    assert agreed_port("42", 1) == ports[0]
    assert agreed_port("43", 1) != ports[0]


def test_a_port_in_use_is_passed_over():
    first = free_port(7)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", first))
        listener.listen()
        assert free_port(7) != first
