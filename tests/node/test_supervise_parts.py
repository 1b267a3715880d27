"""The supervisor's parts without a SLURM: whose word counts at the end, what srun said, domains, bindings, launch.json."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
from launches import LAUNCH
from worker_bench import children_of

from launcher.node import domains, history, job, numa, step
from launcher.node.codes import WorkerError
from launcher.node.domains import Node
from launcher.node.ending import Facts, judge
from launcher.node.launch import read_launch
from launcher.node.layout import BundleFolder, RunFolder
from launcher.node.placing import Nodes

DATA = Path(__file__).parent / "data"
HOSTS = ("n0", "n1", "n2", "n3")
STARTED = {node: {"host": f"n{node}.site"} for node in range(4)}


def srun(name: str) -> list[str]:
    """What real srun (24.11) printed on four nodes."""
    return (DATA / f"srun_{name}.log").read_text().splitlines()


def test_a_failed_import_is_the_reason() -> None:
    end = judge(Facts({}, {}, None, srun("bad_image"), HOSTS, 1))
    assert end.code == 79
    assert end.reason.startswith("no worker began: pyxis: failed to import docker image: ghcr.io#no/such")
    assert end.suspects == ()  # all of them failed: not a node's fault


def test_a_missing_python_is_the_reason() -> None:
    end = judge(Facts({}, {}, None, srun("no_command"), HOSTS, 2))
    assert (end.code, end.reason) == (79, "no worker began: execve(): /no/such: No such file or directory")


def test_a_killed_worker_is_told_from_those_that_srun_ended() -> None:
    end = judge(Facts({0: {"code": 1, "reason": "stopped by SIGTERM"}}, STARTED, None, srun("killed"), HOSTS, 143))
    assert (end.code, end.host) == (1, "n2")
    assert end.reason == "the worker on node 2 (n2) ended without a word: Killed"


def test_a_preemption_in_which_slurm_kills_the_late_ones_stays_one() -> None:
    log = ["srun: Job step aborted: Waiting up to 32 seconds", "srun: error: n2: task 2: Killed"]
    preempted = {"code": 75, "reason": "stopped by SIGUSR1 after step 4"}
    assert judge(Facts({0: preempted}, STARTED, None, log, HOSTS, 137)).code == 75


def test_the_first_failure_counts_over_what_node_0_saw() -> None:
    failure = {"node": 3, "host": "n3.site", "code": 139, "reason": "rank 12 was killed by SIGSEGV: x"}
    end = judge(Facts({0: {"code": 75, "reason": "stopped by SIGTERM"}}, STARTED, failure, [], HOSTS, 143))
    assert (end.code, end.host, end.suspects) == (139, "n3", ())
    assert end.reason == "node 3 (n3): rank 12 was killed by SIGSEGV: x"


@pytest.mark.parametrize(("code", "suspects"), [(79, ("n2",)), (78, ())])
def test_a_node_that_knows_better_than_node_0(code: int, suspects: tuple[str, ...]) -> None:
    results = {0: {"code": 1, "reason": "stopped by SIGTERM"}, 2: {"code": code, "reason": "the disk is full"}}
    end = judge(Facts(results, STARTED, None, [], HOSTS, 143))
    assert (end.code, end.reason, end.suspects) == (code, "node 2 (n2): the disk is full", suspects)


def test_a_finished_run_is_finished_whatever_else_happened() -> None:
    results = {0: {"code": 0, "reason": "all 8 steps completed"}, 1: {"code": 79, "reason": "late"}}
    assert judge(Facts(results, STARTED, None, srun("killed"), HOSTS, 143)).code == 0


def test_nodes_on_which_no_worker_began_are_suspect_if_they_are_few() -> None:
    some = {node: STARTED[node] for node in (0, 1, 3)}
    end = judge(Facts({}, some, None, ["srun: error: Node failure on n2"], HOSTS, 1))
    assert (end.code, end.suspects) == (79, ("n2",))
    assert end.reason == "no worker began on n2: Node failure on n2"
    assert judge(Facts({}, {0: {}}, None, [], HOSTS, 1)).suspects == ()


@pytest.mark.parametrize(
    ("checkpoint", "reached", "progressed"),
    [(4, 9, False), (None, None, False), (5, None, True), (None, 10, True), (3, 10, True)],
)
def test_progress_is_further_than_every_attempt_before(checkpoint: int, reached: int, progressed: bool) -> None:
    assert history.Past(checkpoint=4, step=9).progressed(checkpoint, reached) is progressed


def test_a_job_is_read_from_scontrol() -> None:
    text = (
        "JobId=7 JobName=x UserId=root(0) JobState=RUNNING Reason=None Dependency=(null) Requeue=0 Restarts=1 "
        "TimeLimit=UNLIMITED EndTime=Unknown ReqNodeList=(null) ExcNodeList=n[1,3] NodeList=n0"
    )
    assert job.parse(text) == job.Job("RUNNING", None, False, "n[1,3]")
    end = job.parse(text.replace("EndTime=Unknown", "EndTime=2026-11-29T19:47:31")).end
    assert end is not None
    assert time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(end)) == "2026-11-29T19:47:31"


@pytest.mark.parametrize(
    ("state", "now", "planned", "outside"),
    [
        ("RUNNING", 10, 5, False),
        ("COMPLETING", 10, 100, True),  # scancel, scontrol requeue
        ("COMPLETING", 10, None, True),
        ("COMPLETING", 100, 100, False),  # the time limit
        ("TIMEOUT", 10, 100, False),
        ("CANCELLED", 10, 100, True),
        ("PENDING", 10, 100, True),
    ],
)
def test_who_ends_the_job(state: str, now: float, planned: float | None, outside: bool) -> None:
    assert job.Job(state).ends_from_outside(now, planned) is outside


# ---- domains ----

RACKS = [Node(f"n{i}", block=f"rack{i // 18}") for i in range(36)]


def test_a_split_domain_is_named() -> None:
    nodes = [*RACKS[:14], *RACKS[18:]]
    assert domains.misplaced(nodes, 16, 8) == (
        "nodes 0 to 15 of 32 must share one NVLink domain (an expert group spans 8), but lie in 2: rack0: n[0-13]; "
        "rack1: n[18-19]; submit with --segment=16, or leave out nodes with target.slurm.exclude"
    )
    assert domains.misplaced([*RACKS[:16], *RACKS[18:34]], 16) == ""


def test_the_gpus_own_word_counts_too() -> None:
    nodes = [Node(f"n{i}", "rack0", "A/1" if i < 3 else "B/1") for i in range(4)]
    assert "A/1: n[0-2]; B/1: n3" in domains.misplaced(nodes, 4)
    assert domains.misplaced(nodes[:3], 4) == ""
    assert domains.misplaced([Node("n0"), Node("n1", "rack1"), Node("n2")], 3) == ""  # unknown is no contradiction


def test_spare_nodes_are_left_over_in_each_domain() -> None:
    chosen = domains.choose([*RACKS[:17], *RACKS[18:35]], 32, 16)
    assert [node.host for node in chosen] == [f"n{i}" for i in (*range(16), *range(18, 34))]
    without = [node for node in RACKS[:17] if node.host != "n3"] + RACKS[18:35]
    assert domains.misplaced(domains.choose(without, 32, 16), 16) == ""
    hopeless = [node for node in without if node.host != "n4"]
    assert domains.misplaced(domains.choose(hopeless, 32, 16), 16) != ""


def test_imex_is_wanted_where_nvlink_leaves_the_node() -> None:
    nodes = [Node("n0", "r", "A/1", imex=True), Node("n1", "r", "A/1"), Node("n2", "r")]
    assert domains.without_imex(nodes, 2) == ["n1"]
    assert domains.without_imex(nodes, 1) == []


SMI = """\
GPU 00000008:01:00.0
    Fabric
        State                             : Completed
        Status                            : Success
        CliqueId                          : {clique}
        ClusterUUID                       : {uuid}
