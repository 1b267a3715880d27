"""The tables of sharded dimensions and of remat names, and the rules of divisibility, held against the real MaxText."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher.config import maxtext_schema
from launcher.config.compose import Composer
from launcher.plan.case import Case
from launcher.plan.check_remat import present, tensor_keys
from launcher.plan.model import shape, values
from launcher.plan.plan import Plan, make
from launcher.plan.shards import cuts

pytestmark = [
    pytest.mark.maxtext,
    pytest.mark.skipif(importlib.util.find_spec("maxtext") is None, reason="MaxText is not installed"),
]

SMALL = "model.overrides.base_emb_dim=64 model.overrides.base_num_decoder_layers=2 model.overrides.vocab_size=512"
GQA = f"model.overrides=null {SMALL} model.overrides.base_num_query_heads=8 model.overrides.base_num_kv_heads=4 model.overrides.head_dim=16"
MOE = "model.overrides.base_mlp_dim=96 model.overrides.base_moe_mlp_dim=96 model.overrides.num_experts=8 model.overrides.num_experts_per_tok=2"
LORA = "model.overrides.q_lora_rank=40 model.overrides.kv_lora_rank=24 model.overrides.base_mlp_dim=112 model.overrides.base_moe_mlp_dim=80"
SPARSE, EP = "moe.sparse_matmul=true", "mesh.ici.fsdp=4 mesh.ici.expert=2"
AGREE = {
    "deepseek sparse": f"{LORA} {SPARSE} {EP}",
    "deepseek dense": f"{LORA} {EP}",
    "deepseek capacity": f"{LORA} moe.capacity_factor=1.5 {EP}",
    "deepseek prefused": f"{LORA} moe.prefuse_moe_weights=true {SPARSE} {EP}",
    "deepseek experts on fsdp": f"{LORA} moe.shard_exp_on_fsdp=true {SPARSE} mesh.ici.fsdp=8 mesh.ici.expert=1",
    "deepseek tensor": f"{LORA} {SPARSE} mesh.ici.fsdp=2 mesh.ici.expert=2 mesh.ici.tensor=2",
    "deepseek transpose, no scan": f"{LORA} trainer.scan_layers=false {SPARSE} mesh.ici.fsdp=2 mesh.ici.expert=2 mesh.ici.fsdp_transpose=2",
    "deepseek context": f"{LORA} {SPARSE} mesh.ici.fsdp=2 mesh.ici.expert=2 mesh.ici.context=2",
    "deepseek without query lora": f"model.name=deepseek2-16b {LORA} model.overrides.q_lora_rank=0 {SPARSE} {EP}",
    "mixtral": f"model.name=mixtral-8x7b {GQA} {MOE} {SPARSE} mesh.ici.fsdp=2 mesh.ici.expert=2 mesh.ici.tensor=2",
    "qwen3": f"model.name=qwen3-30b-a3b {GQA} {MOE} moe.capacity_factor=1 mesh.ici.fsdp=2 mesh.ici.expert=2 mesh.ici.tensor=2",
    "gpt-oss": f"model.name=gpt-oss-20b {GQA} {MOE} {SPARSE} {EP}",
    "llama": f"model.name=llama3-8b {GQA} model.overrides.base_mlp_dim=96 mesh.ici.fsdp=2 mesh.ici.expert=1 mesh.ici.tensor=4",
}
REFUSED = {
    "rows of wkv_b": (f"model.overrides.kv_lora_rank=12 {EP}", "SHARDS_DIVISIBLE"),
    "vocabulary": (
        "model.overrides.vocab_size=510 mesh.ici.fsdp=2 mesh.ici.expert=1 mesh.ici.tensor=4",
        "SHARDS_DIVISIBLE",
    ),
    "mlp": ("model.overrides.base_mlp_dim=66 mesh.ici.fsdp=2 mesh.ici.expert=1 mesh.ici.tensor=4", "SHARDS_DIVISIBLE"),
    "experts on fsdp": (f"model.overrides.num_experts=10 moe.shard_exp_on_fsdp=true {EP}", "SHARDS_DIVISIBLE"),
    "experts": (f"model.overrides.num_experts=15 {EP}", "MOE_EXPERTS_DIVISIBLE"),
    "experts on fsdp and on ep": (f"moe.shard_exp_on_fsdp=true {EP} gpu", "MOE_EXPERTS_ON_FSDP"),
    "loaded batch": ("trainer.per_device_batch_size=1.5 mesh.ici.fsdp=8 mesh.ici.expert=1", "BATCH_DIVISIBLE"),
    "sparse call": (f"trainer.per_device_batch_size=0.25 {EP} gpu", "BATCH_DIVISIBLE"),
}
ACCEPTED = {
    "accumulated batch": "trainer.per_device_batch_size=1.5 trainer.gradient_accumulation_steps=2 mesh.ici.fsdp=8 mesh.ici.expert=1",
    "experts on fsdp, dense": f"moe.shard_exp_on_fsdp=true {EP}",
    "half a batch": f"trainer.per_device_batch_size=0.5 {EP}",
    "tensor": "trainer.per_device_batch_size=1.5 mesh.ici.fsdp=4 mesh.ici.expert=1 mesh.ici.tensor=2",
}


def planned(words: str) -> Plan:
    # "gpu": the sparse path with EP, which the launcher refuses on CPUs for another reason; tracing it needs no GPU.
    gpu = ["moe.sparse_matmul=true", "hardware.platform=gpu"] if " gpu" in words or SPARSE in words else []
    asked = [w for w in words.split() if w not in ("gpu", "model.overrides=null", SPARSE)]
    fresh = "model.overrides=null" in words
    composed = Composer().compose(["+exp=moe_tiny_cpu", "hardware.gpus_per_node=8", *gpu, *([] if fresh else asked)])
    if fresh:
        keep = {w.split("=")[0] for w in asked}
        first = Composer().compose(["+exp=moe_tiny_cpu"]).experiment
        assert first is not None
        away = [f"~model.overrides.{key}" for key in first.model.overrides if f"model.overrides.{key}" not in keep]
        composed = Composer().compose(["+exp=moe_tiny_cpu", "hardware.gpus_per_node=8", *gpu, *away, *asked])
    assert composed.experiment is not None, composed.issues
    return make(composed.experiment)


def keys_for_maxtext(plan: Plan) -> dict[str, Any]:
    assert plan.settings is not None, plan.issues
    own = {
        "hardware": "cpu",
        "skip_jax_distributed_system": True,
        "override_model_config": True,
        "run_name": "probe",
        "enable_checkpointing": False,
    }
    return {**plan.settings.keys, **own, "base_output_directory": "/tmp/none"}


@pytest.fixture(scope="module")
def answers() -> dict[str, dict[str, Any]]:
    cases = {**AGREE, **{t: w for t, (w, _) in REFUSED.items()}, **ACCEPTED}
    asked = "\n".join(
        json.dumps({"title": title, "keys": keys_for_maxtext(planned(words))}) for title, words in cases.items()
    )
    probe = Path(__file__).with_name("maxtext_probe.py")
    done = subprocess.run([sys.executable, str(probe)], input=asked, capture_output=True, text=True, check=False)
    found = [
        json.loads(line.removeprefix("ANSWER ")) for line in done.stdout.splitlines() if line.startswith("ANSWER ")
    ]
    assert len(found) == len(cases), done.stderr[-3000:]
    return {answer["title"]: answer for answer in found}


def case_of(plan: Plan) -> Case:
    schema = maxtext_schema.load("0.2.5")
    found = values(plan.experiment, schema)
    return Case(plan.experiment, plan.mesh, found, shape(found), schema)


@pytest.mark.parametrize("title", AGREE)
def test_sharded_dimensions_are_maxtexts(title: str, answers: dict[str, dict[str, Any]]) -> None:
    answer, case = answers[title], case_of(planned(AGREE[title]))
    assert answer["error"] is None
    expected = {(cut.size, cut.shards) for cut in cuts(case)}
    if case.shape.moe and case.size("expert") > 1 and not case.values.flag("shard_exp_on_fsdp"):
        # check_moe reports experts that do not divide, with its own cure; the table leaves them out.
        expected.add((case.shape.experts, case.size("expert")))
    assert {tuple(pair) for pair in answer["cut"]} == expected


@pytest.mark.parametrize("title", AGREE)
def test_remat_names_are_maxtexts(title: str, answers: dict[str, dict[str, Any]]) -> None:
    answer, case = answers[title], case_of(planned(AGREE[title]))
    expected = present(case)
    assert expected is not None
    # Tagged only when it is placed somewhere (layers/moe.py, routing_tag_fn).
    assert set(answer["names"]) & set(tensor_keys(case)) == expected - {"moe_routing_maps"}


@pytest.mark.parametrize("title", REFUSED)
def test_what_cannot_work_is_refused_by_both(title: str, answers: dict[str, dict[str, Any]]) -> None:
    words, code = REFUSED[title]
    assert code in [issue.code for issue in planned(words).errors]
    assert re.search("Indivisible|not evenly divisible|expected rhs group dimension size", str(answers[title]["error"]))


@pytest.mark.parametrize("title", ACCEPTED)
def test_what_maxtext_takes_is_not_refused(title: str, answers: dict[str, dict[str, Any]]) -> None:
    assert answers[title]["error"] is None
    assert planned(ACCEPTED[title]).errors == ()
