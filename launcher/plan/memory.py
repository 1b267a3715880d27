"""Bytes that a training step needs in one GPU, and on its host, before anything is compiled.

    peak = state + kept activations + G x gradients + W x weights of a layer + R x receive buffers + F x experts' MLP
           + X x a layer's activations + L x logits (+ M x dispatch masks on the capacity path,
           + D x ragged_dot's copies on MaxText's dropless path, + S x attention's scores where they are written out)

State, kept activations and host bytes are exact; the factors stand for what XLA holds at once beside them and are fitted to its own
buffer assignments (data/prediction/memory.toml: factors, source, and the error that is left). Layers without a loop have a second
peak (plan/loose.py), and the larger one counts. Not in it: NCCL's and NCCL EP's buffers, cuBLAS' workspace, the CUDA context;
XLA_PYTHON_CLIENT_MEM_FRACTION is there to leave them room.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import tomllib
from collections.abc import Mapping, Set
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from launcher.config.maxtext_schema import SNAPSHOTS
from launcher.plan import activations, loose, params
from launcher.plan.case import Case

DATA = SNAPSHOTS.parent / "prediction"

FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION"

DEFAULT_FRACTION = 0.75
"""What JAX takes of a GPU without that variable (JAX documentation, GPU memory allocation)."""


class Verdict(StrEnum):
    """FITS and OVER hold even when the estimate is off by its known error; TIGHT is between."""

    FITS = "FITS"
    TIGHT = "TIGHT"
    OVER = "OVER"


@dataclass(frozen=True)
class Part:
    """One piece of a GPU's memory, in bytes."""

    name: str
    bytes: int


@dataclass(frozen=True)
class Memory:
    """Bytes of one GPU, unless a name says otherwise.

    Attributes:
        state: weights, first and second moment: what the step's arguments hold.
        kept: named tensors kept in the GPU for the backward pass.
        working: what is alive at the peak beside them.
        offloaded: named tensors (and state) in host memory, of one process.
        receive_rows: rows of the experts' buffers.
        limit: what XLA may use: MEM_FRACTION x HBM; 0 when the hardware's memory is not known.
        error: relative error of the total that the verdict allows for.
    """

    state: tuple[Part, ...]
    kept: tuple[Part, ...]
    working: tuple[Part, ...]
    offloaded: tuple[Part, ...]
    receive_rows: int
    fraction: float
    limit: int
    processes_per_node: int
    error: float

    @property
    def parts(self) -> tuple[Part, ...]:
        """All of the GPU's, in the order of a stacked bar."""
        return self.state + self.kept + self.working

    @property
    def total(self) -> int:
        """The peak."""
        return sum(part.bytes for part in self.parts)

    @property
    def state_bytes(self) -> int:
        """Weights and moments."""
        return sum(part.bytes for part in self.state)

    @property
    def kept_bytes(self) -> int:
        """Kept activations."""
        return sum(part.bytes for part in self.kept)

    @property
    def working_bytes(self) -> int:
        """What the step needs beside state and kept activations."""
        return sum(part.bytes for part in self.working)

    @property
    def host(self) -> int:
        """Host memory of one process."""
        return sum(part.bytes for part in self.offloaded)

    @property
    def host_per_node(self) -> int:
        """Host memory of all processes of a node."""
        return self.host * self.processes_per_node

    @property
    def verdict(self) -> Verdict | None:
        """None where the hardware's memory is not known."""
        if self.limit <= 0:
            return None
        if self.total * (1 - self.error) > self.limit:
            return Verdict.OVER
        return Verdict.FITS if self.total * (1 + self.error) <= self.limit else Verdict.TIGHT


@functools.cache
def constants() -> Mapping[str, Any]:
    """The fitted factors with their source."""
    with (DATA / "memory.toml").open("rb") as file:
        return tomllib.load(file)


def path(case: Case) -> str:
    """Which expert path computes: te, capacity, sparse or dense."""
    if not case.shape.moe:
        return "dense"
    return "te" if case.te else "sparse" if case.values.flag("sparse_matmul") else "capacity"


