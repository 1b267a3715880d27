"""`report`: the recorded H200 runs give the figures that were worked out from them by hand, and a made run shows every part."""

import json
import shutil

import pytest
from handmade import add_attempt, make_run
from recorded import FOLDER

from launcher.cli.main import main
from launcher.report.measured import report
from launcher.report.text import as_json, text
from launcher.report.window import Profile, interval

TFLOP, TOKENS = 46.2e12, 4 * 4096
"""Of a step and GPU in the recorded runs (the notes on them; MaxText's line has the tokens)."""

FIGURES = {
    "h200x2_capacity1.25_rank0.log": (0.307, 151),
    "h200x2_te_bf16_lhs_rank0.log": (0.201, 230),
    "h200x2_te_bf16_flash_rank0.log": (0.194, 239),
    "h200x2_te_fp8cs_flash_rank0.log": (0.184, 251),
    "h200x2_te_scan_cured_fp8cs_flash_fullremat_rank0.log": (0.192, 241),
    "h200x2_te_scan_cured_bf16_flash_minimal_rank0.log": (0.189, 244),
    "h200x4_te_bf16_flash_ep2_fsdp2_rank0.log": (0.194, 238),
    "h200x4_te_bf16_flash_ep4_rank0.log": (0.217, 213),
}
"""Log -> seconds a step between the lines of step 3 and the last, and TFLOPS/GPU, as the notes on these runs have them."""


def plan_json(**time):
    numbers = {"flops_per_token": TFLOP / TOKENS, "memory": {"total_bytes": 30 << 30, "limit_bytes": 120 << 30}}
    expected = {"expected_s": 0.2, "low_s": 0.15, "high_s": 0.3, "peak_tflops": 989.0, **time}
    return {
        "hardware": "h200",
        "model": {"name": "deepseek-custom"},
        "mesh": {"gpus": 2, "nodes": 1},
        "batch": {"tokens_per_device": TOKENS},
        "numbers": {**numbers, "time": expected},
    }


def finished(last_step, outcome="finished", code=0):
    return {"outcome": outcome, "code": code, "first_step": 0, "last_step": last_step, "reason": ""}


def run_of_log(root, name, **more):
    log = (FOLDER / name).read_text(encoding="utf-8")
    run = make_run(
        root, name.partition("_rank")[0].replace(".", "-") + "-0000000a", steps=log.count("completed step: ")
    )
    (run.layout.bundle.path / "plan.json").write_text(json.dumps(plan_json(**more)))
    add_attempt(run, log=log, result=finished(log.count("completed step: ") - 1))
    return run


@pytest.mark.parametrize("name", FIGURES)
def test_the_figures_of_the_recorded_runs(name, tmp_path):
    seconds, tflops = FIGURES[name]
    found = report(run_of_log(tmp_path, name))
    assert found.window.mean == pytest.approx(seconds, rel=0.02)
    assert found.tflops(found.window.mean) == pytest.approx(tflops, rel=0.02)
    assert found.mfu(found.window.mean) == pytest.approx(tflops / 989, rel=0.02)
    low, high, enough = found.window.low, found.window.high, len(found.window.counted) >= 6
    assert low < found.window.mean < high if enough else (low, high) == (None, None)
    assert found.window.left_out == {"warm-up": [1, 2, 3], "last": [found.last_step]}


def test_the_last_line_comes_early_and_does_not_count(tmp_path):
    found = report(run_of_log(tmp_path, "h200x2_stock_dropless_rank0.log")).window
    assert found.mean == pytest.approx(4.633, rel=0.002)
    assert found.all_in == pytest.approx(4.505, rel=0.01)


def test_the_log_is_the_clock_because_maxtexts_seconds_jitter(tmp_path):
    found = report(run_of_log(tmp_path, "h200x2_te_bf16_flash_rank0.log")).window
    assert found.by_log
    timeless = make_run(tmp_path / "timeless", "a-0000000a", steps=20)
    lines = "".join(f"completed step: {step}, seconds: 0.5{step % 2}0, loss: 7.0\n" for step in range(20))
    add_attempt(timeless, log=lines, result=finished(19))
    without = report(timeless).window
    assert not without.by_log
    assert without.mean == pytest.approx(0.505, rel=0.01)


