"""What the cluster shows of a run: one list of JobSets and one of pods for all runs of a namespace, as one plain line each."""

from __future__ import annotations

import calendar
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from launcher.targets.base import Handle, Presence, Sight
from launcher.targets.kubernetes_client import READ_SECONDS, Client, Declined, Object, Unanswered, path_of
from launcher.targets.kubernetes_manifest import first_attempt
from launcher.targets.kubernetes_reasons import sentence

OURS = "app.kubernetes.io/managed-by=launcher"
JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"
JOBSET_UID = "jobset.sigs.k8s.io/jobset-uid"
_RESTART = "jobset.sigs.k8s.io/restart-attempt"
_JOB = "jobset.sigs.k8s.io/job-global-index"
_INDEX = "batch.kubernetes.io/job-completion-index"
_FEW = 40  # names that fit into a query; more runs are found by the label of all of them
QUIET_SECONDS = (
    60.0  # a JobSet's pods are made within seconds; a container that takes longer deserves a look at its events
)
_SHOWN = 4  # pods named in a line


@dataclass(frozen=True)
class Seen:
    """What two lists said about some JobSets. `at`: when, by this process's clock."""

    jobsets: Mapping[str, Object]
    pods: Mapping[str, Sequence[Object]]
    at: float = field(default_factory=time.monotonic)


def ask(client: Client, namespace: str, names: Sequence[str], patience: float = READ_SECONDS) -> Seen:
    """The JobSets of these names and their pods. Raises Unanswered, Declined."""
    jobsets = client.list_all(path_of("JobSet", namespace), {"labelSelector": OURS}, patience=patience)
    wanted = set(names)
    few = f",{JOBSET_NAME} in ({','.join(sorted(wanted))})" if len(wanted) <= _FEW else ""
    pods: dict[str, list[Object]] = {name: [] for name in wanted}
    for pod in client.list_all(path_of("Pod", namespace), {"labelSelector": OURS + few}, patience=patience):
        name = _labels(pod).get(JOBSET_NAME, "")
        if name in pods:
            pods[name].append(pod)
    found = {jobset["metadata"]["name"]: jobset for jobset in jobsets}
    return Seen(
        {name: found[name] for name in wanted & found.keys()}, {n: sorted(p, key=_order) for n, p in pods.items()}
    )


def sight(client: Client, handle: Handle, seen: Seen) -> Sight:
    """What is to say about one start."""
    jobset = seen.jobsets.get(handle["jobset"])
    pods = [pod for pod in seen.pods[handle["jobset"]] if _labels(pod).get(JOBSET_UID, handle["uid"]) == handle["uid"]]
    living = [pod for pod in pods if is_living(pod)]
    if jobset is None or jobset["metadata"]["uid"] != handle["uid"]:
        if living:
            return Sight(Presence.ALIVE, f"its JobSet was deleted; {_ending(living)}")
        return _absent(client, handle, jobset)
    over = end_of(jobset)
    attempt = number_of(handle, jobset)
    if over is not None or jobset["metadata"].get("deletionTimestamp"):
        if living:
            return Sight(Presence.ALIVE, f"{'its JobSet is over' if over else 'it was deleted'}; {_ending(living)}")
        return Sight(Presence.GONE, over or "its JobSet was deleted")
    if (jobset.get("spec") or {}).get("suspend"):
        why = f"{_ending(living)}; " if living else ""
        return Sight(Presence.WAITING, why + _queued(client, handle), attempt=attempt)
    return _running(client, handle, jobset, pods, attempt)