def missing(case: Case) -> str | None:
    """Why there is no estimate for a case; None when there is one."""
    if case.mesh is None:
        return "the mesh is impossible"
    if params.count(case) is None:
        return f"decoder_block {case.shape.decoder_block}, or its axis rules, is not described in data/tensors.json"
    for axis in ("pipeline", "autoregressive"):
        if case.size(axis) > 1:
            return f"the axis {axis} is not modelled"
    own = [key for key in ("use_indexer", "engram_layers", "use_multimodal") if case.values[key]]
    if own:
        return f"{own[0]} is not modelled"
    if case.values.number("per_device_batch_size") <= 0 or case.values.whole("max_target_length") <= 0:
        return "the batch has no tokens"
    return None


def state_elements(case: Case) -> float:
    """Parameters that one GPU holds."""
    counted = params.count(case)
    assert counted is not None
    return counted.per_gpu


def _state(case: Case) -> tuple[list[Part], list[Part]]:
    """Weights and moments of one GPU, and the part of them that lies in host memory."""
    elements = state_elements(case)
    weight = activations.BYTES.get(case.values.text("weight_dtype"), 4)
    first = activations.BYTES.get(case.values.text("mu_dtype"), weight)
    over = case.size("data") if case.values.flag("shard_optimizer_over_data") else 1
    moments = {"adamw": ("mu", "nu"), "adam_pax": ("mu", "nu"), "muon": ("mu",), "sgd": ()}
    found = [Part("weights", round(elements * weight))]
    for name in moments.get(case.values.text("opt_type"), ("mu", "nu")):
        # optax's second moment follows the weights' type.
        found.append(Part(name, round(elements * (first if name == "mu" else weight) / over)))
    away = {"weights"} if case.values.flag("parameter_memory_host_offload") else set()
    away |= {"mu", "nu"} if case.values.flag("optimizer_memory_host_offload") else set()
    return [p for p in found if p.name not in away], [p for p in found if p.name in away]


def quantities(case: Case) -> dict[str, float]:
    """Bytes that the fitted factors multiply, by the factors' names; `logits` is in elements (a factor of 4 = one float32 copy)."""
    shape, tokens, dt = case.shape, activations.local_tokens(case), activations.width(case)
    weight = activations.BYTES.get(case.values.text("weight_dtype"), 4)
    split = case.size("tensor") * case.size("tensor_sequence")
    experts, other = params.layer(shape)
    # float32 weights are gathered partly in bfloat16: between the two.
    of_layer = (experts / case.size("expert") if shape.moe else other) / split * 2 * math.sqrt(weight / 2)
    rows = activations.expert_rows(case) if shape.moe else tokens
    inner = shape.moe_mlp if shape.moe else shape.mlp
    return {
        "gradients": state_elements(case) * weight,
        "layer": of_layer,
        "rows": rows * shape.moe_in * dt,
        "inner": rows * inner * dt / split,
        "tokens": tokens * shape.emb * dt,
        "logits": tokens * shape.vocab / split / max(case.values.whole("num_vocab_tiling", 1), 1),
        "masks": masks(case) if path(case) == "capacity" else 0.0,
        "ragged": ragged(case) if path(case) == "sparse" else 0.0,
        "scores": scores(case),
    }


NAMES = {
    "gradients": "gradients",
    "layer": "weights of a layer",
    "rows": "receive buffers",
    "inner": "experts' MLP",
    "tokens": "layer's activations",
    "logits": "logits",
    "masks": "dispatch masks",
    "ragged": "ragged_dot's copies",
    "scores": "attention's scores",
}
"""What readers call the quantities."""

OF_MLP = ("rows", "inner", "masks", "ragged")
"""Those of a layer's MLP or experts: not there while its attention computes."""


def _names(case: Case) -> Mapping[str, str]:
    return NAMES if case.shape.moe else {**NAMES, "rows": "MLP input", "inner": "MLP"}