"""


@pytest.mark.parametrize(
    ("uuid", "fabric"),
    [
        ("6a7d4b1c-0000-4a6b-9d2e-3f0c1b2a9e8d", "6a7d4b1c-0000-4a6b-9d2e-3f0c1b2a9e8d/32766"),
        ("00000000-0000-0000-0000-000000000000", ""),
        ("N/A", ""),
    ],
)
def test_the_fabric_of_nvidia_smi(uuid: str, fabric: str) -> None:
    assert domains.fabric_of(SMI.format(uuid=uuid, clique=32766) * 4) == fabric


def test_the_answers_of_nodes_are_read_between_other_lines() -> None:
    text = (
        'prolog: hello {x}\n{"host": "n1", "block": "rack0", "fabric": "", "imex": true}\nsrun: {"host": 1, "x": 2}\n'
    )
    assert domains.read_nodes(text) == [Node("n1", "rack0", "", True)]


# ---- launch.json and srun's words ----


def launch_with(tmp_path: Path, **more: object):
    path = tmp_path / "launch.json"
    path.write_text(json.dumps({**LAUNCH, "nodes": 2, **more}))
    return read_launch(path)


def test_an_older_bundle_has_none_of_the_keys(tmp_path: Path) -> None:
    launch = launch_with(tmp_path)
    assert (launch.numa, launch.srun, launch.container, launch.nodes_per_domain) == (None, (), None, 1)
    assert launch.restarts.failures == 3


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"numa": 0}, "numa is 0, wanted a number >= 1"),
        ({"srun": "--mpi"}, 'srun is "--mpi", wanted a list of texts'),
        ({"srun": [1]}, "srun is [1], wanted a list of texts"),
        ({"restarts": {"failures": -1}}, "failures is -1, wanted a number >= 0"),
        ({"restarts": {"pause_seconds": "1"}}, 'pause_seconds is "1", wanted a number >= 0'),
        ({"container": {"mounts": []}}, "image is nothing, wanted an image's name"),
        ({"nodes_per_domain": True}, "nodes_per_domain is true, wanted a number >= 1"),
    ],
)
def test_wrong_keys_are_refused(tmp_path: Path, more: dict[str, object], said: str) -> None:
    with pytest.raises(WorkerError, match=r"render the bundle again") as refusal:
        launch_with(tmp_path, **more)
    assert said in str(refusal.value)


def test_sruns_words(tmp_path: Path) -> None:
    container = {"image": "ghcr.io#x/y:1", "mounts": ["/data:/data:ro"], "workdir": "/w", "env": ["A", "B"]}
    launch = launch_with(tmp_path, srun=["--ntasks-per-node=1", "--mpi=none"], container=container, numa=2)
    words = step.words(launch, BundleFolder(Path("/r/x/bundle")), RunFolder(Path("/r/x")), 3, ["n1", "n3"])
    assert words == [
        *("srun", "--nodes=2", "--ntasks=2", "--nodelist=n1,n3", "--ntasks-per-node=1", "--mpi=none", "--label"),
        "--container-image=ghcr.io#x/y:1",
        "--container-mounts=/data:/data:ro,/r/x:/r/x,/r/.cache:/r/.cache",
        *("--no-container-mount-home", "--container-writable", "--container-workdir=/w", "--container-env=A,B"),
        *("python3", "-B", "/r/x/bundle/node/worker.py", "--bundle", "/r/x/bundle", "--run", "/r/x"),
        *("--attempt", "3", "--quiet"),
    ]


def test_a_path_that_pyxis_cannot_mount_is_refused(tmp_path: Path) -> None:
    launch = launch_with(tmp_path, container={"image": "x"})
    with pytest.raises(WorkerError, match="pyxis takes no comma or colon in a path"):
        step.words(launch, BundleFolder(Path("/a:b/x/bundle")), RunFolder(Path("/a:b/x")), 1, ["n1"])


def test_too_few_healthy_nodes(tmp_path: Path) -> None:
    nodes = Nodes(["n0", "n1", "n2"], launch_with(tmp_path))
    assert nodes.choose(["n0"]) == (["n1", "n2"], None, False)
    assert not nodes.suffice(["n0", "n2"])
    _, end, for_good = nodes.choose(["n0", "n2"])
    assert end is not None
    assert (end.reason, for_good) == ("1 of this job's 3 nodes can be used, wanted 2", False)


# ---- binding to NUMA nodes ----


@pytest.fixture
def two_numa_nodes(tmp_path: Path) -> Path:
    """A /sys/devices/system/node whose two nodes hold one of this machine's CPUs each."""
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("one CPU cannot be divided")
    for node, cpu in enumerate(cpus[:2]):
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "cpulist").write_text(f"{cpu}\n")
    return tmp_path


