"""`compare` and `verify`: no winner inside the noise, limits that hold and that fail, and files that are no golden ones."""

import json
import random

import pytest
from handmade import add_attempt, make_run
from test_report import finished, log_of, plan_json, run_of_log

from launcher.report.compare import of_losses, of_times
from launcher.report.measured import report
from launcher.report.text import as_json


def made(root, name, seconds, *, noise=0.02, seed=1, loss=0.0, log_gb=None, state="finished"):
    """A run whose steps take so long, give or take; its bundle is nothing but a plan."""
    draw = random.Random(seed)
    run = make_run(root, name, steps=80)
    (run.layout.bundle.path / "plan.json").write_text(json.dumps(plan_json()))
    (run.layout.bundle.path / "experiment.yaml").write_text(f"name: demo\nseconds: {seconds}\n")
    for file in ("maxtext.yml", "xla_flags", "env"):
        (run.layout.bundle.path / file).write_text("")
    (run.layout.bundle.path / "manifest.json").write_text(json.dumps({"content": name, "files": {}}))
    extra = {step: draw.gauss(0, noise * seconds) for step in range(80)}
    log = log_of(range(80), seconds=seconds, extra=extra)
    if loss:
        log = log.replace("loss: 6.", "loss: 5.")
    if log_gb is not None:
        log = f"[train] Total estimated memory size: {log_gb:.1f} GB, estimated output size: 1.0 GB\n" + log
    result = finished(79) if state == "finished" else finished(79, "trainer", 1)
    add_attempt(run, log=log, result=result)
    return run


def told(root, name, seconds, **more):
    return as_json(report(made(root, name, seconds, **more)))


def test_noise_alone_makes_no_winner_and_a_real_gain_does(tmp_path):
    wrong = 0
    for seed in range(40):
        a = told(tmp_path, f"a-{seed:08x}", 2.0, seed=seed)
        b = told(tmp_path, f"b-{seed:08x}", 2.0, seed=1000 + seed)
        c = told(tmp_path, f"c-{seed:08x}", 1.9, seed=2000 + seed)
        wrong += of_times(a, b).verdict != "no difference beyond the noise"
        assert "faster" in of_times(a, c).verdict
        assert of_times(a, c).value == pytest.approx(0.95, rel=0.02)
    assert wrong <= 5  # 5 % of 40 are two; more than five of them has a chance of one in a hundred


def test_the_articles_path_against_the_others_on_recorded_runs(tmp_path):
    stock = as_json(report(run_of_log(tmp_path, "h200x2_stock_dropless_rank0.log")))
    te = as_json(report(run_of_log(tmp_path, "h200x2_te_bf16_flash_rank0.log")))
    assert 1 / of_times(stock, te).value == pytest.approx(24, rel=0.03)
    assert of_times(stock, te).verdict == "too few steps to tell"  # three steps of the stock run count
    flash = as_json(report(run_of_log(tmp_path, "h200x2_te_bf16_lhs_rank0.log")))
    assert of_times(te, flash).verdict == "no difference beyond the noise"


def test_losses_are_held_against_each_other_step_by_step(tmp_path):
    a, b = told(tmp_path, "a-00000001", 2.0), told(tmp_path, "b-00000001", 2.0, loss=-1)
    assert of_losses(a, a) == (0.0, 80)
    assert of_losses(a, b)[0] == pytest.approx(1 / 6.6, rel=0.02)
    assert of_losses({"loss": []}, b) is None


def test_compare_tells_settings_and_results(tmp_path, command):
    made(tmp_path, "base-00000001", 2.0)
    made(tmp_path, "tuned-00000001", 1.5)
    code, out, _ = command("compare", "base", "tuned")
    assert code == 0
    assert "  seconds: 2.0 -> 1.5" in out
    assert "25.0% faster" in out or "25.1% faster" in out or "24.9% faster" in out
    code, out, _ = command("compare", "base", "tuned", "--json")
    found = json.loads(out)
    assert [one["run"] for one in found["runs"]] == ["base-00000001", "tuned-00000001"]
    assert found["differences"][0]["differences"][0]["key"] == "seconds"


VERIFY = [
    ({"seconds": 2.0}, (), 0, ""),
    ({"seconds": 2.3}, (), 1, "FAILED   time"),
    ({"seconds": 2.3}, ("--time", "20%"), 0, ""),
    ({"seconds": 1.0}, (), 0, ""),  # faster is good
    ({"seconds": 2.0, "loss": -1}, (), 1, "FAILED   loss"),
    ({"seconds": 2.0, "loss": -1}, ("--loss", "0.5"), 0, ""),
    ({"seconds": 2.0, "log_gb": 20.0}, (), 1, "FAILED   memory"),
    ({"seconds": 2.0, "log_gb": 20.0}, ("--memory", "1"), 0, ""),
    ({"seconds": 2.0, "state": "failed"}, (), 1, "FAILED   finished"),
]


@pytest.mark.parametrize("row", VERIFY)
def test_verify_against_a_golden_report(row, tmp_path, command):
    run, words, code, seen = row
    made(tmp_path, "golden-00000001", 2.0, log_gb=10.0)
    made(tmp_path, "new-00000001", **{"log_gb": 10.0, "seed": 2, **run})
    _, out, _ = command("report", "golden", "--json")
    golden = tmp_path / "golden.json"
    golden.write_text(out)
    for against in (str(golden), "golden"):
        found = command("verify", "new", "--against", against, *words)
        assert found[0] == code, found
        assert seen in found[1]


def test_two_runs_too_small_for_maxtexts_digits_are_equal_in_memory(tmp_path, command):
    made(tmp_path, "golden-00000001", 2.0, log_gb=0.0)
    made(tmp_path, "new-00000001", 2.0, log_gb=0.0)
    code, out, _ = command("verify", "new", "--against", "golden")
    assert (code, "passed   memory" in out) == (0, True)


def test_what_cannot_be_judged_is_no_pass(tmp_path, command):
    made(tmp_path, "golden-00000001", 2.0)
    made(tmp_path, "new-00000001", 2.0)
    code, out, _ = command("verify", "new", "--against", "golden")
    assert code == 1
    assert "UNKNOWN  memory" in out


@pytest.mark.parametrize(
    ("content", "words", "seen"),
    [
        ("{}", (), "holds no report"),
        ("no json", (), "cannot be read"),
        (None, (), "golden.json cannot be read: [Errno 2]"),
        ("{}", ("--time", "fast"), "'fast', wanted a share such as 0.05 or 5%"),
    ],
)
def test_mistakes_are_told(content, words, seen, tmp_path, command):
    made(tmp_path, "new-00000001", 2.0)
    golden = tmp_path / "golden.json"
    if content is not None:
        golden.write_text(content)
    code, _, err = command("verify", "new", "--against", str(golden), *words)
    assert code == 1
    assert seen in err
