"""What the forward pass keeps for the backward pass: which named tensors, where, and how many bytes of each.

MaxText names tensors (jax.ad_checkpoint.checkpoint_name) and a rematerialization policy says of each name: compute it again,
keep it in the GPU, or send it to host memory. A name that the training step does not have keeps nothing. A tensor that the
backward pass does not read costs nothing even when it is to be kept (XLA drops it): the output of a dense MLP. Sizes held
against XLA's scan carries (data/prediction/xla_memory.csv).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Set
from dataclasses import dataclass

from launcher.plan.case import Case
from launcher.plan.check_remat import chosen, policies, present, tensor_keys

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1}

ALIGNMENT = 128
"""Rows to which TE rounds each expert's share (transformer_engine 2.20, jax/ep.py, get_moe_recv_capacity_per_rank)."""

LSE_BYTES = 4
"""cuDNN's attention keeps the softmax's logarithm beside `context`: one float32 a head and token."""


@dataclass(frozen=True)
class Kept:
    """One named tensor that is kept: bytes a GPU over all layers, `where` = device or offload."""

    name: str
    where: str
    bytes: int


def width(case: Case) -> int:
    """Bytes of an element of an activation."""
    return BYTES.get(case.values.text("dtype"), 2)


def local_tokens(case: Case) -> int:
    """Tokens of one microbatch whose activations lie in one GPU (tensor parallelism makes its ranks share them)."""
    sharing = case.size("tensor") * case.size("tensor_sequence")
    return round(case.values.number("per_device_batch_size") * case.values.whole("max_target_length") * sharing)


def receive_capacity(
    experts: int, top_k: int, tokens: int, *, ranks: int, factor: float, alignment: int = ALIGNMENT
) -> int:
    """Rows that TE's MoE block makes room for in one rank, by its own formula.

    Args:
        tokens: of one rank.
        ranks: of an expert-parallel group.
        factor: ragged_buffer_factor; not above 0 = the worst case.

    >>> receive_capacity(256, 8, 24576, ranks=8, factor=2.0), receive_capacity(256, 8, 24576, ranks=8, factor=-1)
    (393216, 1576960)
    """

    def up(rows: int) -> int:
        return -(-rows // alignment) * alignment

    local = max(experts // ranks, 1)
    most = ranks * tokens * min(top_k, local)
    worst = min(local * up(ranks * tokens), up(most + (alignment - 1) * min(local, most)))
    if factor <= 0:
        return worst
    return min(up(math.ceil(local * up(-(-tokens * top_k // local)) * factor)), worst)


@functools.lru_cache(maxsize=64)
def expert_rows(case: Case) -> int:
    """Rows of the experts' buffers in one GPU: tokens times experts a token, with the room that the path leaves."""
    shape, tokens, ranks = case.shape, local_tokens(case), case.size("expert")
    if not shape.moe:
        return 0
    if case.te:
        factor = case.values.number("ragged_buffer_factor", -1.0)
        return receive_capacity(shape.experts, shape.experts_per_token, tokens, ranks=ranks, factor=factor)
    if case.values.flag("sparse_matmul"):
        # Without a factor MaxText's ragged exchange makes room for every token of the group.
        factor = case.values.number("ragged_buffer_factor", -1.0)
        return round(tokens * shape.experts_per_token * (factor if factor > 0 else ranks))
    factor = case.values.number("capacity_factor", -1.0)
    return round(tokens * (shape.experts_per_token * factor if factor > 0 else shape.experts))


@functools.lru_cache(maxsize=64)
def places(case: Case, also: Set[str] = frozenset()) -> dict[str, str]:
    """Name -> device or offload, of the tensors that exist and that the policy keeps.

    Args:
        also: names that this build of Transformer Engine has beyond those of data/remat_names.json.
    """
    policy, there = case.values.text("remat_policy"), present(case)
    names = (there if there is not None else frozenset(tensor_keys(case))) | also
    found = {"decoder_layer_input": "device"}
    if policy == "custom":
        everything = {key: case.values.text(key) for key in tensor_keys(case)} | chosen(case)
        found |= {name: where for name, where in everything.items() if where in ("device", "offload")}
    elif policy in ("none", ""):
        found |= dict.fromkeys(names, "device")
    else:
        saved = policies().get(policy, {})
        found |= dict.fromkeys(saved.get("save", ()), "device") | dict.fromkeys(saved.get("offload", ()), "offload")
    return {name: where for name, where in found.items() if name in names}


def widths(case: Case, moe: bool) -> Mapping[str, float]:
    """Bytes a token of each named tensor in one layer; `moe`: in a layer with routed experts."""
    shape, dt = case.shape, width(case)
    split = case.size("tensor") * case.size("tensor_sequence")
    rows = expert_rows(case) / max(local_tokens(case), 1) if moe else 0.0
    inner = shape.shared_experts * shape.moe_mlp if moe and shape.decoder_block == "deepseek" else 0
    inner = inner if moe else shape.mlp
    found = {
        "decoder_layer_input": shape.emb * dt,
        "context": shape.heads * (shape.value_head * dt + LSE_BYTES) / split,
        "attention_out": shape.heads * shape.value_head * dt / split,
        "out_proj": shape.emb * dt,
        "query_proj": shape.heads * shape.query_head * dt / split,
        "key_proj": (shape.heads if shape.mla else shape.kv_heads) * shape.query_head * dt / split,
        "value_proj": (shape.heads if shape.mla else shape.kv_heads) * shape.value_head * dt / split,
        "query_wa_proj": shape.q_lora * dt,
        "mla_q": shape.q_lora * dt,
        "kv_wa_proj": (shape.kv_lora + shape.qk_rope) * dt,
        "mla_kv": (shape.kv_lora + shape.qk_rope) * dt,
        "mlpwi_0": inner * dt / split,
        "mlpwi_1": inner * dt / split,
    }
    if moe:
        found |= {
            "moe_mlpwi_0": rows * shape.moe_mlp * dt / split,
            "moe_mlpwi_1": rows * shape.moe_mlp * dt / split,
            "moe_x_sorted": rows * shape.moe_in * dt,
        }
        if not case.te:
            # MaxText's own paths: the MLP's names lie on the experts' tensors too, and weighting after the experts reads
            # their output.
            both = {"mlpwi_0": "moe_mlpwi_0", "mlpwi_1": "moe_mlpwi_1"}
            found |= {name: max(found[name], found[twin]) for name, twin in both.items()}
            found |= dict.fromkeys(("mlpwo", "moe_mlpwo"), rows * shape.moe_in * dt)
    return found


@functools.lru_cache(maxsize=64)
def kept(case: Case, also: Set[str] = frozenset()) -> tuple[Kept, ...]:
    """Every tensor that is kept for the backward pass, with its bytes over all layers, the largest first."""
    tokens, shape = local_tokens(case), case.shape
    dense, moe = widths(case, False), widths(case, True) if shape.moe else {}
    layers = (shape.dense_layers, (shape.moe_layers if shape.moe else 0) + shape.mtp)
    found, placed = [], places(case, also)
    for name, where in placed.items():
        if _twin(name) in placed and not case.te:
            continue
        size = tokens * (dense.get(name, 0.0) * layers[0] + moe.get(name, 0.0) * layers[1])
        if size:
            found.append(Kept(name, where, round(size)))
    return tuple(sorted(found, key=lambda k: (-k.bytes, k.name)))


def _twin(name: str) -> str:
    """The second name of one tensor: MaxText's capacity path calls the experts' tensors mlpwi_0 and moe_mlpwi_0."""
    return name.removeprefix("moe_") if name.startswith("moe_mlpw") else ""
