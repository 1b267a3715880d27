"""Batch, experts and MaxText's own expert paths: what MaxText 0.2.5 would refuse, or die of, after the job was queued."""

from __future__ import annotations

import math
from collections.abc import Iterator

from launcher.issue import Issue
from launcher.plan.case import Case, Rule, error, note, shown, warning
from launcher.plan.cures import factors
from launcher.plan.loose import SCHEDULER

NEED_EXPERT_PARALLEL = {
    "use_random_routing": False, "use_ragged_sort": False, "moe_dropless_fallback": None, "use_ring_of_experts": False,
    "num_moe_emb_chunks": 0,
}  # fmt: skip
"""Keys that must keep this value while the expert axis is 1 (configs/types.py, "When EP rank is 1")."""

BUFFER_FACTORS = ("ragged_buffer_factor", "eval_ragged_buffer_factor")
"""The same, but TE's block may set them."""

BATCH_AXES = ("data", "pipeline", "fsdp", "fsdp_transpose", "expert")
"""Axes that the rows of a batch are spread over (base.yml, activation_embed_and_logits_batch)."""

NO_ACCUMULATION = ("fp8", "nanoo_fp8", "fp8_gpu", "te_fp8_delayedscaling")
"""Quantizations that MaxText refuses with gradient accumulation (configs/types.py)."""

ONE_SHOT = "xla_gpu_unsupported_use_ragged_all_to_all_one_shot_kernel"
FALLBACK = "xla_gpu_allow_ragged_all_to_all_nccl_send_recv_fallback"
"""XLA sends a ragged all-to-all by a kernel of its own (the default), or through NCCL, which jaxlib 0.11.2 wants allowed."""

HOPPER = 90
"""Compute capability x 10, as in a hardware file."""


def _shards(case: Case, axes: tuple[str, ...]) -> tuple[int, str]:
    """Ranks over these axes, and the factors that are not 1."""
    sizes = {axis: case.size(axis) for axis in axes}
    return math.prod(sizes.values()), " x ".join(f"{a} {n}" for a, n in sizes.items() if n != 1) or "1"


