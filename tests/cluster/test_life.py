"""Runs that live through what clusters do to them: 4 nodes of a real Slurm, the real command line, one fault after another.

Each life is led twice: by MaxText, which takes a minute or two, and by the stand-in, which takes seconds. Each time the run
reaches its last step, goes on from its last checkpoint, and `status` never says what is not so (life.Witness).
"""

import importlib.util
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from life import GONE, NODES, TESTS, TINY, Life, Site, wait_for

from launcher.runs.attempts import State
from slurm.testbed.cluster import Cluster

Start = Callable[..., Cluster]
Submit = Callable[..., Life]

NEEDS_MAXTEXT = pytest.mark.skipif(
    importlib.util.find_spec("maxtext") is None, reason="MaxText is not installed: pip install '.[local]'"
)
REAL = pytest.param("maxtext", marks=[pytest.mark.maxtext, NEEDS_MAXTEXT])
REAL_AND_SLOW = pytest.param("maxtext", marks=[pytest.mark.maxtext, NEEDS_MAXTEXT, pytest.mark.slow])
STANDIN = pytest.param("standin")

STEPS, PERIOD = 30, 5
FAULT_AT = PERIOD + 2  # the first checkpoint is on disk, and steps are lost
# MaxText's start costs 4 imports and traces on few cores; a trace of one layer takes half as long as of two.
SMALLEST = ("model.overrides.base_num_decoder_layers=1", "model.overrides.first_num_dense_layers=0")


# How soon a silent node counts as lost. Slurm's default is five minutes; little time makes a busy machine lose nodes that live.
CLUSTERS = {"patient": (), "impatient": ("SlurmdTimeout=10",)}


@pytest.fixture(scope="module")
def clusters(start_cluster: Start) -> Iterator[Callable[[str], Cluster]]:
    """Clusters with one node more than a run takes, so that a lost one can be replaced."""
    started: dict[str, Cluster] = {}

    def get(kind: str) -> Cluster:
        if kind not in started:
            started[kind] = start_cluster(f"slurm-{kind}", nodes=NODES + 1, lines=CLUSTERS[kind])
        started[kind].start()
        started[kind].reset()
        return started[kind]

    yield get
    for cluster in started.values():
        cluster.stop()


@pytest.fixture
def kind() -> str:
    """Of the cluster; a test that loses nodes says another."""
    return "patient"


