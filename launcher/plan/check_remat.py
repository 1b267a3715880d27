"""Named tensors that are kept or offloaded: do they exist on this path, does the policy read them, is there host memory?"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from typing import Any

from launcher.config import maxtext_schema
from launcher.config.maxtext_schema import SNAPSHOTS
from launcher.issue import Issue
from launcher.plan.case import Case, Rule, error, warning

LOCATIONS = ["remat", "device", "offload"]
"""Where a named tensor can stay: the choices by which its key is known in the snapshot."""

LIMIT = "XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB"

DEFAULT_LIMIT_GIB = 64
"""XLA's pinned host pool of one process without that variable; it counts in GiB (xla/pjrt, GetGpuHostAllocator)."""

GIB = 1 << 30

OFFLOADING_POLICIES = ("minimal_offloaded", "qkv_proj_offloaded")
"""Policies of MaxText 0.2.5 that offload by themselves (layers/nnx_decoders.py)."""

OFFLOADING_KEYS = ("optimizer_memory_host_offload", "parameter_memory_host_offload")


@functools.cache
def _table() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((SNAPSHOTS.parent / "remat_names.json").read_text(encoding="utf-8"))
    return found


def policies() -> dict[str, dict[str, list[str]]]:
    """Policy of MaxText -> the names that it keeps (`save`) and sends to the host (`offload`)."""
    found: dict[str, dict[str, list[str]]] = _table()["policies"]
    return found


@functools.cache
def _tensor_keys(version: str) -> tuple[str, ...]:
    keys = maxtext_schema.load(version).keys.items()
    return tuple(name for name, key in keys if list(key.choices or ()) == LOCATIONS)


def tensor_keys(case: Case) -> list[str]:
    """MaxText's keys that name a tensor."""
    return list(_tensor_keys(case.schema.version))


def present(case: Case) -> frozenset[str] | None:
    """Names that the training step really has; None when this decoder was never looked at."""
    shape, table = case.shape, _table()
    if shape.decoder_block not in table["decoders"]:
        return None
    attention = case.values.text("attention")
    experts = (
        "Transformer Engine's block"
        if case.te
        else "sparse experts"
        if case.values.flag("sparse_matmul")
        else "dense or capacity experts"
    )
    dense = shape.dense_layers > 0 or (shape.moe and shape.decoder_block == "deepseek")
    parts = {
        "every model": True,
        "multi-head latent attention": shape.mla,
        "low-rank queries": shape.mla and shape.q_lora > 0,
        "cuDNN attention": attention not in table["attention_without_context"],
        "dense layers or shared experts": dense,
        experts: shape.moe,
    }
    return frozenset(name for part, there in parts.items() if there for name in table["parts"][part])


def chosen(case: Case) -> dict[str, str]:
    """Tensor -> location of those that the user placed somewhere."""
    placed = {key: case.values.text(key) for key in tensor_keys(case) if case.values.asked.get(key) is not None}
    return {key: where for key, where in placed.items() if where in LOCATIONS}


def unused(case: Case) -> Iterator[Issue]:
    """Only the policy `custom` reads the tensors' places."""
    policy, placed = case.values.text("remat_policy"), chosen(case)
    if placed and policy != "custom":
        message = f"remat_policy={policy}: the places of {', '.join(placed)} are read only with remat_policy=custom"
        yield warning(
            "REMAT_UNUSED", case.field("remat_policy"), message, f"type {case.typed('remat_policy', 'custom')}"
        )


def no_such_tensor(case: Case) -> Iterator[Issue]:
    """A name that the training step does not have does nothing, silently."""
    names = present(case)
    if case.values.text("remat_policy") != "custom" or names is None:
        return
    path = f"{case.shape.name} with TE's MoE block" if case.te else case.shape.name
    better = [name for name in _table()["largest_first"] if name in names and case.values.text(name) != "offload"]
    for name, where in chosen(case).items():
        if name in names or where == "remat":
            continue
        effect = "nothing will be offloaded by it" if where == "offload" else "the key does nothing"
        message = f"{name}={where}: the training step of {path} has no tensor of that name, so {effect}"
        instead = f" {case.typed(better[0], 'offload')}" if where == "offload" and better else ""
        hint = f"type {case.typed(name, None)}{instead}"
        yield warning("REMAT_NO_SUCH_TENSOR", case.field(name), message, hint)


def offloads(case: Case) -> list[str]:
    """What really goes to the host: tensors, a policy, or state."""
    found = [key for key in OFFLOADING_KEYS if key in case.schema.keys and case.values.flag(key)]
    policy = case.values.text("remat_policy")
    if policy in OFFLOADING_POLICIES:
        found.append(f"remat_policy {policy}")
    if policy == "custom":
        names = present(case)
        found += [
            name for name, where in chosen(case).items() if where == "offload" and (names is None or name in names)
        ]
    return found


def host_memory(case: Case) -> Iterator[Issue]:
    """The pinned pools of a node's processes have to fit its memory; without a limit XLA takes 64 GiB a process."""
    hardware = case.experiment.hardware
    if case.cpu:
        return
    variables = {**case.experiment.fabric.vars, **case.experiment.env.vars}
    if LIMIT not in variables:
        if offloads(case):
            message = f"{', '.join(offloads(case))}: {LIMIT} is not set, so XLA stops at {DEFAULT_LIMIT_GIB} GiB of host memory a process"
            fits = (
                int(hardware.host_memory_bytes * 0.75 / hardware.gpus_per_node / GIB)
                if hardware.gpus_per_node > 0
                else 0
            )
            yield warning(
                "HOST_LIMIT_MISSING", f"env.vars.{LIMIT}", message, f"type env.vars.{LIMIT}={fits or DEFAULT_LIMIT_GIB}"
            )
        return
    field = f"env.vars.{LIMIT}" if LIMIT in case.experiment.env.vars else f"fabric.vars.{LIMIT}"
    text = str(variables[LIMIT])
    if not text.isascii() or not text.isdigit():
        yield error(
            "HOST_LIMIT_VALUE", field, f"{LIMIT} must be a whole number of GiB", f"type {field}={DEFAULT_LIMIT_GIB}"
        )
        return
    if hardware.host_memory_bytes <= 0 or hardware.gpus_per_node < 1:
        return
    pools = int(text) * hardware.gpus_per_node * GIB
    if pools >= hardware.host_memory_bytes:
        message = (
            f"{LIMIT} {text} GiB x {hardware.gpus_per_node} processes a node = {pools / 1e9:.0f} GB, but a node of {hardware.name} has "
            f"{hardware.host_memory_bytes / 1e9:.0f} GB"
        )
        fits = max(int(hardware.host_memory_bytes * 0.75 / hardware.gpus_per_node / GIB), 1)
        yield error("HOST_MEMORY", field, message, f"type {field}={fits}")


RULES: tuple[Rule, ...] = (unused, no_such_tensor, host_memory)
