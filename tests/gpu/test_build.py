"""The bundle's making: parts below their limit, stages that go on; `slow`: the real one, trained on a CPU."""

import dataclasses
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from small_bundle import MIB, Made, make

from gpu import build, stages
from gpu.compress import compress_all
from gpu.parts import read_manifest, read_slices
from gpu.versions import read
from gpu.work import Failed, Work

ROOT = Path(__file__).resolve().parents[2]


def test_parts_stay_below_the_limit_and_hold_everything(made: Made) -> None:
    assert len(made.parts) >= 3
    sizes = [path.stat().st_size for path in made.parts]
    assert max(sizes) <= MIB
    # Filled up: all but the last one are nearly full.
    assert min(sizes[:-1]) > 0.85 * MIB
    slices = [each for part in made.manifest.parts for each in part]
    for piece in {each.piece for each in slices}:
        mine = sorted((s.begin, s.size) for s in slices if s.piece == piece)
        assert [begin for begin, _ in mine] == [sum(size for _, size in mine[:i]) for i in range(len(mine))]
        assert sum(size for _, size in mine) == (made.work.packed / piece).stat().st_size
    assert any(sum(s.piece == p for s in slices) > 1 for p in {s.piece for s in slices}), "no piece goes over parts"
    assert any(len(item.pieces) > 1 for item in made.manifest.items), "no file has several pieces"


def test_the_same_files_give_the_same_bundle(made: Made, tmp_path: Path) -> None:
    again = make(tmp_path)
    assert [path.name for path in again.parts] == [path.name for path in made.parts]
    assert [path.read_bytes() for path in again.parts] == [path.read_bytes() for path in made.parts]


def test_the_parts_can_be_read_without_setup(made: Made) -> None:
    for number, path in enumerate(made.parts, start=1):
        manifest, part = read_manifest(path)
        assert (manifest, part) == (made.manifest, number)
        assert [each.name for each, _ in read_slices(path, manifest, part)] == [
            s.name for s in manifest.parts[part - 1]
        ]


def test_a_machine_that_cannot_build_is_told_all_reasons(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Failed) as failed:
        build.able(dataclasses.replace(read(), python="2.7"))
    assert "start the build with python2.7" in str(failed.value)
    assert "not found: g++, make, strip" in str(failed.value)


def test_a_second_start_goes_on_after_the_stages_that_are_done(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ran: list[str] = []

    def fails_once(_: Work) -> None:
        ran.append("b")
        if ran.count("b") == 1:
            raise Failed("no network")

    named = (build.Stage("a", "", lambda _: ran.append("a")), build.Stage("b", "", fails_once))
    monkeypatch.setattr(build, "STAGES", (*named, build.Stage("c", "", lambda _: ran.append("c"))))
    work = Work(tmp_path, read(), jobs=1)
    with pytest.raises(Failed):
        build.run_stages(work)
    build.run_stages(work)
    build.run_stages(work)
    assert ran == ["a", "b", "b", "c"]
    (tmp_path / "done-b").unlink()
    build.run_stages(work)
    assert ran == ["a", "b", "b", "c", "b", "c"], "a stage that ran makes the later ones undone"
    build.run_stages(dataclasses.replace(work, versions=dataclasses.replace(work.versions, maxtext="9.9.9")))
    assert ran[-3:] == ["a", "b", "c"]


def test_compressing_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    source = tmp_path / "library"
    source.write_bytes(random.Random(5).randbytes(5000))
    assert [path.name for path in compress_all([source], tmp_path / "xz", 1, piece_bytes=2000)] != []
    (tmp_path / "xz/library.1.xz").unlink()
    (tmp_path / "xz/library.2.xz.tmp").touch()
    assert [path.name for path in compress_all([source], tmp_path / "xz", 1, piece_bytes=2000)] == ["library.1.xz"]


def test_a_limit_that_no_part_can_keep_is_refused(made: Made) -> None:
    with pytest.raises(ValueError, match="1 MiB is the least"):
        stages.manifest(made.work, 100_000)


@pytest.mark.slow
def test_the_real_bundle_trains_on_a_cpu(tmp_path: Path) -> None:
    """Needs a package index and a quarter of an hour on two cores. GPU_BUILD_WORK names a work folder to keep, or to go on with."""
    try:
        build.able(read())
    except Failed as reason:
        pytest.skip(str(reason))
    work, out = Path(os.environ.get("GPU_BUILD_WORK", tmp_path / "work")), tmp_path / "parts"
    for words in (["gpu.build", "--out", out, "--work", work], ["gpu.check", out]):
        done = subprocess.run([sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": 3 steps") == 2
    assert "undo: the image is as it was" in done.stdout
