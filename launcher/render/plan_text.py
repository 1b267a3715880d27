"""A plan as text (plan.txt, and what `launcher plan` prints) and as JSON (plan.json, `launcher plan --json`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from launcher.config import maxtext_schema
from launcher.config.secrets import Found, find, hide
from launcher.plan import kubernetes
from launcher.plan.mesh import MeshPlan
from launcher.plan.plan import Plan
from launcher.plan.slurm import placement, racks, time_limit
from launcher.render.env import PGLE
from launcher.render.issue_text import issue_table, issues_json
from launcher.render.layout import WIDTH, count, fact_lines, figure, wrap
from launcher.render.plan_numbers import numbers_json, numbers_lines

MESH_TITLE = "Mesh (ICI inside one NVLink domain, DCN between domains)"

MODEL_KEYS = {
    "layers": "base_num_decoder_layers",
    "dense_layers": "first_num_dense_layers",
    "width": "base_emb_dim",
    "heads": "base_num_query_heads",
    "kv_heads": "base_num_kv_heads",
    "attention": "attention_type",
    "mlp": "base_mlp_dim",
    "experts": "num_experts",
    "experts_per_token": "num_experts_per_tok",
    "shared_experts": "shared_experts",
    "expert_mlp": "base_moe_mlp_dim",
    "vocabulary": "vocab_size",
    "block": "decoder_block",
}
"""plan.json's word -> the MaxText key that holds it."""


def model_numbers(plan: Plan) -> dict[str, object]:
    """The model's dimensions as MaxText will see them, overrides included; empty for a model or version it lacks."""
    experiment = plan.experiment
    if experiment.trainer.maxtext not in maxtext_schema.versions():
        return {}
    schema = maxtext_schema.load(experiment.trainer.maxtext)
    if experiment.model.name not in schema.models:
        return {}
    chosen = plan.settings.keys if plan.settings else {**experiment.model.overrides, **experiment.maxtext}
    known = {word: key for word, key in MODEL_KEYS.items() if key in schema.keys}
    return {word: chosen.get(key, schema.value(key, experiment.model.name)) for word, key in known.items()}


def _model_line(plan: Plan) -> str:
    n = {word: figure(value) for word, value in model_numbers(plan).items()}
    name = plan.experiment.model.name
    if not n:
        return f"{name}: no model of MaxText {plan.experiment.trainer.maxtext}"
    dense = f" ({n['dense_layers']} dense)" if n["dense_layers"] != "0" else ""
    heads = f"{n['heads']} heads" if n["kv_heads"] == n["heads"] else f"{n['heads']} heads ({n['kv_heads']} for keys)"
    shared = f", {n['shared_experts']} shared" if n["shared_experts"] != "0" else ""
    experts = f"{n['experts']} experts of {n['expert_mlp']}, {n['experts_per_token']} a token{shared}"
    if n["experts"] == "1":
        experts = "no experts"
    mlp = f", dense MLP {n['mlp']}" if dense or n["experts"] == "1" else ""
    attention = f"width {n['width']}, {heads} ({n['attention']}){mlp}"
    return f"{name}: {n['layers']} layers{dense}, {attention}, {experts}, vocabulary {n['vocabulary']}"


def _header(plan: Plan) -> list[str]:
    experiment = plan.experiment
    said = f": {experiment.description}" if experiment.description else ""
    return [*wrap(f"{experiment.name}{said}", ""), "=" * min(WIDTH, len(experiment.name) + len(said))]


def _mesh_table(mesh: MeshPlan) -> list[str]:
    used = [axis for axis in mesh.ici if mesh.size(axis) > 1]
    rows = [("axis", "ICI", "DCN", "total")]
    rows += [(axis, figure(mesh.ici[axis]), figure(mesh.dcn[axis]), figure(mesh.size(axis))) for axis in used]
    rows.append(("product", figure(mesh.gpus_per_domain), figure(mesh.domains), figure(mesh.gpus)))
    width = max(len(row[0]) for row in rows)
    lines = [f"  {row[0]:<{width}}" + "".join(f"{cell:>8}" for cell in row[1:]) for row in rows]
    rule = "  " + "-" * (len(lines[0]) - 2)
    others = "  1 each: " + ", ".join(axis for axis in mesh.ici if axis not in used)
    return [MESH_TITLE, lines[0], rule, *lines[1:-1], rule, lines[-1], others]


def _asked_mesh(plan: Plan) -> str:
    """The words of a mesh that cannot be laid out."""
    asked, hardware = plan.experiment.mesh, plan.experiment.hardware
    nodes = count(plan.experiment.nodes, "node") if plan.experiment.nodes is not None else "nodes as the mesh needs"
    parts = [f"asked for {nodes} x {hardware.gpus_per_node} GPUs ({hardware.name})"]
    for name, axes in (("ICI", asked.ici), ("DCN", asked.dcn)):
        sizes = [f"{axis} {size}" for axis, size in dataclasses.asdict(axes).items() if size != 1]
        parts.append(f"{name} {' x '.join(sizes) or '1'}")
    return f"{', '.join(parts)}: impossible, see the issues"


