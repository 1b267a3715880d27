"""The real MaxText against our snapshot of it, our check, and our way of asking it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.config.maxtext_schema import SNAPSHOTS, load, versions
from launcher.issue import Severity
from launcher.plan.key_check import check_keys
from launcher.preflight.maxtext import check

ROOT = Path(__file__).resolve().parents[2]
MISSING = importlib.util.find_spec("maxtext") is None
needs_maxtext = pytest.mark.skipif(MISSING, reason="MaxText is not installed in this Python")

ARTICLE: dict[str, Any] = {
    # The article's block without the six words that no public MaxText has.
    "base_config": "base.yml",
    "model_name": "deepseek3-671b",
    "max_target_length": 4096,
    "hardware": "gpu_multiprocess",
    "per_device_batch_size": 6,
    "gradient_accumulation_steps": 1,
    "steps": 15,
    "attention": "cudnn_flash_te",
    "remat_policy": "custom",
    "quantization": "te_fp8_currentscaling",
    "te_moe_block": True,
    "te_gmm_quantization": "te_mxfp8",
    "ragged_buffer_factor": 2.0,
    "te_ep_overflow_check_every_n_steps": 20,
    "prefuse_moe_weights": True,
    "weight_dtype": "bfloat16",
    "mu_dtype": "bfloat16",
    "profiler": "xplane",
    "scan_layers": True,
    "shardy": True,
    "skip_first_n_steps_for_profiler": 4,
    "logits_dot_in_fp32": False,
    "use_iota_embed": False,
    "mlpwi": "device",
    "mlpwi_0": "device",
    "mlpwi_1": "device",
    "mlpwo": "device",
    "moe_mlpwi_0": "offload",
    "moe_mlpwi_1": "offload",
    "moe_mlpwo": "device",
    "query_proj": "remat",
    "key_proj": "remat",
    "value_proj": "remat",
    "query_wa_proj": "device",
    "kv_wa_proj": "device",
    "out_proj": "device",
    "context": "device",
    "n_routing_groups": -1,
    "topk_routing_group": -1,
    "capacity_factor": 1.0,
    "megablox": False,
    "ici_data_parallelism": 1,
    "ici_fsdp_parallelism": 8,
    "ici_tensor_parallelism": 1,
    "ici_expert_parallelism": 8,
    "dcn_data_parallelism": 1,
    "dcn_fsdp_parallelism": 2,
    "dcn_tensor_parallelism": 1,
    "dcn_expert_parallelism": 1,
    "shard_optimizer_over_data": False,
    "shard_exp_on_fsdp": False,
}


def bundle(folder: Path, keys: dict[str, Any], arguments: dict[str, Any] | None = None, env: str = "") -> Path:
    """The three files of a bundle that the check reads: the article's 32 nodes of 4 GPUs."""
    (folder / "maxtext.yml").write_text(yaml.safe_dump({**ARTICLE, **keys}, sort_keys=False))
    launch = {"version": 1, "nodes": 32, "processes_per_node": 4, "arguments": arguments or {}}
    (folder / "launch.json").write_text(json.dumps(launch))
    (folder / "env").write_text(env)
    return folder


def test_article_block_passes_our_own_check() -> None:
    assert check_keys(ARTICLE, load("0.2.5")) == []


@pytest.mark.maxtext
@needs_maxtext
def test_the_article_is_accepted_on_128_devices(tmp_path: Path) -> None:
    verdict = check(bundle(tmp_path, {}))
    assert verdict.issue is None
    assert verdict.accepted
    resolved = verdict.resolved
    assert resolved is not None
    assert (resolved.ici, resolved.dcn) == ({"fsdp": 8, "expert": 8}, {"fsdp": 2})
    assert (resolved.devices, resolved.domains, resolved.global_batch) == (128, 2, 768)
    assert resolved.tensors_to_offload == ("moe_mlpwi_0", "moe_mlpwi_1")
    assert "query_wa_proj" in resolved.tensors_on_device
    assert "query_proj" not in resolved.tensors_on_device
    assert sorted(p.name for p in tmp_path.iterdir()) == ["env", "launch.json", "maxtext.yml"]


@pytest.mark.maxtext
@needs_maxtext
@pytest.mark.parametrize(
    ("keys", "field", "text"),
    [
        ({"pgle": True}, "maxtext.pgle", "'pgle' is not one of its keys"),
        ({"ici_expert_parallelism": 16}, "maxtext", "slice 64 does not match the product of the ICI parallelism 128"),
        ({"dcn_fsdp_parallelism": 4}, "maxtext", "slice 32 does not match the product of the ICI parallelism 64"),
        ({"steps": "many"}, "maxtext.steps", "steps='many': Input should be a valid integer"),
        ({"norm_topk_prob": True}, "maxtext", "te_moe_block=True does not currently support norm_topk_prob=True"),
    ],
)
def test_a_refusal_is_one_issue_in_maxtexts_words(tmp_path: Path, keys: dict[str, Any], field: str, text: str) -> None:
    verdict = check(bundle(tmp_path, keys))
    assert not verdict.accepted
    assert verdict.resolved is None
    assert verdict.issue is not None
    assert (verdict.issue.code, verdict.issue.severity) == ("MAXTEXT_REFUSED", Severity.ERROR)
    assert verdict.issue.field == field
    assert text in verdict.issue.message
    assert "Traceback" not in verdict.issue.message


