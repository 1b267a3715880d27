"""The command line as a person types it: every command in a process of its own, what comes back on stdout, stderr and as exit code."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.cli.main import VERBS
from launcher.config.groups import experiments

ROOT = Path(__file__).resolve().parent.parent.parent
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("LAUNCHER_")} | {"PYTHONPATH": str(ROOT)}


def launcher(*words: str, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "launcher", *words],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=ENVIRONMENT | more,
        timeout=120,
    )


def test_help_names_every_verb_and_experiment(tmp_path: Path) -> None:
    done = launcher("--help", cwd=tmp_path)
    assert done.returncode == 0
    assert not done.stderr
    for name in [*VERBS, *(name for name, _ in experiments())]:
        assert f"  {name} " in done.stdout
    assert launcher(cwd=tmp_path).stdout == done.stdout


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_shows_two_examples(verb: str, tmp_path: Path) -> None:
    done = launcher(verb, "--help", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.partition("examples:\n")[2].count("python -m launcher") == 2


@pytest.mark.parametrize(
    ("words", "told", "cure"),
    [
        ("plam +exp=dsv3_128gpu", "`plam` is no verb", "did you mean plan?"),
        ("plan +exp=dsv3_128gp", "+exp=dsv3_128gp", "+exp=dsv3_128gpu"),
        ("plan", "no experiment was named", "add +exp=NAME"),
        ("plan +exp=dsv3_128gpu --jsn", "--jsn", "did you mean --json?"),
        ("plan +exp=dsv3_128gpu trainer.stps=4", "no key trainer.stps", "trainer.steps"),
        ("plan +exp=dsv3_128gpu +maxtext.ragged_bufer_factor=2", "ragged_bufer_factor", "ragged_buffer_factor"),
        ("render +exp=dsv3_128gpu mesh.ici.expert=16 --out b", "fsdp 8 x expert 16 = 128", "mesh.ici.fsdp=4"),
        ("status nothing", "no run nothing", "--runs DIR"),
        ("logs nothing -f", "no run nothing", "--runs DIR"),
        ("cancel nothing", "no run nothing", "--runs DIR"),
        ("resume nothing", "no run nothing", "--runs DIR"),
        ("diff +exp=dsv3_128gpu", "1 were named", "diff A B"),
        ("preflight +exp=dsv3_128gpu", "the name of one check", "maxtext"),
        ("preflight maxtxt +exp=dsv3_128gpu", "`maxtxt` is no check", "did you mean maxtext?"),
        ("preflight aot +exp=dsv3_128gpu --frsh", "--frsh", "did you mean --fresh?"),
        ("preflight aot +exp=moe_tiny_cpu", "no description of CPU", "--gpu FILE.txtpb"),
        ("plan +exp=dsv3_128gpu --config-dir nowhere", "nowhere", "exists"),
        ("-m +exp=moe_tiny_cpu --detach", "every point at once", "leave out --detach"),
        ("+exp=dsv3_128gpu target=local", "32 nodes", "another target"),
    ],
)
def test_a_mistake_is_told_with_its_cure_and_ends_with_1(words: str, told: str, cure: str, tmp_path: Path) -> None:
    done = launcher(*words.split(), cwd=tmp_path)
    text = done.stdout + done.stderr
    assert done.returncode == 1, text
    assert told in text
    assert cure in text
    assert "Traceback" not in text
    assert not list(tmp_path.glob("b/*")), "nothing is written after a refusal"


def test_json_is_alone_on_stdout_also_when_it_is_refused(tmp_path: Path) -> None:
    good = launcher("plan", "+exp=dsv3_128gpu", "--json", cwd=tmp_path)
    assert good.returncode == 0
    assert json.loads(good.stdout)["mesh"]["gpus"] == 128
    wrong = launcher("plan", "+exp=dsv3_128gpu", "trainer.steps=x", "--json", cwd=tmp_path)
    assert wrong.returncode == 1
    assert [issue["code"] for issue in json.loads(wrong.stdout)["issues"]] == ["VALUE_TYPE"]
    assert json.loads(launcher("runs", "--json", cwd=tmp_path).stdout) == []


def test_render_prints_the_artefact_alone_or_writes_a_folder_once(tmp_path: Path) -> None:
    shown = launcher("render", "+exp=moe_tiny_cpu", "--print", cwd=tmp_path)
    assert shown.stdout.startswith("#!/bin/sh")
    first = launcher("render", "+exp=moe_tiny_cpu", "--out", "bundle", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert (tmp_path / "bundle" / "run.sh").read_text() == shown.stdout
    assert launcher("render", "+exp=moe_tiny_cpu", "--out", "bundle", cwd=tmp_path).returncode == 0
    other = launcher("render", "+exp=moe_tiny_cpu", "trainer.steps=7", "--out", "bundle", cwd=tmp_path)
    assert other.returncode == 1
    assert "--out DIR" in other.stderr


def test_a_literal_secret_is_in_no_output_at_all(tmp_path: Path) -> None:
    secret = "hf_" + "Ab3" * 11 + "x"
    for words in (
        ["plan", "+exp=dsv3_128gpu", f"+env.vars.HF_TOKEN={secret}"],
        ["plan", "+exp=dsv3_128gpu", f"+maxtext.hf_access_token={secret}", "--json"],
        ["plan", "+exp=dsv3_128gpu", f"nodes={secret}"],
        ["render", "+exp=moe_tiny_cpu", f"+env.vars.X={secret}", "--out", "b"],
        ["+exp=moe_tiny_cpu", "trainer.stps=1", f"+env.vars.HF_TOKEN={secret}"],
        ["plan", f"+exp={secret}"],
        ["diff", f"+exp=moe_tiny_cpu env.vars.HF_TOKEN={secret}", "+exp=moe_tiny_cpu"],
    ):
        done = launcher(*words, cwd=tmp_path)
        assert done.returncode == 1, words
        assert secret not in done.stdout + done.stderr
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or secret not in file.read_text(errors="replace")


def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    command = f"{sys.executable} -m launcher plan +exp=dsv3_128gpu --json | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, cwd=tmp_path, env=ENVIRONMENT, timeout=60
    )
    assert done.stdout.splitlines() == ["{", "0"]
    assert not done.stderr


def test_a_folder_that_cannot_be_written_is_told_with_its_option(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    done = launcher("render", "+exp=moe_tiny_cpu", "--out", "file/bundle", cwd=tmp_path)
    assert done.returncode == 1
    assert "--out file/bundle cannot be written" in done.stderr
    assert "Traceback" not in done.stderr


def test_experiments_of_ones_own_are_found(tmp_path: Path) -> None:
    (tmp_path / "conf" / "exp").mkdir(parents=True)
    (tmp_path / "conf" / "exp" / "mine.yaml").write_text(
        "# @package _global_\ndefaults: [moe_tiny_cpu]\nname: mine\ntrainer: {steps: 7}\n"
    )
    by_option = launcher("plan", "--config-dir", "conf", "+exp=mine", "--json", cwd=tmp_path)
    by_variable = launcher("plan", "+exp=mine", "--json", cwd=tmp_path, LAUNCHER_CONF="conf")
    assert by_option.stdout == by_variable.stdout
    assert json.loads(by_option.stdout)["experiment"] == "mine"


def test_diff_of_two_experiments_names_what_differs(tmp_path: Path) -> None:
    done = launcher("diff", "+exp=dsv3_128gpu", "+exp=dsv3_128gpu remat.context=offload", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "remat.context: device -> offload" in done.stdout
    same = launcher("diff", "+exp=dsv3_128gpu", "exp=dsv3_128gpu", cwd=tmp_path)
    assert "same" in same.stdout


def test_doctor_names_what_is_missing_and_the_cure(tmp_path: Path) -> None:
    empty = tmp_path / "python"
    empty.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    empty.chmod(0o755)
    done = launcher("doctor", "--python", str(empty), "--json", cwd=tmp_path)
    found = {finding["name"]: finding for finding in json.loads(done.stdout)}
    assert done.returncode == 1
    assert not found["MaxText"]["ok"]
    assert "launcher[local]" in found["MaxText"]["cure"]
    assert "does not start" in launcher("doctor", "--python", "/nowhere/python", cwd=tmp_path).stdout