@pytest.fixture
def site(clusters: Callable[[str], Cluster], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    cluster = clusters(kind)
    site = Site(cluster, cluster.folder / "shared" / tmp_path.name)
    for name in ("SLURM_CONF", "PATH"):
        monkeypatch.setenv(name, site.environ[name])
    return site


@pytest.fixture
def submit(site: Site) -> Iterator[Submit]:
    """Submits the run. The stand-in waits before step FAULT_AT + 1 in its first attempt, so that a fault hits it there."""
    lives: list[Life] = []

    def go(trainer: str, *words: str, orders: str = f"hold={FAULT_AT + 1} pause=0.1 attempt=1") -> Life:
        asked = [*TINY, *SMALLEST, f"trainer.steps={STEPS}", f"checkpoint.checkpoint_period={PERIOD}"]
        asked += ["monitor.restart_pause_seconds=1"]
        if trainer == "standin":
            path = os.pathsep.join([str(TESTS / "targets"), str(TESTS / "node")])
            asked += ["trainer.module=conformance_trainer", f"+env.vars.PYTHONPATH='{path}'"]
            asked += [f"+env.vars.STANDIN='{orders}'"]
        lives.append(site.submit(*asked, *words))
        return lives[-1]

    yield go
    for life in lives:
        life.witness.stop()
        life.cluster.start_controller()
        life.cluster.run("scancel", "--full", "--signal=KILL", life.job, check=False)
        life.cluster.run("scancel", life.job, check=False)


def job_field(life: Life, name: str) -> str:
    return life.cluster.job(life.job, name)


@pytest.mark.parametrize("trainer", [REAL, STANDIN])
def test_a_killed_rank_and_a_time_limit(submit: Submit, trainer: str) -> None:
    life = submit(trainer)
    life.wait_past(FAULT_AT, attempt=1)
    os.kill(life.trainer(1, node=2), signal.SIGKILL)
    # Inside the allocation: same job, no requeue, a new step.
    life.wait_past(PERIOD + 1, attempt=2)
    assert job_field(life, "Restarts") == "0"
    assert life.read(1, "result.json")["outcome"] == "trainer"
    assert "rank 2" in life.read(1, "result.json")["reason"]
    assert life.decisions()[0] == "restart"
    assert State.WAITING not in life.witness.states[1:]
    if trainer == "maxtext":  # the stand-in's second attempt does not wait for anybody
        life.cluster.run("scancel", "--signal=USR1", life.job)  # as the time limit does: to the steps alone
        life.wait(lambda s: s.state is State.WAITING)
        ended = life.read(2, "result.json")
        assert (ended["code"], ended["outcome"]) == (75, "preempted")
        assert life.decisions()[:2] == ["restart", "requeue"]
        life.wait_finished()
        assert life.steps(3)[0].step == ended["checkpoint"] + 1 >= life.steps(2)[-1].step + 1, "nothing was lost"
        assert job_field(life, "Restarts") == "1"
    life.wait_finished()
    life.assert_resumed(STEPS, PERIOD)
    life.assert_nothing_left()
    told = life.site.launcher("status", life.run.name, "--runs", str(life.run.folder.parent))
    assert "finished" in told
    assert f"{STEPS} of {STEPS} done" in told


@pytest.mark.parametrize("trainer", [REAL_AND_SLOW, STANDIN])
def test_the_time_limit_costs_no_step(submit: Submit, trainer: str) -> None:
    life = submit(trainer)
    life.wait_past(FAULT_AT, attempt=1)
    life.cluster.run("scancel", "--signal=USR1", life.job)
    life.wait(lambda s: s.state is State.WAITING)
    ended = life.read(1, "result.json")
    assert (ended["code"], ended["outcome"]) == (75, "preempted")
    life.wait_finished()
    assert life.steps(2)[0].step == ended["checkpoint"] + 1 >= life.steps(1)[-1].step + 1, "nothing was lost"
    assert job_field(life, "Restarts") == "1"
    assert life.decisions()[0] == "requeue"
    life.assert_resumed(STEPS, PERIOD)


@pytest.mark.slow
def test_a_true_time_limit(submit: Submit) -> None:
    """Slurm itself sends the signal; it looks at its clocks every 30 s or so, so a minute is the least it can do."""
    limits = ("target.slurm.time_minutes=2", "target.slurm.signal_seconds=30", "trainer.stop_grace_seconds=10")
    life = submit("standin", *limits)
    life.wait(lambda s: s.state is State.WAITING and s.restarts == 0 and s.last_step is not None)
    assert life.read(1, "result.json")["outcome"] == "preempted"
    life.wait_finished()
    assert job_field(life, "Restarts") == "1"
    life.assert_resumed(STEPS, PERIOD)


@pytest.mark.parametrize("trainer", [REAL_AND_SLOW, STANDIN])
def test_a_requeue_by_hand(submit: Submit, trainer: str) -> None:
    life = submit(trainer)
    life.wait_past(FAULT_AT, attempt=1)
    life.cluster.run("scontrol", "requeue", life.job)
    life.wait(lambda s: s.state is State.WAITING)
    life.wait_finished()
    assert job_field(life, "Restarts") == "1"
    assert len(life.run.layout.attempt_numbers()) == 2
    life.assert_resumed(STEPS, PERIOD)


@pytest.mark.parametrize("trainer", [REAL_AND_SLOW, STANDIN])
@pytest.mark.parametrize("node", [0, 2], ids=["first", "another"])
@pytest.mark.parametrize("kind", ["impatient"])
def test_a_node_whose_daemon_is_killed_is_replaced(submit: Submit, trainer: str, node: int, kind: str) -> None:
    # MaxText trains on while Slurm takes half a minute to see that a node is lost; the stand-in waits.
    steps, period = (240, 20) if trainer == "maxtext" else (STEPS, PERIOD)
    life = submit(trainer, f"trainer.steps={steps}", f"checkpoint.checkpoint_period={period}")
    life.wait_past(period + 2, attempt=1)
    lost = life.host(1, node)
    life.cluster.kill_daemon(lost)
    wait_for(lambda: life.cluster.states()[lost].startswith("down"), 90, life.told)
    life.wait_finished(600)
    hosts = [life.host(life.run.layout.attempt_numbers()[-1], i) for i in range(NODES)]
    assert lost not in hosts
    assert job_field(life, "Restarts") == "1"
    life.assert_resumed(steps, period)
    life.cluster.start_node(lost)
    life.cluster.wait_ready()


@pytest.mark.parametrize("trainer", [REAL_AND_SLOW, STANDIN])
def test_a_stop_of_the_controller(submit: Submit, trainer: str) -> None:
    life = submit(trainer)
    life.wait_past(FAULT_AT, attempt=1)
    life.cluster.stop_controller()
    assert life.job_state() == GONE
    wait_for(lambda: State.UNKNOWN in life.witness.states, 120, life.told)
    if trainer == "standin":  # it waits; MaxText trains on and may be through before squeue has given up
        told = life.site.launcher("status", life.run.name, "--runs", str(life.run.folder.parent))
        assert "unknown" in told
        assert f"of {STEPS} done" in told, "the run's own files are read all the same"
        (life.run.layout.output / "go").touch()
        wait_for(lambda: life.run.layout.attempt(1).result().exists(), 60, life.told)
    life.cluster.start_controller()
    life.wait_finished()
    assert len(life.run.layout.attempt_numbers()) == 1, "the controller's absence is no fault of the run"
    life.assert_resumed(STEPS, PERIOD)


def test_a_rank_that_dies_while_the_controller_is_away(submit: Submit) -> None:
    life = submit("standin")
    life.wait_past(FAULT_AT, attempt=1)
    life.cluster.stop_controller()
    os.kill(life.trainer(1, node=1), signal.SIGKILL)
    wait_for(lambda: life.run.layout.attempt(1).result().exists(), 60, life.told)
    life.cluster.start_controller()
    life.wait_finished()
    life.assert_resumed(STEPS, PERIOD)


def test_what_always_fails_ends(submit: Submit) -> None:
    life = submit("standin", "monitor.max_failures=2", orders="mode=die at=3 rank=1")
    life.wait(lambda s: s.state in (State.FAILED, State.DIED))
    life.witness.stop()
    wait_for(lambda: life.job_state() == "FAILED", 30, life.told)
    # The second failure of the same node leaves it out; then the budget is used up.
    assert life.decisions() == ["restart", "requeue", "stop"]
    assert "monitor.max_failures" in life.read(3, "decision.json")["reason"]
    life.assert_nothing_left()
