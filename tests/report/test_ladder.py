"""`ladder`: rungs over any experiment, what cannot run is left out and said, no gain inside the noise; end to end on this machine."""

import json
import random
import tomllib
from pathlib import Path

import pytest
from test_compare import made

from launcher.cli.main import main
from launcher.config.compose import Composer
from launcher.issue import Refused
from launcher.plan.plan import make
from launcher.report.ladder import Step, ladder_json, ladder_text, of_told, rows
from launcher.report.measured import report
from launcher.report.rungs import TABLE, between, read, stages
from launcher.report.text import as_json

HERE = Path(__file__).resolve().parent
ARTICLES_ORDER = ["baseline", "grouped_gemm", "multistream", "mxfp8", "offload", "expert_parallelism"]


@pytest.fixture(scope="module")
def planned():
    composer = Composer()

    def plan(words):
        composed = composer.compose(words)
        if composed.experiment is None:
            raise Refused(*composed.issues)
        return make(composed.experiment)

    return plan


def left_out(planned, *words):
    return {stage.rung.name: stage.left_out for stage in stages(read(()), words, planned)}


def test_the_articles_order_with_a_source_each():
    rungs = read(())
    assert [rung.name for rung in rungs] == ARTICLES_ORDER
    assert all(rung.source and rung.adds for rung in rungs)


def test_on_gb200_each_rung_keeps_what_those_below_it_chose(planned):
    found = stages(read(()), ("+exp=dsv3_128gpu_fits", "trainer.per_device_batch_size=1"), planned)
    by_name = {stage.rung.name: stage for stage in found}
    assert by_name["multistream"].words == (
        "+exp=dsv3_128gpu_fits",
        "trainer.per_device_batch_size=1",
        "moe=te",
        "precision=te_bf16",
        "xla=multistream",
        "remat=full",
        "name=dsv3_128gpu_fits_multistream",
    )
    last = by_name["offload"].plan.experiment
    assert (last.precision.te_gmm_quantization, last.remat.context) == ("te_mxfp8", "offload")
    assert by_name["offload"].left_out == ""
    assert "public MaxText" in by_name["expert_parallelism"].left_out


# experiment's words -> rung -> what is said of it; "" = it can run.
LEFT_OUT = [
    (("+exp=dsv3_128gpu_fits",), "baseline", "OVER: the step needs"),
    (("+exp=dsv3_128gpu_fits",), "mxfp8", ""),
    (
        ("+exp=deepseek2_16b_16gpu", "hardware=h200_hgx", "nodes=2", "mesh.ici.fsdp=1", "mesh.dcn.fsdp=2"),
        "mxfp8",
        "mxfp8",
    ),
    (("+exp=deepseek2_16b_16gpu", "hardware=h200_hgx", "nodes=2", "mesh.ici.fsdp=1", "mesh.dcn.fsdp=2"), "offload", ""),
    (("+exp=qwen3_30b_a3b_16gpu",), "grouped_gemm", "norm_topk_prob"),
    (("+exp=moe_tiny_cpu",), "baseline", "ragged-all-to-all"),
    (("+exp=moe_tiny_cpu",), "multistream", "it is for gpu, and this is cpu"),
    (("+exp=dsv3_128gpu_fits", "xla=stock"), "multistream", "it changes nothing here"),
]


@pytest.mark.parametrize(("words", "rung", "seen"), LEFT_OUT)
def test_what_cannot_run_is_left_out_and_said(words, rung, seen, planned):
    said = left_out(planned, *words)[rung]
    assert seen in said if seen else said == ""


def test_what_is_left_out_leaves_no_words_to_those_above(planned):
    words = LEFT_OUT[2][0]
    offload = stages(read(()), words, planned)[4]
    assert "precision=te_bf16" in offload.words
    assert offload.plan.experiment.precision.te_gmm_quantization == "te_no_quant"


def test_the_name_is_left_to_whom_it_is_given(planned):
    found = stages(read(())[:2], ("+exp=dsv3_128gpu_fits", "name=mine"), planned)
    assert {stage.plan.experiment.name for stage in found} == {"mine"}


