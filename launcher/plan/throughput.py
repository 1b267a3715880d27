"""How long a step takes: a floor that no run can beat, what to expect, and the band in which measurements of this kind lie.

    floor    = FLOP of the weights / peak of their format + FLOP of attention's core / bf16 peak
    expected = (GEMMs + attention + head + HBM streaming + exposed exchange of tokens + launches) x (1 + bubble)
               + weights and gradients on the wire beyond what the computation hides + optimizer + jitter

Six numbers are fitted to published steps (tools/fit_prediction.py; data/prediction/throughput.toml holds them with the rows' source
and the error that is left), the rest are fixed; for a GPU on which this software was profiled, the profile's numbers take their
place (`constants_of`). The band is the spread of measured / predicted over the fitted rows: it holds containers of different
months, and so is wide. `calibrate` narrows it to one cluster.
"""

from __future__ import annotations

import functools
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from launcher.config.schema import Hardware
from launcher.plan import activations, flops, memory, traffic
from launcher.plan.case import Case


@dataclass(frozen=True)
class Work:
    """What one GPU does in a step.

    Attributes:
        flops: model FLOP by class (the fields of flops.Flops), recomputation not counted.
        replay: class -> share of its forward pass that is computed again.
        extra: FLOP that the model does not count: padding, dispatch by masks.
        dense, experts: format of the GEMMs: bf16, fp8 or fp4.
        masked, masked_bytes: FLOP and bytes of the products, one an expert over all rows, that stand for ragged_dot; 0 where the
            experts' GEMMs are grouped.
        tokens, emb, layers, moe_layers, top_k, moe_mlp: for the bytes that stream through HBM.
        scores: elements of attention's score matrices in forward, replay and backward pass; 0 where attention is a fused kernel.
        outputs, buffers: bytes of what dense GEMMs write, and of the experts' buffers, once for each of those passes.
        exchange, weights, inner: (NVLink, network) bytes of the expert axis, of weights and gradients, of tensor parallelism.
        gathered: the same, if Transformer Engine gathered all that its dense GEMMs write, in each of those passes.
        launches: layers x microbatches.
        bubble: idle share of a pipeline. optimizer: bytes that the optimizer reads and writes. domains: NVLink domains.
    """

    flops: Mapping[str, float]
    replay: Mapping[str, float]
    extra: float
    dense: str
    experts: str
    tokens: float
    emb: int
    layers: float
    moe_layers: float
    top_k: int
    moe_mlp: int
    exchange: tuple[float, float]
    weights: tuple[float, float]
    inner: tuple[float, float]
    launches: float
    bubble: float
    optimizer: float
    domains: float
    masked: float = 0.0
    masked_bytes: float = 0.0
    scores: float = 0.0
    outputs: float = 0.0
    buffers: float = 0.0
    gathered: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True)
class Throughput:
    """Seconds of a step. `terms`: each term of the expected time; they add up to it. `low`, `high`: the band.

    `flops`: FLOP of one GPU and step as MaxText counts them. `tokens`: of one GPU and step.
    """

    floor: float
    expected: float
    low: float
    high: float
    terms: Mapping[str, float]
    flops: float
    tokens: int
    peak: float
    calibration: float = 1.0
    runs: int = 0

    def tflops(self, seconds: float) -> float:
        """TFLOP/s of one GPU at that step time."""
        return self.flops / seconds / 1e12

    @property
    def mfu(self) -> float:
        """Model FLOP utilisation at the expected time, against the peak of the experts' (else the dense) GEMM format."""
        return self.flops / self.expected / self.peak


@functools.cache
def constants() -> Mapping[str, Any]:
    """Fitted and fixed numbers with their source."""
    with (memory.DATA / "throughput.toml").open("rb") as file:
        return tomllib.load(file)


def constants_of(hardware: Hardware) -> dict[str, float]:
    """The numbers of `terms` for a GPU: its own profile's where there is one, else fitted and fixed."""
    told = constants()
    return {**told["fixed"], **told["fitted"], **told["gpu"].get(hardware.gpu, {}).get("measured", {})}


def band(work: Work, hardware: Hardware, runs: int = 0) -> tuple[float, float]:
    """Measured / predicted in which a run is expected; a GPU's own band is for one NVLink domain, which is all that was measured."""
    told = constants()
    if runs:
        low, high = told["band"]["calibrated"]
        return low, high
    found = told["gpu"].get(hardware.gpu, told)["band"] if work.domains <= 1 else told["band"]
    return found["low"], found["high"]