def is_living(pod: Object) -> bool:
    """Whether its processes may still exist."""
    return (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")


def end_of(jobset: Object) -> str | None:
    """How a JobSet ended, one line; None while it goes on."""
    for condition in (jobset.get("status") or {}).get("conditions") or ():
        if condition.get("status") == "True" and condition.get("type") in ("Completed", "Failed"):
            word = "completed" if condition["type"] == "Completed" else "failed"
            said = (
                ""
                if word == "completed"
                else f": {condition.get('message') or condition.get('reason') or 'no reason told'}"
            )
            return f"the JobSet {word}{said}"
    return None


def has_completed(jobset: Object) -> bool:
    """Whether every pod of it ended with exit code 0."""
    return end_of(jobset) == "the JobSet completed"


def number_of(handle: Handle, jobset: Object) -> int:
    """The attempt that a JobSet's newest start is."""
    first = first_attempt(jobset)
    return (int(handle["first"]) if first is None else first) + int((jobset.get("status") or {}).get("restarts") or 0)


def attempt_of(handle: Handle, pod: Object) -> int:
    """The attempt that a pod belongs to."""
    said = (pod["metadata"].get("annotations") or {}).get("launcher/first-attempt", "")
    restart = _labels(pod).get(_RESTART, "0")
    return (int(said) if str(said).isdigit() else int(handle["first"])) + (int(restart) if restart.isdigit() else 0)


def node_of(handle: Handle, pod: Object) -> int:
    """A pod's node index in the run."""
    job, index = _order(pod)
    return job * int(handle["pods_per_job"]) + index


def _order(pod: Object) -> tuple[int, int]:
    labels = _labels(pod)
    index = (pod["metadata"].get("annotations") or {}).get(_INDEX) or labels.get(_INDEX) or "0"
    job = labels.get(_JOB, "0")
    return int(job) if job.isdigit() else 0, int(index) if str(index).isdigit() else 0


def _labels(pod: Object) -> dict[str, str]:
    return pod["metadata"].get("labels") or {}


def _absent(client: Client, handle: Handle, other: Object | None) -> Sight:
    name, where = handle["jobset"], f"namespace {handle['namespace']}"
    if other is not None:
        return Sight(Presence.GONE, f"its JobSet {name} is gone; another one of that name is in {where}")
    if handle.get("server") != client.server:
        there = f"JobSet {name} was submitted through {handle.get('server')}, this shell talks to {client.server}"
        return Sight(
            Presence.UNKNOWN, f"{there} and finds none there: ask with the kubeconfig that it was submitted with"
        )
    return Sight(Presence.GONE, f"JobSet {name} is not in {where} any more: deleted by hand, or after its ttl")


def _ending(living: Sequence[Object]) -> str:
    """Which pods still end; a pod that ends longer than it may hangs with its node (jobset issue 576)."""
    late = [pod for pod in living if _overdue(pod)]
    if late:
        force = "; ".join(f"kubectl delete pod {pod['metadata']['name']} --force" for pod in late[:1])
        return f"{_listed(late)} should have ended by now: its node may be dead. If it is: {force}"
    return f"{len(living)} of its pods {'is' if len(living) == 1 else 'are'} still ending: {_listed(living)}"


def _overdue(pod: Object) -> bool:
    """The deletion's time is when it should be over; a minute more is the kubelet's own."""
    deleted = pod["metadata"].get("deletionTimestamp")
    return bool(deleted) and time.time() > seconds_of(deleted) + QUIET_SECONDS


def seconds_of(stamp: str) -> float:
    """Unix seconds of Kubernetes' time, e.g. 2026-11-29T22:01:46Z or with a fraction."""
    whole, _, rest = stamp.partition(".")
    base = calendar.timegm(time.strptime(whole.rstrip("Z"), "%Y-%m-%dT%H:%M:%S"))
    return base + (float(f"0.{rest.rstrip('Z')}") if rest else 0.0)


def _listed(pods: Sequence[Object]) -> str:
    named = [
        f"pod {pod['metadata']['name']}" + (f" on {node}" if (node := (pod.get("spec") or {}).get("nodeName")) else "")
        for pod in pods[:_SHOWN]
    ]
    return ", ".join(named) + (f" and {len(pods) - _SHOWN} more" if len(pods) > _SHOWN else "")


def _running(client: Client, handle: Handle, jobset: Object, pods: Sequence[Object], attempt: int) -> Sight:
    """A JobSet that is neither over nor held: the pod of rank 0 first, since the others wait for it."""
    old = [pod for pod in pods if is_living(pod) and attempt_of(handle, pod) < attempt]
    mine = [pod for pod in pods if attempt_of(handle, pod) == attempt]
    total = int(handle["pods"])
    ready = [pod for pod in mine if pod["status"].get("phase") not in ("Pending", None)]
    pending = [pod for pod in mine if pod not in ready]
    if old:
        return Sight(Presence.WAITING, f"the JobSet restarts everyone; {_ending(old)}", attempt=attempt)
    if not mine:
        return Sight(Presence.WAITING, _unmade(jobset), attempt=attempt)
    trouble = _trouble(client, handle, pending[0]) if pending else ""
    if node_of(handle, mine[0]) != 0 or mine[0] in pending:
        return Sight(Presence.WAITING, trouble or "its first pod is not made yet", attempt=attempt)
    why = f"{len(ready)} of {total} pods run; {trouble}" if pending else ""
    if not pending and len(mine) < total:
        why = f"{len(mine)} of {total} pods are there"
    return Sight(Presence.ALIVE, why, attempt=attempt)


def _unmade(jobset: Object) -> str:
    age = time.time() - seconds_of(jobset["metadata"]["creationTimestamp"])
    if age < QUIET_SECONDS:
        return "its pods are being made; wait some seconds"
    return f"no pod was made in {age:.0f} s: the JobSet controller may be down; `kubectl -n jobset-system get pods`"


def _trouble(client: Client, handle: Handle, pod: Object) -> str:
    """Why a pod is pending, one line."""
    name, status = pod["metadata"]["name"], pod.get("status") or {}
    said = f"pod {name} is pending: "
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return said + sentence("scheduling", condition.get("reason", ""), condition.get("message", ""), name)
    states = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    waiting = [state["state"]["waiting"] for state in states if (state.get("state") or {}).get("waiting")]
    bad = [w for w in waiting if w.get("reason") not in ("ContainerCreating", "PodInitializing")] or waiting
    if not bad:
        return said + "it has a node and its container is about to be made; wait some seconds"
    if bad[0].get("reason") == "ContainerCreating" and _age(pod) > QUIET_SECONDS:
        event = _event(client, handle["namespace"], name)
        if event is not None:
            return said + sentence("event", event.get("reason", ""), event.get("message", ""), name)
    return said + sentence("waiting", bad[0].get("reason", ""), bad[0].get("message", ""), name)


def _age(pod: Object) -> float:
    return time.time() - seconds_of(pod["metadata"]["creationTimestamp"])


def _event(client: Client, namespace: str, pod: str) -> Object | None:
    """The newest warning about a pod; None without one, or without the right to see it."""
    query = {"fieldSelector": f"involvedObject.name={pod},type=Warning"}
    try:
        found = client.list_all(path_of("Event", namespace), query, patience=0)
    except (Unanswered, Declined):
        return None
    return max(found, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""), default=None)


