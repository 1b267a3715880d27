"""Published training steps as work for one GPU: the rows of launcher/data/prediction/published.csv.

Most are Megatron-Bridge's (tensor, pipeline and expert parallelism, distributed optimizer): what follows from such a layout is
written here; the time is `launcher.plan.throughput`'s, the same that `plan` prints. The article's rows are the launcher's own
experiments, from the composed config on.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import yaml

from benchmarks.compiled import case_of
from launcher.config import maxtext_schema
from launcher.config.compose import Composer
from launcher.config.groups import CONF_DIR
from launcher.config.schema import Hardware
from launcher.plan import flops, memory, params, throughput, traffic
from launcher.plan.model import ModelShape, Values, shape

MODELS = {
    "DeepSeekV3": "deepseek3-671b", "GPT OSS 120B": "gpt-oss-120b", "Qwen3_30B_a3B": "qwen3-30b-a3b",
    "Qwen3_235B_a22B": "qwen3-235b-a22b", "LLAMA3.1_405B": "llama3.1-405b", "LLAMA3_70B": "llama3-70b", "LLAMA3_8B": "llama3-8b",
}  # fmt: skip
"""The published name -> MaxText's model; others (hybrids with state-space layers, DeepSeek-V4) have no formula here."""

GPUS = {
    "H100": "h100_hgx",
    "H200": "h200_hgx",
    "B200": "b200_hgx",
    "GB200": "gb200_nvl72",
    "B300": "b200_hgx",
    "GB300": "gb300_nvl72",
}

B300 = {"hbm_bytes": 288_000_000_000, "hbm_bytes_per_s": 7.928e12, "network_bytes_per_s": 100e9, "peak_fp4": 13500e12}
"""What HGX B300 has otherwise than HGX B200: NVIDIA's data sheets (memory, ConnectX-8), as GB300's file."""

RECENT = ("26.04", "26.04.01", "26.06", "26.06.01", "26.08")
"""Releases of Megatron-Bridge that are predicted, in order: the same layouts gained 26 to 56 % by software alone since 26.02."""

ARTICLE = "NVIDIA blog 2026-09-14"


@dataclass(frozen=True)
class Point:
    """One published step: `seconds` measured on `gpus`."""

    row: dict[str, str]
    gpus: int
    seconds: float
    shape: ModelShape
    hardware: Hardware
    work: throughput.Work

    @property
    def release(self) -> str:
        """Release of Megatron-Bridge; empty for another source."""
        return self.row["source"].split()[-1] if "performance-summary" in self.row["source"] else ""

    @property
    def article(self) -> bool:
        """A row of the article, which is never fitted."""
        return ARTICLE in self.row["source"]

    @property
    def configuration(self) -> tuple[str, ...]:
        """What a later release measured again; rows of other sources stand for themselves."""
        r = self.row
        own = () if self.release else (r["note"], r["tp"], r["pp"], r["seq"])
        return r["model"], r["gpu"], r["precision"], r["num_gpus"], *own

    @property
    def name(self) -> str:
        """Model, GPU, number, format, layout and release in columns."""
        r = self.row
        layout = " ".join(f"{k}{r[k]}" for k in ("tp", "pp", "ep") if r[k] not in ("", "1"))
        return f"{r['model']:<16.16} {r['gpu']:5} {self.gpus:5} {r['precision'][:5]:5} {layout:<16} {self.release or r['source'][:8]}"

    @property
    def tflops(self) -> float:
        """Measured TFLOP/s of one GPU, by MaxText's count."""
        return sum(self.work.flops.values()) / self.seconds / 1e12


def hardware(gpu: str) -> Hardware:
    """The launcher's own description of a GPU."""
    found = yaml.safe_load((CONF_DIR / "hardware" / f"{GPUS[gpu]}.yaml").read_text(encoding="utf-8"))
    return Hardware(**{**found, **(B300 if gpu == "B300" else {})})


def _whole(text: str, otherwise: int = 1) -> int:
    return int(text) if text.strip() else otherwise


