"""The typed experiment: everything that a user can ask for, one dataclass a Hydra group.

A field whose name is a MaxText key means exactly that key; `None` leaves MaxText's own default. The few words that are
the launcher's own are listed in `OWN_WORDS`. Hydra writes into these classes, so they are not frozen; after composition
nothing changes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional

from omegaconf import MISSING


@dataclass
class Axes:
    """Sizes of MaxText's mesh axes (the part of the key between `ici_`/`dcn_` and `_parallelism`); -1 = what is left, once."""

    data: int = 1
    fsdp: int = 1
    tensor: int = 1
    expert: int = 1
    context: int = 1
    pipeline: int = 1
    fsdp_transpose: int = 1
    tensor_sequence: int = 1
    autoregressive: int = 1


@dataclass
class Mesh:
    """Each axis = ICI part (inside one NVLink domain) x DCN part (between domains)."""

    ici: Axes = field(default_factory=Axes)
    dcn: Axes = field(default_factory=Axes)


@dataclass
class Model:
    """`name` is MaxText's model_name; `overrides` change single keys of that model (base_num_decoder_layers, ...)."""

    name: str = MISSING
    overrides: Dict[str, Any] = field(default_factory=dict)


@dataclass
class Hardware:
    """One kind of node and the NVLink domain that it is part of. Bytes, bytes/s per GPU and direction, FLOP/s dense per GPU.

    `gpus_per_numa`: GPUs beside one another on a NUMA node; each trainer process is bound to its own. null = bound to none.
    """

    name: str = MISSING
    platform: str = "gpu"
    gpu: str = ""
    gpus_per_node: int = MISSING
    domain_nodes: int = 1
    gpus_per_numa: Optional[int] = None
    hbm_bytes: int = 0
    host_memory_bytes: int = 0
    peak_bf16: float = 0.0
    peak_fp8: float = 0.0
    peak_fp4: float = 0.0
    nvlink_bytes_per_s: float = 0.0
    network_bytes_per_s: float = 0.0
    hbm_bytes_per_s: float = 0.0
    compute_capability: int = 0
    mxfp8: bool = False
    arch: str = "x86_64"


@dataclass
class Precision:
    """What is stored and multiplied in which format (MaxText's keys)."""

    dtype: Optional[str] = None
    weight_dtype: Optional[str] = None
    mu_dtype: Optional[str] = None
    quantization: Optional[str] = None
    te_gmm_quantization: Optional[str] = None


@dataclass
class Moe:
    """Which expert path MaxText takes, and its settings (MaxText's keys)."""

    te_moe_block: Optional[bool] = None
    sparse_matmul: Optional[bool] = None
    megablox: Optional[bool] = None
    prefuse_moe_weights: Optional[bool] = None
    ragged_buffer_factor: Optional[float] = None
    te_ep_overflow_check_every_n_steps: Optional[int] = None
    capacity_factor: Optional[float] = None
    n_routing_groups: Optional[int] = None
    topk_routing_group: Optional[int] = None
    shard_exp_on_fsdp: Optional[bool] = None


@dataclass
class Remat:
    """`remat_policy`, and where each named tensor stays when the policy is `custom`: remat, device or offload."""

    remat_policy: str = "full"
    decoder_layer_input: Optional[str] = None
    context: Optional[str] = None
    mlpwi: Optional[str] = None
    mlpwi_0: Optional[str] = None
    mlpwi_1: Optional[str] = None
    mlpwo: Optional[str] = None
    moe_mlpwi_0: Optional[str] = None
    moe_mlpwi_1: Optional[str] = None
    moe_mlpwo: Optional[str] = None
    moe_x_sorted: Optional[str] = None
    moe_routing_maps: Optional[str] = None
    query_proj: Optional[str] = None
    key_proj: Optional[str] = None
    value_proj: Optional[str] = None
    kv_proj: Optional[str] = None
    qkv_proj: Optional[str] = None
    query_wa_proj: Optional[str] = None
    kv_wa_proj: Optional[str] = None
    mla_q: Optional[str] = None
    mla_kv: Optional[str] = None
    attention_out: Optional[str] = None
    out_proj: Optional[str] = None


@dataclass
class Xla:
    """XLA flags without their leading dashes; `pgle` = profile-guided latency estimation (JAX_ENABLE_PGLE)."""

    flags: Dict[str, Any] = field(default_factory=dict)
    pgle: bool = False


@dataclass
class Env:
    """`vars` reach every trainer process unchanged; `secrets` are names only: their values stay in the submitting environment."""

    vars: Dict[str, Any] = field(default_factory=dict)
    secrets: List[str] = field(default_factory=list)


