"""One field of a pod at a time, right and wrong: what we say of it is what the API server says."""

from __future__ import annotations

import copy
import dataclasses
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from test_manifest import experiment_of, namespace, refused_by  # the fixture too

from k8s.testbed.server import ApiServer
from launcher.plan.kubernetes import named
from launcher.plan.kubernetes_objects import jobset
from launcher.plan.plan import make

__all__ = ["namespace"]

BASE = experiment_of("+exp=dsv3_128gpu_fits", "target=kubernetes")
REQUIRED, PREFERRED = (f"{how}DuringSchedulingIgnoredDuringExecution" for how in ("required", "preferred"))


def volume(kind: str, **source: Any) -> dict[str, Any]:
    return {"volumes": [{"name": "v", kind: source}]}


def trainer(**fields: Any) -> dict[str, Any]:
    return {"containers": [{"name": "trainer", **fields}]}


def nodes(operator: str, values: list[str] | None, key: str = "k") -> dict[str, Any]:
    expression = {"key": key, "operator": operator} | ({} if values is None else {"values": values})
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}}}


def spread(**fields: Any) -> dict[str, Any]:
    one = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"} | fields
    return {"topologySpreadConstraints": [one]}


TERM = {"topologyKey": "zone"}
SPECS: list[dict[str, Any]] = [
    *(volume("emptyDir", sizeLimit=size) for size in ("1Gi", "1GB", "-1", 5, "1.5Gi", "1e3", "x")),
    *(volume("hostPath", path=path) for path in ("/x", "x", "/a/../b", "../x")),
    *(volume("configMap", name="c", items=[{"key": "k", "path": path}]) for path in ("p", "a/b", "/p", "../p")),
    *(volume("persistentVolumeClaim", claimName=name) for name in ("c", "a.b", "C", "a_b")),
    *({"volumes": [{"name": name, "emptyDir": {}}]} for name in ("a", "a-b", "A", "a.b", "-a", "x" * 63, "x" * 64)),
    {"volumes": [{"name": "a", "emptyDir": {}, "hostPath": {"path": "/x"}}]},
    *(trainer(env=[{"name": name, "value": "x"}]) for name in ("A", "a-b", "A.B", "_a", "1A", "A=B", "A B", "..a")),
    *(trainer(env=[{"name": "A", "valueFrom": {"secretKeyRef": {"name": n, "key": k}}}]) for n, k in (("s", "k"), ("S_", "k"), ("s", "k/"), ("s", "a.b_c-D"))),
    trainer(env=[{"name": "A", "value": "x", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]),
    trainer(env=[{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}, "configMapKeyRef": {"name": "s", "key": "k"}}}]),
    trainer(env=[{"name": "A", "valueFrom": {}}]),
    *(trainer(envFrom=[source]) for source in ({"configMapRef": {"name": "c"}}, {"secretRef": {"name": "s"}, "prefix": "P_"}, {"secretRef": {"name": "s"}, "prefix": "1P"}, {})),
    *(trainer(resources={"limits": {name: "1"}}) for name in ("rdma/ib", "cpu", "foo", "a/b/c", "A.b/c", "example.com/x y", "ephemeral-storage")),
    *(trainer(resources={"limits": {"cpu": amount}}) for amount in (4, "500m", "1.5", "-1", "x", "1 Gi", "2e1", "0")),
    *(trainer(resources={"limits": {"rdma/ib": amount}}) for amount in (4, "500m", "1k", "-1")),
    *(trainer(resources={"requests": {"cpu": a}, "limits": {"cpu": b}}) for a, b in (("1", "2"), ("2", "1"), ("1000m", 1))),
    *(trainer(resources={"requests": {"rdma/ib": a}, "limits": {"rdma/ib": b}}) for a, b in ((1, 1), (1, 2))),
    trainer(resources={"requests": {"rdma/ib": 1}}),
    *(trainer(volumeMounts=[{"name": name, "mountPath": path}]) for name, path in (("shm", "/a"), ("nil", "/a"), ("shm", "rel"), ("runs", "/runs/x"))),
    *(trainer(volumeMounts=[{"name": "shm", "mountPath": "/a", "subPath": path}]) for path in ("x", "x/y", "/x", "../x")),
    *(trainer(volumeMounts=[{"name": "shm", "mountPath": "/a", "mountPropagation": how}]) for how in ("None", "HostToContainer", "Shared")),
    *(trainer(ports=[{"containerPort": port}]) for port in (80, 0, 70000)),
    *(trainer(ports=[{"containerPort": 80, "protocol": how}]) for how in ("TCP", "tcp")),
    *(trainer(ports=[{"containerPort": 80, "hostPort": port}]) | {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"} for port in (80, 81)),
    *(trainer(imagePullPolicy=how) for how in ("Always", "IfNotPresent", "always")),
    *(trainer(terminationMessagePolicy=how) for how in ("File", "Log")),
    *(trainer(securityContext=how) for how in ({"privileged": True}, {"privileged": True, "allowPrivilegeEscalation": False}, {"runAsUser": 0}, {"runAsUser": -1})),
    *(trainer(livenessProbe={"tcpSocket": {"port": port}}) for port in (80, 70000)),
    *(trainer(livenessProbe={"exec": {"command": ["x"]}, **more}) for more in ({}, {"periodSeconds": -1}, {"successThreshold": 3}, {"tcpSocket": {"port": 80}})),
    trainer(readinessProbe={}), trainer(lifecycle={"preStop": {}}), trainer(lifecycle={"preStop": {"exec": {"command": ["x"]}}}),
    *({"initContainers": [{"name": name, "image": image}]} for name, image in (("i", "x"), ("I", "x"), ("i", ""), ("i", " x"), ("trainer", "x"))),
    *({"tolerations": [one]} for one in (
        {"operator": "Exists"}, {"operator": "Equal"}, {"key": "k"}, {"key": "a b", "operator": "Exists"}, {"key": "k", "operator": "In"},
        {"key": "k", "operator": "Exists", "value": "v"}, {"key": "k", "value": "a b"}, {"key": "k", "effect": "NoSchedule"}, {"key": "k", "effect": "Never"},
        {"key": "k", "tolerationSeconds": 5}, {"key": "k", "effect": "NoExecute", "tolerationSeconds": 5},
    )),
    *({"nodeSelector": {key: value}} for key, value in (("a", "v"), ("a.b/c", "v"), ("A.b/c", "v"), ("a b", "v"), ("a/b/c", "v"), ("a", "a b"), ("a", "x" * 64), ("a", "-v"))),
    *(nodes(*one) for one in (("In", ["a"]), ("In", []), ("NotIn", None), ("Exists", None), ("Exists", ["a"]), ("Gt", ["5"]), ("Gt", ["5", "6"]), ("Is", ["a"]), ("In", ["a"], "a b"))),
    {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": []}}}},
    *({"affinity": {"nodeAffinity": {PREFERRED: [{"weight": weight, "preference": {}}]}}} for weight in (1, 100, 0, 101)),
    *({"affinity": {"podAffinity": {REQUIRED: [{"topologyKey": key}]}}} for key in ("zone", "a b")),
    *({"affinity": {"podAntiAffinity": {PREFERRED: [{"weight": weight, "podAffinityTerm": TERM}]}}} for weight in (5, 0)),
    *({"affinity": {"podAffinity": {REQUIRED: [TERM | {"labelSelector": {"matchLabels": {"a": value}}}]}}} for value in ("b", "b c")),
    *({"affinity": {"podAffinity": {REQUIRED: [TERM | {"labelSelector": {"matchExpressions": [{"key": "a", "operator": how, "values": ["b"]}]}}]}}} for how in ("In", "Exists", "Gt")),
    *(spread(**one) for one in ({}, {"maxSkew": 0}, {"topologyKey": "a b"}, {"whenUnsatisfiable": "Never"}, {"labelSelector": {"matchLabels": {"a": "b c"}}})),
    *({"dnsPolicy": how} for how in ("ClusterFirst", "Default", "None", "Cluster")),
    *({key: name} for key in ("serviceAccountName", "priorityClassName", "runtimeClassName") for name in ("x", "a.b", "X_")),
    *({"preemptionPolicy": how} for how in ("Never", "Always")),
    *({"securityContext": {"fsGroup": number}} for number in (0, -1)),
    *({"activeDeadlineSeconds": seconds} for seconds in (5, 0)),
]  # fmt: skip
METADATA: list[dict[str, Any]] = [
    *({"labels": {key: value}} for key, value in (("a", "v"), ("a.b/C", "v_1.x"), ("A/b", "v"), ("a b", "v"), ("a", "a b"), ("a", "x" * 64))),
    *({"annotations": {key: value}} for key, value in (("a", "any text: ~"), ("A.b/c", "v"), ("a b", "v"))),
]  # fmt: skip
# A server of Kubernetes 1.20 leaves these to be found out later: no claim has such a name, no registry such an image, and a
# spread over a label that cannot exist holds every pod back. Newer ones refuse some of them.
STRICTER = ("is no claim's name", "' x' is no image", "topologySpreadConstraints.0")
PATCHES = [*({"spec": one} for one in SPECS), *({"metadata": one} for one in METADATA)]


def test_the_server_and_we_agree_on_each_field(kube: ApiServer, namespace: str) -> None:
    different, taken = [], 0
    for patch in PATCHES:
        asked = copy.copy(BASE)
        asked.fabric = dataclasses.replace(BASE.fabric, pod=patch)
        plan = make(asked)
        assert plan.mesh is not None
        ours = [issue.message for issue in plan.errors]
        theirs = refused_by(kube, namespace, jobset(asked, plan.mesh, named("x", "0" * 64, "0" * 64), ["env"]))
        taken += not theirs
        stricter = any(words in message for message in ours for words in STRICTER)
        if bool(ours) != bool(theirs) and not (stricter and not theirs):
            different.append((patch, ours, theirs))
    assert different == [], "\n".join(map(str, different))
    # Both kinds are there in numbers.
    assert taken > 70
    assert len(PATCHES) - taken > 80


def test_a_patch_of_ours_alone_is_no_rule_of_the_server(kube: ApiServer, namespace: str) -> None:
    """Without a patch the pod is taken, so that what the table's patches are refused for is theirs."""
    plan = make(BASE)
    assert plan.mesh is not None
    assert refused_by(kube, namespace, jobset(BASE, plan.mesh, named("x", "0" * 64, "0" * 64), ["env"])) == ""
