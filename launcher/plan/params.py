"""Parameters of a model, weight by weight, and the share of each that one GPU holds.

Names of the weights and the axes that cut them are those of data/tensors.json (MaxText's own logical_axis_rules). Left out:
the biases of gpt-oss, 0.04 % of its parameters.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass

from launcher.plan.case import Case
from launcher.plan.flops import attention_weights
from launcher.plan.model import ModelShape
from launcher.plan.shards import sharded


@dataclass(frozen=True)
class Weight:
    """`elements` of one layer, in `layers` layers; `shards`: ranks among which each is split, by axis."""

    name: str
    elements: int
    layers: int
    axes: tuple[tuple[str, int], ...]

    @property
    def shards(self) -> int:
        """Ranks that share it."""
        return math.prod(n for _, n in self.axes)

    @property
    def total(self) -> int:
        """Elements over all layers."""
        return self.elements * self.layers

    @property
    def expert(self) -> bool:
        """A weight of the routed experts."""
        return self.name.startswith("experts ")


@dataclass(frozen=True)
class Parameters:
    """`total`: all; `active`: those that compute one token (embedding and head included); `per_gpu`: held by one GPU."""

    weights: tuple[Weight, ...]
    total: int
    active: int
    per_gpu: float


def _mtp(shape: ModelShape) -> int:
    return shape.mtp if shape.moe else 0


def sizes(shape: ModelShape) -> Mapping[str, tuple[int, int]]:
    """Weight -> (elements a layer, layers)."""
    emb, heads, query, value = shape.emb, shape.heads, shape.query_head, shape.value_head
    layers, moe = shape.layers + shape.mtp, (shape.moe_layers if shape.moe else 0) + _mtp(shape)
    dense = shape.dense_layers + shape.mtp - _mtp(shape)
    shared = shape.shared_experts * shape.moe_mlp
    return {
        "token_embedder": (emb * shape.vocab, 1),
        "logits_dense": (0 if shape.tied else emb * shape.vocab, 1),
        "norms": (2 * emb, layers),
        "query": (emb * heads * query, layers),
        "key and value": (2 * emb * shape.kv_heads * shape.head_dim, layers),
        "query and key norm": (2 * shape.head_dim, layers),
        "wq_a": (emb * shape.q_lora, layers),
        "q_norm": (shape.q_lora, layers),
        "wq_b": (shape.q_lora * heads * query, layers),
        "wkv_a": (emb * (shape.kv_lora + shape.qk_rope), layers),
        "kv_norm": (shape.kv_lora, layers),
        "wkv_b": (shape.kv_lora * heads * (shape.qk_nope + shape.v_head), layers),
        "attention out": (emb * heads * value, layers),
        "mlp wi": (shape.activations * emb * shape.mlp, dense),
        "mlp wo": (emb * shape.mlp, dense),
        "shared expert wi": (shape.activations * emb * shared, moe),
        "shared expert wo": (emb * shared, moe),
        "router gate": (shape.moe_in * shape.experts, moe),
        "experts wi": (shape.experts * shape.activations * shape.moe_in * shape.moe_mlp, moe),
        "experts wo": (shape.experts * shape.moe_in * shape.moe_mlp, moe),
    }


@functools.lru_cache(maxsize=64)
def count(case: Case) -> Parameters | None:
    """The parameters of a case; None without a mesh, or for a decoder that data/tensors.json does not describe."""
    cut = tuple((name, tuple(axis for _, axes in parts for axis in axes)) for name, parts in sharded(case))
    return _count(case.shape, cut) if cut else None


@functools.lru_cache(maxsize=1024)
def _count(shape: ModelShape, cut: tuple[tuple[str, tuple[tuple[str, int], ...]], ...]) -> Parameters:
    table = sizes(shape)
    weights = [Weight(name, *table[name], axes) for name, axes in cut]
    if shape.mtp:
        joined = max(w.shards for w in weights)
        weights.append(Weight("mtp projection", 2 * shape.emb * (shape.emb + 1), shape.mtp, (("fsdp", joined),)))
    total = sum(w.total for w in weights)
    idle = sum(w.total for w in weights if w.expert) * (1 - shape.experts_per_token / max(shape.experts, 1))
    return Parameters(tuple(weights), total, round(total - idle), sum(w.total / w.shards for w in weights))


def layer(shape: ModelShape) -> tuple[int, int]:
    """Elements of a layer's experts (0 without) and of its other matrices, of the layer that there are most of."""
    table = sizes(shape)
    experts = table["experts wi"][0] + table["experts wo"][0] if shape.moe else 0
    other = attention_weights(shape)
    if shape.moe:
        other += table["shared expert wi"][0] + table["shared expert wo"][0]
    else:
        other += table["mlp wi"][0] + table["mlp wo"][0]
    return experts, other
