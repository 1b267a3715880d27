"""The container's image as one file for all jobs, with the test bed's enroot. tests/cluster/test_image.py has real jobs."""

import os
import shutil
import threading
import time
from pathlib import Path

import pytest

from launcher.node import image
from launcher.node.image import Import

ENROOT = Path(__file__).resolve().parents[2] / "slurm/testbed/commands/enroot"


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A machine with enroot and one image in its registry."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "images").mkdir()
    shutil.copy(ENROOT, tmp_path / "bin/real")
    (tmp_path / "bin/enroot").write_text(
        f'#!/bin/bash\necho "$*" >> {tmp_path}/calls\nsleep "${{SLOW:-0}}" & wait\nexec {tmp_path}/bin/real "$@"\n'
    )
    (tmp_path / "bin/enroot").chmod(0o755)
    (tmp_path / "images/ghcr.io_demo_1").write_text("A=1\n")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setattr(image, "_POLL_SECONDS", 0.05)
    return tmp_path


def importing(site, said, goes_on=lambda: True, name="ghcr.io#demo:1"):
    return Import(name, site / "shared/demo.sqsh", site / "import.log", said.append, goes_on)


def calls(site):
    return (site / "calls").read_text().splitlines() if (site / "calls").exists() else []


def test_it_is_imported_once_and_then_taken_as_it_is(site):
    said = []
    for _ in range(2):
        assert importing(site, said).ensure() is None
    assert len(calls(site)) == 1
    assert (site / "shared/demo.sqsh").read_text() == "A=1\n"
    assert [path.name for path in (site / "shared").iterdir()] == ["demo.sqsh"]
    assert said[0] == f"importing ghcr.io#demo:1 to {site}/shared/demo.sqsh"


def test_of_jobs_that_come_together_one_imports_and_the_others_wait(site, monkeypatch):
    monkeypatch.setenv("SLOW", "1")
    said, ends = [], []
    jobs = [threading.Thread(target=lambda: ends.append(importing(site, said).ensure())) for _ in range(4)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join(30)
    assert ends == [None] * 4
    assert len(calls(site)) == 1
    assert len([line for line in said if "is being imported by" in line]) == 3


def test_a_failure_tells_enroots_own_words_and_leaves_nothing(site):
    end = importing(site, [], name="ghcr.io#no/such").ensure()
    assert (end.code, end.suspects) == (79, ())
    assert end.reason.startswith("ghcr.io#no/such could not be imported: [ERROR] URL https://ghcr.io/no/such returned")
    assert not list((site / "shared").iterdir())


def test_a_machine_without_enroot_and_a_folder_that_cannot_be(site, monkeypatch):
    (site / "file").write_text("")
    end = Import("demo", site / "file/demo.sqsh", site / "import.log", print, lambda: True).ensure()
    assert "could not be imported" in end.reason
    assert str(site / "file") in end.reason
    monkeypatch.setenv("PATH", str(site / "nowhere"))
    assert importing(site, []).ensure().reason.endswith("No such file or directory: enroot")
    assert not list((site / "shared").iterdir())


def test_the_claim_of_a_dead_job_is_taken_over_and_a_living_ones_is_not(site, monkeypatch):
    monkeypatch.setattr(image, "DEAD_SECONDS", 0.5)
    one = importing(site, [])
    one.file.parent.mkdir()
    one.claim.write_text("job 7 on n0")
    living = threading.Event()

    def live():
        while not living.wait(0.1):
            os.utime(one.claim)

    owner = threading.Thread(target=live)
    owner.start()
    deadline = time.monotonic() + 1.5
    assert importing(site, [], lambda: time.monotonic() < deadline).ensure() is not None
    assert not calls(site)
    living.set()
    owner.join()
    said = []
    assert importing(site, said).ensure() is None
    assert "is being imported by job 7 on n0" in said[0]
    assert len(calls(site)) == 1


def test_a_job_that_ends_ends_its_import_and_leaves_nothing(site, monkeypatch):
    monkeypatch.setenv("SLOW", "60")
    began = time.monotonic()
    end = importing(site, [], lambda: not calls(site)).ensure()
    assert end.reason == "ended while its image was being imported"
    assert time.monotonic() - began < 20
    assert not list((site / "shared").iterdir())