def peak(hardware: Hardware, kind: str) -> float:
    """FLOP/s of a format; a format that the GPU lacks runs as the next wider one."""
    rates = {"fp4": hardware.peak_fp4, "fp8": hardware.peak_fp8, "bf16": hardware.peak_bf16}
    for wider in ("fp4", "fp8", "bf16")[("fp4", "fp8", "bf16").index(kind) :]:
        if rates[wider] > 0:
            return rates[wider]
    return 0.0


WEIGHTS = ("attention", "shared", "router", "dense")
"""Classes that dense GEMMs compute."""


def floor(work: Work, hardware: Hardware) -> float:
    """Seconds below which the step cannot go, whatever the software."""
    f = work.flops
    dense = sum(f[name] for name in WEIGHTS) + f["head"]
    return (
        dense / peak(hardware, work.dense)
        + f["experts"] / peak(hardware, work.experts)
        + f["core"] / peak(hardware, "bf16")
    )


def masked_rate(width: int, given: Mapping[str, float]) -> float:
    """Share of the bf16 peak of ragged_dot's masked products in a model of that width: between two that were measured, by 1 / width.

    >>> ends = {"masked": 0.4, "masked_width": 2048, "masked_wide": 0.8, "masked_wide_width": 8192}
    >>> [round(masked_rate(width, ends), 2) for width in (1024, 2048, 4096, 8192, 16384)]
    [0.4, 0.4, 0.6, 0.8, 0.8]
    """
    narrow, wide = 1 / given["masked_width"], 1 / given["masked_wide_width"]
    share = min(max((narrow - 1 / width) / (narrow - wide), 0.0), 1.0)
    return 1 / ((1 - share) / given["masked"] + share / given["masked_wide"])


def terms(work: Work, hardware: Hardware, given: Mapping[str, float]) -> dict[str, float]:
    """Seconds of each term. `given`: fitted and fixed numbers by name (throughput.toml)."""
    f = work.flops

    def again(name: str) -> float:
        return 1 + work.replay.get(name, 0.0) / flops.FORWARD_AND_BACKWARD

    dense = given["dense_" + work.dense]
    experts = given["dense_" + work.experts] * given["grouped"]
    bf16 = peak(hardware, "bf16")
    streamed = 2 * work.tokens * work.emb * 2 * work.layers * again("attention")
    streamed += work.tokens * work.top_k * (work.emb + 0.5 * work.moe_mlp) * 2 * work.moe_layers * again("experts")
    nvlink = hardware.nvlink_bytes_per_s * given["fabric"]
    network = hardware.network_bytes_per_s * given["fabric"]
    memory_rate = hardware.hbm_bytes_per_s * given["hbm"]

    def wire(pair: tuple[float, float]) -> float:
        return max(pair[0] / nvlink if nvlink else 0.0, pair[1] / network if network else 0.0)

    found = {
        "expert GEMM": work.masked / (bf16 * masked_rate(work.emb, given))
        + given["masked_passes"] * work.masked_bytes / memory_rate
        if work.masked
        else f["experts"] * again("experts") / (peak(hardware, work.experts) * experts),
        "dense GEMM": sum(f[n] * again(n) for n in WEIGHTS) / (peak(hardware, work.dense) * dense)
        + work.extra / (bf16 * given["dense_bf16"]),
        # Without a fused kernel the masked half of the scores is computed too, and each pass over them goes through memory.
        "attention": f["core"] * again("core") * (2 if work.scores else 1) / (bf16 * given["core"])
        + given["score_bytes"] * work.scores / memory_rate,
        "head": f["head"] / (bf16 * given["head"]),
        "HBM": given["hbm_passes"] * streamed / hardware.hbm_bytes_per_s
        + (given["output_passes"] * work.outputs + given["buffer_passes"] * work.buffers) / memory_rate,
        "tokens exchanged": given["exchange_exposed"] * wire(work.exchange),
        "activations gathered": given["regathered"] * wire(work.gathered),
        "tensor parallel": given["inner_exposed"] * wire(work.inner),
        "launches": work.launches * (given["moe_launch"] if work.moe_layers else given["dense_launch"]),
    }
    busy = sum(found.values())
    found["bubble"] = busy * work.bubble
    found["weights exchanged"] = max(0.0, wire(work.weights) - given["hidden"] * busy)
    found["optimizer"] = work.optimizer / memory_rate
    if work.domains > given["jitter_from"]:
        found["jitter"] = given["jitter"] * math.log2(work.domains / given["jitter_from"]) * sum(found.values())
    return found