def test_from_and_to():
    rungs = read(())
    assert between(rungs, None, None) == (0, 5)
    assert between(rungs, "grouped_gemm", "mxfp8") == (1, 3)
    for first, last, seen in (("mxfp9", None, "no such rung"), ("mxfp8", "baseline", "lies below")):
        with pytest.raises(Refused, match=seen):
            between(rungs, first, last)


TABLES = [
    ("", "holds no"),
    ("rung = 1", "cannot be read"),
    ("[[rung]]\nname = 'a'\n", "has no `words`"),
    ("[[rung]]\nname = 'a'\nwords = ['te']\nadds = ''\nsource = ''\n", "wanted a list of overrides"),
    ("[[rung]]\nname = 'a'\nwords = []\nadds = ''\nsource = ''\nspeed = 2\n", "has `speed`"),
    ("[[rung]]\nname = 'a'\nwords = []\nadds = ''\nsource = ''\n" * 2, "the rung a 2 times"),
    ("[[rung", "cannot be read"),
]


@pytest.mark.parametrize(("text", "seen"), TABLES)
def test_a_ladder_of_ones_own_is_checked(text, seen, tmp_path):
    (tmp_path / "ladder.toml").write_text(text)
    with pytest.raises(Refused, match=seen):
        read((tmp_path,))


def test_the_launchers_own_table_is_what_is_read_without_another(tmp_path):
    assert [rung["name"] for rung in tomllib.loads(TABLE.read_text())["rung"]] == [
        rung.name for rung in read((tmp_path,))
    ]


def step_of(root, name, seconds, **more):
    return of_told(as_json(report(made(root, name, seconds, **more))))


def test_nothing_is_called_a_gain_inside_the_noise(tmp_path):
    wrong = 0
    for seed in range(20):
        steps = [
            step_of(tmp_path, f"one-{seed:08x}", 2.0, seed=seed),
            step_of(tmp_path, f"two-{seed:08x}", 2.0, seed=100 + seed),
            step_of(tmp_path, f"three-{seed:08x}", 1.0, seed=200 + seed),
        ]
        found = rows(steps)
        wrong += found[1].gain.verdict != "no difference beyond the noise"
        assert found[2].gain.value == pytest.approx(2, rel=0.02)
        assert found[2].gain.verdict == "faster"
    assert wrong <= 4  # 5 % of 20 is one


def test_each_is_held_against_the_measured_one_before_and_the_first(tmp_path):
    a, b, c = (step_of(tmp_path, f"{name}-00000001", s) for name, s in (("a", 4.0), ("b", 2.0), ("c", 1.0)))
    gap = Step("gap", left_out="it cannot")
    found = rows([a, gap, b, Step("late", expected=3.0), c])
    assert [row.against for row in found] == ["", "", a.name, "", b.name]
    assert found[4].gain.value == pytest.approx(2, rel=0.02)
    assert found[4].total.value == pytest.approx(4, rel=0.02)
    told = ladder_text([a, gap, b, Step("late", expected=3.0), c])
    assert "left out: it cannot" in told
    assert "103 -> 1,068 TFLOPS/GPU (x10.4)" in told
    assert "not run" in told


def test_more_tokens_a_step_are_no_loss(tmp_path):
    a, b = step_of(tmp_path, "a-00000001", 1.0), step_of(tmp_path, "b-00000001", 2.0)
    (told,) = b.rounds
    twice = {**told, "per_step_and_gpu": {**told["per_step_and_gpu"], "tokens": 2 * a.tokens}}
    assert rows([a, of_told(twice)])[1].gain.value == pytest.approx(1, rel=0.02)


OWN = """
[[rung]]
name = "plain"
words = ["trainer.learning_rate=1.0e-2"]
adds = "as it comes"
source = "this test"

[[rung]]
name = "broken"
words = ["moe=te"]
adds = "what a CPU has not"
source = "this test"

[[rung]]
name = "fast"
words = ["trainer.learning_rate=1.0e-4"]
adds = "steps of three quarters"
source = "this test"

[[rung]]
name = "placebo"
words = ["env.vars.S_PLACEBO=1"]
adds = "nothing"
source = "this test"
"""


def of_rounds(root, name, *seconds, **more):
    """A rung of a run in each round; None = there is none in that one."""
    some = [step_of(root, f"{name}_{n}-00000001", s, seed=n, **more) if s else None for n, s in enumerate(seconds, 1)]
    return Step(name, rounds=[step.rounds[0] if step else {} for step in some])


