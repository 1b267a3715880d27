"""Calibration: what finished runs say, what says nothing, and the file between commands."""

import json

import pytest
from handmade import add_attempt, make_run, step_line

from launcher.plan.numbers import Kind
from launcher.runs import calibration
from launcher.runs.measured import measure
from launcher.runs.status import status_of
from launcher.runs.store import RunsError

KIND = {"cluster": "slurm gb200_nvl72 gb200_ib", "container": "image:1", "model": "deepseek te te_mxfp8"}


def finished(root, name, *, seconds=7.8, expected=6.5, steps=15, result=None, plan=True):
    run = make_run(root, name, steps=steps)
    if plan:
        numbers = {"kind": KIND, "time": {"expected_s": expected} if expected else None}
        (run.layout.bundle.path / "plan.json").write_text(json.dumps({"numbers": numbers}))
    log = "".join(step_line(step, seconds=90.0 if step < 3 else seconds) for step in range(steps))
    add_attempt(run, log=log, result=result or {"outcome": "finished", "code": 0, "last_step": steps - 1, "reason": ""})
    return run


def measured(run):
    return measure(run, status_of(run))


def test_a_finished_run_says_how_much_slower_than_expected(tmp_path) -> None:
    found = measured(finished(tmp_path, "demo-00000001"))
    assert isinstance(found, calibration.Measured), found
    assert found.factor == pytest.approx(1.2)
    assert found.kind == Kind(**KIND)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"steps": 6}, "3 steps to measure"),
        ({"expected": None}, "expects no step time"),
        ({"plan": False}, "expects no step time"),
        ({"expected": 0.01}, "hardware file"),
        ({"result": {"outcome": "failed", "code": 1, "last_step": 14, "reason": "x"}}, "not finished"),
    ],
)
def test_what_says_nothing_is_told_why(tmp_path, changes, why) -> None:
    found = measured(finished(tmp_path, "demo-00000002", **changes))
    assert isinstance(found, str)
    assert why in found


def test_the_median_of_runs_and_the_file(tmp_path) -> None:
    path = tmp_path / "deep" / "calibration.json"
    assert calibration.load(path).runs == {}
    runs = [measured(finished(tmp_path, f"demo-0000001{n}", seconds=s)) for n, s in enumerate((6.5, 7.15, 13.0))]
    calibration.save(path, calibration.learned(calibration.load(path), runs))
    again = calibration.load(path)
    assert again.of(Kind(**KIND)) == (pytest.approx(1.1), 3)
    assert again.of(Kind("other", "image:1", "deepseek te te_mxfp8")) is None
    kept = calibration.learned(again, [measured(finished(tmp_path, "demo-00000019", seconds=6.5))])
    assert kept.of(Kind(**KIND))[1] == 4


def test_a_run_learned_twice_counts_once(tmp_path) -> None:
    one = measured(finished(tmp_path, "demo-00000021"))
    known = calibration.learned(calibration.learned(calibration.Calibration({}), [one]), [one])
    assert known.of(Kind(**KIND))[1] == 1


@pytest.mark.parametrize("text", ["{", "[]", '{"kinds": [{"cluster": "x"}]}', '{"kinds": 5}'])
def test_a_damaged_file_is_told(tmp_path, text) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(text)
    with pytest.raises(RunsError):
        calibration.load(path)


def test_where_the_file_lies(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("LAUNCHER_CALIBRATION", str(tmp_path / "c.json"))
    assert calibration.file() == tmp_path / "c.json"
    monkeypatch.delenv("LAUNCHER_CALIBRATION")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert calibration.file() == tmp_path / "launcher" / "calibration.json"
