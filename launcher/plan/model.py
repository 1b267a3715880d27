"""What MaxText will see for any key, and the dimensions of the model that follow from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from launcher.config.maxtext_schema import Schema
from launcher.config.schema import Experiment
from launcher.issue import Issue, Severity
from launcher.plan.settings import ALWAYS, group_keys, start_key
from launcher.suggest import suggest

TRUE_WORDS = frozenset({"1", "on", "t", "true", "y", "yes"})
"""Strings that pydantic's lax mode takes for true (docs: Conversion Table)."""

MODEL_WITHOUT_YML = "default"
"""MaxText's name for the model of base.yml."""


@dataclass(frozen=True)
class Values:
    """Every key as MaxText will see it: what was asked, else the model's yml, else MaxText's default.

    The getters read a value as pydantic's lax mode does; what cannot be read gives the neutral value, because the type
    check reports it (MAXTEXT_VALUE_TYPE).
    """

    asked: Mapping[str, object]
    model: str
    schema: Schema

    def __getitem__(self, key: str) -> object:
        value = (
            self.asked[key]
            if key in self.asked
            else self.schema.value(key, self.model)
            if key in self.schema.keys
            else None
        )
        # pyconfig turns the word "none", in any case, into null.
        return None if isinstance(value, str) and value.lower() == "none" else value

    def number(self, key: str, otherwise: float = 0.0) -> float:
        """The key as a finite number."""
        value = self[key]
        try:
            number = float(value) if isinstance(value, int | float | str) else otherwise
        except (ValueError, OverflowError):
            return otherwise
        return number if math.isfinite(number) else otherwise

    def whole(self, key: str, otherwise: int = 0) -> int:
        """The key as a whole number."""
        return int(self.number(key, otherwise))

    def flag(self, key: str) -> bool:
        """The key as true or false."""
        value = self[key]
        return value.lower() in TRUE_WORDS if isinstance(value, str) else value in (True, 1)

    def text(self, key: str) -> str:
        """The key as text; null is ''."""
        value = self[key]
        return "" if value is None else str(value)


def values(experiment: Experiment, schema: Schema) -> Values:
    """Everything that was asked, by MaxText's names, in the order in which it wins; mesh axes are in the mesh plan."""
    asked = {"model_name": experiment.model.name, "hardware": start_key(experiment), **group_keys(experiment), **ALWAYS}
    return Values(
        {**asked, **experiment.model.overrides, **experiment.maxtext},
        experiment.model.name.replace("-Instruct", ""),
        schema,
    )


@dataclass(frozen=True)
class ModelShape:
    """The dimensions of a model, in elements, by MaxText's names without `base_`.

    `dense_layers` and `moe_layers` add up to `layers`. `q_lora` 0 = no low-rank query. `moe_in` is the width of what
    goes into the experts. Only `mla` models use q_lora, kv_lora, qk_nope, qk_rope and v_head. `window`: tokens that a
    layer with sliding attention sees. `activations`: input projections of an MLP. `mtp`: layers that predict a further token.
    """

    name: str
    decoder_block: str
    attention_type: str
    layers: int
    dense_layers: int
    emb: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    moe_mlp: int
    moe_in: int
    vocab: int
    experts: int
    experts_per_token: int
    shared_experts: int
    q_lora: int
    kv_lora: int
    qk_nope: int
    qk_rope: int
    v_head: int
    window: int
    activations: int
    mtp: int
    tied: bool

    @property
    def query_head(self) -> int:
        """Width of one query (and key) head."""
        return self.qk_nope + self.qk_rope if self.mla else self.head_dim

    @property
    def value_head(self) -> int:
        """Width of one value head."""
        return self.v_head if self.mla else self.head_dim

    @property
    def mla(self) -> bool:
        """Multi-head latent attention (DeepSeek)."""
        return self.attention_type == "mla"

    @property
    def moe(self) -> bool:
        """The model has routed experts."""
        return self.experts > 1

    @property
    def moe_layers(self) -> int:
        """Layers with routed experts."""
        return self.layers - self.dense_layers


def _scales(global_scale: int) -> tuple[int, int, int, int]:
    """Factors for (emb, heads, mlp, layers) of MaxText's global_parameter_scale (configs/types.py, get_individual_scales)."""
    if global_scale < 1 or global_scale & (global_scale - 1):
        return 1, 1, 1, 1
    base, rest = divmod(global_scale.bit_length() - 1, 3)
    heads = base + (rest > 0)
    return 1 << (base + (rest > 1)), 1 << heads, 1 << heads, 1 << base


def _dense_layers(found: Values, layers: int) -> int:
    """Layers whose MLP is dense: all without experts, the first ones of DeepSeek, all but each n-th where MoE layers interleave."""
    if found.whole("num_experts", 1) <= 1:
        return layers
    step = max(found.whole("interleave_moe_layer_step", 1), 1)
    return min(max(found.whole("first_num_dense_layers"), layers - layers // step), layers)


def shape(found: Values) -> ModelShape:
    """The model's dimensions from the values that MaxText will see."""
    emb, heads, mlp, layers = _scales(found.whole("global_parameter_scale", 1))
    depth = layers * found.whole("base_num_decoder_layers")
    width = emb * found.whole("base_emb_dim")
    own_input = found.whole("moe_expert_input_dim", -1)
    activations = found["mlp_activations"]
    return ModelShape(
        name=found.model,
        decoder_block=found.text("decoder_block"),
        attention_type=found.text("attention_type"),
        layers=depth,
        dense_layers=_dense_layers(found, depth),
        emb=width,
        heads=heads * found.whole("base_num_query_heads"),
        kv_heads=heads * found.whole("base_num_kv_heads"),
        head_dim=found.whole("head_dim"),
        mlp=mlp * found.whole("base_mlp_dim"),
        moe_mlp=mlp * found.whole("base_moe_mlp_dim", -1),
        moe_in=own_input if own_input > 0 else width,
        vocab=found.whole("vocab_size"),
        experts=found.whole("num_experts", 1),
        experts_per_token=found.whole("num_experts_per_tok", 1),
        shared_experts=found.whole("shared_experts"),
        q_lora=found.whole("q_lora_rank"),
        kv_lora=found.whole("kv_lora_rank"),
        qk_nope=found.whole("qk_nope_head_dim"),
        qk_rope=found.whole("qk_rope_head_dim"),
        v_head=found.whole("v_head_dim"),
        window=found.whole("sliding_window_size"),
        activations=len(activations) if isinstance(activations, list | tuple) else 1,
        mtp=found.whole("mtp_num_layers"),
        tied=found.flag("logits_via_embedding"),
    )


def check_name(experiment: Experiment, schema: Schema) -> list[Issue]:
    """Is there a model of this name that MaxText has a yml of?"""
    name = experiment.model.name
    if name == MODEL_WITHOUT_YML or name.replace("-Instruct", "") in schema.models:
        return []
    listed = name in (schema.keys["model_name"].choices or ())
    seen = "lists it but ships no yml of it: it would train its default model" if listed else "has no such model"
    near = suggest(name, schema.models) or sorted(schema.models)
    message = f"model.name={name}: MaxText {schema.version} {seen}"
    return [
        Issue(
            "MODEL_UNKNOWN",
            Severity.ERROR,
            "model.name",
            message,
            "type " + " or ".join(f"model.name={n}" for n in near),
        )
    ]
