"""The conditions of Transformer Engine's MoE block, each with the place in MaxText or TE that sets it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from launcher.issue import Issue
from launcher.node.trainer import TE_DATA_AXIS, WORKAROUNDS
from launcher.plan.case import Case, Rule, error, note, shown, warning
from launcher.plan.mesh import MeshPlan

TE_DECODER = "deepseek"
"""The one decoder of MaxText 0.2.5 whose model file (models/deepseek.py) hands TE's receive-capacity signals on."""

EXPERTS_MULTIPLE = 4
"""NCCL EP: experts per NVLink domain come in multiples of this (TE 2.20.2, ep.py)."""

MXFP8_MULTIPLE = 128
"""TE's MXFP8 grouped GEMM: every dimension is a multiple of this."""

LARGEST_GROUP = 64
"""NCCL EP's RELEASE.md: ranks of one EP group that it was tried with (8 nodes x 8 GPUs)."""

LEAST_CAPABILITY = {"te_fp8_delayedscaling": 89, "te_fp8_currentscaling": 89, "te_nvfp4": 100, "te_nvfp4_no_rht": 100}
"""CUDA compute capability x 10 that each of TE's quantizations needs (TE 2.20.2); MXFP8 is a fact of the hardware file."""

INSTEAD_OF_MXFP8 = "precision=fp8_currentscaling (FP8 in dense layers, bfloat16 in the experts), precision=te_bf16, or "

EP_CAPABILITY = 90
"""NCCL EP runs on Hopper and newer (TE 2.20.2)."""


@dataclass(frozen=True)
class Need:
    """A key that must have a value for TE's block; `on` says whether the value seen is a wrong one."""

    key: str
    wanted: object
    why: str


NEEDS = (
    Need("sparse_matmul", True, "MaxText takes the block on its sparse path only"),
    Need("prefuse_moe_weights", True, "the block takes both input projections of an expert as one tensor"),
    Need("use_random_routing", False, "the block routes by itself"),
    Need("norm_topk_prob", False, "the block does not renormalise the top-k weights"),
    Need("use_qwix_quantization", False, "the block takes TE's quantizers, not Qwix's"),
    Need("routed_bias_update_rate", 0, "the block does not update the router's bias"),
    Need("eval_ragged_buffer_factor", -1, "the block has one receive capacity for training and evaluation"),
    Need("first_phase_ragged_buffer_factor", 0, "the block has one receive capacity from the first step on"),
    Need(
        "log_required_ragged_buffer_factor", False, "the block reports its demand itself (te_moe_max_total_recv_tokens)"
    ),
    Need("moe_log_max_load_ratio", False, "it belongs to the ring-of-experts path"),
)
"""MaxText 0.2.5, configs/types.py, validate_ragged_buffer_factor and the cross-field validations near it."""


def _met(case: Case, need: Need) -> bool:
    if isinstance(need.wanted, bool):
        return case.values.flag(need.key) is need.wanted
    seen = case.values.number(need.key)
    return seen <= 0


def needs(case: Case) -> Iterator[Issue]:
    """Keys that the block wants at one value."""
    for need in NEEDS:
        if need.key in case.schema.keys and not _met(case, need):
            seen = f"{need.key}={shown(case.values[need.key])}"
            message = f"te_moe_block=true wants {need.key}={shown(need.wanted)}, seen {seen}: {need.why}"
            yield error("TE_NEEDS", case.field(need.key), message, f"type {case.typed(need.key, need.wanted)}")


def decoder(case: Case) -> Iterator[Issue]:
    """Only DeepSeek's model file passes the block's signals on."""
    block = case.shape.decoder_block
    if block != TE_DECODER:
        message = (
            f"te_moe_block=true works for decoder_block={TE_DECODER} only, {case.shape.name} has {block}: in MaxText {case.schema.version} "
            f"only models/deepseek.py passes on how full TE's receive buffers were, and the train step stops without that"
        )
        yield error(
            "TE_DECODER",
            "moe.te_moe_block",
            message,
            "type moe=dropless (MaxText's own path), or choose a DeepSeek model",
        )


