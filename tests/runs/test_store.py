"""The folder of runs: made once, found by name, listed whatever state it is in."""

import json
import os

import pytest

from launcher.runs import store
from launcher.runs.status import statuses, table


def make(folder, name="demo-0a1b2c3d", **record):
    assert store.create(folder, name, {"target": "local", "content": "x", **record}, lambda _: None)
    return store.load(folder / name)


def test_a_run_is_made_whole_or_not_at_all(tmp_path):
    def fail(layout):
        layout.provenance.write_text("{}")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        store.create(tmp_path, "demo-0a1b2c3d", {}, fail)
    assert list(tmp_path.iterdir()) == []
    run = make(tmp_path)
    assert run.record["version"] == store.VERSION
    assert oct(run.folder.stat().st_mode & 0o700) == "0o700"
    assert os.access(run.folder, os.R_OK | os.X_OK)


def test_the_second_of_one_name_is_not_made(tmp_path):
    run = make(tmp_path, content="first")
    assert not store.create(tmp_path, run.name, {"content": "second"}, lambda _: None)
    assert store.load(run.folder).record["content"] == "first"

    def somebody_is_faster(layout):
        make(tmp_path, "other-0a1b2c3d", content="fast")

    assert not store.create(tmp_path, "other-0a1b2c3d", {"content": "slow"}, somebody_is_faster)
    assert store.load(tmp_path / "other-0a1b2c3d").record["content"] == "fast"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["demo-0a1b2c3d", "other-0a1b2c3d"]


def test_a_run_is_found_by_a_beginning_of_its_name_or_its_path(tmp_path):
    run = make(tmp_path, "dsv3_128gpu-0a1b2c3d")
    make(tmp_path, "dsv3_256gpu-0a1b2c3d")
    for word in ("dsv3_128gpu-0a1b2c3d", "dsv3_1", str(run.folder)):
        assert store.open_run(tmp_path, word).name == run.name


@pytest.mark.parametrize(
    ("word", "code", "parts"),
    [
        ("dsv3", "RUN_AMBIGUOUS", ["dsv3_128gpu-0a1b2c3d", "dsv3_256gpu-0a1b2c3d"]),
        ("dvs3_128gpu", "RUN_UNKNOWN", ["did you mean", "dsv3_128gpu-0a1b2c3d"]),
        ("zzz", "RUN_UNKNOWN", ["there are", "dsv3_256gpu-0a1b2c3d"]),
        ("", "RUN_UNKNOWN", []),
        ("/nowhere/x", "RUN_UNKNOWN", ["run.json"]),
    ],
)
def test_a_wrong_name_is_answered_with_the_right_ones(tmp_path, word, code, parts):
    make(tmp_path, "dsv3_128gpu-0a1b2c3d")
    make(tmp_path, "dsv3_256gpu-0a1b2c3d")
    with pytest.raises(store.RunsError) as refused:
        store.open_run(tmp_path, word)
    (issue,) = refused.value.issues
    assert issue.code == code
    for part in parts:
        assert part in f"{issue.message} {issue.hint}"


def test_no_run_at_all(tmp_path):
    with pytest.raises(store.RunsError) as refused:
        store.open_run(tmp_path / "none", "demo")
    assert "--runs DIR" in refused.value.issues[0].hint
    assert store.all_runs(tmp_path / "none") == []


def test_a_newer_layout_is_refused_and_not_guessed_at(tmp_path):
    run = make(tmp_path)
    run.layout.run.write_text(json.dumps({**run.record, "version": store.VERSION + 1}))
    with pytest.raises(store.RunsError) as refused:
        store.open_run(tmp_path, "demo")
    assert refused.value.issues[0].code == "RUN_NEWER"
    assert "update the launcher" in refused.value.issues[0].hint


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"version": "one"}', "\0\0\0", '{"version": 1'])
def test_damage_is_told_with_the_file_and_hides_no_other_run(tmp_path, damage):
    sound, broken = make(tmp_path, "sound-0a1b2c3d"), make(tmp_path, "broken-0a1b2c3d")
    broken.layout.run.write_text(damage)
    with pytest.raises(store.Damaged, match=r"broken-0a1b2c3d/run\.json"):
        store.open_run(tmp_path, "broken")
    rows = {status.run: status for status in statuses(store.all_runs(tmp_path))}
    assert rows[broken.name].state == "damaged"
    assert "run.json" in rows[broken.name].reason
    assert rows[sound.name].state == "damaged", "it has no bundle"
    assert "launch.json" in rows[sound.name].reason
    assert len(table(list(rows.values())).splitlines()) == 3


def test_the_root_is_asked_for_then_the_variable_then_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(store.ROOT_VARIABLE, raising=False)
    assert store.root() == tmp_path / "runs"
    monkeypatch.setenv(store.ROOT_VARIABLE, "/lustre/runs")
    assert str(store.root()) == "/lustre/runs"
    assert str(store.root("/else")) == "/else"


def test_a_folder_that_cannot_be_written_names_the_way_out(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(store.RunsError) as refused:
        store.create(tmp_path / "file", "demo-1", {}, lambda _: None)
    assert "--runs DIR" in refused.value.issues[0].hint


def test_the_lock_is_seen_by_others_and_freed(tmp_path):
    run = make(tmp_path)
    assert not store.is_locked(run)
    is_held, tell = os.pipe()
    enough, end = os.pipe()
    child = os.fork()
    if child == 0:
        with store.locked(run):
            os.write(tell, b"x")
            os.read(enough, 1)
        os._exit(0)
    os.read(is_held, 1)
    seen = store.is_locked(run)
    os.write(end, b"x")
    os.waitpid(child, 0)
    assert seen
    assert not store.is_locked(run)
    with store.locked(run):
        assert not store.is_locked(run), "one's own lock is no reason to wait"


def test_a_file_that_comes_between_two_looks_is_no_damage(tmp_path):
    class Late(type(tmp_path)):
        """Not there when it is read, there a moment later: its writer replaces files whole."""

        def read_bytes(self):
            self.write_text("{}")
            raise FileNotFoundError(self)

    late = Late(tmp_path / "decision.json")
    assert store.read_object_if_there(late) is None
    assert late.exists()
    assert store.read_object_if_there(tmp_path / "decision.json") == {}
