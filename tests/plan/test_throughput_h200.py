"""Step times against what was measured on H200s (launcher/data/prediction/measured.csv)."""

import dataclasses
import itertools
from datetime import datetime
from pathlib import Path

import pytest

from benchmarks.compiled import case_of
from benchmarks.measured import Measured, rows
from launcher.config.compose import Composer
from launcher.plan import flops, throughput
from launcher.plan.case import Case

ROOT = Path(__file__).parents[2]
COMPOSER = Composer()
ROWS = list(rows())
RECORDED = [row for row in ROWS if row.source.endswith(".log")]
SMALL = "+exp=h200_moe_small_2gpu"


def case(*words: str) -> Case:
    return case_of(COMPOSER, words)


def terms(*words: str) -> dict[str, float]:
    found = throughput.estimate(case(*words))
    assert found is not None
    return dict(found.terms)


def told(row: Measured) -> str:
    return " ".join(row.words)


@pytest.mark.parametrize("row", ROWS, ids=told)
def test_a_measured_step_is_predicted(row: Measured) -> None:
    assert abs(row.ratio - 1) <= 0.2
    assert row.predicted.floor < row.seconds
    assert row.predicted.low <= row.seconds <= row.predicted.high


@pytest.mark.parametrize("row", RECORDED, ids=told)
def test_a_measured_step_is_that_of_its_log(row: Measured) -> None:
    """Time of the log's lines from step 3 to the last: the `seconds:` of fast steps jitter."""
    lines = (ROOT / row.source).read_text(encoding="utf-8").splitlines()
    at = [datetime.strptime(line.split()[1], "%H:%M:%S.%f") for line in lines if "completed step:" in line]
    assert (at[-1] - at[3]).total_seconds() / (len(at) - 4) == pytest.approx(row.seconds, rel=0.04)


def test_the_order_of_the_paths_is_the_measured_one() -> None:
    """Fused attention, unfused attention, capacity: within one sitting and experiment."""
    found = [row for row in ROWS if row.date == "2026-11-30" and row.words[0] == SMALL]
    found.sort(key=lambda row: row.seconds)
    assert len(found) == 3
    assert all(b.predicted.expected > a.predicted.expected for a, b in itertools.pairwise(found))


def test_ragged_dot_multiplies_every_row_by_every_local_expert() -> None:
    """32 local experts, and room for all tokens of both GPUs: 64 times the useful work, in forward, replay and backward."""
    doing = throughput.work(case(SMALL, "moe=dropless", "precision=bf16"))
    assert doing.replay["experts"] == 1.0
    assert doing.masked == pytest.approx(64 * doing.flops["experts"] * 4 / 3)
    # XLA's compiled step: 739 GB a layer go through memory in masked copies.
    assert doing.masked_bytes / 4 * throughput.constants()["fixed"]["masked_passes"] == pytest.approx(739e9, rel=0.02)
    assert throughput.work(case(SMALL)).masked == 0.0


def test_attention_without_a_fused_kernel_pays_for_its_scores() -> None:
    fused, unfused = (
        throughput.work(case(SMALL, f"trainer.attention={name}")) for name in ("cudnn_flash_te", "dot_product")
    )
    assert fused.scores == 0.0
    assert unfused.scores == 3 * 5 * 4 * 16 * 4096**2
    assert fused.flops == unfused.flops


@pytest.mark.parametrize(
    ("experiment", "outputs", "received"),
    [("+exp=h200_moe_2gpu", 344_320, 25.9e9), (SMALL, 90_688, 4.52e9)],
)
def test_activations_gathered_as_in_xlas_step(experiment: str, outputs: int, received: float) -> None:
    """XLA's compiled steps: all-gathers without those of weights, and all-to-alls, received by one of two GPUs."""
    asked = case(experiment, "precision=te_bf16")
    assert flops.dense_outputs(asked.shape) == outputs
    share = throughput.constants_of(asked.experiment.hardware)["regathered"]
    assert share * throughput.work(asked).gathered[0] == pytest.approx(received, rel=0.05)
    assert "activations gathered" not in terms(experiment, "moe=capacity", "precision=bf16")


def test_a_wider_expert_axis_gathers_more() -> None:
    four = terms(SMALL, "hardware.gpus_per_node=4", "mesh.ici.expert=4")
    assert four["activations gathered"] == pytest.approx(3 * terms(SMALL)["activations gathered"])