def _parts(case: Case, factors: Mapping[str, float]) -> dict[str, float]:
    """Factors times quantities; of attention's scores and of what the MLP needs only the larger, since they take turns."""
    names = _names(case)
    if case.size("expert") == 1:
        factors = {**factors, **constants()["no_exchange"]}
    size = {key: factors[key] * value for key, value in quantities(case).items() if key in factors}
    turn = sum(size.get(key, 0.0) for key in OF_MLP)
    attention = size.get("scores", 0.0) > turn
    idle = OF_MLP if attention else ("scores",)
    return {names[key]: value for key, value in size.items() if value and key not in idle}


def _put_off(case: Case, at: loose.Layers, kept: float) -> dict[str, float]:
    """What waits for the gradients of the weights of these layers; a tensor that the policy keeps is there already."""
    table = constants()["put_off"]
    share = 1.0
    if not case.values.flag("scan_layers"):
        share = max(1 - table["not_yet"] / (at.dense + at.moe), 0.0) if loose.called(case) else table["others"]
    experts = at.moe
    if loose.early(case, scores(case)):
        experts = min(at.moe, table["early"] if loose.shared(case) else 1)
    parts = {
        "experts' tensors put off": loose.expert_bytes(case, experts),
        "other tensors put off": max(share * loose.other_bytes(case, at) - kept, 0),
    }
    return {name: size for name, size in parts.items() if size}


def _in_order(case: Case, factors: Mapping[str, float], kept: float) -> dict[str, float]:
    """Without a loop and a scheduler, layer by layer: the larger of the backward pass's begin and end.

    At its begin all that the policy keeps is there, and of one layer its gradients, and its tensors that are kept already; at its end all
    gradients, and nothing kept but the layers' inputs. kept: bytes of the kept tensors but those inputs.
    """
    parts = _parts(case, {**factors, **constants()["in_order"]})
    gradients = parts.pop("gradients")
    if kept <= gradients:
        return {"gradients": gradients - kept, **parts}
    own = [name for key, name in _names(case).items() if key in (*OF_MLP, "tokens") and name in parts]
    share = min((kept - gradients) / case.shape.layers / (sum(parts[name] for name in own) or 1.0), 1.0)
    return {name: size * (1 - share) if name in own else size for name, size in parts.items()}


def held(case: Case, factors: Mapping[str, float]) -> dict[str, float]:
    """Bytes of what is alive at the peak beside state and kept activations.

    Layers in a loop: everything by the fitted factors. Without a loop: the larger of the same without the copy of the weights that
    a loop wants (stacked by layer), and of what waits for the gradients of the weights, beside one layer's exchange. With the
    scheduler off nothing waits (`_in_order`).
    """
    at, table = loose.layers(case), constants()
    if case.values.flag("scan_layers"):
        return _parts(case, factors) | _put_off(case, at, 0.0)
    kept = sum(k.bytes for k in activations.kept(case) if k.where == "device" and k.name != "decoder_layer_input")
    first = _parts(case, {**factors, **table["unrolled"]})
    if not at.any:
        return first if case.cpu or loose.scheduled(case) else _in_order(case, factors, kept)
    beside = {**table["beside"], "scores": factors["scores"]}
    if loose.early(case, scores(case)):
        # The capacity path gathers the experts of all ranks.
        ranks = case.size("expert") if path(case) == "capacity" else 1
        beside |= {**table["early"], "layer": table["early"]["layer"] * ranks}
    second = _put_off(case, at, kept) | _parts(case, beside)
    return max(first, second, key=lambda parts: sum(parts.values()))


def _working(case: Case) -> list[Part]:
    """What is alive at the peak beside state and kept activations, with the sum that gradient accumulation keeps."""
    parts = [Part(name, round(size)) for name, size in held(case, constants()["factors"]).items()]
    if case.values.number("gradient_accumulation_steps", 1) > 1:
        parts.append(Part("accumulated gradients", round(quantities(case)["gradients"])))
    return parts


