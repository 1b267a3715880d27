"""Bytes on the wire, against the collectives of the step that XLA compiled (facts of DeepSeek-V3 on 128 GB200)."""

import pytest

from benchmarks.compiled import case_of
from launcher.config.compose import Composer
from launcher.plan import traffic

COMPOSER = Composer()


def flows(*words: str) -> traffic.Traffic:
    found = traffic.estimate(case_of(COMPOSER, words))
    assert found is not None
    return found


def test_the_experts_weights_are_gathered_as_in_xlas_step() -> None:
    """te_aot: 232 all-gathers over fsdp hand out 327 GB a GPU and step (two a layer and pass), 10.2 GB are scattered out."""
    found = {(f.axis, f.collective, f.what): f for f in flows("+exp=dsv3_128gpu").flows}
    gathered = found["fsdp", "all-gather", "experts' weights"]
    received = gathered.nvlink * 8 / 7 * 8 / 8
    assert received == pytest.approx(327e9, rel=5e-3)
    assert gathered.calls == 116
    scattered = found["fsdp", "reduce-scatter", "gradients of experts' weights"]
    assert scattered.nvlink * 8 / 7 / 16 == pytest.approx(10.2e9, rel=5e-3)


def test_tokens_cross_five_times_when_the_experts_are_replayed() -> None:
    """Dispatch twice, combine once, and the gradients of both: TE's custom calls; none crosses a domain."""
    tokens = next(f for f in flows("+exp=dsv3_128gpu").flows if f.axis == "expert")
    assert tokens.calls == 5 * 58
    assert tokens.nvlink == 5 * 58 * 24576 * 8 * 7168 * 2 * 7 // 8
    assert tokens.network == 0


def test_copies_of_the_model_add_one_all_reduce_between_racks() -> None:
    """XLA, 1,024 GPUs, data 8: a 10.2 GB all-reduce over data; the rest is that of 128 GPUs."""
    small, large = flows("+exp=dsv3_128gpu_fits"), flows("+exp=dsv3_1024gpu")
    added = [f for f in large.flows if f not in small.flows]
    assert [(f.axis, f.collective, f.nvlink) for f in added] == [("data", "all-reduce", 0)]
    assert added[0].network / 2 * 8 / 7 == pytest.approx(10.2e9, rel=0.04)


def test_a_step_of_two_microbatches_gathers_twice() -> None:
    one, two = flows("+exp=dsv3_128gpu"), flows("+exp=dsv3_128gpu", "trainer.gradient_accumulation_steps=2")
    assert two.nvlink == pytest.approx(2 * one.nvlink, rel=1e-6)


@pytest.mark.parametrize("word", ["mesh.ici.tensor", "mesh.ici.context"])
def test_other_axes_have_their_own_flows(word: str) -> None:
    axis = word.rpartition(".")[2]
    found = flows("+exp=dsv3_128gpu", "mesh.ici.fsdp=4", f"{word}=2")
    assert found.of(axis)[0] > 0


def test_a_gather_over_racks_fetches_each_share_once() -> None:
    assert traffic.split(16.0, 8, 1) == (14.0, 0.0)
    assert traffic.split(16.0, 8, 2) == (14.0, 1.0)
    assert traffic.split(16.0, 1, 4) == (0.0, 12.0)


def test_a_token_goes_once_to_a_domain_however_many_of_its_experts_live_there() -> None:
    nvlink, network = traffic.exchanged(1.0, 8, 2.0, 8, 2)
    assert nvlink == 8 * 2 * 7 / 8
    assert network == pytest.approx(2.0 * 2 * (1 - 0.5**8) / 2)
    assert network < traffic.exchanged(1.0, 8, 2.0, 1, 16)[1]
