"""Step times: never below the floor, near what was published, and honest about how near."""

import importlib.util
import math

import pytest

from benchmarks.compiled import case_of
from benchmarks.published import Point, newest, points
from launcher.config.compose import Composer
from launcher.plan import numbers, throughput

COMPOSER = Composer()
POINTS = list(points())


def time(*words: str) -> throughput.Throughput:
    found = throughput.estimate(case_of(COMPOSER, words))
    assert found is not None
    return found


def test_no_published_step_is_faster_than_its_floor() -> None:
    assert len(POINTS) > 180
    faster = [p.name for p in POINTS if throughput.floor(p.work, p.hardware) > p.seconds]
    assert not faster


def test_published_rates_are_recovered_from_times() -> None:
    """Where a row has both, its FLOP by our count over its time is its TFLOPS: layouts, tokens and models are read right."""
    for point in POINTS:
        if point.row["step_time_s"] and point.row["model"].startswith(("DeepSeekV3", "LLAMA", "Qwen3_235B")):
            assert point.tflops == pytest.approx(float(point.row["tflops_per_gpu"]), rel=0.1), point.name


def test_the_articles_steps_are_predicted_without_ever_being_fitted() -> None:
    rows = [p for p in newest(POINTS) if p.article]
    assert {p.gpus for p in rows} == {128, 1024}
    told = throughput.constants()
    for point in rows:
        given = {**told["fixed"], **told["fitted"]}
        ratio = point.seconds / sum(throughput.terms(point.work, point.hardware, given).values())
        assert abs(ratio - 1) <= 0.2, point.name
        assert told["band"]["low"] <= ratio <= told["band"]["high"]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("scipy") is None, reason="scipy is not installed (it comes with jax)")
def test_rows_that_the_fit_has_not_seen() -> None:
    from benchmarks.prediction import covered, mape
    from tools.fit_prediction import left_out, ratios

    recent = newest(POINTS)
    unseen = left_out([p for p in recent if not p.article])
    never = ratios([p for p in recent if p.article], throughput.constants()["fitted"])
    assert mape([ratio for _, ratio in unseen] + never) <= 20
    assert covered(unseen, never) >= 85


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("scipy") is None, reason="scipy is not installed (it comes with jax)")
def test_the_shipped_constants_are_those_of_the_fit_script() -> None:
    from benchmarks.compiled import rows
    from launcher.plan import memory
    from tools.fit_prediction import fit_memory, fit_throughput

    shipped = throughput.constants()["fitted"]
    for name, value in fit_throughput([p for p in newest(POINTS) if not p.article]).items():
        assert value == pytest.approx(shipped[name], rel=0.02), name
    for name, value in fit_memory(list(rows())).items():
        assert value == pytest.approx(memory.constants()["factors"][name], rel=0.05), name


def test_terms_add_up_and_the_band_holds_the_expected_time() -> None:
    found = time("+exp=dsv3_128gpu")
    assert sum(found.terms.values()) == pytest.approx(found.expected)
    assert found.floor < found.low < found.expected < found.high
    assert found.flops / 1e12 == pytest.approx(6155.06, rel=1e-5)
    assert found.tflops(5.763) == pytest.approx(1068, rel=1e-3)
    assert found.peak == 4900e12


def test_a_second_half_of_the_batch_takes_about_as_long() -> None:
    one, two = time("+exp=dsv3_128gpu", "trainer.per_device_batch_size=3"), time("+exp=dsv3_128gpu")
    assert 1.9 < two.expected / one.expected < 2.05


@pytest.mark.parametrize("word", ["remat=full", "precision=te_bf16", "moe.ragged_buffer_factor=2.0"])
def test_more_work_takes_longer(word: str) -> None:
    before, after = time("+exp=dsv3_128gpu_fits"), time("+exp=dsv3_128gpu_fits", word)
    longer = word != "moe.ragged_buffer_factor=2.0"
    assert (after.expected > before.expected) is longer
    assert math.isclose(after.flops, before.flops)


def test_replaying_attention_costs_its_share() -> None:
    kept, again = (
        case_of(COMPOSER, ("+exp=dsv3_128gpu",)),
        case_of(COMPOSER, ("+exp=dsv3_128gpu", "remat.context=remat")),
    )
    assert throughput.replay(kept)["core"] == 0.0
    assert throughput.replay(again)["core"] == 1.0
    assert throughput.replay(kept)["experts"] == 1.0


def test_a_calibrated_prediction_is_scaled_and_its_band_is_narrow() -> None:
    case = case_of(COMPOSER, ("+exp=dsv3_128gpu_fits",))
    plain = numbers.of(case)
    assert plain is not None
    assert plain.throughput is not None
    found = numbers.calibrated(plain, case, 0.9, 3).throughput
    assert found is not None
    assert found.expected == pytest.approx(0.9 * plain.throughput.expected)
    assert found.high / found.low < plain.throughput.high / plain.throughput.low
    assert found.runs == 3


def test_a_calibration_never_beats_the_floor() -> None:
    found = throughput.estimate(case_of(COMPOSER, ("+exp=dsv3_128gpu",)), 0.01, 1)
    assert found is not None
    assert found.expected == found.floor


def test_a_cpu_has_no_step_time() -> None:
    assert throughput.estimate(case_of(COMPOSER, ("+exp=moe_tiny_cpu",))) is None


def test_a_gpu_without_a_format_runs_the_next_wider_one() -> None:
    hopper = next(p.hardware for p in POINTS if p.row["gpu"] == "H100")
    assert throughput.peak(hopper, "fp4") == hopper.peak_fp8


def test_points_are_of_known_models_only() -> None:
    assert all(isinstance(p, Point) and p.seconds > 0 for p in POINTS)
    assert not [p for p in POINTS if "Nemotron" in p.row["model"]]