def _ranks(mesh: MeshPlan) -> str:
    """0-63 64-127: the ranks of each domain; of many domains the first two and the last."""
    spans = [f"{d * mesh.gpus_per_domain}-{(d + 1) * mesh.gpus_per_domain - 1}" for d in range(mesh.domains)]
    if mesh.gpus == 1:
        return "rank 0"
    return "ranks " + (", ".join(spans) if len(spans) <= 4 else f"{spans[0]}, {spans[1]}, ..., {spans[-1]}")


def _facts(plan: Plan, mesh: MeshPlan) -> list[tuple[str, str]]:
    """Name and sentence of everything that is no table."""
    hardware, batch = plan.experiment.hardware, plan.batch
    gpu = hardware.platform == "gpu"
    device, domain = ("GPU", "NVLink domain") if gpu else ("device", "domain")
    nodes = (
        f"{count(mesh.nodes, 'node')} x {count(mesh.gpus_per_node, device)} ({hardware.name}), one process a {device}"
    )
    share = count(mesh.nodes_per_domain, "node")
    if mesh.nodes_per_domain != hardware.domain_nodes:
        share = f"{mesh.nodes_per_domain} of {count(hardware.domain_nodes, 'node')}"
    each = (
        f"{count(mesh.gpus_per_domain, device)} each: "
        if mesh.domains > 1
        else f"{count(mesh.gpus_per_domain, device)}: "
    )
    domains = f"{count(mesh.domains, domain)} x {share}, {each}{_ranks(mesh)}"
    facts = [("nodes", nodes), ("domains", domains), ("experts", mesh.expert_statement)]
    if batch is not None and plan.settings is not None:
        steps = plan.settings.keys["steps"]
        total = f"; {figure(steps)} steps = {batch.tokens * steps:,} tokens" if isinstance(steps, int) else ""
        tokens = f"{count(batch.sequences, 'sequence')} = {batch.tokens:,} tokens a step, {batch.tokens_per_device:,} a {device}{total}"
        facts.append(("batch", tokens))
    if plan.experiment.target.kind == "slurm":
        facts.append(("target", _slurm(plan, mesh)))
    if plan.experiment.target.kind == "kubernetes":
        facts.append(("target", _kubernetes(plan, mesh)))
    return facts


def _kubernetes(plan: Plan, mesh: MeshPlan) -> str:
    """What the cluster will be asked for."""
    wanted, split = plan.experiment.target.kubernetes, kubernetes.layout(plan.experiment, mesh)
    told = [f"{count(split.jobs, 'Job')} of {count(split.pods, 'pod')}"]
    if kubernetes.spans_nodes(mesh, plan.experiment) and wanted.topology is not None:
        told.append(f"{count(mesh.domains, 'domain')} by {wanted.topology}")
    needed = kubernetes.memory(plan.experiment, mesh)
    if wanted.memory_gib is not None:
        told.append(f"{wanted.memory_gib} GiB a pod")
    elif needed is not None:
        told.append(f"{needed.needed} GiB a pod at least")
    told.append(f"claim {wanted.claim} at {wanted.mount}")
    return f"kubernetes{f' (queue {wanted.queue})' if wanted.queue else ''}: {'; '.join(told)}"


def _slurm(plan: Plan, mesh: MeshPlan) -> str:
    """What sbatch will be asked for."""
    wanted, placed = plan.experiment.target.slurm, placement(plan.experiment, mesh)
    if placed is None:
        return "slurm: spare nodes that do not split, see the issues"
    told = [count(placed.nodes, "node")]
    if placed.nodes > mesh.nodes:
        each = f", {placed.spare_a_domain} a domain" if placed.spare_a_domain and mesh.domains > 1 else ""
        told[0] += f" ({placed.nodes - mesh.nodes:,} spare{each})"
    needed = racks(plan.experiment, placed)
    if needed is not None:
        told.append(f"--segment={placed.segment}: {count(needed, 'NVLink domain')}")
    told.append(f"{time_limit(wanted.time_minutes)} a start, {'queued again' if wanted.requeue else 'no requeue'}")
    where = f" ({wanted.partition})" if wanted.partition else ""
    return f"slurm{where}: {'; '.join(told)}"


def _translation_rows(plan: Plan) -> list[tuple[str, str]]:
    """What each own word became; words that only lend MaxText's key their value are one row a group and value."""
    rows: dict[str, str] = {}
    for t in plan.settings.translations if plan.settings else ():
        group, _, name = t.word.rpartition(".")
        if t.became == f"{name}={t.value}":
            word = f"{group}.*={_word(t.value)}"
            rows[word] = f"{rows[word]}, {name}" if word in rows else name
        else:
            rows[f"{t.word}={_word(t.value)}"] = t.became
    return list(rows.items())