def _work(row: dict[str, str], model: ModelShape, gpu: Hardware, gpus: int, sequence: int) -> throughput.Work:
    tp, pp, cp, ep = (_whole(row[k]) for k in ("tp", "pp", "cp", "ep"))
    dp, batch = _whole(row["dp"], max(gpus // (tp * pp * cp), 1)), _whole(row["gbs"])
    micro = max(batch / (dp * _whole(row["mbs"])), 1)
    tokens = batch * sequence / gpus
    each = flops.per_token(model, sequence)
    table = {
        name: getattr(each, name) * tokens
        for name in ("attention", "core", "experts", "shared", "router", "dense", "head")
    }
    # Megatron's extra layer of DeepSeek-V3 has the head of its own.
    table["head"] *= 1 + model.mtp
    domain = gpu.gpus_per_node * (16 if gpu.domain_nodes > 1 else 1)
    kind = row["precision"].upper()
    kind = "fp4" if "FP4" in kind else "fp8" if "FP8" in kind else "bf16"
    full = "full recompute" in row["note"]
    classes = ("attention", "core", "shared", "dense", "router", "experts")
    again = dict.fromkeys(classes, 1.0) if full else {}
    moe_layers = (model.moe_layers + model.mtp) if model.moe else 0
    passes = traffic.PASSES + full
    exchange = (0.0, 0.0)
    if model.moe and ep > 1:
        domains = max(1, ep // domain)
        pair = traffic.exchanged(tokens, model.experts_per_token, model.emb * 2, ep // domains, domains)
        exchange = pair[0] * passes * moe_layers, pair[1] * passes * moe_layers
    interleaved = re.search(r"VP=(\d+)", row["note"])
    bubble = (pp - 1) / (int(interleaved[1]) if interleaved else 1) / micro if pp > 1 else 0.0
    inner = 0.0
    if tp > 1:
        inner = (4 if model.moe else 8) * tokens * tp * model.emb * 2 * (tp - 1) / tp * model.layers
    return throughput.Work(
        flops=table, replay=again, extra=0.0, dense=kind, experts=kind, tokens=tokens, emb=model.emb,
        layers=model.layers + model.mtp, moe_layers=moe_layers, top_k=model.experts_per_token if model.moe else 0,
        moe_mlp=model.moe_mlp if model.moe else 0, exchange=exchange,
        weights=_weights(model, domain, (tp, pp, cp, ep, dp), micro if "FSDP" in row["note"] else 0),
        inner=(inner, 0.0), launches=model.layers / pp * micro, bubble=bubble,
        optimizer=20 * _total(model)[0] / gpus, domains=gpus / domain,
    )  # fmt: skip


def _total(model: ModelShape) -> tuple[int, int]:
    """Parameters, and those of the routed experts."""
    experts, other = params.layer(model)
    routed = experts * (model.moe_layers if model.moe else 0)
    dense = other * model.layers + 2 * model.emb * model.vocab
    return routed + dense, routed


def _weights(model: ModelShape, domain: int, layout: tuple[int, ...], micro: float) -> tuple[float, float]:
    """Bytes of weights and gradients on the wire: once a step with Megatron's distributed optimizer, each microbatch with FSDP."""
    tp, pp, cp, ep, dp = layout
    total, routed = _total(model)
    nvlink = network = 0.0
    for size, ranks, stride in (
        ((total - routed) / (tp * pp), dp * cp, tp),
        (routed / (ep * pp), max(dp * tp * cp // ep, 1), ep),
    ):
        members = max(1, min(ranks, domain // stride))
        pair = traffic.split(size, members, math.ceil(ranks / members))
        # bf16 weights gathered and fp32 gradients scattered; FSDP gathers twice and scatters bf16.
        scale = 3 * 2 * micro if micro else 2 + 4
        nvlink, network = nvlink + pair[0] * scale, network + pair[1] * scale
    return nvlink, network


def points() -> Iterator[Point]:
    """Every row whose model has a formula and whose time is known."""
    schema = maxtext_schema.load(maxtext_schema.versions()[-1])
    composer = Composer()
    with (memory.DATA / "published.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            model = MODELS.get(row["model"].partition(" (")[0])
            # A fallback is a path that its source turned off to show what it costs.
            if model is None or not row["gbs"] or "fallback" in row["note"]:
                continue
            gpus, sequence, gpu = int(row["num_gpus"]), int(row["seq"]), hardware(row["gpu"])
            if ARTICLE in row["source"]:
                case = case_of(composer, (f"+exp=dsv3_{gpus}gpu", "remat=dsv3"))
                found, doing = case.shape, throughput.work(case)
            else:
                # The releases since 26.02 train DeepSeek-V3 with one layer of multi-token prediction.
                mtp = int(row["model"] == "DeepSeekV3")
                found = shape(Values({"mtp_num_layers": mtp}, model, schema))
                doing = _work(row, found, gpu, gpus, sequence)
            seconds = float(row["step_time_s"] or 0) or sum(doing.flops.values()) / float(row["tflops_per_gpu"]) / 1e12
            yield Point(row, gpus, seconds, found, gpu, doing)


def newest(rows: Iterable[Point]) -> list[Point]:
    """The latest measurement of each configuration since release 26.04: earlier software is slower by up to half."""
    best: dict[tuple[str, ...], Point] = {}
    for point in rows:
        if point.release and point.release not in RECENT:
            continue
        known = best.get(point.configuration)
        if known is None or RECENT.index(point.release) >= RECENT.index(known.release):
            best[point.configuration] = point
    return list(best.values())
