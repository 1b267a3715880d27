"""Dimensions of weights that do not divide over the ranks that share them: JAX's IndivisibleError, before the queue."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from launcher.issue import Issue
from launcher.plan.case import Case, Rule, error, note
from launcher.plan.mesh import MeshPlan
from launcher.plan.shards import Cut, cuts, known

KEYS = {
    "vocab": "vocab_size", "emb": "base_emb_dim", "heads": "base_num_query_heads", "kv_heads": "base_num_kv_heads",
    "q_lora": "q_lora_rank", "kv_lora": "kv_lora_rank", "mlp": "base_mlp_dim", "shared_mlp": "base_moe_mlp_dim",
    "moe_in": "base_emb_dim", "moe_mlp": "base_moe_mlp_dim", "fused_moe_mlp": "base_moe_mlp_dim", "experts": "num_experts",
    "head_dim": "head_dim",
}  # fmt: skip
"""MaxText's key behind each dimension, for the message."""


def _uneven(case: Case) -> list[Cut]:
    """One cut for each dimension and group of axes that does not divide."""
    found: dict[tuple[str, tuple[tuple[str, int], ...]], Cut] = {}
    for cut in cuts(case):
        if cut.size % cut.shards:
            found.setdefault((KEYS[cut.dimension], cut.axes), cut)
    return list(found.values())


def _with(mesh: MeshPlan, part: str, axis: str, factor: int) -> MeshPlan:
    """The mesh with a factor of one axis given to data parallelism in the same part."""
    sizes = dict(mesh.ici if part == "ici" else mesh.dcn)
    sizes[axis] //= factor
    sizes["data"] *= factor
    return dataclasses.replace(mesh, ici=sizes) if part == "ici" else dataclasses.replace(mesh, dcn=sizes)


def _cure(case: Case, cut: Cut) -> str:
    """The smallest step towards data parallelism after which every dimension divides; between domains first."""
    assert case.mesh is not None
    for part in ("dcn", "ici"):
        sizes = case.mesh.dcn if part == "dcn" else case.mesh.ici
        for axis in (name for name, _ in cut.axes if name != "expert"):
            for factor in (f for f in range(2, sizes[axis] + 1) if sizes[axis] % f == 0):
                changed = _with(case.mesh, part, axis, factor)
                if not _uneven(dataclasses.replace(case, mesh=changed)):
                    after = changed.dcn if part == "dcn" else changed.ici
                    return f"type mesh.{part}.data={after['data']} mesh.{part}.{axis}={after[axis]}"
    return f"make {' x '.join(axis for axis, _ in cut.axes)} smaller, or change {case.field(KEYS[cut.dimension])}"


def dimensions(case: Case) -> Iterator[Issue]:
    """One issue for each dimension that does not divide."""
    for cut in _uneven(case):
        assert case.mesh is not None
        largest = max(cut.axes, key=lambda pair: pair[1])[0]
        part = "dcn" if case.mesh.dcn[largest] > 1 else "ici"
        named = " x ".join(f"{axis} {n}" for axis, n in cut.axes)
        message = (
            f"{cut.tensor} has {cut.size} rows of {KEYS[cut.dimension]}, not divisible by {named} = {cut.shards} shards"
        )
        yield error("SHARDS_DIVISIBLE", f"mesh.{part}.{largest}", message, _cure(case, cut))


def unknown_rules(case: Case) -> Iterator[Issue]:
    """Says when the dimensions were not checked."""
    if case.mesh is not None and case.mesh.gpus > 1 and not known(case):
        own = {"logical_axis_rules", "mesh_axes", "custom_mesh_and_rule"} & set(case.values.asked)
        why = f"{sorted(own)[0]} is set" if own else f"decoder_block {case.shape.decoder_block} is not in the table"
        field = case.field(sorted(own)[0]) if own else "model.name"
        message = f"whether every weight divides over the mesh was not checked: {why}"
        yield note("SHARDS_NOT_CHECKED", field, message, "`python -m launcher preflight maxtext` asks MaxText itself")


RULES: tuple[Rule, ...] = (dimensions, unknown_rules)