def gmm_quantization(case: Case) -> Iterator[Issue]:
    """The experts' grouped GEMMs and the rest need a TE quantization each, and the hardware must have it."""
    best = "te_mxfp8" if case.experiment.hardware.mxfp8 else "te_no_quant"
    if not case.values.text("te_gmm_quantization"):
        message = "te_moe_block=true wants te_gmm_quantization: te_mxfp8, or te_no_quant for bfloat16"
        yield error(
            "TE_GMM_QUANTIZATION",
            case.field("te_gmm_quantization"),
            message,
            f"type {case.typed('te_gmm_quantization', best)}",
        )
    quantization = case.values.text("quantization")
    if not quantization.startswith("te_"):
        seen = f"quantization={quantization or 'none'}"
        message = (
            f"te_moe_block=true wants a quantization of TE (te_...), seen {seen}; te_no_quant is TE's word for bfloat16"
        )
        yield error(
            "TE_QUANTIZATION", case.field("quantization"), message, f"type {case.typed('quantization', 'te_no_quant')}"
        )
    if case.values.text("te_gmm_quantization") == "te_mxfp8":
        wrong = {"emb_dim": case.shape.emb, "moe_mlp_dim": case.shape.moe_mlp}
        odd = " and ".join(f"{name} {n}" for name, n in wrong.items() if n % MXFP8_MULTIPLE)
        if odd:
            message = f"te_gmm_quantization=te_mxfp8 wants dimensions that are multiples of {MXFP8_MULTIPLE}; {case.shape.name} has {odd}"
            yield error(
                "TE_MXFP8_DIMENSIONS",
                case.field("te_gmm_quantization"),
                message,
                f"type {case.typed('te_gmm_quantization', 'te_no_quant')}",
            )


def buffer_factor(case: Case) -> Iterator[Issue]:
    """0 < factor < 1 is refused: 1 is exactly the tokens of a balanced router."""
    factor = case.values.number("ragged_buffer_factor", -1)
    if 0 < factor < 1:
        message = f"ragged_buffer_factor={shown(factor)}: TE's block takes 1 (room for a balanced router) or more, or -1 for the worst case"
        yield error(
            "TE_BUFFER_FACTOR",
            case.field("ragged_buffer_factor"),
            message,
            f"type {case.typed('ragged_buffer_factor', 2)}",
        )


def compiler(case: Case) -> Iterator[Issue]:
    """Shardy and bfloat16 are what TE's block is written for."""
    if not case.values.flag("shardy"):
        message = (
            "shardy=false: TE's custom calls refuse GSPMD (`Custom-partitioned function ... does not support GSPMD`)"
        )
        yield error("TE_SHARDY", case.field("shardy"), message, f"type {case.typed('shardy', True)}")
    if case.values.text("dtype") != "bfloat16":
        message = f"dtype={case.values.text('dtype')}: NCCL EP dispatches bfloat16 tokens only"
        yield error("TE_DTYPE", case.field("dtype"), message, f"type {case.typed('dtype', 'bfloat16')}")


def _copies(case: Case, plan: MeshPlan) -> Iterator[Issue]:
    """A data axis, which MaxText's call of TE's block leaves out (docs/configuration.md)."""
    copies, part = plan.size("data"), "dcn" if plan.dcn["data"] > 1 else "ici"
    if copies == 1:
        return
    where, allowed = f"mesh.{part}.data", case.experiment.trainer.workarounds
    sizes = plan.dcn if part == "dcn" else plan.ici
    to_fsdp = f"{where}=1 mesh.{part}.fsdp={sizes['fsdp'] * sizes['data']}"
    if plan.size("fsdp") == 1:
        message = (
            f"data {copies} with fsdp 1: Transformer Engine's dense GEMMs cannot be divided over such a mesh "
            "(`DuplicateSpecError` while XLA compiles)"
        )
        yield error("TE_DATA_AXIS", where, message, f"type {to_fsdp}")
    elif TE_DATA_AXIS in allowed:
        message = (
            f"data {copies} with TE's block goes by the workaround {TE_DATA_AXIS}: such steps were compiled (for 8 H200s and 1,024 "
            "GB200s), and have not trained on GPUs yet"
        )
        yield warning("TE_COPIES_UNTRIED", where, message, "compare a few steps with moe=dropless before a long run")
    else:
        message = (
            f"data {copies}: MaxText 0.2.5 calls TE's block with fsdp as its only data axis, and the step cannot be traced "
            "(`cannot reshape array of shape ...`)"
        )
        known = [name for name in allowed if name in WORKAROUNDS]
        typed = f"trainer.workarounds=[{','.join([*known, TE_DATA_AXIS])}]"
        hint = f"type {typed}, which changes those lines in the trainer, or {to_fsdp} where the weights divide by it"
        yield error("TE_DATA_AXIS", where, message, hint)


