"""Which checkpoints count: the layout is what maxtext 0.2.5 left on a local disk."""

from pathlib import Path

from launcher.node.checkpoints import committed_steps, newest
from launcher.node.layout import RunFolder, checkpoints_folder


def make(folder, name, *files):
    for file in files:
        path = folder / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")


def test_committed_steps(tmp_path):
    make(tmp_path, "4", "_CHECKPOINT_METADATA", "commit_success.txt", "items/_METADATA", "items/commit_success.txt")
    make(tmp_path, "19", "_CHECKPOINT_METADATA", "items/_METADATA")
    make(tmp_path, "24.orbax-checkpoint-tmp", "_CHECKPOINT_METADATA", "items.orbax-checkpoint-tmp/_METADATA")
    make(tmp_path, "29", "commit_success.txt", "items.orbax-checkpoint-tmp/_METADATA")
    make(tmp_path, "34", "items/_METADATA")
    make(tmp_path, "notes", "commit_success.txt")
    assert committed_steps(tmp_path) == [4, 19]
    assert newest(tmp_path) == 19


def test_no_folder(tmp_path):
    assert committed_steps(tmp_path / "none") == []
    assert newest(tmp_path / "none") is None


def test_layout(tmp_path):
    run = RunFolder(tmp_path / "demo")
    assert run.attempt_numbers() == []
    for number in (2, 10, 1):
        run.attempt(number).path.mkdir(parents=True)
    assert run.attempt_numbers() == [1, 2, 10]
    attempt = run.attempt(10)
    assert (attempt.number, attempt.started(0).name, attempt.started(3).name) == (
        10,
        "attempt.json",
        "attempt-node3.json",
    )
    assert (attempt.result(0).name, attempt.result(3).name) == ("result.json", "node3.json")
    assert checkpoints_folder(run.output, run.name) == Path(tmp_path, "demo/output/demo/checkpoints")
