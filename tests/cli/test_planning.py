"""plan's numbers, search and calibrate as a person types them, each in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("LAUNCHER_")} | {"PYTHONPATH": str(ROOT)}


def launcher(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    more = {"LAUNCHER_CALIBRATION": str(cwd / "calibration.json")}
    return subprocess.run(
        [sys.executable, "-m", "launcher", *words],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=ENVIRONMENT | more,
        timeout=240,
    )


def run_of(folder: Path, plan: dict[str, object], seconds: float) -> None:
    """A finished run of that plan in the folder of runs."""
    sys.path.insert(0, str(ROOT / "tests" / "runs"))
    from handmade import add_attempt, make_run, step_line

    run = make_run(folder, "dsv3_128gpu_fits-0000000a", steps=15)
    (run.layout.bundle.path / "plan.json").write_text(json.dumps(plan))
    log = "".join(step_line(step, seconds=seconds) for step in range(15))
    add_attempt(run, log=log, result={"outcome": "finished", "code": 0, "last_step": 14, "reason": ""})


def test_plan_writes_a_page_and_tells_a_price(tmp_path: Path) -> None:
    done = launcher("plan", "+exp=dsv3_128gpu", "--html", "plan.html", "--price", "3", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "OVER: 182.6 GiB" in done.stdout
    assert "Price at 3 USD a GPU-hour: 9,216 USD a day" in done.stdout
    page = (tmp_path / "plan.html").read_text()
    assert page.count("<svg") == 2
    assert "Price at 3 USD a GPU-hour" in page


def test_a_price_for_scripts_is_numbers(tmp_path: Path) -> None:
    told = json.loads(launcher("plan", "+exp=dsv3_128gpu", "--price", "3", "--json", cwd=tmp_path).stdout)
    assert told["price"]["usd_per_day"] == 128 * 3 * 24
    a_step = told["price"]["steps_usd"] / told["price"]["steps"]
    assert a_step == pytest.approx(128 * 3 * told["numbers"]["time"]["expected_s"] / 3600, rel=1e-2)


@pytest.mark.parametrize(
    ("words", "seen"),
    [
        (("plan", "--price", "-3"), "--price: '-3', wanted a number above 0"),
        (("plan", "--price", "nan"), "--price: 'nan', wanted a number above 0"),
        (("plan", "--html", "nowhere/plan.html"), "--html nowhere/plan.html cannot be written: No such file"),
        (("plan", "--html", "."), "--html . cannot be written: Is a directory"),
        (("search", "--most", "0"), "--most: '0', wanted a whole number from 1 on"),
        (("search", "--most", "2.5"), "--most: '2.5', wanted a whole number from 1 on"),
        (("preflight", "aot", "--timeout", "0"), "--timeout: '0', wanted a number above 0"),
        (("preflight", "aot", "--dump", "/dev/null/seen"), "--dump /dev/null/seen cannot be written: Not a directory"),
        (("render", "--out", "/dev/null/seen"), "--out /dev/null/seen cannot be written: File exists"),
        (("preflight", "xla", "--python", "/bin/ls"), "/bin/ls cannot import jaxlib (it is no Python)"),
        (("render", "--print", "--format", "kustomize"), "--format kustomize is a folder of files"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(words: tuple[str, ...], seen: str, tmp_path: Path) -> None:
    done = launcher(*words, "+exp=dsv3_128gpu", cwd=tmp_path)
    assert done.returncode == 1
    assert seen in done.stderr
    assert "Traceback" not in done.stderr


def test_search_gives_a_line_to_type_that_works(tmp_path: Path) -> None:
    done = launcher("search", "+exp=dsv3_128gpu", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    line = done.stdout.splitlines()[-1]
    assert line == "Type: python -m launcher plan +exp=dsv3_128gpu remat.context=offload"
    again = launcher(*line.split()[4:], cwd=tmp_path)
    assert again.returncode == 0
    assert "FITS: " in again.stdout


def test_the_line_to_type_does_not_repeat_what_it_changes(tmp_path: Path) -> None:
    done = launcher("search", "+exp=dsv3_128gpu", "remat.context=device", "trainer.steps=20", cwd=tmp_path)
    line = done.stdout.splitlines()[-1]
    assert line == "Type: python -m launcher plan +exp=dsv3_128gpu trainer.steps=20 remat.context=offload"


def test_search_for_scripts(tmp_path: Path) -> None:
    done = launcher("search", "+exp=qwen3_235b_a22b_64gpu", "--json", "--most", "3", cwd=tmp_path)
    told = json.loads(done.stdout)
    assert done.returncode == 0
    assert told["gpus"] == 64
    assert 0 < len(told["ties"]) <= 3
    assert told["rejected"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("+exp=moe_tiny_cpu",), "the rates of cpu are not known"),
        (("+exp=dsv3_128gpu", "mesh.ici.expert=3"), "mesh.ici"),
    ],
)
def test_search_says_why_it_cannot(words: tuple[str, ...], why: str, tmp_path: Path) -> None:
    done = launcher("search", *words, cwd=tmp_path)
    assert done.returncode == 1
    assert why in done.stderr
    assert not done.stdout


def test_nothing_fits_is_an_answer_with_exit_code_one(tmp_path: Path) -> None:
    done = launcher("search", "+exp=dsv3_128gpu", "env.vars.XLA_PYTHON_CLIENT_MEM_FRACTION=0.05", cwd=tmp_path)
    assert done.returncode == 1
    assert "Nothing fits" in done.stdout


def test_a_cluster_is_learned_and_plan_uses_it(tmp_path: Path) -> None:
    before = json.loads(launcher("plan", "+exp=dsv3_128gpu_fits", "--json", cwd=tmp_path).stdout)
    expected = before["numbers"]["time"]["expected_s"]
    run_of(tmp_path / "runs", before, 1.25 * expected)
    learned = launcher("calibrate", "--runs", "runs", cwd=tmp_path)
    assert learned.returncode == 0, learned.stderr
    assert "measured / expected 1.25 (1 run)" in learned.stdout
    after = json.loads(launcher("plan", "+exp=dsv3_128gpu_fits", "--json", cwd=tmp_path).stdout)["numbers"]["time"]
    assert after["expected_s"] == pytest.approx(1.25 * expected, rel=1e-3)
    assert after["calibration"]["runs"] == 1
    assert after["high_s"] - after["low_s"] < before["numbers"]["time"]["high_s"] - before["numbers"]["time"]["low_s"]
    other = launcher("plan", "+exp=dsv3_128gpu_fits", "precision=te_bf16", cwd=tmp_path)
    assert "of this cluster" not in other.stdout
    # A bundle holds nothing of it.
    done = launcher("render", "+exp=dsv3_128gpu_fits", "--out", "bundle", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "bundle" / "plan.json").read_text())["numbers"]["time"]["expected_s"] == expected


def test_calibrate_without_runs(tmp_path: Path) -> None:
    done = launcher("calibrate", cwd=tmp_path)
    assert done.returncode == 0
    assert "nothing is known" in done.stdout
    assert f"no run in {tmp_path / 'runs'}: name the folder of runs with --runs" in done.stdout
    assert not (tmp_path / "calibration.json").exists()
    assert json.loads(launcher("calibrate", "--show", "--json", cwd=tmp_path).stdout)["kinds"] == []


@pytest.mark.parametrize("text", ["no JSON", "[1]", '{"kinds": [{}]}'])
def test_a_damaged_calibration_says_how_to_go_on(text: str, tmp_path: Path) -> None:
    (tmp_path / "calibration.json").write_text(text)
    done = launcher("plan", "+exp=dsv3_128gpu_fits", cwd=tmp_path)
    assert done.returncode == 1
    assert "remove it and calibrate again" in done.stderr
    (tmp_path / "calibration.json").unlink()
    assert launcher("plan", "+exp=dsv3_128gpu_fits", cwd=tmp_path).returncode == 0