@dataclass
class Data:
    """Training data, through MaxText's own pipelines (MaxText's keys)."""

    dataset_type: str = "synthetic"
    dataset_path: Optional[str] = None
    dataset_name: Optional[str] = None
    hf_path: Optional[str] = None
    hf_data_dir: Optional[str] = None
    hf_train_files: Optional[str] = None
    train_data_columns: Optional[List[str]] = None
    grain_file_type: Optional[str] = None
    grain_train_files: Optional[str] = None
    grain_worker_count: Optional[int] = None
    tokenizer_type: Optional[str] = None
    tokenizer_path: Optional[str] = None
    packing: Optional[bool] = None
    max_segments_per_seq: Optional[int] = None


@dataclass
class Checkpoint:
    """When state is saved (MaxText's keys). `directory` is ours: where checkpoints lie, an absolute path; none = in the run's folder."""

    enable_checkpointing: bool = True
    checkpoint_period: int = 100
    async_checkpointing: Optional[bool] = None
    max_num_checkpoints_to_keep: Optional[int] = None
    load_parameters_path: Optional[str] = None
    load_full_state_path: Optional[str] = None
    directory: Optional[str] = None


@dataclass
class Monitor:
    """The profiler's window and TensorBoard (MaxText's keys), and what is watched and done about it (ours).

    `max_*`: how often a run is started again for each cause before a person is needed; `max_of_kind`: a kind of
    launcher/data/failures.toml -> a budget of its own. `restart_pause_seconds`: before the first restart; it doubles.
    `overflow` of the MoE receive buffers: act = go on with larger ones, warn = start again as it was, stop.
    `nan`, `loss_spike`, `grad_spike`, `imbalance` (of the router): warn, rollback (to the last clean checkpoint, with other
    data where MaxText can), stop. `stall`: act = gather evidence, end the attempt and start again; warn; none.
    `stall_seconds` between steps: null = from what was seen. `straggler`: warn, or exclude its node from the next attempt.
    `node_check`, on GPUs, before each start: none; quick asks driver, disk and clock (a second); full also computes; only =
    full, and no trainer starts. `metrics_port`: of node 0, null = no endpoint. `webhook`: a name in env.secrets, of a URL.
    """

    profiler: str = ""
    skip_first_n_steps_for_profiler: Optional[int] = None
    profiler_steps: Optional[int] = None
    enable_tensorboard: Optional[bool] = False
    max_failures: int = 3
    max_preemptions: int = 1000
    max_bad_nodes: int = 5
    max_rollbacks: int = 2
    max_of_kind: Dict[str, Any] = field(default_factory=dict)
    restart_pause_seconds: int = 10
    overflow: str = "act"
    nan: str = "rollback"
    loss_spike: str = "warn"
    grad_spike: str = "warn"
    imbalance: str = "warn"
    stall: str = "act"
    stall_seconds: Optional[int] = None
    first_step_seconds: int = 3600
    straggler: str = "warn"
    node_check: str = "quick"
    metrics_port: Optional[int] = None
    webhook: Optional[str] = None


@dataclass
class Container:
    """The image that the trainer runs in; none on the local target. `mounts`: FROM:TO[:FLAGS], the run's folder is added.

    `import_folder` (SLURM): a folder that all nodes see; the image is imported there once, and every node takes that file.
    """

    image: Optional[str] = None
    mounts: List[str] = field(default_factory=list)
    workdir: Optional[str] = None
    import_folder: Optional[str] = None


@dataclass
class Fabric:
    """What this cluster's network needs, kept apart from the experiment's own: variables, and on Kubernetes a patch of the pod.

    `pod` is merged into the pod template (its `metadata` and `spec`) as kubectl's strategic merge would: lists by their
    elements' names. The container is called trainer.
    """

    name: str = "generic"
    vars: Dict[str, Any] = field(default_factory=dict)
    pod: Dict[str, Any] = field(default_factory=dict)


@dataclass
class Trainer:
    """The training loop (MaxText's keys) and how it is started (`maxtext`, `module`, `start`, the two bounds, `workarounds`: ours).

    `workarounds`: what may be done in the trainer's process about known faults of versions, by the names in launcher/node/trainer.py.
    """

    maxtext: str = MISSING
    module: str = MISSING
    start: str = "env"
    stop_grace_seconds: int = 600
    coordinator_timeout_seconds: int = 300
    workarounds: List[str] = field(default_factory=list)
    steps: int = MISSING
    per_device_batch_size: float = MISSING
    max_target_length: int = MISSING
    gradient_accumulation_steps: int = 1
    learning_rate: Optional[float] = None
    attention: Optional[str] = None
    scan_layers: Optional[bool] = None
    shardy: Optional[bool] = None
    logits_dot_in_fp32: Optional[bool] = None
    use_iota_embed: Optional[bool] = None
    shard_optimizer_over_data: Optional[bool] = None