def _format(text: str) -> str:
    """bf16, fp8 or fp4, from MaxText's name of a quantisation."""
    lowered = text.lower()
    if "fp4" in lowered:
        return "fp4"
    return "fp8" if "fp8" in lowered else "bf16"


def _projections_replayed(case: Case, kept: Mapping[str, str]) -> float:
    """Share of the attention projections' FLOP that the backward pass repeats."""
    shape = case.shape
    value, query = shape.value_head, shape.query_head
    if shape.mla:
        weights = {
            "query_proj": (shape.q_lora or shape.emb) * shape.heads * query,
            "query_wa_proj": shape.emb * shape.q_lora,
            "kv_wa_proj": shape.emb * (shape.kv_lora + shape.qk_rope),
            "key_proj": shape.kv_lora * shape.heads * shape.qk_nope,
            "value_proj": shape.kv_lora * shape.heads * value,
            "out_proj": shape.emb * shape.heads * value,
        }
    else:
        weights = {
            "query_proj": shape.emb * shape.heads * query,
            "key_proj": shape.emb * shape.kv_heads * query,
            "value_proj": shape.emb * shape.kv_heads * value,
            "out_proj": shape.emb * shape.heads * value,
        }
    total = sum(weights.values())
    return sum(size for name, size in weights.items() if name not in kept) / total if total else 0.0


def replay(case: Case) -> dict[str, float]:
    """Class -> share of its forward pass that the rematerialization policy computes again."""
    if case.values.text("remat_policy") in ("none", ""):
        return {}
    kept = activations.places(case)
    mlp = 0.0 if "mlpwi_0" in kept and "mlpwi_1" in kept else 2 / 3
    return {
        "attention": _projections_replayed(case, kept),
        "core": 0.0 if "context" in kept else 1.0,
        "shared": mlp,
        "dense": mlp,
        "router": 1.0,
        "experts": 1.0 if traffic.replayed(case) else 0.0,
    }


def _extra(case: Case, experts: float, tokens: float) -> float:
    """FLOP of the capacity path that the model does not count: empty slots, and the masks' products with the tokens."""
    if memory.path(case) != "capacity":
        return 0.0
    shape, factor = case.shape, case.values.number("capacity_factor", -1.0)
    if factor <= 0:
        return experts * (shape.experts / shape.experts_per_token - 1)
    slots = case.values.whole("max_target_length") * shape.experts_per_token * factor
    masks = 2 * 2 * flops.FORWARD_AND_BACKWARD * tokens * slots * shape.moe_in * shape.moe_layers
    return experts * (factor - 1) + masks


def _microbatches(case: Case) -> int:
    return max(case.values.whole("gradient_accumulation_steps", 1), 1)


def _masked(case: Case, again: Mapping[str, float]) -> tuple[float, float]:
    """FLOP and masked bytes by which XLA computes jax.lax.ragged_dot on GPUs: each local expert multiplies every row there is room for.

    A product's rows are masked for each expert before it (RaggedDotRewriter), so [local experts, rows, width] lies in memory.
    """
    if memory.path(case) != "sparse":
        return 0.0, 0.0
    shape = case.shape
    times = shape.moe_layers * _microbatches(case) * (flops.FORWARD_AND_BACKWARD + again.get("experts", 0.0))
    rows = activations.expert_rows(case) * shape.experts / case.size("expert") * times
    width = (shape.activations + 1) * (shape.moe_in + shape.moe_mlp) / 2 * activations.width(case)
    split = case.size("tensor") * case.size("tensor_sequence")
    return 2 * rows * flops.mlp_weights(shape, shape.moe_mlp) / split, rows * width


def _scores(case: Case, again: Mapping[str, float]) -> float:
    """Elements of the score matrices of all layers, once for each of forward, replay and backward pass; 0 for a fused kernel."""
    layers = (case.shape.layers + case.shape.mtp) * _microbatches(case)
    return memory.scores(case) / activations.width(case) * layers * (2 + again.get("core", 0.0))


