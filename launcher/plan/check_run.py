"""Steps, checkpoints, profile, data and target: what makes a run end early, start wrongly or not come back."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from launcher.issue import Issue
from launcher.plan.case import Case, Rule, error, shown, warning

NAME = re.compile(r"[a-z0-9][-a-z0-9_]*")

LONGEST_NAME = 40
"""A Kubernetes name has 63 characters at most; the run's hash and the pod's indexes take the rest."""

MANY_STEPS = 600
"""About an hour at the article's 5.8 s a step: more than one wants to lose without a checkpoint."""

POSITIVE = (
    ("trainer.steps", 1), ("trainer.max_target_length", 1), ("trainer.gradient_accumulation_steps", 1),
    ("checkpoint.checkpoint_period", 1), ("trainer.stop_grace_seconds", 0), ("trainer.coordinator_timeout_seconds", 1),
    ("hardware.gpus_per_numa", 1), ("monitor.max_failures", 0), ("monitor.max_preemptions", 0), ("monitor.max_bad_nodes", 0),
    ("monitor.max_rollbacks", 0), ("monitor.restart_pause_seconds", 0), ("monitor.stall_seconds", 1),
    ("monitor.first_step_seconds", 1),
)  # fmt: skip
"""Whole numbers with the least value that makes sense."""


def name(case: Case) -> Iterator[Issue]:
    """The experiment's name becomes a folder, a job and a Kubernetes object."""
    seen = case.experiment.name
    if NAME.fullmatch(seen) and len(seen) <= LONGEST_NAME:
        return
    right = re.sub(r"[^-a-z0-9_]+", "-", seen.lower()).strip("-_")[:LONGEST_NAME] or "experiment"
    message = f"name={shown(seen)}: wanted small letters, digits, - and _, a letter or digit first, {LONGEST_NAME} characters at most"
    yield error("NAME", "name", message, f"type name={right}")


def numbers(case: Case) -> Iterator[Issue]:
    """Numbers below the least that makes sense."""
    for field, least in POSITIVE:
        group, _, key = field.partition(".")
        seen = getattr(getattr(case.experiment, group), key)
        if seen is not None and seen < least:
            yield error(
                "NUMBER_RANGE", field, f"{field}={seen}, wanted {least} or more", f"type {field}={max(least, 1)}"
            )
    trainer = case.experiment.trainer
    for field, value in (
        ("trainer.per_device_batch_size", trainer.per_device_batch_size),
        ("trainer.learning_rate", trainer.learning_rate),
    ):
        if value is not None and not (math.isfinite(value) and value > 0):
            example = "1" if field.endswith("size") else "null"
            yield error("NUMBER_RANGE", field, f"{field}={value}, wanted a number above 0", f"type {field}={example}")


def checkpoints(case: Case) -> Iterator[Issue]:
    """Can a stopped run come back, and to a checkpoint that is clean?"""
    checkpoint, steps = case.experiment.checkpoint, case.experiment.trainer.steps
    directory = checkpoint.directory
    if directory is not None and not directory.startswith("/") and "://" not in directory:
        message = f"checkpoint.directory={shown(directory)}: nodes start in different folders, so it must be absolute"
        yield error(
            "CHECKPOINT_DIRECTORY",
            "checkpoint.directory",
            message,
            f"type checkpoint.directory=/{directory.lstrip('./~')}, or null for the run's own folder",
        )
    if checkpoint.load_parameters_path and checkpoint.load_full_state_path:
        message = "load_parameters_path and load_full_state_path exclude each other"
        yield error(
            "CHECKPOINT_LOAD_TWICE",
            "checkpoint.load_parameters_path",
            message,
            "type checkpoint.load_parameters_path=null or checkpoint.load_full_state_path=null",
        )
    if not checkpoint.enable_checkpointing:
        if checkpoint.load_full_state_path:
            message = "load_full_state_path needs enable_checkpointing=true"
            yield error("CHECKPOINT_LOAD", "checkpoint.load_full_state_path", message, "type checkpoint=periodic")
        if steps > MANY_STEPS:
            message = f"{steps} steps without checkpoints: a stopped run starts again from step 0, and MaxText ignores SIGTERM then"
            yield warning("CHECKPOINT_OFF", "checkpoint.enable_checkpointing", message, "type checkpoint=periodic")
        return
    period, every = checkpoint.checkpoint_period, case.values.whole("te_ep_overflow_check_every_n_steps", 1)
    if case.te and period >= 1 and every >= 1 and period % every:
        up = math.ceil(period / every) * every
        message = (
            f"checkpoint_period {period} is not a multiple of te_ep_overflow_check_every_n_steps {every}: a checkpoint can then hold up to "
            f"{every - 1} steps whose overflow is found only later, and the run has to go back further"
        )
        yield warning(
            "CHECKPOINT_OVERFLOW_CHECK",
            "checkpoint.checkpoint_period",
            message,
            f"type checkpoint.checkpoint_period={up}",
        )


