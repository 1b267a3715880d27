"""The mesh: sizes, domains, the proof about expert groups, and cures that really fit."""

from __future__ import annotations

import copy
import functools
import itertools
import math
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from launcher.config.compose import Composer
from launcher.config.schema import Experiment
from launcher.plan.mesh import AXES, MeshPlan, expert_groups, lay_out

COMPOSER = Composer()


def experiment(*words: str) -> Experiment:
    composed = COMPOSER.compose(["+exp=dsv3_128gpu", *words])
    assert composed.experiment is not None, composed.issues
    return composed.experiment


BASE = experiment()


def typed(*words: str) -> Experiment:
    """The same as `experiment` for whole numbers, a hundred times as fast."""
    changed = copy.deepcopy(BASE)
    for word in words:
        path, value = word.split("=")
        *owners, name = path.split(".")
        setattr(functools.reduce(getattr, owners, changed), name, None if value == "null" else int(value))
    return changed


def mesh(*words: str) -> MeshPlan:
    plan, issues = lay_out(experiment(*words))
    assert plan is not None, issues
    return plan


def test_the_articles_mesh() -> None:
    plan = mesh()
    assert (plan.gpus, plan.nodes, plan.domains, plan.gpus_per_domain, plan.nodes_per_domain) == (128, 32, 2, 64, 16)
    assert (plan.processes, plan.fsdp, plan.expert_parallel) == (128, 16, 8)
    assert list(plan.ici) == list(AXES)
    assert (
        plan.expert_statement
        == "16 expert groups of 8 consecutive ranks on 2 nodes, each inside one NVLink domain of 64 GPUs"
    )


@pytest.mark.parametrize(
    ("words", "nodes", "ici_fsdp", "dcn_fsdp"),
    [
        ("nodes=null", 32, 8, 2),
        ("mesh.ici.fsdp=-1", 32, 8, 2),
        ("mesh.dcn.fsdp=-1", 32, 8, 2),
        ("mesh.ici.fsdp=-1 mesh.dcn.fsdp=-1", 32, 8, 2),
        ("mesh.ici.fsdp=-1 mesh.dcn.fsdp=-1 nodes=18", 18, 9, 1),
        ("mesh.dcn.fsdp=16 nodes=null", 256, 8, 16),
        ("mesh.ici.fsdp=4 mesh.ici.expert=16", 32, 4, 2),
    ],
)
def test_what_is_left_out_follows(words: str, nodes: int, ici_fsdp: int, dcn_fsdp: int) -> None:
    plan = mesh(*words.split())
    assert (plan.nodes, plan.ici["fsdp"], plan.dcn["fsdp"]) == (nodes, ici_fsdp, dcn_fsdp)


def test_expert_groups_that_cross_domains_or_are_not_consecutive_are_seen() -> None:
    crossing = mesh("mesh.dcn.fsdp=1", "mesh.dcn.expert=2")
    assert not crossing.experts_in_domain
    assert crossing.expert_statement == "8 expert groups of 16 ranks on 4 nodes, 8 of them cross NVLink domains"
    spread = mesh("mesh.ici.expert=4", "mesh.ici.autoregressive=2")
    assert spread.experts_in_domain
    assert "consecutive" not in spread.expert_statement


def by_coordinates(ici: dict[str, int], dcn: dict[str, int]) -> set[tuple[int, ...]]:
    """Expert groups found the slow way: every rank's coordinates, one domain after the other, the last axis fastest."""
    groups: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    rank = 0
    for between in itertools.product(*(range(dcn[a]) for a in AXES)):
        for inside in itertools.product(*(range(ici[a]) for a in AXES)):
            at = dict(zip(AXES, (b * ici[a] + i for a, b, i in zip(AXES, between, inside, strict=True)), strict=True))
            groups.setdefault(tuple(at[a] for a in AXES if a != "expert"), []).append((at["expert"], rank))
            rank += 1
    return {tuple(r for _, r in sorted(group)) for group in groups.values()}


sizes = st.fixed_dictionaries({axis: st.sampled_from((1, 1, 1, 2, 3)) for axis in AXES})


@given(ici=sizes, dcn=sizes)
@settings(max_examples=60, deadline=None)
def test_expert_groups_are_those_of_the_coordinates(ici: dict[str, int], dcn: dict[str, int]) -> None:
    if math.prod(ici.values()) * math.prod(dcn.values()) <= 600:
        assert set(expert_groups(ici, dcn)) == by_coordinates(ici, dcn)


axis_size = st.sampled_from((-1, 1, 2, 3, 4, 5, 8, 16, 64))


@given(
    nodes=st.sampled_from((None, 1, 2, 7, 18, 31, 32, 256)),
    ici=st.fixed_dictionaries(dict.fromkeys(("fsdp", "expert", "tensor"), axis_size)),
    dcn=st.fixed_dictionaries(dict.fromkeys(("data", "fsdp", "expert"), axis_size)),
    gpus=st.sampled_from((1, 2, 4, 8)),
    domain=st.sampled_from((1, 2, 18)),
)
@example(
    nodes=1,
    ici={"fsdp": -1, "expert": 1, "tensor": 64},
    dcn={"data": -1, "fsdp": 64, "expert": 64},
    gpus=4,
    domain=18,
)  # what is given alone is more than can be laid out: no number of nodes helps
@settings(max_examples=300, deadline=None)
def test_a_mesh_fits_or_its_cures_do(
    nodes: int | None, ici: dict[str, int], dcn: dict[str, int], gpus: int, domain: int
) -> None:
    words = [
        f"nodes={'null' if nodes is None else nodes}",
        f"hardware.gpus_per_node={gpus}",
        f"hardware.domain_nodes={domain}",
    ]
    words += [f"mesh.ici.{a}={n}" for a, n in ici.items()] + [f"mesh.dcn.{a}={n}" for a, n in dcn.items()]
    plan, issues = lay_out(typed(*words))
    if plan is not None:
        assert not issues
        assert plan.gpus == plan.nodes * gpus == plan.domains * plan.gpus_per_domain
        assert plan.nodes_per_domain <= domain
        assert plan.gpus_per_domain % gpus == 0
        return
    assert issues
    for issue in issues:
        assert issue.hint
        lines = re.sub(r"^type ", "", issue.hint).split(", or ")
        if (
            not issue.code.startswith(("MESH_ICI", "MESH_DCN", "MESH_DOMAIN", "MESH_NODE", "MESH_FREE"))
            or "choose ici" in issue.hint
        ):
            continue
        for line in lines:
            fits, left = lay_out(typed(*words, *line.split()))
            assert fits is not None, (issue, line, left)