def _translation_lines(plan: Plan) -> list[str]:
    rows = _translation_rows(plan)
    if not rows:
        return []
    width = min(46, max(len(word) for word, _ in rows))
    lines = ["The launcher's word -> what runs"]
    for word, became in rows:
        lines += wrap(became, f"  {word:<{width}}  -> ")
    return lines


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _sent(plan: Plan) -> list[str]:
    """What the trainer is given, in numbers."""
    if plan.settings is None:
        return []
    experiment, settings = plan.experiment, plan.settings
    line = f"{len(settings.arguments)} on the command line"
    keys = f"{count(len(settings.file), 'key')} in maxtext.yml, {line} (MaxText {experiment.trainer.maxtext})"
    flags = len(experiment.xla.flags)
    variables = count(len(_variable_names(plan)), "variable")
    if experiment.env.secrets:
        names = ", ".join(sorted(experiment.env.secrets))
        variables += f", and from the environment {count(len(experiment.env.secrets), 'secret')}: {names}"
    return [
        "Given to the trainer",
        *fact_lines([("MaxText", keys), ("XLA", count(flags, "flag")), ("env", variables)]),
    ]


def _variable_names(plan: Plan) -> list[str]:
    """Names alone, since env.variables refuses what a plan with errors may still hold."""
    experiment = plan.experiment
    return sorted({*experiment.fabric.vars, *experiment.env.vars, *([PGLE] if experiment.xla.pgle else [])})


def plan_text(plan: Plan) -> str:
    """What the plan says, for a reader in a terminal: plain ASCII lines, issues last."""
    blocks: list[list[str]] = [_header(plan)]
    if plan.mesh is not None:
        blocks += [
            fact_lines([("model", _model_line(plan)), *_facts(plan, plan.mesh)]),
            _mesh_table(plan.mesh),
            numbers_lines(plan),
        ]
    else:
        blocks.append(fact_lines([("model", _model_line(plan)), ("mesh", _asked_mesh(plan))]))
    blocks += [_translation_lines(plan), _sent(plan), issue_table(plan.issues)]
    text = "\n\n".join("\n".join(block) for block in blocks if block) + "\n"
    return hide(text, find(plan.experiment)) if plan.errors else text


MESH_NUMBERS = (
    "gpus", "processes", "nodes", "gpus_per_node", "domains", "gpus_per_domain", "expert_parallel", "expert_groups",
    "experts_in_domain",
)  # fmt: skip
"""What plan.json tells of the mesh beside the axes, by MeshPlan's names."""


def _mesh_json(mesh: MeshPlan) -> dict[str, object]:
    return {"ici": dict(mesh.ici), "dcn": dict(mesh.dcn), **{name: getattr(mesh, name) for name in MESH_NUMBERS}}


def plan_json(plan: Plan) -> dict[str, object]:
    """What the plan says, for a script. Keys are stable; mesh, batch and the key lists are null when the mesh is impossible.

    A secret that was given as a literal is an error of the plan, and blotted out here.
    """
    experiment, mesh, settings = plan.experiment, plan.mesh, plan.settings
    told: dict[str, object] = {
        "experiment": experiment.name,
        "description": experiment.description,
        "ok": not plan.errors,
        "target": experiment.target.kind,
        "hardware": experiment.hardware.name,
        "model": {"name": experiment.model.name, **model_numbers(plan)},
        "mesh": _mesh_json(mesh) if mesh else None,
        "batch": dataclasses.asdict(plan.batch) if plan.batch else None,
        "numbers": numbers_json(plan),
        "maxtext": {
            "version": experiment.trainer.maxtext,
            "file": dict(sorted(settings.file.items())) if settings else None,
            "arguments": dict(sorted(settings.arguments.items())) if settings else None,
        },
        "translations": [dataclasses.asdict(t) for t in settings.translations] if settings else [],
        "xla_flags": dict(sorted(experiment.xla.flags.items())),
        "env": _variable_names(plan),
        "secrets": sorted(experiment.env.secrets),
        "issues": issues_json(plan.issues),
    }
    if not plan.errors:
        return told
    secrets = find(experiment)
    return {key: _hidden(value, secrets) for key, value in told.items()}


def _hidden(value: object, secrets: Sequence[Found]) -> object:
    """The value with these literal secrets blotted out of every text in it."""
    if isinstance(value, str):
        return hide(value, secrets)
    if isinstance(value, Mapping):
        return {hide(str(key), secrets): _hidden(inner, secrets) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_hidden(inner, secrets) for inner in value]
    return value