def _gathers(plan: MeshPlan) -> Iterator[Issue]:
    """Experts over four GPUs or more with nothing beside them (compiled: docs/plan.md)."""
    ranks = plan.expert_parallel
    if ranks < 4 or plan.size("fsdp") > 1:
        return
    message = (
        f"expert {ranks} with fsdp 1: Transformer Engine's dense GEMMs gather the activations of all {ranks} ranks for the weights' "
        "gradients (156 GB a step in one compiled for 8 H200s); with fsdp beside it none"
    )
    typed = [
        f"type mesh.{part}.expert={sizes['expert'] // 2} mesh.{part}.fsdp=2"
        for part, sizes in (("ici", plan.ici), ("dcn", plan.dcn))
        if sizes["expert"] % 2 == 0
    ]
    yield warning(
        "TE_EP_GATHERS", "mesh.ici.fsdp", message, typed[0] if typed else "give some of the ranks to mesh.ici.fsdp"
    )


def mesh(case: Case) -> Iterator[Issue]:
    """EP groups of two and more ranks, only FSDP and EP beside them, all inside one NVLink domain."""
    plan = case.mesh
    if plan is None:
        return
    if plan.expert_parallel == 1:
        gpus = "one GPU" if plan.gpus == 1 else f"{plan.gpus} GPUs"
        message = f"te_moe_block=true with mesh expert 1 on {gpus}: NCCL EP wants groups of 2 ranks or more"
        several = ", or give mesh.ici.expert a size and divide mesh.ici.fsdp by it" if plan.gpus > 1 else ""
        hint = f"type moe=capacity precision=bf16 (drops tokens), moe=dropless precision=bf16 (slow){several}"
        yield error("TE_EXPERT_PARALLEL", "mesh.ici.expert", message, hint)
    others = {a: plan.size(a) for a in plan.ici if a not in ("fsdp", "expert", "data") and plan.size(a) > 1}
    if others:
        named = " x ".join(f"{axis} {n}" for axis, n in others.items())
        typed = " ".join(
            f"mesh.{part}.{a}=1"
            for a in others
            for part, sizes in (("ici", plan.ici), ("dcn", plan.dcn))
            if sizes[a] > 1
        )
        message = (
            f"{named}: TE's block knows the axes fsdp and expert only (MaxText passes data_parallelism_axes=('fsdp',))"
        )
        yield error(
            "TE_AXES",
            f"mesh.ici.{next(iter(others))}",
            message,
            f"type {typed} and give the ranks to fsdp, or moe=dropless",
        )
    yield from _copies(case, plan)
    if not plan.experts_in_domain:
        message = f"{plan.expert_statement}: between domains NCCL EP needs GIN (GPU-initiated InfiniBand), which this path does not set up"
        yield error(
            "TE_EP_CROSSES_DOMAINS",
            "mesh.dcn.expert",
            message,
            f"type mesh.dcn.expert=1 mesh.dcn.fsdp={plan.size('fsdp') // plan.ici['fsdp'] * plan.dcn['expert']}",
        )
    yield from _gathers(plan)
    if plan.expert_parallel > LARGEST_GROUP:
        message = f"expert groups of {plan.expert_parallel} ranks: NCCL EP was released for {LARGEST_GROUP} at most"
        yield warning("TE_EP_SIZE", "mesh.ici.expert", message, f"choose mesh.ici.expert={LARGEST_GROUP} or less")


def experts_in_domain(case: Case) -> Iterator[Issue]:
    """NCCL EP wants experts per NVLink domain in multiples of four."""
    if case.mesh is None or case.shape.experts % case.mesh.expert_parallel:
        return
    here = case.shape.experts // case.mesh.dcn["expert"]
    if here % EXPERTS_MULTIPLE:
        counted = f"num_experts {case.shape.experts} / dcn expert {case.mesh.dcn['expert']} = {here}"
        message = f"{counted} experts per NVLink domain; NCCL EP wants a multiple of {EXPERTS_MULTIPLE}"
        yield error(
            "TE_EXPERTS_PER_DOMAIN",
            case.field("num_experts"),
            message,
            "type moe=dropless, or choose a model with a multiple of 4 experts",
        )


def hardware(case: Case) -> Iterator[Issue]:
    """NCCL EP needs Hopper or newer."""
    capability = case.experiment.hardware.compute_capability
    if not case.cpu and 0 < capability < EP_CAPABILITY:
        seen = f"{case.experiment.hardware.name} has {capability / 10}"
        message = f"te_moe_block=true wants compute capability {EP_CAPABILITY / 10} or more, {seen}"
        yield error(
            "TE_HARDWARE", "hardware.name", message, "type moe=dropless, or choose hardware=NAME with Hopper or newer"
        )