@dataclass
class Slurm:
    """What a SLURM cluster wants to be told: sbatch's options by their names, minutes and seconds where the name says so.

    `gpus`: how GPUs are asked for: gpus-per-node, gres, or none where a node comes with all of them. `spare_nodes`: nodes
    beyond the mesh, to go on without a bad one. `setup`: shell lines before the start. `sbatch`, `srun`: further options.
    """

    account: Optional[str] = None
    partition: Optional[str] = None
    qos: Optional[str] = None
    reservation: Optional[str] = None
    constraint: Optional[str] = None
    nodelist: Optional[str] = None
    exclude: Optional[str] = None
    time_minutes: int = 240
    signal_seconds: int = 720
    gpus: str = "gpus-per-node"
    cpus_per_node: Optional[int] = None
    exclusive: bool = True
    segment: bool = True
    requeue: bool = True
    spare_nodes: int = 0
    mpi: str = "none"
    setup: List[str] = field(default_factory=list)
    sbatch: Dict[str, Any] = field(default_factory=dict)
    srun: Dict[str, Any] = field(default_factory=dict)


@dataclass
class Kubernetes:
    """What a Kubernetes cluster with JobSet wants to be told, in its own words; GiB and seconds where the name says so.

    `queue`, `priority_class`: Kueue's. `claim`: an existing PersistentVolumeClaim for the runs' files, mounted at `mount`.
    `topology`: the node label of an NVLink domain (a level of Kueue's Topology), `topology_block` one above that is
    preferred. `layout`: one_job, or job_per_domain (placed by JobSet, no Kueue needed). `memory_gib`: of a pod, null = what
    its processes need. `secrets`: a name of env.secrets -> SECRET/KEY in the cluster.
    """

    context: Optional[str] = None
    namespace: Optional[str] = None
    queue: Optional[str] = None
    priority_class: Optional[str] = None
    claim: Optional[str] = None
    mount: str = "/runs"
    topology: Optional[str] = None
    topology_block: Optional[str] = None
    layout: str = "one_job"
    compute_domain: bool = True
    compute_domain_nodes: int = 0
    service_account: Optional[str] = None
    image_pull_secrets: List[str] = field(default_factory=list)
    node_selector: Dict[str, Any] = field(default_factory=dict)
    tolerations: List[Any] = field(default_factory=list)
    cpu: Optional[str] = None
    memory_gib: Optional[int] = None
    shm_gib: int = 32
    ttl_seconds: Optional[int] = None
    active_deadline_seconds: Optional[int] = None
    secrets: Dict[str, Any] = field(default_factory=dict)


@dataclass
class Target:
    """Where the bundle runs. `slurm` is read by the slurm target alone, `kubernetes` by the kubernetes target."""

    kind: str = "local"
    slurm: Slurm = field(default_factory=Slurm)
    kubernetes: Kubernetes = field(default_factory=Kubernetes)


@dataclass
class Experiment:
    """What was asked. `nodes` may be left out: then it follows from the mesh. `maxtext` holds any further MaxText key."""

    name: str = MISSING
    description: str = ""
    nodes: Optional[int] = None
    model: Model = field(default_factory=Model)
    mesh: Mesh = field(default_factory=Mesh)
    hardware: Hardware = field(default_factory=Hardware)
    precision: Precision = field(default_factory=Precision)
    moe: Moe = field(default_factory=Moe)
    remat: Remat = field(default_factory=Remat)
    xla: Xla = field(default_factory=Xla)
    env: Env = field(default_factory=Env)
    data: Data = field(default_factory=Data)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    monitor: Monitor = field(default_factory=Monitor)
    container: Container = field(default_factory=Container)
    fabric: Fabric = field(default_factory=Fabric)
    trainer: Trainer = field(default_factory=Trainer)
    target: Target = field(default_factory=Target)
    maxtext: Dict[str, Any] = field(default_factory=dict)


MAXTEXT_GROUPS = ("trainer", "precision", "moe", "remat", "data", "checkpoint", "monitor")
"""The groups whose fields are MaxText keys, in the order in which they are written."""

OWN_WORDS: Dict[str, frozenset[str]] = {
    "trainer": frozenset(
        {"maxtext", "module", "start", "stop_grace_seconds", "coordinator_timeout_seconds", "workarounds"}
    ),
    "checkpoint": frozenset({"directory"}),
    "monitor": frozenset(
        {"max_failures", "max_preemptions", "max_bad_nodes", "max_rollbacks", "max_of_kind", "restart_pause_seconds"}
        | {"overflow", "nan", "loss_spike", "grad_spike", "imbalance", "stall", "stall_seconds", "first_step_seconds"}
        | {"straggler", "node_check", "metrics_port", "webhook"}
    ),
}
"""The fields of those groups that are the launcher's own words."""

OPEN_DICTS = (
    "maxtext",
    "xla.flags",
    "env.vars",
    "fabric.vars",
    "fabric.pod",
    "model.overrides",
    "monitor.max_of_kind",
    "target.slurm.sbatch",
    "target.slurm.srun",
    "target.kubernetes.node_selector",
    "target.kubernetes.secrets",
)
"""Where any key may be added; whether it exists is checked against MaxText, XLA or Kubernetes, not against this schema."""
