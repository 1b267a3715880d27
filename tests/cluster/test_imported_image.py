"""An image that is imported once for all: real jobs, the stand-in pyxis and the test bed's enroot."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from supervised import Supervised

from slurm.testbed.cluster import Cluster

TESTS = Path(__file__).resolve().parent.parent
IMAGE, IMAGE_FILE = "ghcr.io#demo:once", "ghcr.io_demo_once"
PATH = f"PATH={Path(os.__file__).parents[2] / 'bin'}:{os.defpath}\n"


@pytest.fixture
def runs(cluster: Cluster, request: pytest.FixtureRequest) -> list[Supervised]:
    """Two runs of one image. Their enroot is slow, and notes each call."""
    root = cluster.folder / "shared" / request.node.name
    (cluster.folder / "images" / IMAGE_FILE).write_text(PATH)
    found = []
    for name in ("one-0a1b2c3d", "two-0a1b2c3d"):
        container = {
            "image": IMAGE,
            "file": str(root / "images/demo.sqsh"),
            "mounts": [f"{TESTS}:{TESTS}"],
            "workdir": "/tmp",
            "env": ["STANDIN"],
        }
        found.append(Supervised(cluster, root / name).write(container=container, restarts={"bad_nodes": 0}))
    enroot = root / "bin/enroot"
    enroot.write_text(f'#!/bin/bash\necho "$*" >> {root}/calls\nsleep 3\nexec {cluster.folder}/bin/enroot "$@"\n')
    enroot.chmod(0o755)
    return found


def test_two_jobs_import_once_and_start_from_the_file(runs: list[Supervised]) -> None:
    root = runs[0].path.parent
    for run in runs:
        run.submit()
    for run in runs:
        run.wait("COMPLETED")
        assert run.result()["outcome"] == "finished"
    (call,) = (root / "calls").read_text().splitlines()
    assert call.endswith(f"docker://{IMAGE}")
    assert [path.name for path in (root / "images").iterdir()] == ["demo.sqsh"]
    logs = [run.log() for run in runs]
    assert sorted("is being imported by" in log for log in logs) == [False, True]
    (runs[0].cluster.folder / "images" / IMAGE_FILE).unlink()  # the registry is not asked again
    again = Supervised(runs[0].cluster, root / "three-0a1b2c3d")
    again.write(container={**runs[0].launch()["container"]}).submit().wait("COMPLETED")
    assert len((root / "calls").read_text().splitlines()) == 1


def test_an_import_that_fails_says_why(runs: list[Supervised]) -> None:
    run = runs[0]
    container = {**run.launch()["container"], "image": "ghcr.io#no/such", "file": str(run.path.parent / "no.sqsh")}
    run.write(container=container, restarts={"bad_nodes": 0}).submit().wait("FAILED")
    assert run.attempts() == [1]
    assert run.result()["reason"].startswith(
        "ghcr.io#no/such could not be imported: [ERROR] URL https://ghcr.io/no/such"
    )
    assert not list(run.path.parent.glob("*.sqsh"))
