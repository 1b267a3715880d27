"""Which ranks share each dimension of a weight, by MaxText's own logical_axis_rules.

The assignment is flax's (flax.linen.spmd.logical_to_mesh_axes): the rules are gone through in order; a rule gives its
mesh axes to a dimension that has none yet, unless another dimension of the same tensor already has one of them.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.config import maxtext_schema
from launcher.config.maxtext_schema import SNAPSHOTS
from launcher.plan.case import Case

MESH_NAMES = {"pipeline": "stage"}
"""Axes that MaxText's mesh calls otherwise than its keys."""


@dataclass(frozen=True)
class Cut:
    """One dimension of a weight: `size` elements of `dimension`, cut into the product of `axes` (name and ranks)."""

    tensor: str
    dimension: str
    size: int
    axes: tuple[tuple[str, int], ...]

    @property
    def shards(self) -> int:
        """Ranks that share the dimension."""
        return math.prod(n for _, n in self.axes)


@functools.cache
def _table() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((SNAPSHOTS.parent / "tensors.json").read_text(encoding="utf-8"))
    return found


def assign(names: Sequence[str | None], rules: Sequence[Sequence[Any]]) -> list[tuple[str, ...]]:
    """Mesh axes of each dimension of a tensor whose dimensions have these logical names.

    >>> assign(["embed", "mlp"], [["mlp", ["tensor", "fsdp_t"]], ["embed", ["fsdp", "fsdp_t"]], ["embed", "fsdp"]])
    [('fsdp',), ('tensor', 'fsdp_t')]
    """
    result: list[tuple[str, ...] | None] = [None] * len(names)
    for logical, mesh_axes in rules:
        axes = (mesh_axes,) if isinstance(mesh_axes, str) else tuple(mesh_axes or ())
        taken = {axis for given in result if given for axis in given}
        if logical in names and result[names.index(logical)] is None and not taken & set(axes):
            result[names.index(logical)] = axes
    return [axes or () for axes in result]


def _conditions(case: Case) -> set[str]:
    """The words of the table's `when` that hold."""
    shape, found = case.shape, case.values
    on_fsdp = found.flag("shard_exp_on_fsdp")
    other_layout = found.flag("use_2d_fsdp_sharding") or found.flag("use_batch_split_schedule")
    pairs = {
        "mla": shape.mla,
        "gqa": not shape.mla and not found.flag("fused_qkv"),
        "qk_norm": found.flag("use_qk_norm") or shape.decoder_block in ("qwen3", "qwen3_moe"),
        "q_lora": shape.q_lora > 0,
        "no_q_lora": shape.q_lora <= 0,
        "dense_layers": shape.dense_layers > 0 and not found.flag("fused_mlp"),
        "moe": shape.moe,
        # DeepSeek's block always has both parts (moe.RoutedAndSharedMoE).
        "shared_experts": shape.moe and shape.decoder_block == "deepseek",
        "no_shared_experts": shape.decoder_block != "deepseek",
        "experts_on_ep": not on_fsdp and not other_layout,
        "experts_on_fsdp": on_fsdp,
        "split_wi": not found.flag("prefuse_moe_weights"),
        "fused_wi": found.flag("prefuse_moe_weights"),
        "untied": not found.flag("logits_via_embedding"),
    }
    return {word for word, holds in pairs.items() if holds}


def known(case: Case) -> bool:
    """Does the table describe this decoder, and are the rules MaxText's own?"""
    own_rules = {"logical_axis_rules", "mesh_axes", "custom_mesh_and_rule"} & set(case.values.asked)
    return case.shape.decoder_block in _table()["decoders"] and not own_rules


@functools.cache
def _assigned(version: str, holds: frozenset[str]) -> list[tuple[str, list[str | None], list[tuple[str, ...]]]]:
    """Tensor, its dimensions and their mesh axes under MaxText's own rules, of the models for which these words hold."""
    rules, found = maxtext_schema.load(version).keys["logical_axis_rules"].default, []
    for tensor in _table()["tensors"]:
        if set(tensor["when"]) <= holds:
            assigned = assign([logical for logical, _ in tensor["axes"]], rules)
            found.append((tensor["name"], [dimension for _, dimension in tensor["axes"]], assigned))
    return found


def sharded(case: Case) -> Iterator[tuple[str, list[tuple[str | None, tuple[tuple[str, int], ...]]]]]:
    """Every weight of the model with, for each of its dimensions, the dimension's name and the axes that cut it.

    Empty without a mesh or for an unknown decoder.
    """
    if case.mesh is None or not known(case):
        return
    sizes = {MESH_NAMES.get(axis, axis): (axis, case.mesh.size(axis)) for axis in case.mesh.ici}
    for name, dimensions, assigned in _assigned(case.schema.version, frozenset(_conditions(case))):
        real = [tuple(sizes[a] for a in axes if a in sizes and sizes[a][1] > 1) for axes in assigned]
        yield name, list(zip(dimensions, real, strict=True))


def cuts(case: Case) -> Iterator[Cut]:
    """Every sharded dimension of the model's weights on this mesh. Empty without a mesh or for an unknown decoder."""
    shape = case.shape
    dimensions: Mapping[str, int] = {
        "vocab": shape.vocab, "emb": shape.emb, "heads": shape.heads, "kv_heads": shape.kv_heads, "head_dim": shape.head_dim,
        "q_lora": shape.q_lora, "kv_lora": shape.kv_lora, "mlp": shape.mlp, "shared_mlp": max(shape.shared_experts, 1) * shape.moe_mlp,
        "moe_in": shape.moe_in, "moe_mlp": shape.moe_mlp, "fused_moe_mlp": 2 * shape.moe_mlp, "experts": shape.experts,
    }  # fmt: skip
    for tensor, parts in sharded(case):
        for dimension, axes in parts:
            if dimension is not None and axes:
                yield Cut(tensor, dimension, dimensions[dimension], axes)