def scores(case: Case) -> float:
    """Bytes of attention's scores [batch, heads, sequence, sequence] of one layer; 0 where the attention does not write them out.

    MaxText's attention=dot_product does. So does TE's unfused attention, to which cudnn_flash_te falls back where cuDNN refuses: that is
    seen only on the GPU.
    """
    if case.values.text("attention") != "dot_product":
        return 0.0
    split = case.size("tensor") * case.size("tensor_sequence")
    length = case.values.whole("max_target_length")
    return activations.local_tokens(case) * length * case.shape.heads / split * activations.width(case)


def masks(case: Case) -> float:
    """Bytes of one mask [tokens, experts, slots] by which MaxText's capacity path sends tokens to experts."""
    factor = case.values.number("capacity_factor", -1.0)
    if factor <= 0:
        return 0.0
    slots = case.values.whole("max_target_length") * case.shape.experts_per_token * factor
    return activations.local_tokens(case) * slots * activations.width(case)


def ragged(case: Case) -> float:
    """Bytes of one masked copy [local experts, rows, width] by which XLA computes jax.lax.ragged_dot where it has no kernel for it."""
    shape = case.shape
    local = shape.experts / case.size("expert")
    return activations.expert_rows(case) * local * max(shape.moe_in, shape.moe_mlp) * activations.width(case)


def fraction(case: Case) -> float:
    """The share of a GPU's memory that XLA may take."""
    variables = {**case.experiment.fabric.vars, **case.experiment.env.vars}
    try:
        asked = float(str(variables.get(FRACTION, DEFAULT_FRACTION)))
    except ValueError:
        return DEFAULT_FRACTION
    return asked if 0 < asked <= 1 else DEFAULT_FRACTION


def _error(case: Case) -> float:
    """The relative error that the verdict allows for."""
    table = constants()
    known = table["error"] if case.values.text("remat_policy") in table["fitted_policies"] else table["error_elsewhere"]
    if not case.values.flag("scan_layers"):
        # There the peak hardly depends on the policy: what one keeps is put off under the others too.
        return float(table["error_early"] if loose.early(case, scores(case)) else table["error_loose"])
    return float(max(known, table["error_loose"]) if loose.layers(case).any else known)


@functools.lru_cache(maxsize=64)
def estimate(case: Case, also: Set[str] = frozenset()) -> Memory | None:
    """The memory of a case; None when `missing` says why.

    Args:
        also: tensor names that this build of Transformer Engine has beyond those of data/remat_names.json.
    """
    if missing(case) is not None:
        return None
    state, away = _state(case)
    kept = activations.kept(case, also)
    share = fraction(case)
    return Memory(
        state=tuple(state),
        kept=tuple(Part(k.name, k.bytes) for k in kept if k.where == "device"),
        working=tuple(_working(case)),
        offloaded=(*(Part(k.name, k.bytes) for k in kept if k.where == "offload"), *away),
        receive_rows=activations.expert_rows(case),
        fraction=share,
        limit=int(share * case.experiment.hardware.hbm_bytes),
        processes_per_node=case.experiment.hardware.gpus_per_node,
        error=_error(case),
    )


def largest_factor(case: Case) -> float | None:
    """The largest ragged_buffer_factor, in hundredths, that the GPU's memory may take; -1 = the worst case does, so all do.

    None = not known: TE does not compute the experts, there is no estimate, or it says that what is asked for is too much
    already, so that a run which lives proves it wrong.
    """

    def fits(factor: float) -> bool:
        asked = dataclasses.replace(case.values, asked={**case.values.asked, "ragged_buffer_factor": factor})
        found = estimate(dataclasses.replace(case, values=asked))
        return found is not None and found.verdict is not Verdict.OVER

    now, at_most = case.values.number("ragged_buffer_factor", -1.0), float(case.size("expert"))
    known = estimate(case) if case.te else None
    if known is None or known.verdict in (None, Verdict.OVER):
        return None
    if now <= 0 or fits(-1.0):
        return -1.0
    low, high = round(now * 100), math.ceil(at_most * 100)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle / 100) else (low, middle)
    return low / 100