def peak_line(device, gib):
    return f"launcher-memory: device {device} peak_bytes_in_use {gib << 30} bytes_limit {130 << 30}\n"


def test_the_peak_is_of_the_fullest_rank_and_of_the_newest_attempt_that_told_it(tmp_path, command):
    run = make_run(tmp_path, "full-0000000a", steps=8)
    (run.layout.bundle.path / "plan.json").write_text(json.dumps(plan_json()))
    steps = log_of(range(8))
    assert report(run).peak is None
    for first, others in ((50, (60,)), (27, (29, 28)), (None, (90,))):
        tail = "" if first is None else peak_line(0, first)
        logs = {rank: steps + peak_line(rank, peak) + "WARNING: and then\n" for rank, peak in enumerate(others, 1)}
        add_attempt(run, log=steps + tail, result=finished(7), rank_logs=logs)
    found = report(run)
    assert found.peak == 29 << 30
    assert (found.state, found.last_step) == ("finished", 7)
    code, out, _ = command("report", run.name)
    assert (code, "memory       peak 29.0 GiB, planned 30.0 GiB, limit 120.0 GiB a GPU" in out) == (0, True), out
    code, out, _ = command("report", run.name, "--json")
    assert json.loads(out)["memory_bytes"] == {
        "peak": 29 << 30,
        "compiled": None,
        "planned": 30 << 30,
        "limit": 120 << 30,
    }


def stamp(seconds):
    minutes, seconds = divmod(seconds, 60)
    return f"I1129 16:{int(minutes):02}:{seconds:09.6f}"


def log_of(steps, *, seconds=2.0, extra=None, marks=None):
    """A log of equal steps. extra: step -> further seconds; marks: step -> text printed in the middle of it."""
    now, lines = 0.0, []
    for step in steps:
        took = seconds + (extra or {}).get(step, 0.0)
        if step in (marks or {}):
            lines.append(f"{stamp(now + took / 2)} 77 checkpointing.py:1] {marks[step]}\n")
        now += took
        lines.append(
            f"{stamp(now)} 77 metric_logger.py:265] completed step: {step}, seconds: {took:.3f}, loss: {7 - step / 100:.3f}\n"
        )
    return "".join(lines)


def test_what_is_no_step_is_left_out_and_named(tmp_path):
    run = make_run(tmp_path, "named-0000000a", steps=60)
    (run.layout.bundle.maxtext).write_text("profiler: xplane\nskip_first_n_steps_for_profiler: 5\nprofiler_steps: 3\n")
    marks = {
        20: "Started an asynchronous checkpoint save for step 19",
        40: "Completed eval after train step 39, avg loss: 1.0",
    }
    extra = {6: 3.0, 20: 4.0, 21: 1.0, 40: 9.0, 50: 5.0}
    add_attempt(run, log=log_of(range(60), extra=extra, marks=marks), result=finished(59))
    found = report(run).window
    assert found.left_out == {
        "warm-up": [1, 2, 3],
        "profiler": [4, 5, 6, 7, 8, 9],
        "checkpoint": [20, 21],
        "evaluation": [40, 41],
        "last": [59],
        "outlier": [50],
    }
    assert found.mean == pytest.approx(2.0)
    assert found.all_in == pytest.approx(2.0 + sum(extra.values()) / 56)


@pytest.mark.parametrize(
    ("extra", "left_out", "mean"),
    [
        ({20: 0.6, 21: -0.5}, [], 2.0 + 0.1 / 35),  # a late line, made up for by the next: both are the steps'
        ({20: 6.0, 21: -1.5}, [20, 21], 2.0),  # a pause, of which the device had done a part ahead
        ({20: 6.0, 21: 0.2}, [20], 2.0 + 0.2 / 34),
        ({20: 0.4, 21: -0.4}, [], 2.0),  # not late enough to be asked
    ],
)
def test_a_late_line_is_a_pause_only_as_far_as_the_next_does_not_make_up_for_it(tmp_path, extra, left_out, mean):
    run = make_run(tmp_path, "late-0000000a", steps=40)
    add_attempt(run, log=log_of(range(40), extra=extra), result=finished(39))
    found = report(run).window
    assert found.left_out.get("outlier", []) == left_out
    assert found.mean == pytest.approx(mean)


