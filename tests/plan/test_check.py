"""Every mistake gives its issue, and typing what the hint says makes it go away. Real conf, real Composer."""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest
from mistakes import assert_its_hint_cures

from launcher.config import groups
from launcher.config.compose import Composer
from launcher.issue import Issue, Severity
from launcher.plan.plan import Plan, make

COMPOSER = Composer()
DSV3, TINY = "dsv3_128gpu", "moe_tiny_cpu"
LHS = "xla_gpu_enable_latency_hiding_scheduler"
NCCL = "xla_gpu_allow_ragged_all_to_all_nccl_send_recv_fallback"
HF_TOKEN = "hf_" + "AbCdEfGhIjKlMnOpQrStUvWx"
E, W, N = Severity.ERROR, Severity.WARNING, Severity.NOTE


def plan(experiment: str, *words: str) -> Plan:
    composed = COMPOSER.compose([f"+exp={experiment}", *words])
    assert composed.experiment is not None, composed.issues
    return make(composed.experiment)


def test_the_articles_experiment_has_no_error_and_says_what_does_nothing() -> None:
    issues = plan(DSV3).issues
    assert not [i for i in issues if i.severity is Severity.ERROR]
    nothing = {i.field: i.message for i in issues if i.code == "REMAT_NO_SUCH_TENSOR"}
    assert set(nothing) == {"remat.mlpwi", "remat.moe_mlpwi_0", "remat.moe_mlpwi_1", "remat.moe_mlpwo"}
    assert "nothing will be offloaded" in nothing["remat.moe_mlpwi_0"]
    assert "TARGET_NODES" not in [i.code for i in issues]


@pytest.mark.parametrize(
    "words", ["moe=capacity", "moe=dense", "moe=dropless mesh.ici.expert=1 mesh.ici.fsdp=2", "moe=te", ""]
)
def test_only_a_ragged_all_to_all_can_stand_still(words: str) -> None:
    codes = [issue.code for issue in plan("h200_moe_small_2gpu", "precision=bf16", *words.split()).issues]
    assert not {"MOE_DROPLESS_HANGS", "MOE_RAGGED_REFUSED"} & set(codes)


@pytest.mark.parametrize("experiment", [name for name, _ in groups.experiments()])
def test_no_shipped_experiment_has_an_error(experiment: str) -> None:
    assert plan(experiment).errors == ()


class Row(NamedTuple):
    experiment: str
    overrides: str
    code: str
    field: str
    typed: str
    """A part of the hint; typed after the overrides it cures the issue."""
    severity: Severity = E
    message: str = ""
    """A part of the message."""


