"""What XLA keeps of layers that are not in a loop: inputs and output gradients of the weights of every layer.

The gradient of a weight is computed from its layer's input and from the gradient of its output. Nothing but the optimizer reads
it, so XLA's latency hiding scheduler, where it is on (`scheduled`), puts it last, behind the exchanges of all
layers: at the peak those inputs and output gradients of every layer are there together, under remat=full too (the layer was
computed again to get them). In a loop a layer's body ends before the next begins, and they are one layer's. Read in XLA's
list of what is alive at the peak (h200_moe_2gpu, jaxlib 0.12.0.1): of each of the three MoE layers the dispatched tokens, the
gradient of the experts' outputs, the experts' inner tensor and the gradients of both projections. With the scheduler off they are
one layer's (62.1 GiB instead of 92.7). Where several GPUs share the experts, their gradients have to be reduced, which XLA wants to
begin early: then one to three layers wait.
"""

from __future__ import annotations

from dataclasses import dataclass

from launcher.plan import activations
from launcher.plan.case import Case

SCHEDULER = "xla_gpu_enable_latency_hiding_scheduler"


@dataclass(frozen=True)
class Layers:
    """Layers that are in no loop."""

    dense: int
    moe: int

    @property
    def any(self) -> bool:
        """Is there one?"""
        return self.dense + self.moe > 0


def scheduled(case: Case) -> bool:
    """Is XLA's latency hiding scheduler on? By itself it is off in a step without exchange, and in one with ragged-all-to-all.

    There the compiled step, its memory and its time were the same with the flag left out and with false (one H200; two, moe=dropless).
    """
    ragged = case.shape.moe and not case.te and case.values.flag("sparse_matmul") and case.size("expert") > 1
    return bool(case.xla(SCHEDULER, not ragged and (case.mesh is None or case.mesh.gpus > 1)))


def layers(case: Case) -> Layers:
    """All of them with scan_layers=false; else a stack of one layer, whose loop XLA takes away; none with the scheduler off."""
    if case.cpu or not scheduled(case):
        return Layers(0, 0)
    shape = case.shape
    moe = shape.moe_layers if shape.moe else 0
    if case.values.flag("scan_layers"):
        return Layers(int(shape.dense_layers == 1), int(moe == 1))
    # A layer of multi-token prediction is one more of the kind that there is most of.
    return Layers(shape.dense_layers + (0 if moe else shape.mtp), moe + (shape.mtp if moe else 0))


def _split(case: Case) -> int:
    return case.size("tensor") * case.size("tensor_sequence")


def attention_width(case: Case) -> float:
    """Elements a token: inputs and output gradients of one layer's attention projections."""
    shape, split = case.shape, _split(case)
    out = shape.heads * shape.value_head / split + shape.emb
    if not shape.mla:
        return shape.emb + (shape.heads * shape.query_head + 2 * shape.kv_heads * shape.head_dim) / split + out
    query = 2 * shape.q_lora + shape.heads * shape.query_head / split
    latent = 2 * shape.kv_lora + shape.qk_rope + shape.heads * (shape.qk_nope + shape.v_head) / split
    return shape.emb + query + latent + out


def mlp_width(case: Case, inner: int) -> float:
    """Elements a token of a dense MLP of that inner width: its input, its inner tensor, the gradients of its input projections."""
    return case.shape.emb + (case.shape.activations + 1) * inner / _split(case)


def called(case: Case) -> bool:
    """Are the dense GEMMs calls of Transformer Engine? XLA does not know how long a call takes, and hides nothing behind one (guess)."""
    return case.values.text("quantization").startswith("te_")


def shared(case: Case) -> bool:
    """Do several GPUs hold parts or copies of one expert, as with fsdp and data? Then gradients are reduced over them."""
    return case.mesh is None or case.mesh.gpus > case.size("expert") * _split(case)


def early(case: Case, scores: float) -> bool:
    """Does XLA want the gradients of the experts' weights early, to reduce them over other GPUs while it computes?

    Where GPUs share an expert it does. Expert parallelism alone reduces nothing; but the capacity path gathers the experts' weights
    over that axis, and hides their gradients behind the scores of attention where XLA itself computes those (compiled: none
    waited with dot_product in one model, all did with cuDNN's attention in another).
    """
    gathered = not case.te and not case.values.flag("sparse_matmul") and case.size("expert") > 1
    return shared(case) or (gathered and scores > 0)


def expert_bytes(case: Case, layers: int) -> float:
    """Bytes of the routed experts: what they got, what they are told of their outputs, their inner tensor and its gradients."""
    shape = case.shape
    each = 2 * shape.moe_in + (shape.activations + 1) * shape.moe_mlp / _split(case)
    return layers * activations.expert_rows(case) * each * activations.width(case)


def other_bytes(case: Case, at: Layers) -> float:
    """Bytes of attention, dense MLPs and shared experts."""
    shape = case.shape
    shared = shape.shared_experts * shape.moe_mlp if shape.decoder_block == "deepseek" else 0
    each = (at.dense + at.moe) * attention_width(case)
    each += at.dense * mlp_width(case, shape.mlp) + at.moe * mlp_width(case, shared)
    return activations.local_tokens(case) * each * activations.width(case)
