"""The cluster's nodes, which exist in the API alone, and the scheduler that binds one pod to each."""

from __future__ import annotations

import contextlib

from k8s.testbed.client import Client, Object, Refused
from k8s.testbed.jobsets import EXCLUSIVE
from k8s.testbed.rules import ENDED, JOBSET, now, phase_of
from k8s.testbed.world import STRATEGIC, World, is_ending

NODES = "/api/v1/nodes"
CLIQUE = "nvidia.com/gpu.clique"  # GPU Feature Discovery's label of an NVLink domain: <cluster uuid>.<clique>
CLUSTER = "6a2f1c3e-0f4b-4a53-9c57-3f6d2b8e7a10"


def make_nodes(
    client: Client, prefix: str, count: int, *, per_rack: int, port: int, labels: dict[str, str]
) -> list[Object]:
    """Create `count` nodes in racks of `per_rack`; their kubelets listen at `port`. `labels` are those of every node."""
    made = []
    for index in range(count):
        name = f"{prefix}-n{index}"
        own = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "arm64"}
        own |= {CLIQUE: f"{CLUSTER}.{index // per_rack}", **labels}
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "lastTransitionTime": now()}],
            "capacity": {"nvidia.com/gpu": "4", "pods": "1"},
        }
        metadata = {"name": name, "labels": own}
        with contextlib.suppress(Refused):  # it is not left from a process that was killed
            client.delete(f"{NODES}/{name}")
        made.append(client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": status}))
    return made


def schedule(world: World, names: set[str], held: str | None) -> None:
    """Bind the pods that wait: one pod a node of `names`, where selector, affinity and exclusive topology allow. `held` keeps all back."""
    waiting = [pod for pod in world.all("pods") if not pod["spec"].get("nodeName") and not is_ending(pod)]
    if not waiting:
        return
    nodes = [node for node in world.client.get(NODES)["items"] if node["metadata"]["name"] in names]
    claims = world.client.get(f"/api/v1/namespaces/{world.namespace}/persistentvolumeclaims")["items"]
    there = {claim["metadata"]["name"] for claim in claims}
    for pod in waiting:
        node, why = (None, held) if held is not None else _place(pod, nodes, world.all("pods"), there)
        if node is None:
            _pending(world, pod, str(why))
        else:
            _bind(world, pod, node)


def _place(pod: Object, nodes: list[Object], pods: list[Object], claims: set[str]) -> tuple[str | None, str]:
    """Give the node for a pod, or None and the scheduler's words for why there is none."""
    volumes = pod["spec"].get("volumes", ())
    wanted = [one["persistentVolumeClaim"]["claimName"] for one in volumes if "persistentVolumeClaim" in one]
    if missing := [name for name in wanted if name not in claims]:
        return None, f'persistentvolumeclaim "{missing[0]}" not found'
    fitting = [one["metadata"]["name"] for one in nodes if _fits(pod, one) and _is_open(pod, one, nodes, pods)]
    taken = {one["spec"].get("nodeName") for one in pods if phase_of(one) not in ENDED}
    free = [name for name in fitting if name not in taken]
    none = f"0/{len(nodes)} nodes are available: "
    if not fitting:
        return None, f"{none}{len(nodes)} node(s) didn't match Pod's node affinity/selector."
    return (free[0], "") if free else (None, f"{none}{len(fitting)} Insufficient nvidia.com/gpu.")


def _bind(world: World, pod: Object, node: str) -> None:
    name = pod["metadata"]["name"]
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name, "uid": pod["metadata"]["uid"]}}
    body["target"] = {"apiVersion": "v1", "kind": "Node", "name": node}
    try:
        world.client.create(world.path("pods", name) + "/binding", body)
        world.mirrors["pods"].put(world.client.get(world.path("pods", name)))
    except Refused as why:
        if why.code not in (404, 409):  # it is gone, or bound
            raise


def _pending(world: World, pod: Object, message: str) -> None:
    now_ = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    for one in pod.get("status", {}).get("conditions", ()):
        if one["type"] == "PodScheduled" and one.get("message") == message:
            return
    patch = {"status": {"conditions": [{**now_, "lastTransitionTime": now()}]}}
    world.patch("pods", pod, patch, sub="/status", way=STRATEGIC)


def _fits(pod: Object, node: Object) -> bool:
    spec, labels = pod["spec"], node["metadata"]["labels"]
    if node.get("spec", {}).get("unschedulable"):
        return False
    if any(labels.get(key) != value for key, value in spec.get("nodeSelector", {}).items()):
        return False
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    terms = spec.get("affinity", {}).get("nodeAffinity", {}).get(required, {}).get("nodeSelectorTerms")
    return not terms or any(all(_matches(one, labels) for one in term.get("matchExpressions", ())) for term in terms)


def _matches(wanted: Object, labels: dict[str, str]) -> bool:
    """Apply one expression of a node selector term (In, NotIn, Exists, DoesNotExist)."""
    value, operator = labels.get(wanted["key"]), wanted["operator"]
    if operator in ("Exists", "DoesNotExist"):
        return (value is not None) == bool(operator == "Exists")
    return (value in wanted["values"]) == bool(operator == "In")


def _is_open(pod: Object, node: Object, nodes: list[Object], pods: list[Object]) -> bool:
    """Say whether the node's domain is free for the pod's Job, if its JobSet wants each Job alone in a domain and whole in it."""
    key = pod["metadata"].get("annotations", {}).get(EXCLUSIVE)
    if not key:
        return True
    domains = {one["metadata"]["name"]: one["metadata"]["labels"].get(key) for one in nodes}
    mine = pod["metadata"]["labels"][f"{JOBSET}/job-key"]
    here = domains[node["metadata"]["name"]]
    placed = [
        (one["metadata"]["labels"].get(f"{JOBSET}/job-key"), domains.get(one["spec"]["nodeName"]))
        for one in pods
        if one["spec"].get("nodeName") and phase_of(one) not in ENDED
    ]
    return here is not None and all((job == mine) == (domain == here) for job, domain in placed)