ROWS = [
    # the mesh
    Row(
        DSV3,
        "mesh.ici.expert=16",
        "MESH_ICI_GPUS",
        "mesh.ici",
        "mesh.ici.fsdp=4 mesh.ici.expert=16",
        message="ici: fsdp 8 x expert 16 = 128 GPUs a domain, but 32 nodes x 4 GPUs in 2 domains leave 64",
    ),
    Row(DSV3, "mesh.ici.expert=4", "MESH_ICI_GPUS", "mesh.ici", "mesh.ici.fsdp=16 mesh.ici.expert=4"),
    Row(DSV3, "mesh.ici.expert=4", "MESH_ICI_GPUS", "mesh.ici", "mesh.dcn.fsdp=4"),
    Row(DSV3, "mesh.dcn.fsdp=4", "MESH_DCN_DOMAINS", "mesh.dcn", "mesh.dcn.fsdp=2", message="4 domains"),
    Row(DSV3, "mesh.dcn.fsdp=3", "MESH_DCN_DOMAINS", "mesh.dcn", "mesh.dcn.fsdp=2", message="32 nodes do not split into 3"),
    Row(DSV3, "nodes=31", "MESH_DCN_DOMAINS", "mesh.dcn", "nodes=32"),
    Row(DSV3, "mesh.ici.fsdp=16 mesh.dcn.fsdp=1", "MESH_DOMAIN_SIZE", "mesh.ici", "mesh.ici.fsdp=8 mesh.ici.expert=8 mesh.dcn.fsdp=2", message="18 nodes x 4 GPUs = 72"),
    Row(DSV3, "nodes=null mesh.ici.fsdp=3 mesh.ici.expert=3", "MESH_NODE_SPLIT", "mesh.ici", "mesh.ici.fsdp=4 mesh.ici.expert=3"),
    Row(DSV3, "nodes=null mesh.ici.fsdp=-1", "NODES_UNKNOWN", "nodes", "nodes=32"),
    Row(DSV3, "nodes=null mesh.dcn.fsdp=-1", "NODES_UNKNOWN", "nodes", "nodes=16"),
    Row(DSV3, "mesh.ici.fsdp=-1 mesh.ici.expert=-1", "MESH_TWO_FREE_AXES", "mesh.ici", "mesh.ici.expert=1"),
    Row(DSV3, "mesh.ici.fsdp=-1 mesh.ici.expert=12", "MESH_FREE_AXIS", "mesh.ici.fsdp", "mesh.ici.fsdp=8 mesh.ici.expert=8"),
    Row(DSV3, "mesh.dcn.fsdp=-1 nodes=7", "MESH_FREE_AXIS", "mesh.dcn.fsdp", "mesh.dcn.fsdp=1 nodes=16"),
    Row(DSV3, "mesh.ici.fsdp=0", "MESH_AXIS_SIZE", "mesh.ici.fsdp", "mesh.ici.fsdp=1"),
    Row(DSV3, "nodes=0", "NODES", "nodes", "nodes=1"),
    Row(DSV3, "hardware.gpus_per_node=0", "HARDWARE_SIZE", "hardware.gpus_per_node", "hardware.gpus_per_node=1"),
    Row(TINY, "mesh.ici.expert=1 mesh.dcn.expert=2 nodes=2 hardware.gpus_per_node=1", "MESH_DCN_ON_CPU", "mesh.dcn", "mesh.dcn.expert=1 mesh.ici.expert=2"),
    # batch, sequence, experts, weights
    Row(DSV3, "trainer.per_device_batch_size=1.5", "BATCH_DIVISIBLE", "trainer.per_device_batch_size", "trainer.per_device_batch_size=2", message="192 sequences a call, not divisible by fsdp 16 x expert 8 = 128"),
    Row(DSV3, "moe=dropless trainer.per_device_batch_size=0.5", "BATCH_DIVISIBLE", "trainer.per_device_batch_size", "trainer.per_device_batch_size=1"),
    Row(TINY, "trainer.per_device_batch_size=1.5", "BATCH_DIVISIBLE", "trainer.per_device_batch_size", "trainer.per_device_batch_size=2"),
    Row(TINY, "trainer.per_device_batch_size=0.25", "BATCH_EMPTY", "trainer.per_device_batch_size", "trainer.per_device_batch_size=1"),
    Row(DSV3, "moe=dropless mesh.ici.fsdp=4 mesh.ici.context=2 trainer.max_target_length=4095", "SEQUENCE_DIVISIBLE", "trainer.max_target_length", "trainer.max_target_length=4096"),
    Row(DSV3, "model.overrides.num_experts=260", "MOE_EXPERTS_DIVISIBLE", "mesh.ici.expert", "mesh.ici.fsdp=16 mesh.ici.expert=4"),
    Row(DSV3, "nodes=256 mesh.dcn.fsdp=16", "SHARDS_DIVISIBLE", "mesh.dcn.fsdp", "mesh.dcn.data=2 mesh.dcn.fsdp=8", message="wkv_b has 512 rows of kv_lora_rank, not divisible by fsdp 128 x expert 8 = 1024 shards"),
    Row(DSV3, "moe=dropless mesh.ici.fsdp=1 mesh.ici.tensor=8 model.overrides.base_num_kv_heads=12", "SHARDS_DIVISIBLE", "mesh.ici.tensor", "mesh.ici.data=2 mesh.ici.tensor=4"),
    Row(DSV3, "trainer.shard_optimizer_over_data=true", "TRAINER_ZERO1_WITH_FSDP", "trainer.shard_optimizer_over_data", "trainer.shard_optimizer_over_data=false"),
    Row(DSV3, "precision.quantization=te_fp8_delayedscaling trainer.gradient_accumulation_steps=2", "PRECISION_ACCUMULATION", "trainer.gradient_accumulation_steps", "trainer.gradient_accumulation_steps=1"),
    Row(DSV3, "+maxtext.custom_mesh_and_rule=pure-fsdp", "SHARDS_NOT_CHECKED", "maxtext.custom_mesh_and_rule", "", N),
    # Transformer Engine's block
    Row(DSV3, "moe.sparse_matmul=false", "TE_NEEDS", "moe.sparse_matmul", "moe.sparse_matmul=true"),
    Row(DSV3, "moe.prefuse_moe_weights=false", "TE_NEEDS", "moe.prefuse_moe_weights", "moe.prefuse_moe_weights=true"),
    Row(DSV3, "+maxtext.norm_topk_prob=true", "TE_NEEDS", "maxtext.norm_topk_prob", "maxtext.norm_topk_prob=false"),
    Row(DSV3, "model.overrides.routed_bias_update_rate=0.1", "TE_NEEDS", "model.overrides.routed_bias_update_rate", "model.overrides.routed_bias_update_rate=0"),
    Row(DSV3, "precision.te_gmm_quantization=null", "TE_GMM_QUANTIZATION", "precision.te_gmm_quantization", "precision.te_gmm_quantization=te_mxfp8"),
    Row(DSV3, "precision.quantization=null", "TE_QUANTIZATION", "precision.quantization", "precision.quantization=te_no_quant"),
    Row(DSV3, "precision.quantization=fp8", "TE_QUANTIZATION", "precision.quantization", "precision.quantization=te_no_quant"),
    Row(DSV3, "moe.ragged_buffer_factor=0.5", "TE_BUFFER_FACTOR", "moe.ragged_buffer_factor", "moe.ragged_buffer_factor=2"),
    Row(DSV3, "trainer.shardy=false", "TE_SHARDY", "trainer.shardy", "trainer.shardy=true"),
    Row(DSV3, "precision.dtype=float32", "TE_DTYPE", "precision.dtype", "precision.dtype=bfloat16"),
    Row(DSV3, "mesh.ici.fsdp=64 mesh.ici.expert=1", "TE_EXPERT_PARALLEL", "mesh.ici.expert", "moe=dropless"),
    Row(DSV3, "mesh.ici.fsdp=4 mesh.ici.tensor=2", "TE_AXES", "mesh.ici.tensor", "moe=dropless"),
    Row("deepseek2_16b_16gpu", "", "TE_SOFTMAX_ROUTING", "moe.te_moe_block", "moe=dropless precision=bf16", W),
    Row(DSV3, "mesh.dcn.fsdp=1 mesh.dcn.data=2", "TE_DATA_AXIS", "mesh.dcn.data", "mesh.dcn.data=1 mesh.dcn.fsdp=2", message="cannot be traced"),
    Row("dsv3_1024gpu", "trainer.workarounds=[te_scan_constants]", "TE_DATA_AXIS", "mesh.dcn.data", "trainer.workarounds=[te_scan_constants,te_data_axis]"),
    Row("dsv3_1024gpu", "trainer.workarounds=[te_data_axes]", "TE_DATA_AXIS", "mesh.dcn.data", "trainer.workarounds=[te_data_axis]"),
    Row("dsv3_1024gpu", "", "TE_COPIES_UNTRIED", "mesh.dcn.data", "moe=dropless", W, message="have not trained on GPUs yet"),
    Row("h200_moe_2gpu", "hardware.gpus_per_node=4 env.vars.XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB=44 mesh.ici.data=2 trainer.workarounds=[te_data_axis]", "TE_DATA_AXIS", "mesh.ici.data", "mesh.ici.data=1 mesh.ici.fsdp=2", message="DuplicateSpecError"),
    Row("h200_moe_2gpu", "hardware.gpus_per_node=8 env.vars.XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB=20 mesh.ici.expert=8", "TE_EP_GATHERS", "mesh.ici.fsdp", "mesh.ici.expert=4 mesh.ici.fsdp=2", W, message="gather the activations of all 8 ranks"),
    Row(DSV3, "trainer.workarounds=[te_data_axis]", "WORKAROUND_UNUSED", "trainer.workarounds", "trainer.workarounds=[]", W, message="data 1"),
    Row(DSV3, "mesh.dcn.fsdp=1 mesh.dcn.expert=2", "TE_EP_CROSSES_DOMAINS", "mesh.dcn.expert", "mesh.dcn.expert=1 mesh.dcn.fsdp=2", message="cross NVLink domains"),
    Row(DSV3, "model.overrides.num_experts=250 mesh.ici.fsdp=32 mesh.ici.expert=2", "TE_EXPERTS_PER_DOMAIN", "model.overrides.num_experts", "moe=dropless"),
    Row(DSV3, "hardware.mxfp8=false", "PRECISION_HARDWARE", "precision.te_gmm_quantization", "precision.te_gmm_quantization=te_no_quant"),
    Row(DSV3, "hardware.compute_capability=90 precision.quantization=te_nvfp4", "PRECISION_HARDWARE", "precision.quantization", "precision.quantization=te_fp8_currentscaling"),
    Row(DSV3, "hardware.compute_capability=80", "TE_HARDWARE", "hardware.name", "moe=dropless"),
    Row(DSV3, "model.overrides.base_moe_mlp_dim=2000", "TE_MXFP8_DIMENSIONS", "precision.te_gmm_quantization", "precision.te_gmm_quantization=te_no_quant"),
    Row(DSV3, "model.name=mixtral-8x7b mesh.ici.fsdp=8", "TE_DECODER", "moe.te_moe_block", "moe=dropless", message="only models/deepseek.py"),
    Row(TINY, "moe=te", "TE_ON_CPU", "moe.te_moe_block", "moe=dense"),
    Row(TINY, "trainer.attention=cudnn_flash_te", "TE_ON_CPU", "trainer.attention", "trainer.attention=dot_product"),
    Row(TINY, "precision.quantization=te_no_quant", "TE_ON_CPU", "precision.quantization", "precision.quantization=null"),
    # MaxText's own expert paths
    Row(TINY, "moe.sparse_matmul=true", "MOE_RAGGED_ON_CPU", "moe.sparse_matmul", "moe.sparse_matmul=false", message="ragged-all-to-all"),
    Row(TINY, "moe.capacity_factor=1.5 moe.sparse_matmul=true", "MOE_CAPACITY_UNUSED", "moe.capacity_factor", "moe.sparse_matmul=false", N),
    Row(TINY, "mesh.ici.expert=1 mesh.ici.fsdp=2 moe.ragged_buffer_factor=2", "MOE_NEEDS_EXPERT_PARALLEL", "moe.ragged_buffer_factor", "moe.ragged_buffer_factor=-1"),
    Row(TINY, "mesh.ici.expert=1 mesh.ici.fsdp=2 +maxtext.use_ring_of_experts=true", "MOE_NEEDS_EXPERT_PARALLEL", "maxtext.use_ring_of_experts", "maxtext.use_ring_of_experts=false"),
    Row(DSV3, "moe=dropless moe.shard_exp_on_fsdp=true", "MOE_EXPERTS_ON_FSDP", "moe.shard_exp_on_fsdp", "moe.shard_exp_on_fsdp=false"),
    Row(DSV3, "moe=dropless mesh.dcn.fsdp=1 mesh.dcn.expert=2", "MOE_EP_CROSSES_DOMAINS", "mesh.dcn.expert", "mesh.dcn.expert=1 mesh.dcn.fsdp=2", W),
    Row("h200_moe_small_2gpu", "moe=dropless precision=bf16", "MOE_DROPLESS_HANGS", f"xla.flags.{LHS}", f"+xla.flags.{LHS}=true", W),
    Row("h200_moe_small_2gpu", f"moe=dropless precision=bf16 +xla.flags.{LHS}=false", "MOE_DROPLESS_HANGS", f"xla.flags.{LHS}", f"xla.flags.{LHS}=true", W),
    Row("gpt_oss_120b_32gpu", "xla=stock", "MOE_DROPLESS_HANGS", f"xla.flags.{LHS}", "xla=ragged", W),
    Row("gpt_oss_120b_32gpu", f"xla.flags.{NCCL}=false", "MOE_RAGGED_REFUSED", f"xla.flags.{NCCL}", f"xla.flags.{NCCL}=true", W),
    Row(DSV3, "moe=dropless model.name=mixtral-8x7b model.overrides.base_mlp_dim=7168", "MOE_MLP_DIM", "model.overrides.base_mlp_dim", "model.overrides.base_mlp_dim=14336"),
    Row(DSV3, "moe=dropless model.name=gpt-oss-120b moe.sparse_matmul=false moe.capacity_factor=1", "MOE_GPT_OSS_CAPACITY", "moe.capacity_factor", "moe.capacity_factor=-1"),
    Row(DSV3, "moe=dropless +maxtext.shard_exp_on_fsdp=true +maxtext.use_2d_fsdp_sharding=true", "MOE_SHARDING_TWICE", "maxtext.use_2d_fsdp_sharding", "maxtext.use_2d_fsdp_sharding=false"),
    Row(DSV3, "moe=capacity", "TE_NO_EINSUM", "precision.quantization", "precision.quantization=null"),
    Row(TINY, "precision.te_gmm_quantization=te_no_quant", "TE_GMM_UNUSED", "precision.te_gmm_quantization", "precision.te_gmm_quantization=null", N),
    # remat
    Row(DSV3, "remat.moe_mlpwi_0=offload", "REMAT_NO_SUCH_TENSOR", "remat.moe_mlpwi_0", "remat.moe_mlpwi_0=null remat.context=offload", W),
    Row(TINY, "remat.remat_policy=custom remat.context=device", "REMAT_NO_SUCH_TENSOR", "remat.context", "remat.context=null", W),
    Row(DSV3, "remat.remat_policy=full", "REMAT_UNUSED", "remat.remat_policy", "remat.remat_policy=custom", W),
    Row(DSV3, "remat.context=ofload", "MAXTEXT_CHOICE", "remat.context", "remat.context=offload"),
    Row(DSV3, "env=none remat.context=offload", "HOST_LIMIT_MISSING", "env.vars.XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB", "env.vars.XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB=167", W),
    Row(DSV3, "env.vars.XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB=240", "HOST_MEMORY", "env.vars.XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB", "env.vars.XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB=167", message="4 processes a node = 1031 GB"),
    Row(DSV3, "env.vars.XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB=many", "HOST_LIMIT_VALUE", "env.vars.XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB", "env.vars.XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB=64"),
    # secrets, variables, flags
    Row(DSV3, f"+env.vars.HF_TOKEN={HF_TOKEN}", "SECRET_LITERAL", "env.vars.HF_TOKEN", "~env.vars.HF_TOKEN 'env.secrets=[HF_TOKEN]'"),
    Row(DSV3, "+fabric.vars.MY_PASSWORD=opensesame", "SECRET_LITERAL", "fabric.vars.MY_PASSWORD", "~fabric.vars.MY_PASSWORD 'env.secrets=[MY_PASSWORD]'"),
    Row(DSV3, "+maxtext.hf_access_token=opensesame", "SECRET_LITERAL", "maxtext.hf_access_token", "~maxtext.hf_access_token 'env.secrets=[HF_TOKEN]'"),
    Row(DSV3, f"+env.vars.NOTE={HF_TOKEN}", "SECRET_LITERAL", "env.vars.NOTE", "~env.vars.NOTE 'env.secrets=[HF_TOKEN]'"),
    Row(DSV3, f"env.secrets=[WANDB_API_KEY,{HF_TOKEN}]", "SECRET_LITERAL", "env.secrets", "env.secrets=[HF_TOKEN]"),
    Row(DSV3, "+env.vars.MY-VAR=1", "ENV_NAME", "env.vars.MY-VAR", "~env.vars.MY-VAR env.vars.MY_VAR=1"),
    Row(DSV3, "+env.vars.NNODES=4", "ENV_OWNED", "env.vars.NNODES", "~env.vars.NNODES"),
    Row(DSV3, "+fabric.vars.XLA_FLAGS='--xla_dump_to=/x'", "ENV_OWNED", "fabric.vars.XLA_FLAGS", "~fabric.vars.XLA_FLAGS"),
    Row(DSV3, "+env.vars.M_STEPS=4", "ENV_MAXTEXT_KEY", "env.vars.M_STEPS", "~env.vars.M_STEPS"),
    Row(DSV3, "+env.vars.A=null", "ENV_VALUE", "env.vars.A", "env.vars.A=''"),
    Row(DSV3, "+env.vars.A=1 +fabric.vars.A=2", "ENV_TWICE", "env.vars.A", "~env.vars.A", W),
    Row(DSV3, "+env.vars.A=1 env.secrets=[A]", "ENV_SECRET_TWICE", "env.vars.A", "~env.vars.A"),
    Row(DSV3, "env.secrets=[A,NODE_RANK]", "ENV_OWNED", "env.secrets", "'env.secrets=[A]'"),
    Row(DSV3, "env.secrets=[A,b-c]", "ENV_SECRET_NAME", "env.secrets", "'env.secrets=[A]'"),
    Row(DSV3, "+xla.flags.xla-gpu-autotune-level=4", "XLA_FLAG_NAME", "xla.flags.xla-gpu-autotune-level", "~xla.flags.xla-gpu-autotune-level +xla.flags.xla_gpu_autotune_level=4"),
    Row(DSV3, "+xla.flags.xla_gpu_x=null", "XLA_FLAG_VALUE", "xla.flags.xla_gpu_x", ""),
    # MaxText's keys and own words
    Row(DSV3, "model.name=deepseek3-671", "MODEL_UNKNOWN", "model.name", "model.name=deepseek3-671b"),
    Row(DSV3, "model.overrides.base_num_decoder_layer=4", "MAXTEXT_KEY_UNKNOWN", "model.overrides.base_num_decoder_layer", "~model.overrides.base_num_decoder_layer"),
    Row(DSV3, "+maxtext.ragged_bufer_factor=2", "MAXTEXT_KEY_UNKNOWN", "maxtext.ragged_bufer_factor", "~maxtext.ragged_bufer_factor", message="has no key"),
    Row(DSV3, "+maxtext.pgle=true", "MAXTEXT_KEY_NOT_PUBLIC", "maxtext.pgle", "~maxtext.pgle xla.pgle=true"),
    Row(DSV3, "trainer.attention=cudnn_flash", "MAXTEXT_CHOICE_UNSEEN", "trainer.attention", "trainer.attention=cudnn_flash_te", W),
    Row(DSV3, "precision.quantization=te_fp8_curentscaling", "MAXTEXT_CHOICE", "precision.quantization", "precision.quantization=te_fp8_currentscaling"),
    Row(DSV3, "+maxtext.run_name=x", "MAXTEXT_KEY_OWNED", "maxtext.run_name", "~maxtext.run_name"),
    Row(DSV3, "+maxtext.ici_expert_parallelism=4", "MAXTEXT_KEY_OWNED", "maxtext.ici_expert_parallelism", "~maxtext.ici_expert_parallelism"),
    Row(DSV3, "+maxtext.steps=4", "MAXTEXT_KEY_OWNED", "maxtext.steps", "~maxtext.steps trainer.steps=4"),
    Row(DSV3, "+maxtext.scan_layers=false", "MAXTEXT_KEY_WINS", "maxtext.scan_layers", "~maxtext.scan_layers trainer.scan_layers=false", N),
    Row(DSV3, "+maxtext.enable_autocheckpoint=false", "MAXTEXT_KEY_WINS", "maxtext.enable_autocheckpoint", "~maxtext.enable_autocheckpoint", N),
    Row(DSV3, "trainer.start=autodetct", "WORD_UNKNOWN", "trainer.start", "trainer.start=autodetect"),
    Row(DSV3, "hardware.platform=tpu", "WORD_UNKNOWN", "hardware.platform", "hardware.platform=gpu"),
    Row(DSV3, "target.kind=kubernets", "WORD_UNKNOWN", "target.kind", "target.kind=kubernetes"),
    Row(DSV3, "trainer.maxtext=0.2.6", "MAXTEXT_VERSION", "trainer.maxtext", "trainer.maxtext=0.2.5"),
    # the run
    Row(DSV3, "name=My_Run", "NAME", "name", "name=my_run"),
    Row(DSV3, "trainer.steps=0", "NUMBER_RANGE", "trainer.steps", "trainer.steps=1"),
    Row(DSV3, "trainer.per_device_batch_size=inf", "NUMBER_RANGE", "trainer.per_device_batch_size", "trainer.per_device_batch_size=1"),
    Row(DSV3, "trainer.learning_rate=-1", "NUMBER_RANGE", "trainer.learning_rate", "trainer.learning_rate=null"),
    Row(DSV3, "checkpoint.directory=ckpt", "CHECKPOINT_DIRECTORY", "checkpoint.directory", "checkpoint.directory=/ckpt"),
    Row(DSV3, "trainer.steps=1000", "CHECKPOINT_OFF", "checkpoint.enable_checkpointing", "checkpoint=periodic", W),
    Row(DSV3, "checkpoint=periodic checkpoint.checkpoint_period=50", "CHECKPOINT_OVERFLOW_CHECK", "checkpoint.checkpoint_period", "checkpoint.checkpoint_period=60", W),
    Row(DSV3, "checkpoint.load_full_state_path=/x", "CHECKPOINT_LOAD", "checkpoint.load_full_state_path", "checkpoint=periodic"),
    Row(DSV3, "trainer.steps=6", "PROFILER_WINDOW", "monitor.profiler_steps", "trainer.steps=9", W),
    Row(DSV3, "data.dataset_type=hf", "DATA_SOURCE", "data.hf_path", "data.hf_path=ORG/DATASET"),
    Row(DSV3, "data.dataset_type=grain", "DATA_SOURCE", "data.grain_train_files", "data.grain_train_files=/PATH/*.arrayrecord"),
    Row(DSV3, "data.dataset_type=hf", "DATA_TOKENIZER", "data.tokenizer_path", "data.tokenizer_type=huggingface data.tokenizer_path=ORG/MODEL"),
    Row(DSV3, "data.packing=true", "DATA_PACKING", "data.packing", "data.packing=false"),
    Row(DSV3, "data.packing=true", "DATA_PACKING", "data.packing", "data.max_segments_per_seq=32"),
    Row(DSV3, "target=local", "TARGET_NODES", "target", "target=slurm", W, message="32"),
    Row(DSV3, "target=local trainer.start=autodetect", "TARGET_START", "trainer.start", "trainer.start=env", W),
    Row(DSV3, "hardware.gpus_per_numa=0", "NUMBER_RANGE", "hardware.gpus_per_numa", "hardware.gpus_per_numa=1"),
    Row(DSV3, "trainer.workarounds=[te_scan_constant]", "WORKAROUND_NAME", "trainer.workarounds", "trainer.workarounds=[te_scan_constants]"),
    Row(DSV3, "trainer.workarounds=[zzz,te_scan_constants]", "WORKAROUND_NAME", "trainer.workarounds", "trainer.workarounds=[te_scan_constants]", message="names zzz"),
    Row(DSV3, "trainer.workarounds=[te_scan_constants] trainer.scan_layers=false", "WORKAROUND_UNUSED", "trainer.workarounds", "trainer.workarounds=[]", W, message="scan_layers=false"),
    Row(DSV3, "trainer.workarounds=[te_scan_constants] moe=dropless precision=bf16", "WORKAROUND_UNUSED", "trainer.workarounds", "trainer.workarounds=[]", W, message="te_moe_block=false"),
    Row(TINY, "trainer.workarounds=[te_scan_constants]", "WORKAROUND_UNUSED", "trainer.workarounds", "trainer.workarounds=[]", W),
    Row(DSV3, "trainer.workarounds=[te_compile_cash]", "WORKAROUND_NAME", "trainer.workarounds", "trainer.workarounds=[te_compile_cache]"),
    Row(DSV3, "trainer.workarounds=[te_compile_cache] moe=dropless precision=bf16 trainer.attention=dot_product", "WORKAROUND_UNUSED", "trainer.workarounds", "trainer.workarounds=[]", W, message="te_compile_cache"),
    Row(TINY, "trainer.workarounds=[te_compile_cache]", "WORKAROUND_UNUSED", "trainer.workarounds", "trainer.workarounds=[]", W),
    Row(DSV3, "monitor.node_check=fast", "MONITOR_WORD", "monitor.node_check", "monitor.node_check=quick"),
    Row(DSV3, "monitor.node_check=onlly", "MONITOR_WORD", "monitor.node_check", "monitor.node_check=only"),
    Row(DSV3, "monitor.nan=rolback", "MONITOR_WORD", "monitor.nan", "monitor.nan=rollback"),
    Row(DSV3, "monitor.overflow=restart", "MONITOR_WORD", "monitor.overflow", "monitor.overflow=act"),
    Row(DSV3, "monitor.stall=kill", "MONITOR_WORD", "monitor.stall", "monitor.stall=act"),
    Row(DSV3, "monitor.straggler=excluded", "MONITOR_WORD", "monitor.straggler", "monitor.straggler=exclude"),
    Row(DSV3, "+monitor.max_of_kind.network=often", "MONITOR_KIND", "monitor.max_of_kind.network", "+monitor.max_of_kind.network=3"),
    Row(DSV3, "monitor.metrics_port=80", "MONITOR_PORT", "monitor.metrics_port", "monitor.metrics_port=9400"),
    Row(DSV3, "monitor.webhook=SLACK", "MONITOR_WEBHOOK", "monitor.webhook", "monitor.webhook=SLACK env.secrets=[SLACK]"),
    Row(DSV3, "monitor.webhook=https://hooks.example.com/1", "MONITOR_WEBHOOK", "monitor.webhook", "monitor.webhook=WEBHOOK_URL env.secrets=[WEBHOOK_URL]"),
    Row(DSV3, "monitor.loss_spike=rollback", "MONITOR_ROLLBACK", "monitor.loss_spike", "checkpoint=periodic", Severity.WARNING),
    Row(DSV3, "monitor.nan=warn", "MONITOR_NAN", "monitor.nan", "+maxtext.abort_on_nan_loss=false +maxtext.abort_on_inf_loss=false", Severity.WARNING),
    Row(DSV3, "monitor.stall_seconds=0", "NUMBER_RANGE", "monitor.stall_seconds", "monitor.stall_seconds=1"),
    Row(DSV3, "monitor.max_failures=-1", "NUMBER_RANGE", "monitor.max_failures", "monitor.max_failures=1"),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.code}: {row.overrides}")
