"""`scaling` on the recorded runs of 2 and 4 GPUs, and what it refuses."""

import json

import pytest
from handmade import add_attempt, make_run
from test_report import finished, log_of, plan_json, run_of_log

from launcher.cli.main import main
from launcher.report.measured import report
from launcher.report.scaling import scaling, scaling_text

TWO = "h200x2_te_bf16_flash_rank0.log"


def sized(root, name, gpus, **more):
    run = run_of_log(root, name)
    plan = plan_json(**more)
    plan["mesh"]["gpus"] = gpus
    (run.layout.bundle.path / "plan.json").write_text(json.dumps(plan))
    return report(run)


@pytest.mark.parametrize(
    ("four", "efficiency"),
    [("h200x4_te_bf16_flash_ep2_fsdp2_rank0.log", 1.0), ("h200x4_te_bf16_flash_ep4_rank0.log", 0.89)],
)
def test_the_recorded_runs_scale_as_was_worked_out_by_hand(four, efficiency, tmp_path):
    found = scaling([sized(tmp_path, four, 4, expected_s=0.25), sized(tmp_path, TWO, 2)])
    small, large = found.sizes
    assert (small.gpus, small.efficiency, small.low) == (2, 1.0, None)
    assert large.efficiency == pytest.approx(efficiency, abs=0.015)
    assert large.low < large.efficiency < large.high
    assert large.predicted == pytest.approx(0.8)
    assert (found.matched, found.weak, small.steps == large.steps) == (True, True, True)
    assert "97% at 1,024 GPUs" in scaling_text(found)


def test_runs_without_common_steps_and_of_other_batches_are_called_so(tmp_path):
    late = make_run(tmp_path, "late-0000000a", steps=300)
    plan = plan_json()
    plan["mesh"]["gpus"], plan["batch"]["tokens_per_device"] = 8, 8192
    (late.layout.bundle.path / "plan.json").write_text(json.dumps(plan))
    add_attempt(late, log=log_of(range(100, 300)), result=finished(299))
    told = scaling_text(scaling([sized(tmp_path, TWO, 2), report(late)]))
    assert "windows: each run's own" in told
    assert "this is no weak scaling" in told


def test_the_command_and_its_page(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    sized(tmp_path, TWO, 2)
    sized(tmp_path, "h200x4_te_bf16_flash_ep4_rank0.log", 4)
    page = tmp_path / "scaling.html"
    words = ["scaling", "h200x2", "h200x4", "--runs", str(tmp_path), "--html", str(page)]
    assert main([*words, "--json"]) == 0
    assert [size["gpus"] for size in json.loads(capsys.readouterr().out)["sizes"]] == [2, 4]
    first = page.read_bytes()
    assert main(words) == 0
    assert page.read_bytes() == first
    assert first.count(b"<svg") == 1


def test_one_size_or_nothing_measured_is_refused(tmp_path, capsys):
    sized(tmp_path, TWO, 2)
    sized(tmp_path, "h200x2_te_bf16_lhs_rank0.log", 2)
    short = make_run(tmp_path, "short-0000000a", steps=2)
    add_attempt(short, log=log_of(range(2)), result=finished(1))
    assert main(["scaling", "h200x2_te_bf16_flash", "h200x2_te_bf16_lhs", "--runs", str(tmp_path)]) == 1
    assert "all of these runs have 2 GPUs: scaling wants two sizes or more" in capsys.readouterr().err
    assert main(["scaling", "h200x2_te_bf16_flash", "short", "--runs", str(tmp_path)]) == 1
    assert "short-0000000a has no step to measure" in capsys.readouterr().err
