"""`correctness`: verdicts on made curves, both runs end to end on this machine, small models that MaxText accepts, and MaxText itself."""

import importlib.util
import json
from pathlib import Path

import pytest

from launcher.cli.main import main
from launcher.report.correctness import REFERENCE, SMALL, Curve, Tolerance, correctness_text, judge

HERE = Path(__file__).resolve().parent
NEEDS_MAXTEXT = pytest.mark.skipif(importlib.util.find_spec("maxtext") is None, reason="MaxText is not installed")


def falling(scale=1.0, slope=0.05, steps=20, gradient=1.0):
    return Curve(
        "made",
        {step: scale * (7 - slope * step) for step in range(steps)},
        dict.fromkeys(range(steps), gradient),
    )


CURVES = [
    (falling(), falling(), ""),
    (falling(), falling(1.005), ""),
    (falling(), falling(1.02), "loss at step 0 differs by 2.00%"),
    (falling(), falling(slope=0.0), "the loss of the path under test does not fall"),
    (falling(slope=0.0), falling(slope=0.0), "the reference itself does not learn"),
    (falling(), falling(gradient=1.2), "median gradient norm differs by 20.00%"),
    (falling(), falling(scale=float("nan")), "differs by inf%"),
    (falling(), Curve("none", {}, {}), "the two runs have no step in common"),
]


@pytest.mark.parametrize(("reference", "candidate", "why"), CURVES)
def test_verdicts(reference, candidate, why):
    found = judge(reference, candidate, Tolerance())
    assert bool(found.reasons) == bool(why)
    assert why in correctness_text(found)


def recorded(name):
    """A run's curve from MaxText's own metrics, 30 steps on two H200."""
    path = HERE.parent / "data" / "correctness" / f"{name}.metrics.jsonl"
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    return Curve(
        name,
        {int(entry["step"]): entry["learning/loss"] for entry in entries},
        {int(entry["step"]): entry["learning/raw_grad_norm"] for entry in entries},
    )


def test_transformer_engines_block_trained_as_the_exact_path_on_two_h200():
    found = judge(recorded("h200x2_exact"), recorded("h200x2_te_bf16"), Tolerance())
    assert (found.reasons, len(found.steps)) == ([], 30)
    assert found.first == pytest.approx(0.00137, rel=0.01)
    assert found.loss == pytest.approx(0.00407, rel=0.01)
    assert found.gradient == pytest.approx(0.0037, rel=0.02)


def test_without_gradient_norms_the_losses_decide():
    found = judge(falling(), Curve("made", falling().losses, {}), Tolerance())
    assert (found.reasons, found.gradient) == ([], None)
    assert "gradients   differ by not known" in correctness_text(found)


@pytest.fixture
def command(tmp_path, capsys, monkeypatch):
    """`correctness` as a person types it, with a trainer that is done at once: exit code, stdout, stderr."""
    monkeypatch.setenv("PYTHONPATH", str(HERE))

    def run(*words, **variables):
        variables = {"PYTHONPATH": str(HERE), **variables}
        made = [f"+env.vars.{name}='{value}'" for name, value in variables.items()]
        words = ("trainer.module=paths_trainer", "trainer.steps=12", "monitor.max_failures=0", *made, *words)
        capsys.readouterr()
        code = main(["correctness", "+exp=moe_tiny_cpu", *words, "--runs", str(tmp_path / "runs")])
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.mark.parametrize(
    ("variables", "code", "seen"),
    [
        ({"OFF": "0.002"}, 0, "correct: both paths train alike"),
        ({"OFF": "0.03"}, 1, "NOT CORRECT: loss at step 0 differs by 3.0"),
        ({"FLAT": "1"}, 1, "the loss of the path under test does not fall"),
        ({"NAN": "1"}, 1, "differs by inf%"),
    ],
)
def test_both_are_trained_and_held_against_each_other(variables, code, seen, command, tmp_path):
    pytest.importorskip("matplotlib")
    page = tmp_path / "page.html"
    found = command("moe=capacity", "--html", str(page), **variables)
    assert found[0] == code, found
    assert seen in found[1]
    assert page.read_text().count("<svg") == 2
    again = command("moe=capacity", "--json", **variables)
    assert again[0] == code  # nothing is trained twice: the runs are there
    assert json.loads(again[1])["passed"] == (code == 0)
    assert len(list((tmp_path / "runs").glob("moe_tiny_cpu-*"))) == 2


def test_the_reference_has_nothing_to_be_held_against(command):
    code, _, err = command()
    assert code == 1
    assert "is the reference already" in err
    assert "moe=dropless mesh.ici.expert=1" in err


def test_a_run_that_failed_is_told_and_judged_by_nobody(command):
    code, out, err = command("moe=capacity", "trainer.module=json.tool")
    assert code == 1, (out, err)
    assert "[CORRECTNESS_RUN]" in err


FAMILIES = ["dsv3_128gpu", "qwen3_30b_a3b_16gpu", "mixtral_8x7b_16gpu", "gpt_oss_120b_32gpu", "kimi_k2_1t_256gpu"]


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_made_small_is_one_node_and_sound(name, capsys):
    assert main(["correctness", f"+exp={name}", "--plan"]) == 0
    assert capsys.readouterr().out.count(f"{name}, small: ") == 2


@pytest.mark.maxtext
@NEEDS_MAXTEXT
@pytest.mark.parametrize(("name", "more"), [*((name, ()) for name in FAMILIES), (FAMILIES[0], REFERENCE)])
def test_maxtext_accepts_the_small_models(name, more, capsys):
    words = [f"+exp={name}", *SMALL, "mesh.ici.expert=4", *more]
    assert main(["preflight", "maxtext", *words]) == 0, capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.maxtext
@NEEDS_MAXTEXT
def test_maxtexts_own_dropless_path_trains_as_the_exact_one(tmp_path, capsys):
    words = ["correctness", "+exp=moe_tiny_cpu", "moe=dropless", "mesh.ici.expert=1", "mesh.ici.fsdp=2"]
    code = main([*words, "--runs", str(tmp_path)])
    assert code == 0, capsys.readouterr()