def test_a_mistake_is_found_and_its_hint_cures_it(row: Row) -> None:
    assert_its_hint_cures(row, plan)


def test_rows_reach_every_code_that_the_rules_can_give() -> None:
    from pathlib import Path

    import launcher.plan

    given = set()
    for file in Path(launcher.plan.__file__).parent.glob("*.py"):
        given |= set(
            re.findall(r'(?:_?error|warning|note|Issue)\(\s*"([A-Z][A-Z0-9_]+)"', file.read_text(encoding="utf-8"))
        )
    elsewhere = {  # test_key_check.py, and below
        "MAXTEXT_KEY_DERIVED", "MAXTEXT_VALUE_TYPE", "MAXTEXT_VALUE_RANGE", "MAXTEXT_MODEL_WITHOUT_YML",
        "MESH_TOO_LARGE", "TE_WITHOUT_EXPERTS", "TE_EP_SIZE", "DATA_WORKERS", "CHECKPOINT_LOAD_TWICE", "MOE_ROUTED_BIAS",
        "MEMORY_OVER", "MEMORY_TIGHT", "HOST_OFFLOAD_OVER",  # test_memory.py
    }  # fmt: skip
    slurm = {code for code in given if code.startswith(("SLURM_", "CONTAINER_", "KUBERNETES_"))}  # tables of their own
    assert given - {row.code for row in ROWS} - elsewhere - slurm == set()