EIGHT = ("hardware.gpus_per_node=8", "env.vars.XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB=20")


@pytest.mark.parametrize(
    ("ranks", "received"), [(4, 68.48e9 - 5.24e9 + 8.23e9), (8, 156.04e9 - 4.88e9 + 9.60e9)], ids=["EP 4", "EP 8"]
)
def test_the_gathers_of_wider_expert_axes_are_those_of_xlas_step(ranks: int, received: float) -> None:
    """h200_moe_2gpu compiled for 4 and 8 H200s: all-gathers without those of weights, and all-to-alls. They grow a little less."""
    words = (EIGHT[0].replace("8", str(ranks)), EIGHT[1], f"mesh.ici.expert={ranks}", "trainer.steps=16")
    asked = case("+exp=h200_moe_2gpu", *words)
    share = throughput.constants_of(asked.experiment.hardware)["regathered"]
    assert share * throughput.work(asked).gathered[0] == pytest.approx(received, rel=0.15)


@pytest.mark.parametrize("sizes", [(2, 4), (4, 2)], ids=["EP 2 x FSDP 4", "EP 4 x FSDP 2"])
def test_with_fsdp_beside_it_the_expert_axis_gathers_no_activations(sizes: tuple[int, int]) -> None:
    """Compiled for 8 H200s: 5 GB of all-gathers over expert (those of weights), where EP 8 alone has 156."""
    words = (*EIGHT, f"mesh.ici.expert={sizes[0]}", f"mesh.ici.fsdp={sizes[1]}")
    assert "activations gathered" not in terms("+exp=h200_moe_2gpu", *words)


def test_dense_outputs_of_other_attention() -> None:
    """Llama-like: query, key, value and out, then the MLP's three."""
    shape = case("+exp=mixtral_8x7b_16gpu").shape
    assert flops.dense_outputs(shape) == shape.layers * (
        shape.emb + (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    )


def test_only_a_profiled_gpu_has_numbers_of_its_own() -> None:
    constants = throughput.constants()
    plain = {**constants["fixed"], **constants["fitted"]}
    assert list(constants["gpu"]) == ["H200"]
    assert throughput.constants_of(case("+exp=dsv3_128gpu").experiment.hardware) == plain
    own = throughput.constants_of(case(SMALL).experiment.hardware)
    assert own.keys() == plain.keys()
    assert own["dense_bf16"] != plain["dense_bf16"]


def test_the_narrower_band_ends_at_the_nvlink_domain() -> None:
    one, two = case(SMALL), case(SMALL, "nodes=2", "mesh.dcn.fsdp=2")
    constants = throughput.constants()
    own, all_others = constants["gpu"]["H200"]["band"], constants["band"]
    hardware = one.experiment.hardware
    assert throughput.band(throughput.work(one), hardware) == (own["low"], own["high"])
    assert throughput.band(throughput.work(two), hardware) == (all_others["low"], all_others["high"])
    assert own["low"] <= min(row.ratio for row in ROWS)
    assert own["high"] >= max(row.ratio for row in ROWS)


@pytest.mark.parametrize(
    ("block", "milliseconds"), [((16384, 2048, 1408, 6, 200_704), 12.5), ((8192, 7168, 2048, 8, 131_072), 32.8)]
)
def test_the_moe_block_alone(block: tuple[int, ...], milliseconds: float) -> None:
    """TE's MoE block by itself, forward and backward, on two H200s (2026-11-29): no constant was made of these."""
    tokens, emb, inner, top_k, rows = block
    hardware = case(SMALL).experiment.hardware
    each = throughput.work(case(SMALL))
    sent = tokens * top_k * emb * 2 / 2
    alone = dataclasses.replace(
        each,
        flops=dict.fromkeys(each.flops, 0.0) | {"experts": 6.0 * tokens * top_k * 3 * emb * inner},
        replay={}, tokens=0.0, exchange=(4 * sent, 0.0), weights=(0.0, 0.0), gathered=(0.0, 0.0), optimizer=0.0, outputs=0.0,
        buffers=2 * rows * (emb + inner / 2) * 2.0,
    )  # fmt: skip
    found = sum(throughput.terms(alone, hardware, throughput.constants_of(hardware)).values())
    assert found * 1e3 == pytest.approx(milliseconds, rel=0.1)