def test_rounds_are_held_against_each_other_one_by_one(tmp_path):
    """A machine that gets slower from round to round slows both; what is left is the gain, with the noise between runs."""
    a = of_rounds(tmp_path, "a", 2.0, 2.4, 3.0, noise=0.001)
    b = of_rounds(tmp_path, "b", 1.0, 1.2, 1.5, noise=0.001)
    row = rows([a, b])[1]
    assert row.gain.value == pytest.approx(2, rel=0.002)
    assert row.gain.high - row.gain.low < 0.01
    assert (a.seconds, b.seconds) == (pytest.approx(7.4 / 3, rel=0.002), pytest.approx(3.7 / 3, rel=0.002))
    told = ladder_text([a, b])
    assert "(3 runs: " in told
    assert "; of runs of one round each against each other" in told
    assert [run["run"] for run in ladder_json([a, b])["rungs"][1]["runs"]] == [f"b_{n}-00000001" for n in (1, 2, 3)]


def test_a_gain_that_does_not_come_again_is_none(tmp_path):
    """Each run's own steps are sure of 10 %; from run to run it is now more, now less."""
    a = of_rounds(tmp_path, "a", 2.0, 2.0, 2.0, noise=0.001)
    once = of_rounds(tmp_path, "b", 1.8, noise=0.001)
    again = of_rounds(tmp_path, "c", 1.8, 2.2, 1.9, noise=0.001)
    assert rows([a, once])[1].gain.verdict == "faster"
    assert rows([a, again])[1].gain.verdict == "no difference beyond the noise"


@pytest.mark.parametrize(
    ("first", "second", "value"),
    [((2.0, 2.0), (None, 1.0), 2), ((2.0, None), (None, 1.0), 2), ((2.0, 2.0, 4.0), (1.0, None, 2.0), 2)],
)
def test_a_round_that_is_missing_is_left_out(first, second, value, tmp_path):
    a, b = of_rounds(tmp_path, "a", *first), of_rounds(tmp_path, "b", *second)
    assert rows([a, b])[1].gain.value == pytest.approx(value, rel=0.03)


def test_of_equal_rungs_few_are_called_different(tmp_path):
    """Runs differ by 1 % among themselves, ten times what their own steps make them."""
    draw, wrong = random.Random(1), 0
    for trial in range(20):
        a, b = (
            of_rounds(tmp_path / str(trial), name, *(2 * draw.gauss(1, 0.01) for _ in range(3)), noise=0.001)
            for name in "ab"
        )
        wrong += rows([a, b])[1].gain.verdict != "no difference beyond the noise"
    assert wrong <= 4  # 5 % of 20 is one


@pytest.fixture
def command(tmp_path, capsys, monkeypatch):
    """A command as a person types it, with a ladder of one's own: exit code, stdout, stderr."""
    conf = tmp_path / "conf"
    conf.mkdir()
    (conf / "ladder.toml").write_text(OWN)
    monkeypatch.setenv("LAUNCHER_CONF", str(conf))

    def run(*words):
        capsys.readouterr()
        code = main([*words, "--runs", str(tmp_path / "runs")])
        out, err = capsys.readouterr()
        return code, out, err

    return run


TINY = [
    "+exp=moe_tiny_cpu",
    "trainer.module=ladder_trainer",
    "trainer.steps=60",
    "checkpoint=none",
    "monitor.max_failures=0",
    f"env.vars.PYTHONPATH={HERE}",
]


