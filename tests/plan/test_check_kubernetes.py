"""What JobSet's webhook, Kueue's, or the API server would refuse is an issue before, with what is right. The server itself: tests/k8s."""

from __future__ import annotations

import copy
import re
import shlex
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kubernetes_mistakes import FITS, MISTAKES, RIGHT, E, K, Mistake, W

import launcher.plan
from launcher.config.compose import Composer
from launcher.issue import Issue
from launcher.plan.kubernetes import LONGEST_LABEL, layout, longest_pod, memory, named, placement, room_for_name
from launcher.plan.kubernetes_patch import merged
from launcher.plan.plan import Plan, make

COMPOSER = Composer()


def plan(experiment: str, words: str = "") -> Plan:
    exp, *more = experiment.split()
    composed = COMPOSER.compose([f"+exp={exp}", "target=kubernetes", *more, *shlex.split(words)])
    assert composed.experiment is not None, composed.issues
    return make(composed.experiment)


def about(mistake: Mistake, issues: tuple[Issue, ...]) -> list[Issue]:
    return [i for i in issues if (i.code, i.field) == (mistake.code, mistake.field)]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda m: f"{m.code}: {m.words}")
def test_a_mistake_is_told_and_what_is_right_passes(mistake: Mistake) -> None:
    issues = plan(mistake.experiment, mistake.words).issues
    found = about(mistake, issues)
    assert len(found) == 1, issues
    assert found[0].severity is mistake.severity
    assert mistake.message in found[0].message
    assert mistake.hint in found[0].hint
    assert "opensesame" not in repr(issues)
    if mistake.severity is E:
        # Nothing else is an error: one mistake is one message.
        assert [i for i in issues if i.severity is E] == found
    right = plan(mistake.experiment, mistake.right)
    assert not about(mistake, right.issues)
    assert right.errors == ()


def test_at_least_forty_are_refused_and_every_code_is_reached() -> None:
    assert len([mistake for mistake in MISTAKES if mistake.severity is E]) >= 40
    given_codes = set()
    for name in ("check_kubernetes", "check_kubernetes_nodes", "check_pod"):
        text = (Path(launcher.plan.__file__).parent / f"{name}.py").read_text(encoding="utf-8")
        given_codes |= set(re.findall(r'(?:error|warning|note)\(\s*"([A-Z][A-Z0-9_]+)"', text))
    assert given_codes - {mistake.code for mistake in MISTAKES} == {"KUBERNETES_PODS"}  # below


@pytest.mark.parametrize("words", RIGHT)
def test_what_is_right_passes(words: str) -> None:
    assert plan(FITS, words).errors == ()
    assert not [i for i in plan(FITS, words).issues if i.code.startswith("KUBERNETES") and i.severity is W]


def test_nothing_of_this_is_said_of_another_target() -> None:
    for mistake in MISTAKES:
        issues = plan(mistake.experiment, f"{mistake.words} target.kind=local").issues
        assert not [i for i in issues if i.code.startswith("KUBERNETES")]


def test_more_pods_than_a_job_takes() -> None:
    words = "hardware.gpus_per_node=1 hardware.domain_nodes=64 hardware.gpus_per_numa=1 mesh.dcn.fsdp=2048 nodes=131072"
    assert "KUBERNETES_PODS" in [i.code for i in plan(FITS, words).errors]


@pytest.mark.parametrize(
    ("experiment", "words", "annotations"),
    [
        ("dsv3_128gpu", "", {"slice-required-topology": "nvidia.com/gpu.clique", "slice-size": "16"}),
        ("dsv3_1024gpu", "", {"slice-required-topology": "nvidia.com/gpu.clique", "slice-size": "16"}),
        # Three domains of 12 nodes, not two of 18.
        ("dsv3_128gpu", "nodes=36 mesh.ici.data=3 mesh.ici.fsdp=2 mesh.dcn.data=3 mesh.dcn.fsdp=1", {"slice-required-topology": "nvidia.com/gpu.clique", "slice-size": "12"}),
        ("qwen3_30b_a3b_16gpu", "", {"required-topology": "nvidia.com/gpu.clique"}),
        ("dsv3_128gpu", f"{K}.topology_block=block", {"preferred-topology": "block", "slice-required-topology": "nvidia.com/gpu.clique", "slice-size": "16"}),
        # Kueue takes one of required and preferred: the rack is what must be.
        ("qwen3_30b_a3b_16gpu", f"{K}.topology_block=block", {"required-topology": "nvidia.com/gpu.clique"}),
        ("dsv3_128gpu", f"{K}.layout=job_per_domain", {}),
        ("dsv3_128gpu", f"{K}.queue=null", {}),
        # A domain that is one node needs no rack.
        ("deepseek2_16b_16gpu", "hardware=h200_hgx nodes=2 mesh.ici.fsdp=1 mesh.dcn.fsdp=2", {}),
        ("deepseek2_16b_16gpu", f"hardware=h200_hgx nodes=2 mesh.ici.fsdp=1 mesh.dcn.fsdp=2 {K}.topology_block=block", {"preferred-topology": "block"}),
        ("moe_tiny_cpu", "container=nvidia_maxtext", {}),
    ],
)  # fmt: skip
def test_where_pods_lie_follows_from_the_mesh(experiment: str, words: str, annotations: dict[str, str]) -> None:
    made = plan(experiment, words)
    assert made.mesh is not None
    placed = placement(made.experiment, made.mesh)
    assert {key.removeprefix("kueue.x-k8s.io/podset-"): value for key, value in placed.items()} == annotations
    # Kueue's webhook: at most one of these, and a slice has both or none of its words.
    assert len([key for key in annotations if key in ("required-topology", "preferred-topology")]) <= 1
    assert ("slice-size" in annotations) == ("slice-required-topology" in annotations)