def _queued(client: Client, handle: Handle) -> str:
    """Why a JobSet is suspended: by Kueue, whose Workload says more, or by a person."""
    try:
        group = client.get("/apis/kueue.x-k8s.io", patience=0)
        version = (group or {}).get("preferredVersion", {}).get("groupVersion")
        path = f"/apis/{version}/namespaces/{handle['namespace']}/workloads"
        workloads = client.list_all(path, {}, patience=0) if version else []
    except (Unanswered, Declined):
        return "it is suspended: Kueue has not let it in yet; `kubectl describe workload` says more"
    for workload in workloads:
        if any(owner.get("uid") == handle["uid"] for owner in workload["metadata"].get("ownerReferences") or ()):
            return f"queued by Kueue: {_of_workload(workload)}"
    by_hand = f'kubectl patch jobset {handle["jobset"]} --type=merge -p \'{{"spec":{{"suspend":false}}}}\''
    return f"it is suspended, and no Workload of Kueue says why; if a person did it: {by_hand}"


def _of_workload(workload: Object) -> str:
    conditions: dict[str, Any] = {c["type"]: c for c in (workload.get("status") or {}).get("conditions") or ()}
    for kind in ("QuotaReserved", "Admitted"):
        condition = conditions.get(kind)
        if condition is not None and condition.get("status") == "False":
            return sentence("kueue", condition.get("reason", ""), condition.get("message", ""))
    evicted = conditions.get("Evicted")
    if evicted is not None and evicted.get("status") == "True":
        return sentence("kueue", "Evicted", evicted.get("message", ""))
    return sentence("kueue", "", "it has not looked at it yet" if not conditions else "it is being admitted")
