"""`+exp=dsv3_128gpu` is what NVIDIA's article prints, key by key.

The literals below are its text (2026-09-14):
https://developer.nvidia.com/blog/accelerating-dropless-moe-training-in-jax-with-nvidia-transformer-engine/
"""

from __future__ import annotations

import pytest
import yaml

from launcher.config import maxtext_schema
from launcher.config.compose import Composer
from launcher.config.schema import Experiment
from launcher.plan.mesh import lay_out
from launcher.plan.settings import Settings, settings
from launcher.render import env, xla

BASIC_USAGE = """
te_moe_block: true
te_gmm_quantization: "te_mxfp8"
ragged_buffer_factor: 2.0
te_ep_overflow_check_every_n_steps: 20
sparse_matmul: true
prefuse_moe_weights: true
"""

REPRODUCTION = """
# Model parameters
model_name: "deepseek3-671b"
max_target_length: 4096
hardware: "gpu_multiprocess"

# Training settings
per_device_batch_size: 6
gradient_accumulation_steps: 1
steps: 15
attention: "cudnn_flash_te"
remat_policy: "custom"

# Transformer Engine MoEBlock with MXFP8 grouped GEMMs
quantization: "te_fp8_currentscaling"
te_moe_block: true
te_gmm_quantization: "te_mxfp8"
ragged_buffer_factor: 2.0
te_ep_overflow_check_every_n_steps: 20
prefuse_moe_weights: true

weight_dtype: "bfloat16"
mu_dtype: "bfloat16"

# Features
pgle: true
profiler: "xplane"
scan_layers: true
zero_one: false
shardy: true
use_segment: false

skip_first_n_steps_for_profiler: 4

custom_remat_enabled: true
logits_dot_in_fp32: false
use_iota_embed: false

custom_remat_config:
  mlpwi: device
  mlpwi_0: device
  mlpwi_1: device
  mlpwo: device
  moe_mlpwi_0: offload #remat
  moe_mlpwi_1: offload #remat
  moe_mlpwo: device
  query_proj: remat #offload
  key_proj: remat
  value_proj: remat #offload
  query_wa_proj: device
  kv_wa_proj: device
  out_proj: device
  context: device

# MoE routing parameters
n_routing_groups: -1
topk_routing_group: -1
capacity_factor: 1.0
megablox: false

# 128 GPUs: total FSDP=16 (ICI 8 x DCN 2) x EP=8.
nodes: 32
ici_data_parallelism: 1
ici_fsdp_parallelism: 8
ici_tensor_parallelism: 1
ici_expert_parallelism: 8
dcn_data_parallelism: 1
dcn_fsdp_parallelism: 2
dcn_tensor_parallelism: 1
dcn_expert_parallelism: 1
shard_optimizer_over_data: false

shard_exp_on_fsdp: false
"""

XLA = """
xla_gpu_all_reduce_combine_threshold_bytes: 33554432
xla_gpu_all_gather_combine_threshold_bytes: 6442450944
xla_gpu_reduce_scatter_combine_threshold_bytes: 201326592
xla_gpu_experimental_enable_nccl_symmetric_buffers: false
xla_gpu_enable_command_buffer: "'FUSION,CUBLAS,CUDNN,DYNAMIC_SLICE_FUSION'"
xla_gpu_experimental_max_unroll_factor: 8
xla_gpu_memory_limit_slop_factor: 99
"""

ENVIRONMENT = """
XLA_PYTHON_CLIENT_MEM_FRACTION: 0.88
CUDA_DEVICE_MAX_CONNECTIONS: 16
XLA_PJRT_GPU_HOST_MEMORY_PREALLOCATE: false
XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB: 180
"""

ARTICLE: dict[str, object] = yaml.safe_load(BASIC_USAGE) | yaml.safe_load(REPRODUCTION)

NOT_IN_MAXTEXT = {"pgle", "zero_one", "use_segment", "custom_remat_enabled", "custom_remat_config", "nodes"}
"""Words of the article that MaxText 0.2.5 refuses; each has a test below that says what it became."""

EXTRA: dict[str, tuple[object, str]] = {
    "packing": (False, "what use_segment: false became"),
    "dataset_type": ("synthetic", "MaxText's default, written out"),
    "enable_checkpointing": (False, "15 steps of a benchmark: MaxText would write 4 TB at step 0 and at the end"),
    "checkpoint_period": (100, "unread without checkpointing"),
    "save_checkpoint_on_start": (False, "unread without checkpointing"),
    "enable_autocheckpoint": (True, "unread without checkpointing"),
    "enable_checkpoint_cloud_logger": (False, "Google Cloud's logging; no part of the training"),
    "enable_goodput_recording": (False, "the same"),
    "monitor_goodput": (False, "the same"),
    "log_config": (False, "what is printed at the start"),
    "enable_tensorboard": (False, "files beside the training"),
}
"""Keys that the launcher adds, with their values and why none changes the training."""


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    composed = Composer().compose(["+exp=dsv3_128gpu"])
    assert composed.experiment is not None, composed.issues
    return composed.experiment


@pytest.fixture(scope="module")
def made(experiment: Experiment) -> Settings:
    mesh, issues = lay_out(experiment)
    assert mesh is not None, issues
    return settings(experiment, mesh, maxtext_schema.load("0.2.5"))


@pytest.mark.parametrize("key", sorted(set(ARTICLE) - NOT_IN_MAXTEXT - {"hardware"}))
def test_key_is_the_articles(key: str, made: Settings) -> None:
    assert made.keys[key] == ARTICLE[key]