@pytest.mark.parametrize(
    ("overrides", "code"),
    [
        ("nodes=null mesh.dcn.fsdp=100000", "MESH_TOO_LARGE"),
        ("model.name=llama3-8b", "TE_WITHOUT_EXPERTS"),
        ("hardware.domain_nodes=64 mesh.ici.expert=128 mesh.ici.fsdp=1 mesh.dcn.fsdp=1", "TE_EP_SIZE"),
        ("data.dataset_type=hf data.grain_worker_count=4", "DATA_WORKERS"),
        ("checkpoint.load_parameters_path=/a checkpoint.load_full_state_path=/b", "CHECKPOINT_LOAD_TWICE"),
        (
            "moe=dropless model.name=mixtral-8x7b +maxtext.routed_bias=true +maxtext.routed_bias_update_rate=0.1",
            "MOE_ROUTED_BIAS",
        ),
    ],
)
def test_rarer_mistakes(overrides: str, code: str) -> None:
    assert code in [i.code for i in plan(DSV3, *overrides.split()).issues]
    assert code not in [i.code for i in plan(DSV3).issues]


SECRETS = {
    "+env.vars.X": HF_TOKEN,
    "+env.vars.GIT": "ghp_" + "a1B2" * 9,
    "+env.vars.Y": "AKIA" + "ABCDEFGHIJKLMNOP",
    "+fabric.vars.Z": "sk-" + "proj-abcdefghijklmnop",
    "+env.vars.WANDB_KEY": "0123456789abcdef" * 2 + "01234567",
    "+env.vars.SLACK": "xoxb-" + "1234567890-abcdef",
    "+env.vars.JWT": "eyJhbGciOiJI" + ".eyJzdWIiOiIx" + ".c2ln",
    "+env.vars.LAB": "glpat-" + "abcdefghijklmnop",
    "+env.vars.PASSWORD": "12345678",
    "+maxtext.hf_access_token": "letmein",
    "+maxtext.quantization": HF_TOKEN,
    "+maxtext.nosuchkey": HF_TOKEN,
    "+model.overrides.decoder_block": HF_TOKEN,
    "data.hf_path": f"https://user:{HF_TOKEN}@host/x",
    "name": HF_TOKEN,
    "remat.context": HF_TOKEN,
    "trainer.start": HF_TOKEN,
    "target.kind": HF_TOKEN,
    "container.image": f"registry/{HF_TOKEN}",
    "model.name": HF_TOKEN,
    "+xla.flags.xla_gpu_token": "opensesame",
    f"+env.vars.{HF_TOKEN}": "1",
}  # fmt: skip


