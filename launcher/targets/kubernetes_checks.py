"""What a cluster lacks for a plan, told before anything is written: kinds, rights, the volume claim, secrets, the server's own word."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from launcher.issue import Issue
from launcher.targets.base import Conditions
from launcher.targets.kubernetes_apply import NO_NAMESPACE, NO_RIGHTS, absent_kind, issue, rehearse
from launcher.targets.kubernetes_client import KINDS, METADATA_ONLY, Client, Declined, path_of
from launcher.targets.kubernetes_manifest import Manifest

if TYPE_CHECKING:
    from launcher.config.schema import Kubernetes

_RIGHTS = (
    ("jobset.x-k8s.io", "jobsets", ("get", "list", "create", "patch", "delete")),
    ("", "configmaps", ("get", "create", "patch", "delete")),
    ("", "pods", ("get", "list", "delete", "deletecollection")),
    ("", "pods/log", ("get",)),
)
_DOMAIN_RIGHTS = ("resource.nvidia.com", "computedomains", ("get", "create", "patch", "delete"))


def order_issues(conditions: Conditions) -> list[Issue]:
    """Kubernetes knows no order between JobSets."""
    if conditions.after is None and not conditions.singleton:
        return []
    message = "Kubernetes has no order between JobSets: --after and --singleton are SLURM's"
    hint = "leave them out; a queue of Kueue with room for one run starts them one after the other (target.kubernetes.queue)"
    return [issue("KUBE_ORDER", "target", message, hint)]


def lacking(client: Client, namespace: str, manifest: Manifest, wanted: Kubernetes) -> list[Issue]:
    """Everything that this cluster lacks. Raises Unanswered: it does not answer."""
    kinds = _kinds(client, manifest)
    if kinds:
        return kinds
    refused = [outcome for _, _, outcome in rehearse(client, namespace, manifest) if isinstance(outcome, Issue)]
    nowhere = [one for one in refused if one.code == NO_NAMESPACE]
    if nowhere:
        return nowhere[:1]  # whatever else is missing in it follows from that
    return [
        *_rights(client, namespace, manifest),
        *_claim(client, namespace, wanted.claim),
        *_queue(client, namespace, wanted.queue),
        *missing_secrets(client, namespace, wanted.secrets),
        *refused,
    ]


def _kinds(client: Client, manifest: Manifest) -> list[Issue]:
    found = []
    for kind in ("JobSet", "ComputeDomain"):
        if not manifest.names(kind):
            continue
        group, plural = KINDS[kind]
        try:
            served = client.get(group)
        except Declined as declined:
            return [_unwelcome(client, declined)]
        if served is None or plural not in [resource["name"] for resource in served.get("resources") or ()]:
            there = group.removeprefix("/apis/")
            found.append(absent_kind(kind, f"the cluster at {client.server} has no {kind} ({there})"))
    return found


def _unwelcome(client: Client, declined: Declined) -> Issue:
    """The server does not even say which kinds it has: it does not know this user, or is none."""
    message = f"{client.server} does not tell which kinds it has: {declined} (HTTP {declined.status})"
    named = f"--context {client.context} " if client.context else ""
    hint = f"`kubectl {named}api-resources` asks the same: log in, or name another cluster (KUBECONFIG, target.kubernetes.context)"
    return issue("KUBE_REFUSED", "target", message, hint)


def _rights(client: Client, namespace: str, manifest: Manifest) -> list[Issue]:
    """Which of the things that the launcher does this user may not; one issue for all."""
    wanted = (*_RIGHTS, _DOMAIN_RIGHTS) if manifest.names("ComputeDomain") else _RIGHTS
    refused = []
    for group, resource, verbs in wanted:
        name, _, sub = resource.partition("/")
        for verb in verbs:
            asked = {"namespace": namespace, "verb": verb, "group": group, "resource": name}
            if sub:
                asked["subresource"] = sub
            if not _may(client, asked):
                refused.append(f"{verb} {resource}")
    if not refused:
        return []
    message = f"you may not {', '.join(refused)} in namespace {namespace}"
    hint = "ask an admin for these rights; k8s/ holds a Role that has them. `kubectl auth can-i --list` shows yours"
    return [issue(NO_RIGHTS, "target.kubernetes.namespace", message, hint)]


def _may(client: Client, asked: Mapping[str, str]) -> bool:
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": dict(asked)},
    }
    try:
        answer = client.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
    except Declined:
        return True  # a server that does not answer this question will answer the real one
    return bool((answer.get("status") or {}).get("allowed", True))


def _claim(client: Client, namespace: str, claim: str | None) -> list[Issue]:
    if not claim:
        return []  # the plan's own issues say so
    try:
        found = client.get(path_of("PersistentVolumeClaim", namespace, claim))
    except Declined:
        return []  # without the right to look, its pods will tell
    if found is not None:
        return []
    message = f"there is no volume claim {claim} in namespace {namespace}: checkpoints would have no place"
    hint = f"type target.kubernetes.claim=NAME of `kubectl -n {namespace} get pvc`; an admin makes one with k8s/"
    return [issue("CLAIM_MISSING", "target.kubernetes.claim", message, hint)]


def _queue(client: Client, namespace: str, queue: str | None) -> list[Issue]:
    """Kueue and that queue of it: without, the label is ignored, and nobody puts the ranks into racks."""
    if not queue:
        return []
    try:
        group = client.get("/apis/kueue.x-k8s.io")
    except Declined:
        return []
    if group is None:
        message = f"the cluster has no Kueue, target.kubernetes.queue={queue} wants it"
        hint = "type target.kubernetes.queue=null, and target.kubernetes.layout=job_per_domain to stay inside racks"
        return [issue("KUEUE_MISSING", "target.kubernetes.queue", message, hint)]
    version = group.get("preferredVersion", {}).get("groupVersion", "kueue.x-k8s.io/v1beta1")
    try:
        found = client.get(f"/apis/{version}/namespaces/{namespace}/localqueues/{queue}")
    except Declined:
        return []  # without the right to look, the Workload will tell
    if found is not None:
        return []
    message = f"namespace {namespace} has no queue {queue}"
    hint = "`kubectl get localqueues` lists them: set target.kubernetes.queue; an admin makes one with k8s/"
    return [issue("QUEUE_MISSING", "target.kubernetes.queue", message, hint)]


def missing_secrets(client: Client, namespace: str, secrets: Mapping[str, Any]) -> list[Issue]:
    """Secrets of target.kubernetes.secrets that the cluster lacks. Only their names are asked for, never what is in them."""
    found = []
    for variable, reference in sorted(secrets.items()):
        name, _, key = str(reference).partition("/")
        try:
            there = client.get(path_of("Secret", namespace, name), accept=METADATA_ONLY)
        except Declined:
            continue  # many users may use secrets that they may not read; its pods will tell
        if there is None:
            message = f"the variable {variable} comes from the secret {name}, which namespace {namespace} does not have"
            hint = f"kubectl -n {namespace} create secret generic {name} --from-file={key}=FILE"
            found.append(issue("SECRET_MISSING", f"target.kubernetes.secrets.{variable}", message, hint))
    return found