def _buffers(case: Case) -> float:
    """Bytes of the experts' buffers of all layers: every row there is room for, its input and half of the MLP's inner width."""
    shape = case.shape
    if not shape.moe:
        return 0.0
    width = (shape.moe_in + shape.moe_mlp / 2) * activations.width(case)
    return activations.expert_rows(case) * width * shape.moe_layers * _microbatches(case)


def _gathered(case: Case, outputs: float) -> tuple[float, float]:
    """Bytes of gathering over the expert axis what dense GEMMs write.

    Where that axis alone cuts the dense weights, Transformer Engine's dense GEMMs gather activations for the weights' gradients
    (seen in XLA's step and in a profile: docs/plan.md). With fsdp beside it they scatter the gradients instead, as XLA's own GEMMs
    always do (compiled for 4 and 8 H200s).
    """
    mesh = case.mesh
    by_engine = case.values.text("quantization").startswith("te_")
    if mesh is None or not by_engine or mesh.expert_parallel == 1 or mesh.size("fsdp") > 1:
        return 0.0, 0.0
    return traffic.split(outputs * mesh.expert_parallel, mesh.ici["expert"], mesh.dcn["expert"])


def work(case: Case) -> Work:
    """What one GPU of a case does in a step. The case must have an estimate (`memory.missing`)."""
    shape, mesh, found = case.shape, case.mesh, traffic.estimate(case)
    assert mesh is not None
    assert found is not None
    micro = _microbatches(case)
    sequence = case.values.whole("max_target_length")
    tokens = case.values.number("per_device_batch_size") * sequence * micro
    each = flops.per_token(shape, sequence)
    table = {
        name: getattr(each, name) * tokens
        for name in ("attention", "core", "experts", "shared", "router", "dense", "head")
    }
    again = replay(case)
    grouped = case.values.text("te_gmm_quantization") if case.te else ""
    joined = [
        axis
        for axis in dict.fromkeys(f.axis for f in found.flows)
        if axis not in ("expert", "tensor", "tensor_sequence", "context")
    ]
    state = memory.state_elements(case) * activations.BYTES.get(case.values.text("weight_dtype"), 4)
    # Forward pass, replay, backward pass.
    outputs = flops.dense_outputs(shape) * tokens * activations.width(case) * (2 + again.get("attention", 0.0))
    masked, masked_bytes = _masked(case, again)
    return Work(
        flops=table,
        replay=again,
        extra=_extra(case, table["experts"], tokens),
        dense=_format(case.values.text("quantization")),
        experts=_format(grouped),
        tokens=tokens,
        emb=shape.emb,
        layers=shape.layers,
        moe_layers=shape.moe_layers if shape.moe else 0,
        top_k=shape.experts_per_token if shape.moe else 0,
        moe_mlp=shape.moe_mlp if shape.moe else 0,
        exchange=found.of("expert"),
        weights=found.of(*joined),
        inner=found.of("tensor", "tensor_sequence", "context"),
        launches=shape.layers * micro,
        bubble=0.0,
        # Weights, gradients and two moments are read, all but the gradients written.
        optimizer=7 * state,
        domains=mesh.domains,
        masked=masked,
        masked_bytes=masked_bytes,
        scores=_scores(case, again),
        outputs=outputs,
        buffers=_buffers(case) * (2 + again.get("experts", 0.0)),
        gathered=_gathered(case, outputs),
    )


def estimate(case: Case, calibration: float = 1.0, runs: int = 0) -> Throughput | None:
    """The time of a case's step; None without an estimate of its memory, or for hardware whose rates are not known.

    Args:
        calibration: measured / expected of earlier runs (`launcher calibrate`), from that many `runs`.
    """
    hardware = case.experiment.hardware
    if memory.missing(case) is not None or min(hardware.peak_bf16, hardware.hbm_bytes_per_s) <= 0:
        return None
    doing = work(case)
    parts = {name: value * calibration for name, value in terms(doing, hardware, constants_of(hardware)).items()}
    expected, least = sum(parts.values()), floor(doing, hardware)
    if expected <= 0:
        return None
    low, high = band(doing, hardware, runs)
    best = doing.experts if case.shape.moe else doing.dense
    return Throughput(
        floor=least,
        expected=max(expected, least),
        low=max(expected * low, least),
        high=max(expected * high, least),
        terms={name: value for name, value in parts.items() if value > 0},
        flops=sum(doing.flops.values()),
        tokens=round(doing.tokens),
        peak=peak(hardware, best),
        calibration=calibration,
        runs=runs,
    )