def test_the_words_that_are_translated_are_those_that_maxtext_lacks() -> None:
    assert set(ARTICLE) - set(maxtext_schema.load("0.2.5").keys) == NOT_IN_MAXTEXT


def test_no_untranslated_word_reaches_maxtext(made: Settings) -> None:
    assert not NOT_IN_MAXTEXT & set(made.keys)


def test_nothing_is_added_that_changes_the_training(made: Settings) -> None:
    remat = ARTICLE["custom_remat_config"]
    assert isinstance(remat, dict)
    added = {key: value for key, value in made.keys.items() if key not in ARTICLE and key not in remat}
    assert added == {key: value for key, (value, _) in EXTRA.items()}


def test_no_key_has_to_override_the_model(made: Settings) -> None:
    assert made.arguments == {}


def test_pgle_became_jaxs_own_variable(experiment: Experiment) -> None:
    assert ARTICLE["pgle"] is True
    assert experiment.xla.pgle
    assert env.variables(experiment)["JAX_ENABLE_PGLE"] == "true"


def test_zero_one_became_shard_optimizer_over_data(made: Settings) -> None:
    # Not published; the nearest of MaxText's keys. The article sets both, and both to false.
    assert made.keys["shard_optimizer_over_data"] == ARTICLE["zero_one"]


def test_use_segment_became_packing(made: Settings) -> None:
    # Without segment ids there is one document a sequence, which is packing=false.
    assert made.keys["packing"] == ARTICLE["use_segment"]


def test_custom_remat_enabled_became_the_policy(made: Settings) -> None:
    assert ARTICLE["custom_remat_enabled"] is True
    assert made.keys["remat_policy"] == "custom"


def test_custom_remat_config_became_one_key_a_tensor(made: Settings, experiment: Experiment) -> None:
    wanted = ARTICLE["custom_remat_config"]
    assert isinstance(wanted, dict)
    assert {key: made.keys.get(key) for key in wanted} == wanted
    set_here = {name for name, where in vars(experiment.remat).items() if where is not None} - {"remat_policy"}
    assert set_here == set(wanted)


def test_nodes_is_the_number_of_nodes(experiment: Experiment) -> None:
    mesh, _ = lay_out(experiment)
    assert mesh is not None
    assert (mesh.nodes, mesh.gpus, mesh.domains, mesh.gpus_per_domain) == (ARTICLE["nodes"], 128, 2, 64)


def test_hardware_became_the_start_path(made: Settings) -> None:
    # One start path on every target: the worker gives the coordinator, MaxText's `gpu` reads it.
    assert made.keys["hardware"] == "gpu"
    words = {t.word: t.became for t in made.translations}
    assert words["trainer.start"] == "hardware=gpu"


def test_autodetect_keeps_the_articles_hardware() -> None:
    composed = Composer().compose(["+exp=dsv3_128gpu", "trainer.start=autodetect"])
    assert composed.experiment is not None
    mesh, _ = lay_out(composed.experiment)
    assert mesh is not None
    made = settings(composed.experiment, mesh, maxtext_schema.load("0.2.5"))
    assert made.keys["hardware"] == ARTICLE["hardware"]


def test_each_translation_is_told(made: Settings) -> None:
    told = {t.word for t in made.translations}
    remat = ARTICLE["custom_remat_config"]
    assert isinstance(remat, dict)
    assert {"nodes", "trainer.start", "xla.pgle"} | {f"remat.{tensor}" for tensor in remat} <= told


def test_xla_flags(experiment: Experiment) -> None:
    assert experiment.xla.flags == yaml.safe_load(XLA)


def test_xla_flags_as_xla_reads_them(experiment: Experiment) -> None:
    assert xla.flags(experiment.xla.flags) == [
        "--xla_gpu_all_gather_combine_threshold_bytes=6442450944",
        "--xla_gpu_all_reduce_combine_threshold_bytes=33554432",
        "--xla_gpu_enable_command_buffer='FUSION,CUBLAS,CUDNN,DYNAMIC_SLICE_FUSION'",
        "--xla_gpu_experimental_enable_nccl_symmetric_buffers=false",
        "--xla_gpu_experimental_max_unroll_factor=8",
        "--xla_gpu_memory_limit_slop_factor=99",
        "--xla_gpu_reduce_scatter_combine_threshold_bytes=201326592",
    ]


def test_environment(experiment: Experiment) -> None:
    printed = yaml.safe_load(ENVIRONMENT)
    assert env.variables(experiment) == {name: env.value_text(value) for name, value in printed.items()} | {
        "JAX_ENABLE_PGLE": "true"
    }


def test_the_image_is_the_articles(experiment: Experiment) -> None:
    assert experiment.container.image == "ghcr.io/nvidia/jax:maxtext-2026-09-09"


def test_multistream_adds_to_the_articles_flags() -> None:
    composed = Composer().compose(["+exp=dsv3_128gpu", "xla=multistream"])
    assert composed.experiment is not None, composed.issues
    flags = composed.experiment.xla.flags
    assert yaml.safe_load(XLA).items() <= flags.items()
    assert set(flags) - set(yaml.safe_load(XLA)) == {
        "xla_gpu_enable_latency_hiding_scheduler",
        "xla_gpu_experimental_enable_collective_multi_streaming",
        "xla_gpu_experimental_parallel_collective_overlap_limit",
        "xla_gpu_experimental_parallel_scale_up_collective_overlap_limit",
    }
    assert composed.experiment.xla.pgle