def test_a_ladder_end_to_end_on_this_machine(command, tmp_path):
    code, out, _ = command("ladder", *TINY)
    assert code == 0
    assert out.count("not run") == 3
    code, out, err = command("ladder", *TINY, "--submit")
    assert code == 0, err
    assert "[3/3] placebo" in out
    code, out, _ = command("ladder", *TINY, "--json")
    rungs = {rung["rung"]: rung for rung in json.loads(out)["rungs"]}
    assert "Transformer Engine runs on NVIDIA GPUs only" in rungs["broken"]["left_out"]
    assert rungs["broken"]["run"] == ""
    assert rungs["fast"]["gain"]["value"] == pytest.approx(4 / 3, rel=0.02)
    assert rungs["fast"]["against"] == "plain"
    assert rungs["placebo"]["gain"]["verdict"] == "no difference beyond the noise"
    assert rungs["placebo"]["gain_over_first"]["value"] == pytest.approx(4 / 3, rel=0.02)
    assert rungs["fast"]["run"].startswith("moe_tiny_cpu_fast-")
    before = sorted(path.name for path in (tmp_path / "runs").iterdir())
    code, out, _ = command("ladder", *TINY, "--submit")  # again: all of it is there
    assert code == 0
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == before
    named = [rung["run"] for rung in rungs.values() if rung["run"]]
    code, out, _ = command("ladder", *named)
    assert code == 0
    assert "no difference beyond the noise" in out


def test_a_ladder_in_rounds_on_this_machine(command, tmp_path):
    words = ["ladder", *TINY, "--from", "fast", "--rounds", "2"]
    code, out, err = command(*words, "--submit")
    assert code == 0, err
    order = [line.partition("]")[2].split(":")[0].strip() for line in out.splitlines() if line.startswith("[")]
    assert order == ["fast", "placebo", "fast", "placebo"]
    assert "[4/4] placebo: env.vars.S_PLACEBO=1 (round 2 of 2)" in out
    code, out, _ = command(*words, "--json")
    rungs = {rung["rung"]: rung for rung in json.loads(out)["rungs"]}
    names = [run["run"].rpartition("-")[0] for run in rungs["placebo"]["runs"]]
    assert names == ["moe_tiny_cpu_placebo", "moe_tiny_cpu_placebo_2"]
    seconds = [run["seconds"] for run in rungs["fast"]["runs"]]
    assert seconds[0] != seconds[1]
    assert rungs["fast"]["seconds"] == pytest.approx(sum(seconds) / 2, rel=1e-4)
    assert rungs["placebo"]["gain"]["verdict"] == "no difference beyond the noise"
    code, out, _ = command("ladder", *TINY, "--from", "fast", "--json")
    assert [len(rung["runs"]) for rung in json.loads(out)["rungs"]] == [1, 1], "one round is the first of them"
    before = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert command(*words, "--submit")[0] == 0
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == before


def test_the_page_has_the_bars_and_the_same_bytes_twice(command, tmp_path):
    pytest.importorskip("matplotlib")
    steps = [step_of(tmp_path / "runs", f"{name}-00000001", s) for name, s in (("a", 2.0), ("b", 1.0))]
    page = tmp_path / "ladder.html"
    words = ("ladder", "a", "b", "--html", str(page))
    assert command(*words)[0] == 0
    first = page.read_text()
    assert command(*words)[0] == 0
    assert page.read_text() == first
    assert first.count("<svg") == 1
    assert "article: 103" in first
    assert json.dumps(ladder_json(steps)["article_tflops_per_gpu"]) == "[103.0, 1068.0]"


def test_mistakes_are_told(command, tmp_path):
    made(tmp_path / "runs", "a-00000001", 2.0)
    for words, seen in (
        (("a", "+exp=moe_tiny_cpu"), "a is a run; +exp=moe_tiny_cpu goes with an experiment"),
        (("a", "--submit"), "--submit goes with an experiment"),
        (("+exp=moe_tiny_cpu", "--from", "plane"), "did you mean plain?"),
        (("+exp=moe_tiny_cpu", "--from", "broken", "--to", "broken", "--submit"), "Transformer Engine runs on NVIDIA"),
        (("+exp=moe_tiny_cpu", "--submit", "--json"), "not allowed with"),
        (("a", "--rounds", "2"), "--rounds goes with an experiment"),
        (("+exp=moe_tiny_cpu", "--rounds", "0"), "'0', wanted a whole number from 1 on"),
        (("+exp=moe_tiny_cpu", "--round", "2"), "did you mean --rounds?"),
        (("nothing",), "there is no run nothing"),
    ):
        code, _, err = command("ladder", *words)
        assert code == 1, words
        assert seen in err, words


def test_without_words_the_rungs_are_shown(command):
    code, out, _ = command("ladder")
    assert code == 0
    assert "placebo: env.vars.S_PLACEBO=1" in out