def routing(case: Case) -> Iterator[Issue]:
    """MaxText 0.2.5 calls the block with use_pre_softmax=False: softmax over the chosen experts, not over all of them."""
    score = case.values.text("routed_score_func")
    if score == "softmax":
        message = (
            f"routed_score_func=softmax ({case.shape.name}): TE's block takes the softmax over the {case.shape.experts_per_token} "
            "chosen experts, so their weights sum to 1; MaxText's own path takes it over all experts"
        )
        yield warning(
            "TE_SOFTMAX_ROUTING",
            case.field("te_moe_block"),
            message,
            "nothing for a run from scratch; to go on from weights trained the other way type moe=dropless precision=bf16",
        )


BLOCK_RULES: tuple[Rule, ...] = (
    decoder, needs, gmm_quantization, buffer_factor, compiler, mesh, experts_in_domain, hardware, routing,
)  # fmt: skip


def block(case: Case) -> Iterator[Issue]:
    """All conditions of the block, when the experiment uses it."""
    if case.values.flag("te_moe_block") and not case.shape.moe:
        message = f"te_moe_block=true, but {case.shape.name} has no experts"
        yield note("TE_WITHOUT_EXPERTS", case.field("te_moe_block"), message, "type moe=dropless")
    if case.cpu and case.te:
        message = f"te_moe_block=true on {case.experiment.hardware.name}: Transformer Engine runs on NVIDIA GPUs only"
        yield error(
            "TE_ON_CPU",
            case.field("te_moe_block"),
            message,
            "type moe=dense (every expert computes every token), or choose a GPU hardware=NAME",
        )
    elif case.te:
        for rule in BLOCK_RULES:
            yield from rule(case)


def quantizations(case: Case) -> Iterator[Issue]:
    """Is there a quantization that this hardware does not have? Also without the block: TE's dense layers use it too."""
    machine = case.experiment.hardware
    for key in ("quantization", "te_gmm_quantization"):
        value = case.values.text(key)
        if not value.startswith("te_") or (key == "te_gmm_quantization" and not case.te):
            continue
        if case.cpu:
            if key == "quantization":
                message = f"{key}={value} on {machine.name}: Transformer Engine runs on NVIDIA GPUs only"
                yield error("TE_ON_CPU", case.field(key), message, f"type precision=fp32, or {case.typed(key, None)}")
            continue
        capability = machine.compute_capability or EP_CAPABILITY
        lacking = not machine.mxfp8 if value == "te_mxfp8" else capability < LEAST_CAPABILITY.get(value, 0)
        if lacking:
            other = (
                "te_fp8_currentscaling"
                if key == "quantization" and capability >= LEAST_CAPABILITY["te_fp8_currentscaling"]
                else "te_no_quant"
            )
            message = f"{key}={value}: {machine.name} (compute capability {capability / 10}) does not have that format"
            has_fp8 = capability >= LEAST_CAPABILITY["te_fp8_currentscaling"]
            ways = INSTEAD_OF_MXFP8 if value == "te_mxfp8" and has_fp8 else ""
            yield error("PRECISION_HARDWARE", case.field(key), message, f"type {ways}{case.typed(key, other)}")


def einsum(case: Case) -> Iterator[Issue]:
    """MaxText's experts with a capacity are einsums, which no quantization of TE has, te_no_quant neither (MaxText 0.2.5; on an H200)."""
    quantization = case.values.text("quantization")
    dense = case.shape.moe and not case.te and not case.values.flag("sparse_matmul")
    if not case.cpu and dense and quantization.startswith("te_"):
        message = (
            f"quantization={quantization} with the experts of moe=capacity: MaxText stops with "
            '"Einsum is not yet supported for TransformerEngine quantization"'
        )
        ways = "or moe=te, or moe=dropless, whose experts stay in bfloat16"
        yield error(
            "TE_NO_EINSUM", case.field("quantization"), message, f"type {case.typed('quantization', None)}, {ways}"
        )


def leftovers(case: Case) -> Iterator[Issue]:
    """TE's settings without TE's block do nothing; TE's attention on a CPU does not exist."""
    if case.values.text("te_gmm_quantization") and not case.values.flag("te_moe_block"):
        message = f"te_gmm_quantization={case.values.text('te_gmm_quantization')} is read by TE's block only, and te_moe_block is false"
        yield note(
            "TE_GMM_UNUSED",
            case.field("te_gmm_quantization"),
            message,
            f"type moe=te to use it, or {case.typed('te_gmm_quantization', None)}",
        )
    attention = case.values.text("attention")
    if case.cpu and attention.startswith("cudnn"):
        message = f"attention={attention} on {case.experiment.hardware.name}: cuDNN runs on NVIDIA GPUs only"
        yield error("TE_ON_CPU", case.field("attention"), message, f"type {case.typed('attention', 'dot_product')}")


RULES: tuple[Rule, ...] = (block, quantizations, einsum, leftovers)