def test_two_processes_share_a_numa_node(two_numa_nodes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")  # no numactl
    found, said = numa.bindings(4, 2, two_numa_nodes)
    first, second = sorted(os.sched_getaffinity(0))[:2]
    assert [binding.cpus for binding in found] == [{first}, {first}, {second}, {second}]
    assert said[1] == (
        "NUMA node 1: process(es) 2 to 3 are bound to its 1 CPUs, not to its memory: there is no numactl"
    )


def test_what_cannot_be_bound_runs_unbound(two_numa_nodes: Path) -> None:
    found, said = numa.bindings(3, 1, two_numa_nodes)
    assert found[2] == numa.Binding()
    assert said[2] == "NUMA node 2: process(es) 2 are not bound: this machine has no such node"
    assert numa.bindings(3, None, two_numa_nodes) == ([numa.Binding()] * 3, [])


def test_the_trainers_are_bound(run, stop_leftovers) -> None:
    """Through the worker, on this machine's own NUMA node 0; a second node it may not have, and says so."""
    run.write({"steps": 5000, "numa": 1}, pause=0.02)
    process = run.start()
    stop_leftovers.append(process.pid)
    run.wait_for("completed step: 2,", rank=1)
    mine = numa.parse_cpus(Path("/sys/devices/system/node/node0/cpulist").read_text()) & os.sched_getaffinity(0)
    assert mine in [os.sched_getaffinity(pid) for pid in children_of(process.pid)]
    process.kill()
    process.communicate(timeout=60)
    assert "NUMA node 0: process(es) 0 are bound to its" in run.log("worker0.log")


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGINT])
def test_a_signal_to_every_process_of_a_step_kills_no_trainer(run, stop_leftovers, number: int) -> None:
    """SLURM's --signal goes to the trainers as well as to the worker."""
    run.write({"steps": 5000}, pause=0.02, autocheckpoint=True, checkpoint_period=1000)
    process = run.start()
    stop_leftovers.append(process.pid)
    run.wait_for("completed step: 2,", rank=1)
    run.wait_for("completed step: 2,", rank=0)
    for pid in [*children_of(process.pid), process.pid]:
        os.kill(pid, number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 75, output


def test_decisions_are_kept_and_read_back(tmp_path: Path) -> None:
    from launcher.node.budgets import Action, Decision

    run = RunFolder(tmp_path)
    for number, charge in enumerate(("failures", "bad_nodes", None, "kinds.network"), start=1):
        attempt = run.attempt(number)
        attempt.path.mkdir(parents=True)
        attempt.result().write_text(json.dumps({"checkpoint": 2 * number, "last_step": 10 - number}))
        decision = Decision(Action.RESTART, "x", 1.0, ("n1",) if number == 2 else (), charge)
        history.write_decision(attempt, decision, "n1", {"failures": number})
    assert history.read_past(run, first=2, before=3) == history.Past({"bad_nodes": 1}, ("n1",), ("n1",), 4, 9)
    assert history.read_past(run, first=1, before=5).spent == {"failures": 1, "bad_nodes": 1, "kinds.network": 1}
    written = json.loads(history.decision_file(run.attempt(4)).read_text())["spent"]
    assert written == {"failures": 4, "preemptions": 0, "bad_nodes": 0, "rollbacks": 0, "kinds.network": 1}
