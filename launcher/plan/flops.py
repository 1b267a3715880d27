"""Floating-point operations of a training step, counted as MaxText counts them for its TFLOP/s/device.

MaxText 0.2.5, utils/maxtext_utils.py, calculate_tflops_training_per_device: 2 x multiply-adds, 3 x the forward pass (1 forward,
2 backward), causal attention counted as half, recomputation not counted. tests/plan/test_flops.py holds this file against
that function.
"""

from __future__ import annotations

from dataclasses import dataclass

from launcher.plan.model import ModelShape

FORWARD_AND_BACKWARD = 3

COUNTED = ("deepseek", "mixtral", "qwen3_moe", "gpt_oss", "llama2", "mistral", "qwen3", "qwen2", "default")
"""Decoders whose formula is written here; the others have parts of their own (vision, linear attention, chunks)."""

LOCAL_PERIOD = {"gpt_oss": 2}
"""Decoders of which one layer in so many sees everything, the others only the sliding window."""


@dataclass(frozen=True)
class Flops:
    """FLOP a token, forward and backward, by what computes them. `core` = scores and values of attention."""

    attention: float
    core: float
    experts: float
    shared: float
    router: float
    dense: float
    head: float

    @property
    def weights(self) -> float:
        """All but attention's core: what multiplies by a weight."""
        return self.attention + self.experts + self.shared + self.router + self.dense + self.head

    @property
    def total(self) -> float:
        """MaxText's number, divided by the tokens."""
        return self.weights + self.core


def attention_weights(shape: ModelShape) -> int:
    """Elements of one layer's projections: query, key, value and out."""
    out = shape.emb * shape.heads * shape.value_head
    if not shape.mla:
        return shape.emb * (shape.heads + 2 * shape.kv_heads) * shape.head_dim + out
    query = shape.emb * shape.heads * shape.query_head
    if shape.q_lora > 0:
        query = shape.q_lora * (shape.emb + shape.heads * shape.query_head)
    latent = shape.emb * (shape.kv_lora + shape.qk_rope)
    return query + latent + shape.kv_lora * shape.heads * (shape.qk_nope + shape.v_head) + out


def mlp_weights(shape: ModelShape, inner: int) -> int:
    """Elements of one gated MLP (or one expert) of that inner width."""
    return (shape.activations + 1) * shape.emb * inner


def dense_outputs(shape: ModelShape) -> int:
    """Elements a token that the dense GEMMs of all layers write in one forward pass: projections, dense MLPs, shared experts."""
    out = shape.emb
    if shape.mla:
        out += (
            (shape.q_lora if shape.q_lora > 0 else 0) + shape.heads * shape.query_head + shape.kv_lora + shape.qk_rope
        )
        out += shape.heads * (shape.qk_nope + shape.v_head)
    else:
        out += (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    moe_layers = shape.moe_layers if shape.moe else 0
    shared = shape.shared_experts * shape.moe_mlp if shape.decoder_block == "deepseek" else 0
    of_moe = shape.activations * shared + shape.emb if shared else 0
    of_dense = shape.activations * shape.mlp + shape.emb
    return out * shape.layers + of_moe * moe_layers + of_dense * (shape.layers - moe_layers)


def seen(shape: ModelShape, sequence: int) -> float:
    """Tokens that a token attends to, on average over layers and positions."""
    period = LOCAL_PERIOD.get(shape.decoder_block)
    if period is None:
        return sequence / 2
    window = min(shape.window, sequence)
    everything = shape.layers // period
    local = shape.layers - everything
    return (everything * sequence / 2 + local * (window - 0.5 * window**2 / sequence)) / max(shape.layers, 1)


def per_token(shape: ModelShape, sequence: int) -> Flops:
    """FLOP a token of a `sequence` tokens long, layers of multi-token prediction included.

    Those count a last layer and no head of their own, as in MaxText.
    """
    each = 2 * FORWARD_AND_BACKWARD
    layers, moe_layers = shape.layers + shape.mtp, shape.moe_layers + (shape.mtp if shape.moe else 0)
    dense_layers = shape.dense_layers + (0 if shape.moe else shape.mtp)
    if not shape.moe:
        moe_layers = 0
    # Only DeepSeek's block has shared experts.
    shared = shape.shared_experts if shape.decoder_block == "deepseek" else 0
    return Flops(
        attention=each * attention_weights(shape) * layers,
        core=each * seen(shape, sequence) * shape.heads * (shape.query_head + shape.value_head) * layers,
        experts=each * mlp_weights(shape, shape.moe_mlp) * shape.experts_per_token * moe_layers,
        shared=each * mlp_weights(shape, shape.moe_mlp) * shared * moe_layers,
        router=each * shape.emb * shape.experts * moe_layers,
        dense=each * mlp_weights(shape, shape.mlp) * dense_layers,
        head=each * shape.emb * shape.vocab,
    )
