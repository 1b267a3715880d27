"""The snapshot of MaxText's keys, and the check against it. Pure: no MaxText is needed."""

from __future__ import annotations

import pytest

from launcher.config.maxtext_schema import load, versions
from launcher.issue import Issue, Severity
from launcher.plan.key_check import check_keys
from launcher.suggest import suggest

SCHEMA = load("0.2.5")


def only(issues: list[Issue]) -> Issue:
    assert len(issues) == 1, issues
    return issues[0]


def test_snapshot_knows_keys_of_base_yml_and_of_the_types() -> None:
    assert SCHEMA.keys["te_moe_block"].in_base_yml
    assert not SCHEMA.keys["prefuse_moe_weights"].in_base_yml
    assert SCHEMA.keys["steps"].default == 150001
    assert SCHEMA.keys["ici_fsdp_parallelism"].default == -1
    assert SCHEMA.keys["te_gmm_quantization"].choices == ["", "te_no_quant", "te_mxfp8"]
    assert {"custom", "full", "minimal_with_context"} <= set(SCHEMA.keys["remat_policy"].choices or ())


def test_models_are_those_of_the_yml_files() -> None:
    assert SCHEMA.models["deepseek3-671b"]["num_experts"] == 256
    assert SCHEMA.value("num_experts", "kimi-k2-1t") == 384
    assert SCHEMA.value("n_routing_groups", "kimi-k2-1t") == -1
    assert not any("base_config" in model for model in SCHEMA.models.values())


@pytest.mark.parametrize("model", sorted(SCHEMA.models))
def test_every_model_of_maxtext_passes(model: str) -> None:
    assert check_keys(SCHEMA.models[model], SCHEMA) == []


def test_every_default_passes() -> None:
    # base.yml leaves vision_encoder_block out; its default is the word that MaxText would turn into null and refuse.
    keys = {n: k.default for n, k in SCHEMA.keys.items() if not k.derived and n != "vision_encoder_block"}
    assert check_keys(keys, SCHEMA) == []


def test_unknown_version_names_the_known_ones() -> None:
    with pytest.raises(LookupError, match=r"no key snapshot of MaxText 9\.9\.9; there is: .*0\.2\.5"):
        load("9.9.9")
    assert "0.2.5" in versions()


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("ici_fsdp_paralelism", "ici_fsdp_parallelism"),
        ("ragged_bufer_factor", "ragged_buffer_factor"),
        ("checkpoint_periode", "checkpoint_period"),
        ("moe_mlpwi0", "moe_mlpwi_0"),
        ("te_moe_bloc", "te_moe_block"),
        ("stpes", "steps"),
        ("Attention", "attention"),
    ],
)
def test_a_typo_is_answered_with_the_key(typed: str, meant: str) -> None:
    assert suggest(typed, SCHEMA.keys)[0] == meant
    issue = only(check_keys({typed: 1}, SCHEMA))
    assert (issue.code, issue.severity, issue.field) == ("MAXTEXT_KEY_UNKNOWN", Severity.ERROR, f"maxtext.{typed}")
    assert meant in issue.hint


def test_suggest_orders_and_bounds() -> None:
    assert "per_device_batch_size" in suggest("batch_size", SCHEMA.keys)
    assert suggest("zzz", SCHEMA.keys) == []
    assert suggest("steps", []) == []
    assert len(suggest("fsdp_parallelism", SCHEMA.keys, n=2)) == 2
    assert suggest("ab_1", ["ab_3", "ab_2"]) == suggest("ab_1", ["ab_2", "ab_3"]) == ["ab_2", "ab_3"]