def test_without_the_profiler_its_steps_count(tmp_path):
    assert Profile().steps == 0
    run = make_run(tmp_path, "plain-0000000a", steps=30)
    add_attempt(run, log=log_of(range(30)), result=finished(29))
    assert report(run).window.left_out == {"warm-up": [1, 2, 3], "last": [29]}


def test_the_attempt_with_most_steps_is_measured_and_the_later_loss_counts(tmp_path):
    run = make_run(tmp_path, "twice-0000000a", steps=40)
    add_attempt(run, log=log_of(range(10), seconds=9.0), result=finished(9, "trainer", 1))
    add_attempt(run, log=log_of(range(5, 40)), result=finished(39))
    found = report(run)
    assert (found.window.attempt, found.window.mean) == (2, pytest.approx(2.0))
    assert [step for step, _ in found.losses] == list(range(40))
    assert [ended.outcome for ended in found.attempts] == ["trainer", "finished"]
    told = text(found)
    assert "attempt 1    steps 0-9, trainer" in told
    assert "left out: warm-up 6-8; last 39." in told


def test_a_run_that_measured_nothing_says_so(tmp_path):
    run = make_run(tmp_path, "short-0000000a", steps=3)
    add_attempt(run, log=log_of(range(3)), result=finished(2))
    found = report(run)
    assert found.window is None
    assert as_json(found)["speed"] is None
    assert "no step to measure" in text(found)


def test_the_interval_holds_the_true_mean_in_most_of_many_series():
    import random

    draw, hits = random.Random(7), 0
    for _ in range(400):
        level, values = 0.0, []
        for _ in range(60):  # neighbours depend on one another, as steps do
            level = 0.3 * level + draw.gauss(0, 0.05)
            values.append(1.0 + level)
        low, high = interval(values)
        hits += low <= 1.0 <= high
    assert 0.90 <= hits / 400 <= 0.99


def test_the_command_writes_the_same_bytes_twice_and_a_page_without_network(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    run = run_of_log(tmp_path / "runs", "h200x2_te_bf16_flash_rank0.log")
    pages, told = [], []
    for name in ("a.html", "b.html"):
        assert (
            main(["report", run.name, "--runs", str(tmp_path / "runs"), "--json", "--html", str(tmp_path / name)]) == 0
        )
        told.append(capsys.readouterr().out)
        pages.append((tmp_path / name).read_text())
        (run.layout.table).unlink(missing_ok=True)  # it may be removed at any time
    assert pages[0] == pages[1]
    assert told[0] == told[1]
    assert json.loads(told[0])["speed"]["mean"]["tflops_per_gpu"] == pytest.approx(239, rel=0.02)
    assert pages[0].count("<svg") == 2 + (report(run).goodput.wall > 0)
    assert "src=" not in pages[0]
    assert "<script" not in pages[0]


def test_a_page_that_cannot_be_written_is_told(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    run = run_of_log(tmp_path / "runs", "h200x2_te_bf16_flash_rank0.log")
    assert main(["report", run.name, "--runs", str(tmp_path / "runs"), "--html", "/dev/null/x.html"]) == 1
    assert "--html /dev/null/x.html cannot be written" in capsys.readouterr().err


BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def test_a_real_browser_shows_the_page(tmp_path):
    pytest.importorskip("matplotlib")
    import subprocess

    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip("no Chromium here")
    run = run_of_log(tmp_path / "runs", "h200x2_te_bf16_flash_rank0.log")
    path, picture = tmp_path / "report.html", tmp_path / "report.png"
    assert main(["report", run.name, "--runs", str(tmp_path / "runs"), "--html", str(path)]) == 0
    common = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path / 'profile'}",
        "--window-size=1000,1600",
    ]
    done = subprocess.run([*common, "--dump-dom", path.as_uri()], capture_output=True, text=True, timeout=120)
    assert "TFLOPS/GPU" in done.stdout, done.stderr
    subprocess.run([*common, f"--screenshot={picture}", path.as_uri()], check=True, capture_output=True, timeout=120)
    import PIL.Image

    colours = PIL.Image.open(picture).convert("RGB").getcolors(1 << 20)
    found = {colour for _, colour in colours}
    assert (0x1B, 0x6C, 0xA8) in found  # the plots' lines are drawn