def batch(case: Case) -> Iterator[Issue]:
    """The rows of a batch must divide over the ranks that share them.

    MaxText loads int(GPUs x per_device_batch_size) x accumulation rows (a fraction below 1 counts as 1 when loading) and
    calls the model with int(GPUs x per_device_batch_size) of them. JAX refuses a loaded batch that does not divide; the
    sparse expert path and TE's block refuse a call that does not.
    """
    per_device, steps = (
        case.experiment.trainer.per_device_batch_size,
        case.experiment.trainer.gradient_accumulation_steps,
    )
    if case.mesh is None or not math.isfinite(per_device) or per_device <= 0 or steps < 1:
        return
    gpus = case.mesh.gpus
    call = int(gpus * per_device)
    loaded = (call if per_device >= 1 else gpus) * steps
    field = "trainer.per_device_batch_size"
    # Any whole number divides, because the number of GPUs does.
    hint = f"type {field}={max(math.floor(per_device), 1)} or {field}={max(math.ceil(per_device), 2)}"
    counted = f"{gpus} GPUs x per_device_batch_size {shown(per_device)}"
    shards, named = _shards(case, ("fsdp", "expert") if case.te else BATCH_AXES)
    per_call = max(loaded // steps, call) if case.te else call
    by_call = case.te or (case.shape.moe and case.values.flag("sparse_matmul") and case.size("expert") > 1)
    if call < 1:
        yield error("BATCH_EMPTY", field, f"{counted} is less than one sequence", hint)
    elif by_call and per_call % shards:
        yield error(
            "BATCH_DIVISIBLE",
            field,
            f"{counted} = {per_call} sequences a call, not divisible by {named} = {shards} ranks",
            hint,
        )
    elif loaded % _shards(case, BATCH_AXES)[0]:
        shards, named = _shards(case, BATCH_AXES)
        message = f"{counted} x accumulation {steps} = {loaded} sequences, not divisible by {named} = {shards} ranks"
        yield error("BATCH_DIVISIBLE", field, message, hint)


def sequence(case: Case) -> Iterator[Issue]:
    """Context parallelism cuts the sequence into equal parts."""
    shards, named = _shards(case, ("context", "tensor_sequence"))
    length = case.experiment.trainer.max_target_length
    if shards > 1 and length % shards:
        message = f"max_target_length {length} is not divisible by {named} = {shards} ranks that share a sequence"
        longer = math.ceil(length / shards) * shards
        yield error(
            "SEQUENCE_DIVISIBLE", "trainer.max_target_length", message, f"type trainer.max_target_length={longer}"
        )


def _ep_cure(case: Case) -> str:
    """ICI sizes with an expert axis that divides the experts, the product kept."""
    mesh = case.mesh
    assert mesh is not None
    product = mesh.ici["fsdp"] * mesh.ici["expert"]
    fits = [
        e
        for e in range(1, mesh.ici["expert"])
        if product % e == 0 and case.shape.experts % (e * mesh.dcn["expert"]) == 0
    ]
    return f"type mesh.ici.fsdp={product // fits[-1]} mesh.ici.expert={fits[-1]}" if fits else "type mesh.dcn.expert=1"


def experts(case: Case) -> Iterator[Issue]:
    """Every rank of an EP group holds the same number of experts."""
    ranks = case.size("expert")
    if case.mesh is not None and case.shape.moe and case.shape.experts % ranks:
        ici = factors("ici", case.mesh.ici)
        message = f"num_experts {case.shape.experts} is not divisible by {ranks} ranks of expert parallelism ({ici})"
        yield error("MOE_EXPERTS_DIVISIBLE", "mesh.ici.expert", message, _ep_cure(case))


def crossing(case: Case) -> Iterator[Issue]:
    """Expert parallelism between domains works without TE's block, but every token then crosses the network."""
    mesh = case.mesh
    if mesh is not None and not mesh.experts_in_domain and not case.te and case.shape.moe:
        message = f"{mesh.expert_statement}: tokens travel over the network instead of NVLink in every MoE layer"
        hint = f"type mesh.dcn.expert=1 mesh.dcn.fsdp={mesh.dcn['fsdp'] * mesh.dcn['expert']}"
        yield warning("MOE_EP_CROSSES_DOMAINS", "mesh.dcn.expert", message, hint)


def own_path(case: Case) -> Iterator[Issue]:
    """What MaxText's own paths cannot do."""
    sparse, factor = case.values.flag("sparse_matmul"), case.values.number("capacity_factor", -1)
    if not case.shape.moe or case.te:
        if case.te and factor > 0:
            message = f"capacity_factor={shown(factor)} is not read: TE's block is dropless, ragged_buffer_factor sizes its buffers"
            yield note(
                "MOE_CAPACITY_UNUSED",
                case.field("capacity_factor"),
                message,
                f"nothing has to be done; {case.typed('capacity_factor', None)} takes it out",
            )
        return
    if sparse and factor > 0:
        message = f"capacity_factor={shown(factor)} is read only when sparse_matmul=false; this run is dropless"
        hint = f"type {case.typed('sparse_matmul', False)} to drop tokens over capacity, or {case.typed('capacity_factor', None)}"
        yield note("MOE_CAPACITY_UNUSED", case.field("capacity_factor"), message, hint)
    if sparse and case.cpu and case.size("expert") > 1:
        message = f"sparse_matmul=true with expert {case.size('expert')} needs ragged-all-to-all, which XLA's CPU backend does not have"
        yield error(
            "MOE_RAGGED_ON_CPU", case.field("sparse_matmul"), message, f"type {case.typed('sparse_matmul', False)}"
        )
    if sparse and case.size("expert") > 1 and case.values.flag("shard_exp_on_fsdp"):
        seen = f"shard_exp_on_fsdp=true with sparse_matmul=true and expert {case.size('expert')}"
        message = f"{seen}: the grouped product gets the weights of other experts than it wants"
        yield error(
            "MOE_EXPERTS_ON_FSDP",
            case.field("shard_exp_on_fsdp"),
            message,
            f"type {case.typed('shard_exp_on_fsdp', False)}",
        )
    if case.shape.decoder_block == "gpt_oss" and not sparse and factor != -1:
        message = (
            f"capacity_factor={shown(factor)} with sparse_matmul=false: MaxText's gpt_oss knows -1 (dropless) only"
        )
        yield error(
            "MOE_GPT_OSS_CAPACITY", case.field("capacity_factor"), message, f"type {case.typed('capacity_factor', -1)}"
        )
    if (
        case.values.flag("routed_bias")
        and case.values.number("routed_bias_update_rate") > 0
        and not case.shape.decoder_block.startswith("deepseek")
    ):
        block = case.shape.decoder_block
        message = (
            f"routed_bias_update_rate > 0 balances DeepSeek's router only, {case.shape.name} has decoder_block {block}"
        )
        yield error(
            "MOE_ROUTED_BIAS",
            case.field("routed_bias_update_rate"),
            message,
            f"type {case.typed('routed_bias_update_rate', 0)}",
        )


def exchange(case: Case) -> Iterator[Issue]:
    """XLA's ragged all-to-all, by which MaxText's dropless path sends tokens: what it died of on two H200s, jaxlib 0.11.2.

    docs/h200.md has the runs. On GB200 others saw the latency hiding scheduler corrupt gradients (conf/xla/ragged.yaml), so
    there the hint is another.
    """
    ragged = case.shape.moe and case.values.flag("sparse_matmul") and not case.values.flag("use_ring_of_experts")
    if case.cpu or case.te or not ragged or case.size("expert") == 1:
        return
    if not case.xla(ONE_SHOT, True):
        if not case.xla(FALLBACK, False):
            message = (
                f"{ONE_SHOT}=false sends tokens through NCCL, which XLA of jaxlib 0.11.2 refuses in the first step unless {FALLBACK} "
                "is true"
            )
            yield warning("MOE_RAGGED_REFUSED", f"xla.flags.{FALLBACK}", message, _flag(case, FALLBACK))
    elif not case.xla(SCHEDULER, False):
        message = (
            f"sparse_matmul=true with expert {case.size('expert')} can hang in its first step: on two H200s, jaxlib 0.11.2, four of "
            f"four runs did without {SCHEDULER}=true, and none of five with it"
        )
        hopper = case.experiment.hardware.compute_capability == HOPPER
        hint = _flag(case, SCHEDULER) if hopper else "type xla=ragged, which sends tokens through NCCL"
        yield warning("MOE_DROPLESS_HANGS", f"xla.flags.{SCHEDULER}", message, hint)


def _flag(case: Case, name: str) -> str:
    return f"type {'' if name in case.experiment.xla.flags else '+'}xla.flags.{name}=true"


def single_rank(case: Case) -> Iterator[Issue]:
    """Keys of expert parallelism while there is none."""
    if case.mesh is None or case.size("expert") > 1:
        return
    wanted: dict[str, object] = dict(NEED_EXPERT_PARALLEL)
    if not case.values.flag("te_moe_block"):
        wanted |= dict.fromkeys(BUFFER_FACTORS, -1)
    for key, value in wanted.items():
        seen = case.values[key]
        if (
            key not in case.schema.keys
            or seen == value
            or (value is None and seen == "")
            or (value in (False, 0) and not seen)
        ):
            continue
        message = f"{key}={shown(seen)} belongs to expert parallelism, but mesh expert is 1; MaxText wants {shown(value)} then"
        yield error(
            "MOE_NEEDS_EXPERT_PARALLEL",
            case.field(key),
            message,
            f"type {case.typed(key, value)}, or give mesh.ici.expert a size",
        )


def fully_moe(case: Case) -> Iterator[Issue]:
    """A model without any dense layer has one MLP width."""
    found, shape = case.values, case.shape
    whole = (
        found.whole("interleave_moe_layer_step", 1) == 1 and found.whole("inhomogeneous_layer_cycle_interval", 1) == 1
    )
    if (
        not shape.moe
        or found.whole("first_num_dense_layers")
        or not whole
        or shape.decoder_block in ("qwen3_moe", "gemma4")
    ):
        return
    if shape.moe_mlp <= 0:
        message = f"{shape.name} has {shape.experts} experts but base_moe_mlp_dim={found.whole('base_moe_mlp_dim', -1)}"
        yield error(
            "MOE_MLP_DIM",
            case.field("base_moe_mlp_dim"),
            message,
            f"type model.overrides.base_moe_mlp_dim={found.whole('base_mlp_dim')}",
        )
    elif shape.mlp != shape.moe_mlp:
        wanted = found.whole("base_moe_mlp_dim")
        seen = f"seen {found.whole('base_mlp_dim')} and {wanted}"
        message = f"{shape.name} has MoE layers only, so base_mlp_dim must equal base_moe_mlp_dim; {seen}"
        yield error(
            "MOE_MLP_DIM", "model.overrides.base_mlp_dim", message, f"type model.overrides.base_mlp_dim={wanted}"
        )


def combinations(case: Case) -> Iterator[Issue]:
    """Settings that MaxText refuses together."""
    found = case.values
    ways = [
        k
        for k in ("shard_exp_on_fsdp", "use_2d_fsdp_sharding", "shard_embed_moe_on_fsdp")
        if k in case.schema.keys and found.flag(k)
    ]
    if len(ways) > 1:
        typed = " ".join(case.typed(key, False) for key in ways[1:])
        yield error(
            "MOE_SHARDING_TWICE", case.field(ways[1]), f"{' and '.join(ways)} exclude each other", f"type {typed}"
        )
    fsdp = case.size("fsdp") * case.size("fsdp_transpose")
    if found.flag("shard_optimizer_over_data") and fsdp > 1:
        message = f"shard_optimizer_over_data=true with fsdp {fsdp}: MaxText takes one of the two; FSDP shards the optimizer too"
        field = case.field("shard_optimizer_over_data")
        yield error("TRAINER_ZERO1_WITH_FSDP", field, message, f"type {field}=false")
    quantization, steps = found.text("quantization"), found.whole("gradient_accumulation_steps", 1)
    if quantization in NO_ACCUMULATION and steps > 1:
        message = (
            f"quantization={quantization} with gradient_accumulation_steps={steps}: MaxText refuses the two together"
        )
        yield error(
            "PRECISION_ACCUMULATION",
            "trainer.gradient_accumulation_steps",
            message,
            "type trainer.gradient_accumulation_steps=1",
        )


RULES: tuple[Rule, ...] = (batch, sequence, experts, crossing, own_path, exchange, single_rank, fully_moe, combinations)
