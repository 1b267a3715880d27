"""Real Slurm clusters for tests, each started when the first test asks and stopped at the end.

`cluster` has 4 nodes, `old_cluster` the same with Slurm 22.05, `each_cluster` is both in turn, and `racks` is 36 nodes in two
NVL72 racks of 18, with 288 powered-down ones in 16 racks more; `start_cluster` starts any other. A test gets its cluster idle and may leave it in any state.
`<cluster's folder>/shared` is what a site's shared file system is: containers see it where it is mounted, and only then.
They skip where a cluster cannot be had (not root, no Debian, nothing unpacked and no network); with SLURM_TESTBED_REQUIRED=1, as
continuous integration sets it, that is a failure.
"""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # `slurm` is no part of the package that is installed

from slurm.testbed.cluster import Cluster
from slurm.testbed.install import Unavailable
from slurm.testbed.settings import VERSIONS, Settings

# Seconds after which a silent node is down, and until a requeued job may start; a real cluster has 300 and 120.
NODE_TIMEOUT, REQUEUE_DELAY = 5, 10

Start = Callable[..., Cluster]


@pytest.fixture(scope="session")
def start_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts a cluster with any settings, for tests that need one of their own; it is stopped at the end of the session."""
    started: list[Cluster] = []

    def start(name: str, *, lines: tuple[str, ...] = (f"SlurmdTimeout={NODE_TIMEOUT}",), **settings: Any) -> Cluster:
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


@pytest.fixture
def on_slurm(session_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A login node of the cluster: this process finds SLURM's commands. Whatever ran before may still be ending on a node."""
    if not session_cluster.ready():
        session_cluster.reset()
    for name, value in session_cluster.environment().items():
        monkeypatch.setenv(name, value)
    for name in set(os.environ) - set(session_cluster.environment()):
        monkeypatch.delenv(name)
    return session_cluster
