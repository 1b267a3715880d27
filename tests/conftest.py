"""Real Slurm clusters and a real Kubernetes API server for tests, each started when the first test asks and stopped at the end.

`cluster` has 4 nodes, `old_cluster` the same with Slurm 22.05, `each_cluster` is both in turn, and `racks` is 36 nodes in two
NVL72 racks of 18, with 288 powered-down ones in 16 racks more; `start_cluster` starts any other. A test gets its cluster idle and may leave it in any state.
`<cluster's folder>/shared` is what a site's shared file system is: containers see it where it is mounted, and only then.
They skip where a cluster cannot be had (not root, no Debian, nothing unpacked and no network); with SLURM_TESTBED_REQUIRED=1, as
continuous integration sets it, that is a failure.

`kube` is a Kubernetes API server for all tests; `kube_cluster` a small cluster behind it, in a namespace of its own, with 8 nodes and the
claim `runs`; `start_kube_cluster` starts any other. They skip unless the server was built (python3 -m k8s.testbed install), and with
K8S_TESTBED_REQUIRED=1 they build it.
"""

import itertools
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # `slurm`, `k8s`: not installed with the package

from k8s.testbed import install as kube_install
from k8s.testbed.controller import Controller
from k8s.testbed.server import ApiServer
from slurm.testbed.cluster import Cluster
from slurm.testbed.install import Unavailable
from slurm.testbed.settings import VERSIONS, Settings

# Seconds until a requeued job may start; a real cluster has 120. A silent node is down after Slurm's own 300: a test that
# waits for a lost node starts a cluster of its own, since a busy machine lets nodes be silent for seconds.
REQUEUE_DELAY = 10

# Under nohup, or in the background of a script, these are ignored, and whatever a test starts would ignore them too: workers
# respect that. A handler is not inherited; this process still ignores them.
for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, lambda *_: None)

Start = Callable[..., Cluster]
NAMESPACES = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test on a real scheduler or API server depends on the machine's load: one more try, which the summary counts as a rerun."""
    for item in items:
        if {"start_cluster", "kube"} & {*getattr(item, "fixturenames", ())}:
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.fixture(scope="session")
def start_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts a cluster with any settings, for tests that need one of their own; it is stopped at the end of the session."""
    started: list[Cluster] = []

    def start(name: str, *, lines: tuple[str, ...] = (), **settings: Any) -> Cluster:
        folder = tmp_path_factory.mktemp(name)
        (folder / "shared").mkdir()
        settings = {"requeue_delay": REQUEUE_DELAY, **settings}
        cluster = Cluster(Settings(folder, lines=lines, hide=(str(folder / "shared"),), **settings))
        started.append(cluster)
        try:
            cluster.start()
        except Unavailable as why:
            if os.environ.get("SLURM_TESTBED_REQUIRED"):
                raise
            pytest.skip(f"no Slurm here: {why}")
        return cluster

    yield start
    for cluster in started:
        cluster.stop()


@pytest.fixture(scope="session")
def session_cluster(start_cluster: Start) -> Cluster:
    return start_cluster("slurm")


@pytest.fixture(scope="session")
def session_old_cluster(start_cluster: Start) -> Cluster:
    return start_cluster("slurm-22.05", version="22.05")


@pytest.fixture(scope="session")
def session_racks(start_cluster: Start) -> Cluster:
    return start_cluster("slurm-racks", nodes=36, racks=2, cloud=288)


@pytest.fixture
def cluster(session_cluster: Cluster) -> Cluster:
    session_cluster.reset()
    return session_cluster


@pytest.fixture
def old_cluster(session_old_cluster: Cluster) -> Cluster:
    session_old_cluster.reset()
    return session_old_cluster


@pytest.fixture
def racks(session_racks: Cluster) -> Cluster:
    session_racks.reset()
    return session_racks


@pytest.fixture(params=VERSIONS)
def each_cluster(request: pytest.FixtureRequest) -> Cluster:
    cluster: Cluster = request.getfixturevalue({"24.11": "cluster", "22.05": "old_cluster"}[request.param])
    return cluster


@pytest.fixture(scope="session")
def session_login(start_cluster: Start) -> Cluster:
    """A cluster whose nodes are not taken for lost because the machine is busy; $SLURM_TESTBED_VERSION for another Slurm."""
    return start_cluster("slurm-login", lines=(), version=os.environ.get("SLURM_TESTBED_VERSION") or VERSIONS[0])


@pytest.fixture
def on_slurm(session_login: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A login node: this process finds the cluster's commands. Jobs of the test before may still be ending on its nodes."""
    if not session_login.ready():
        session_login.reset()
    environment = session_login.environment()
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for name in set(os.environ) - set(environment):
        monkeypatch.delenv(name)
    return session_login


@pytest.fixture(scope="session")
def kube(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    if not os.environ.get("K8S_TESTBED_REQUIRED") and kube_install.installed() is None:
        pytest.skip(f"no API server here: {kube_install.obstacle() or 'python3 -m k8s.testbed install builds one'}")
    with ApiServer(tmp_path_factory.mktemp("kube")) as server:
        yield server


@pytest.fixture
def start_kube_cluster(kube: ApiServer, tmp_path: Path) -> Iterator[Callable[..., Controller]]:
    """Starts a cluster in a new namespace with any of Controller's settings; `tmp_path/volume` plays its claims."""
    started: list[Controller] = []

    def start(**settings: Any) -> Controller:
        settings = {"namespace": f"test-{next(NAMESPACES)}", **settings}
        started.append(Controller(kube, tmp_path / "volume", **settings).start())
        return started[-1]

    yield start
    for cluster in started:
        cluster.stop()
    assert [error for cluster in started for error in cluster.errors] == []


@pytest.fixture
def kube_cluster(start_kube_cluster: Callable[..., Controller]) -> Controller:
    return start_kube_cluster()