@pytest.mark.parametrize(
    ("key", "value", "code", "words"),
    [
        ("steps", "many", "MAXTEXT_VALUE_TYPE", ['steps="many"', "a whole number"]),
        ("steps", 12.5, "MAXTEXT_VALUE_TYPE", ["steps=12.5", "a whole number"]),
        ("steps", True, "MAXTEXT_VALUE_TYPE", ["steps=true", "a whole number"]),
        ("steps", None, "MAXTEXT_VALUE_TYPE", ["steps=null"]),
        ("scan_layers", 2, "MAXTEXT_VALUE_TYPE", ["scan_layers=2", "true or false"]),
        ("metrics_file", 5, "MAXTEXT_VALUE_TYPE", ["metrics_file=5", "a string"]),
        ("mlp_activations", "silu", "MAXTEXT_VALUE_TYPE", ["a list of str"]),
        ("gradient_accumulation_steps", 0, "MAXTEXT_VALUE_RANGE", ["gradient_accumulation_steps > 0"]),
        ("steps", -2, "MAXTEXT_VALUE_RANGE", ["steps >= -1"]),
        ("moe_mlpwi_0", "offlod", "MAXTEXT_CHOICE", ["moe_mlpwi_0=offload", "remat, device, offload"]),
        ("te_gmm_quantization", "te_mxfp4", "MAXTEXT_CHOICE", ["te_gmm_quantization=te_mxfp8"]),
        ("model_name", "deepseek3-617b", "MAXTEXT_CHOICE", ["model_name=deepseek3-671b"]),
        ("model_name", "deepseek3-671b-lineage", "MAXTEXT_MODEL_WITHOUT_YML", ["default model", "deepseek3-671b"]),
        ("num_target_devices", 4, "MAXTEXT_KEY_DERIVED", ["overwrites"]),
        ("lora", {"lora_rnk": 4}, "MAXTEXT_KEY_UNKNOWN", ["lora has no lora_rnk", "did you mean lora_rank"]),
        ("lora_rank", 4, "MAXTEXT_KEY_UNKNOWN", ["+maxtext.lora.lora_rank=4"]),
    ],
)
def test_a_wrong_value_is_an_error_with_the_cure(key: str, value: object, code: str, words: list[str]) -> None:
    issue = only(check_keys({key: value}, SCHEMA))
    assert (issue.code, issue.severity, issue.field) == (code, Severity.ERROR, f"maxtext.{key}")
    for word in words:
        assert word in f"{issue.message} {issue.hint}"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("steps", "12"), ("steps", 12.0), ("scan_layers", 1), ("scan_layers", "yes"), ("learning_rate", 1),
        ("learning_rate", "3e-5"), ("profiler", ""), ("max_num_checkpoints_to_keep", "none"), ("run_name", "none"),
        ("train_data_columns", "text"), ("model_name", "llama3.1-8b-Instruct"), ("lora", {"lora_rank": 4}),
    ],
)  # fmt: skip
def test_what_maxtext_takes_is_taken(key: str, value: object) -> None:
    assert check_keys({key: value}, SCHEMA) == []


@pytest.mark.parametrize(
    ("key", "value", "near"), [("remat_policy", "minmal", "minimal"), ("attention", "flsh", "flash")]
)
def test_a_choice_read_off_the_code_only_warns(key: str, value: str, near: str) -> None:
    issue = only(check_keys({key: value}, SCHEMA))
    assert (issue.code, issue.severity) == ("MAXTEXT_CHOICE_UNSEEN", Severity.WARNING)
    assert f"did you mean {key}={near}" in issue.hint


@pytest.mark.parametrize(
    ("word", "value", "type_this"),
    [
        ("pgle", True, "xla.pgle=true"),
        ("zero_one", False, "trainer.shard_optimizer_over_data=false"),
        ("use_segment", False, "data.packing=false"),
        ("custom_remat_enabled", True, "remat.remat_policy=custom"),
        ("custom_remat_config", {"mlpwi": "device"}, "remat.remat_policy=custom remat.mlpwi=device"),
        ("nodes", 32, "nodes=32"),
    ],
)
def test_the_articles_own_words_are_explained(word: str, value: object, type_this: str) -> None:
    issue = only(check_keys({word: value}, SCHEMA))
    assert (issue.code, issue.field) == ("MAXTEXT_KEY_NOT_PUBLIC", f"maxtext.{word}")
    assert issue.hint.endswith(type_this)
    assert ("guess" in issue.message) == (word in ("zero_one", "use_segment"))


def test_all_mistakes_are_reported_in_the_order_of_the_keys() -> None:
    issues = check_keys({"stepz": 1, "steps": 10, "pgle": True, "moe_mlpwo": "devise"}, SCHEMA)
    assert [issue.field for issue in issues] == ["maxtext.stepz", "maxtext.pgle", "maxtext.moe_mlpwo"]


def test_issues_rank_errors_first() -> None:
    issues = check_keys({"remat_policy": "minmal", "stepz": 1}, SCHEMA)
    assert [i.severity for i in sorted(issues, key=Issue.rank)] == [Severity.ERROR, Severity.WARNING]