@pytest.mark.parametrize(("jobs", "pods"), [(1, 1), (1, 32), (1, 256), (16, 16), (128, 16)])
def test_the_longest_name_just_fits(jobs: int, pods: int) -> None:
    base = "a" * room_for_name(jobs, pods)
    assert len(longest_pod(named(base, "0" * 64, "0" * 64).jobset, jobs, pods)) == LONGEST_LABEL


def test_memory_is_the_pools_the_processes_and_shared_memory() -> None:
    made = plan("dsv3_128gpu")
    assert made.mesh is not None
    needed = memory(made.experiment, made.mesh)
    assert needed is not None
    # The article: 4 processes with 180 GB each.
    assert (needed.processes, needed.pool, needed.needed) == (4, 180, 4 * (180 + 8) + 32)
    assert layout(made.experiment, made.mesh).pods == 32


def test_a_patch_is_merged_as_kubectl_does() -> None:
    base = {
        "spec": {
            "containers": [{"name": "t", "env": [{"name": "A", "value": "1"}], "ports": []}],
            "tolerations": [{"key": "a"}],
            "x": 1,
        }
    }
    patch = {
        "spec": {
            "containers": [{"name": "t", "env": [{"name": "A", "value": "2"}, {"name": "B", "value": "3"}]}, {"name": "u"}],
            "tolerations": [{"key": "a"}, {"key": "b"}],
            "x": None,
        }
    }  # fmt: skip
    kept = copy.deepcopy(base)
    assert merged(base, patch) == {
        "spec": {
            "containers": [
                {"name": "t", "env": [{"name": "A", "value": "2"}, {"name": "B", "value": "3"}], "ports": []},
                {"name": "u"},
            ],
            "tolerations": [{"key": "a"}, {"key": "b"}],
        }
    }
    assert base == kept


texts = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=8)
KEYS = st.sampled_from(
    [
        "name",
        "metadata",
        "spec",
        "labels",
        "annotations",
        "containers",
        "initContainers",
        "volumes",
        "volumeMounts",
        "mountPath",
        "env",
        "value",
        "valueFrom",
        "resources",
        "limits",
        "requests",
        "claims",
        "resourceClaims",
        "tolerations",
        "key",
        "operator",
        "nodeSelector",
        "hostNetwork",
        "dnsPolicy",
        "dnsConfig",
        "emptyDir",
        "sizeLimit",
        "hostPath",
        "path",
        "ports",
        "containerPort",
        "securityContext",
        "image",
        "secretKeyRef",
        "trainer",
        "rdma/ib",
        "memory",
    ]
)
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.floats(),
    texts,
    st.sampled_from(["trainer", "shm", "1Gi"]),
)
trees = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=20
)
BASE = plan(FITS).experiment


@given(
    spec=st.dictionaries(KEYS, trees, max_size=4),
    about=trees,
    container=st.dictionaries(KEYS, trees, max_size=4),
    maps=st.tuples(st.dictionaries(texts, trees, max_size=2), st.dictionaries(texts, trees, max_size=2)),
    tolerations=st.lists(trees, max_size=2),
    text=st.none() | texts,
    number=st.integers(-(10**12), 10**12),
)
@settings(max_examples=300, deadline=None)
def test_any_value_gives_issues_and_never_an_exception(
    *, spec, about, container, maps, tolerations, text, number
) -> None:
    asked = copy.deepcopy(BASE)
    wanted = asked.target.kubernetes
    asked.fabric.pod = {"metadata": about, "spec": {"containers": [{**container, "name": "trainer"}], **spec}}
    wanted.node_selector, wanted.secrets, wanted.tolerations = *maps, tolerations
    wanted.claim = wanted.queue = wanted.topology = wanted.cpu = asked.container.image = text
    wanted.mount = wanted.layout = text or ""
    wanted.memory_gib = wanted.ttl_seconds = wanted.compute_domain_nodes = number
    for issue in make(asked).issues:
        assert issue.code
        assert issue.field
        assert issue.message


def test_the_patch_can_come_from_a_file_of_the_readers(tmp_path: Path) -> None:
    (tmp_path / "fabric").mkdir()
    text = "name: mine\nvars: {NCCL_IB_HCA: mlx5}\npod:\n  spec:\n    hostNetwork: true\n    dnsPolicy: ClusterFirstWithHostNet\n"
    (tmp_path / "fabric" / "mine.yaml").write_text(text, encoding="utf-8")
    from launcher.config.groups import search_path

    composed = Composer(search_path([tmp_path])).compose([f"+exp={FITS}", "target=kubernetes", "fabric=mine"])
    assert composed.experiment is not None
    assert make(composed.experiment).errors == ()
    assert composed.experiment.fabric.pod["spec"]["hostNetwork"] is True