@pytest.mark.parametrize(("key", "value"), SECRETS.items())
def test_no_text_of_any_issue_shows_a_secret(key: str, value: str) -> None:
    composed = COMPOSER.compose([f"+exp={DSV3}", f"{key}='{value}'"])
    assert composed.experiment is not None, composed.issues
    issues = make(composed.experiment).issues
    secret = HF_TOKEN if HF_TOKEN in key + value else value
    assert secret not in repr(issues)
    if "VARS" not in key.upper() or value != "1":
        assert "SECRET_LITERAL" in [i.code for i in issues]


@pytest.mark.parametrize(
    "word",
    ["+env.vars.NCCL_EP_TOKENS_PER_CHUNK=64", "+env.vars.GOOGLE_APPLICATION_CREDENTIALS=/secrets/key.json", "+env.vars.MAX_TOKEN=8",
     "+env.vars.HF_TOKEN_PATH=token.txt", "data.tokenizer_path=deepseek-ai/DeepSeek-V3", "+env.vars.GIT_COMMIT=0123456789abcdef0123456789abcdef01234567"],
)  # fmt: skip
def test_what_only_sounds_like_a_secret_passes(word: str) -> None:
    assert "SECRET_LITERAL" not in [i.code for i in plan(DSV3, word).issues]


def test_issues_come_worst_first_and_once() -> None:
    issues = plan(
        DSV3, "mesh.ici.expert=16", "trainer.steps=0", "+maxtext.steeps=1", "remat.context=ofload", "name=X Y"
    ).issues
    assert list(issues) == sorted(issues, key=Issue.rank)
    assert len({(i.code, i.field, i.message) for i in issues}) == len(issues)
    errors = [i.code for i in issues if i.severity is Severity.ERROR]
    assert errors == [i.code for i in issues][: len(errors)]
    assert {"MESH_ICI_GPUS", "NUMBER_RANGE", "MAXTEXT_KEY_UNKNOWN", "MAXTEXT_CHOICE", "NAME"} <= set(errors)
