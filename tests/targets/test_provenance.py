import datetime
import json
import os
import platform
import socket
import subprocess
from pathlib import Path

import pytest

import launcher
from launcher.targets import provenance

TOKEN = "hf_" + "aB3" * 12


def git(folder: Path, *words: str) -> None:
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false", *words]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    git(tmp_path, "init", "-q", "-b", "trunk")
    (tmp_path / "a.txt").write_text("one\n")
    git(tmp_path, "add", "a.txt")
    git(tmp_path, "commit", "-q", "-m", "first")
    return tmp_path


def test_it_says_what_and_where_and_when(tmp_path: Path) -> None:
    told = provenance.collect(["submit", "+exp=x"], tmp_path)
    assert json.loads(json.dumps(told)) == told
    assert (told["launcher"], told["python"], told["host"]) == (
        launcher.__version__,
        platform.python_version(),
        socket.gethostname(),
    )
    assert told["packages"].keys() == set(provenance.PACKAGES)
    assert told["packages"]["hydra-core"].startswith("1.3")
    assert datetime.datetime.fromisoformat(told["time"]).utcoffset() == datetime.timedelta(0)
    assert told["command"] == ["submit", "+exp=x"]
    assert told["git"] is None


def test_no_variable_of_the_environment_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SOME_VARIABLE", "its-very-own-value")
    assert "its-very-own-value" not in json.dumps(provenance.collect([], tmp_path))


def test_a_clean_repository(repository: Path) -> None:
    told = provenance.git(repository)
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=repository, capture_output=True, text=True, check=True
    ).stdout.strip()
    assert told == {
        "root": str(repository), "commit": head, "branch": "trunk", "dirty": False, "diff": "", "diff_cut": False, "untracked": [],
    }  # fmt: skip


def test_a_dirty_repository_is_told_from_a_folder_inside_it(repository: Path) -> None:
    (repository / "a.txt").write_text(f"two\nexport HF_TOKEN={TOKEN}\n")
    (repository / "new ü.txt").write_text("x")
    inside = repository / "inside"
    inside.mkdir()
    told = provenance.git(inside)
    assert told["dirty"] is True
    assert "-one\n+two\n" in told["diff"]
    assert TOKEN not in told["diff"]
    assert told["untracked"] == ["new ü.txt"]


def test_a_long_diff_is_cut(repository: Path) -> None:
    (repository / "a.txt").write_text("long line\n" * provenance.MOST_DIFF_BYTES)
    told = provenance.git(repository)
    assert told["diff_cut"] is True
    assert len(told["diff"]) <= provenance.MOST_DIFF_BYTES


def test_a_repository_before_its_first_commit_and_a_detached_head(
    repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    git(repository, "checkout", "-q", "--detach")
    assert provenance.git(repository)["branch"] is None
    empty = tmp_path_factory.mktemp("empty")
    git(empty, "init", "-q", "-b", "trunk")
    told = provenance.git(empty)
    assert (told["commit"], told["branch"], told["dirty"]) == (None, "trunk", False)


def test_a_machine_without_git(repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert provenance.git(repository) is None


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("+env.vars.HF_TOKEN=abc", "+env.vars.HF_TOKEN=***"),
        ("+env.vars.WANDB_API_KEY='abc def'", "+env.vars.WANDB_API_KEY='***'"),
        ("+maxtext.hf_access_token=abc", "+maxtext.hf_access_token=***"),
        (f"description={TOKEN}", "description=***"),
        (TOKEN, "***"),
        ("env.secrets=[HF_TOKEN]", "env.secrets=[HF_TOKEN]"),
        ("data.tokenizer_path=org/name", "data.tokenizer_path=org/name"),
        ("trainer.steps=5", "trainer.steps=5"),
        ("--detach", "--detach"),
    ],
)
def test_secrets_are_blotted_out_of_the_command_line(word: str, told: str) -> None:
    assert provenance.redact([word]) == [told]