@pytest.mark.maxtext
@needs_maxtext
def test_a_models_key_is_heard_on_the_command_line_only(tmp_path: Path) -> None:
    tiny = {"model_name": "deepseek3-tiny", "te_moe_block": False, "ragged_buffer_factor": -1.0}
    # A value that MaxText refuses if it arrives: the model's own yml sets q_lora_rank too, and wins over the file.
    in_file = check(bundle(tmp_path, {**tiny, "override_model_config": True, "q_lora_rank": -5}))
    assert in_file.accepted, in_file.issue
    on_line = check(bundle(tmp_path, {**tiny, "override_model_config": True}, {"q_lora_rank": -5}))
    assert on_line.issue is not None
    assert on_line.issue.field == "maxtext.q_lora_rank"
    without = check(bundle(tmp_path, tiny, {"q_lora_rank": 64}))
    assert without.issue is not None
    assert "override_model_config=True" in without.issue.message


@pytest.mark.maxtext
@needs_maxtext
def test_variables_of_the_bundle_count_and_those_of_the_caller_do_not(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("M_STEPS", "of the caller")
    assert check(bundle(tmp_path, {})).accepted
    verdict = check(bundle(tmp_path, {}, env="export M_STEPS='of the bundle'\nexport OTHER='a b'\n"))
    assert verdict.issue is not None
    assert "'of the bundle'" in verdict.issue.message


def test_a_python_without_maxtext_is_told_so(tmp_path: Path) -> None:
    hidden = tmp_path / "python"
    hidden.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    hidden.chmod(0o755)
    verdict = check(bundle(tmp_path, {}), python=str(hidden))
    assert verdict.issue is not None
    assert verdict.issue.code == "MAXTEXT_MISSING"
    assert "launcher[local]" in verdict.issue.hint


def test_a_python_that_does_not_exist_is_told_so(tmp_path: Path) -> None:
    verdict = check(bundle(tmp_path, {}), python="/nowhere/python")
    assert verdict.issue is not None
    assert verdict.issue.message == "/nowhere/python does not start: No such file or directory"


def test_a_probe_that_dies_and_one_that_hangs_are_issues(tmp_path: Path) -> None:
    for body, code in (("echo out of memory >&2; exit 3", "PREFLIGHT_DIED"), ("exec sleep 60", "PREFLIGHT_TIMEOUT")):
        fake = tmp_path / code
        fake.write_text(f"#!/bin/sh\n{body}\n")
        fake.chmod(0o755)
        verdict = check(bundle(tmp_path, {}), python=str(fake), timeout_s=2)
        assert verdict.issue is not None
        assert verdict.issue.code == code


@pytest.mark.maxtext
@needs_maxtext
def test_snapshot_is_what_the_script_makes_of_the_installed_maxtext() -> None:
    version = importlib.metadata.version("maxtext")
    if version not in versions():
        pytest.skip(f"no snapshot of the installed MaxText {version}")
    command = [sys.executable, str(ROOT / "tools" / "maxtext_schema.py")]
    made = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/").stdout
    assert made == (SNAPSHOTS / f"{version}.json").read_text(encoding="utf-8")


VALUES = [None, True, 0, 2, 7, -3, 0.5, 12.0, "12", "0.5", "many", "", "yes", [], ["a"], [1], [1.5], {}, "remat"]
MADE_A_LIST = ("train_data_columns", "eval_data_columns", "trainable_parameters_mask", "adamw_mask")
ASK_PYDANTIC = """
import json, sys
from typing import Annotated
from pydantic import TypeAdapter, ValidationError
from maxtext.configs.types import MaxTextConfig
values, answers = json.loads(sys.argv[1]), {}
for name, field in MaxTextConfig.model_fields.items():
    adapter = TypeAdapter(Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation)
    answers[name] = []
    for value in values:
        try:
            adapter.validate_python(value)
            answers[name].append(True)
        except ValidationError:
            answers[name].append(False)
json.dump(answers, sys.stdout)
"""


@pytest.mark.maxtext
@needs_maxtext
def test_our_check_and_maxtexts_types_agree_on_every_key() -> None:
    schema = load("0.2.5")
    if importlib.metadata.version("maxtext") != schema.version:
        pytest.skip("another MaxText is installed")
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", ASK_PYDANTIC, json.dumps(VALUES)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd="/")
    differ = []
    for name, accepted in json.loads(done.stdout).items():
        key = schema.keys[name]
        if key.derived or name in MADE_A_LIST:
            continue  # refused on purpose; and four that MaxText makes a list of before its types are asked
        for value, theirs in zip(VALUES, accepted, strict=True):
            ours = not [i for i in check_keys({name: value}, schema) if i.severity is Severity.ERROR]
            a_bool_as_number = value is True and not ours and ("int" in key.type or "float" in key.type)
            also_taken = ours and (
                (name == "constant_bound_config" and isinstance(value, str))
                or (value is None and name in ("run_name", "dump_hlo_local_module_name", "dump_hlo_module_name"))
            )
            if ours != theirs and not a_bool_as_number and not also_taken:
                differ.append((name, key.type, value, f"MaxText {theirs}, we {ours}"))
    assert differ == []