def profile(case: Case) -> Iterator[Issue]:
    """The profiler's window has to lie inside the run."""
    if not case.values.text("profiler"):
        return
    steps = case.experiment.trainer.steps
    first, many = case.values.whole("skip_first_n_steps_for_profiler", 1), case.values.whole("profiler_steps", 5)
    if 1 <= steps < first + many:
        message = f"the profile takes steps {first} to {first + many - 1}, but the last step is {steps - 1}"
        yield warning(
            "PROFILER_WINDOW",
            "monitor.profiler_steps",
            message,
            f"type trainer.steps={first + many}, or monitor.profiler=''",
        )


def data(case: Case) -> Iterator[Issue]:
    """Real data needs a source and a tokenizer."""
    found, kind = case.values, case.values.text("dataset_type")
    if kind == "hf" and not found.text("hf_path"):
        yield error(
            "DATA_SOURCE",
            "data.hf_path",
            "dataset_type=hf without hf_path",
            "type data.hf_path=ORG/DATASET (or parquet with data.hf_train_files=GLOB)",
        )
    if kind == "hf" and found.whole("grain_worker_count") > 1:
        message = f"dataset_type=hf with grain_worker_count={found.whole('grain_worker_count')}: each worker would repeat the data"
        yield error("DATA_WORKERS", "data.grain_worker_count", message, "type data.grain_worker_count=1")
    if kind == "grain":
        parquet = found.text("hf_path") and found.text("grain_file_type") == "parquet"
        tfrecord = (
            found.text("dataset_path") and found.text("dataset_name") and found.text("grain_file_type") == "tfrecord"
        )
        if not (
            found.text("grain_train_files") or found.text("grain_train_mixture_config_path") or parquet or tfrecord
        ):
            yield error(
                "DATA_SOURCE",
                "data.grain_train_files",
                "dataset_type=grain without files",
                "type data.grain_train_files=/PATH/*.arrayrecord",
            )
    if kind == "tfds" and not found.text("dataset_name"):
        yield error(
            "DATA_SOURCE", "data.dataset_name", "dataset_type=tfds without dataset_name", "type data.dataset_name=NAME"
        )
    if kind not in ("synthetic", "") and not found.text("tokenizer_path"):
        message = (
            f"dataset_type={kind} without tokenizer_path: MaxText would take the model's from the network, or llama2's"
        )
        yield error(
            "DATA_TOKENIZER",
            "data.tokenizer_path",
            message,
            "type data.tokenizer_type=huggingface data.tokenizer_path=ORG/MODEL",
        )


def packing(case: Case) -> Iterator[Issue]:
    """cuDNN attention of TE needs to know how many documents a packed sequence holds; MaxText packs by default."""
    found = case.values
    packed = found.text("hardware") == "gpu" and found.flag("packing") and found.text("attention") == "cudnn_flash_te"
    if packed and found.whole("max_segments_per_seq", -1) <= 0:
        message = "packing=true with attention=cudnn_flash_te: MaxText wants max_segments_per_seq above 0"
        yield error(
            "DATA_PACKING",
            case.field("packing"),
            message,
            f"type {case.typed('packing', False)}, or data.max_segments_per_seq=32",
        )


def target(case: Case) -> Iterator[Issue]:
    """What the chosen target cannot do."""
    experiment, nodes = case.experiment, case.mesh.nodes if case.mesh else 1
    if experiment.target.kind == "local":
        if nodes > 1:
            message = f"target=local is one node; this experiment asks for {nodes}: `submit` will refuse"
            yield warning(
                "TARGET_NODES",
                "target",
                message,
                "type target=slurm, or start the bundle that `render` writes with your scheduler",
            )
        if experiment.trainer.start == "autodetect":
            message = "trainer.start=autodetect lets JAX ask the scheduler for the processes, and target=local has none"
            yield warning("TARGET_START", "trainer.start", message, "type trainer.start=env")
    if case.cpu and case.mesh is not None and case.mesh.domains > 1:
        message = f"{case.mesh.domains} domains on {experiment.hardware.name}: CPUs have no slice index, which MaxText's DCN axes need"
        moved = {a: n for a, n in case.mesh.dcn.items() if n > 1}
        typed = " ".join(f"mesh.dcn.{a}=1 mesh.ici.{a}={case.mesh.size(a)}" for a in moved)
        yield error("MESH_DCN_ON_CPU", "mesh.dcn", message, f"type {typed}")


RULES: tuple[Rule, ...] = (name, numbers, checkpoints, profile, data, packing, target)
