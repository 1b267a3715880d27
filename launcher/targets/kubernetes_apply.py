"""How a manifest gets into the cluster, and what the server would make of it: server-side apply, never forced."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from launcher.issue import Issue, Refused, Severity
from launcher.targets.kubernetes_client import Answer, Client, Declined, Object, path_of
from launcher.targets.kubernetes_manifest import Document, Manifest

GONE_SECONDS = 120.0
"""For an object that is being deleted: killed pods are gone within seconds, a volume's detach takes longer."""
_LOOK_SECONDS = 0.5
_OWNER = "launcher-owner"
"""Field manager of the owner references alone, so that applying the manifest by hand leaves them as they are."""
_SHOWN = 5  # fields named in one message


def place(namespace: str, document: Document) -> str:
    """Where an object of the manifest lies."""
    return path_of(document["kind"], namespace, document["metadata"]["name"])


def title(document: Document) -> str:
    """What a person calls it."""
    return f"{document['kind']} {document['metadata']['name']}"


def submit(client: Client, namespace: str, manifest: Manifest) -> Object:
    """Apply all documents; returns the JobSet as the cluster has it. What was new goes again when the JobSet is declined.

    Raises Refused: the server's reasons, or somebody was faster. Unanswered: whether it is there is not known.
    """
    made: list[Document] = []
    jobset: Answer | None = None
    for document in manifest.documents:
        try:
            answer = client.apply(place(namespace, document), document)
        except Declined as declined:
            _take_back(client, namespace, made)
            raise Refused(issue_of(document, declined)) from declined
        if answer.status == 201:
            made.append(document)
        if document["kind"] == "JobSet":
            jobset = answer
            if answer.status != 201 and answer.tries == 1:
                raise Refused(already_there(answer.body, namespace))
    assert jobset is not None
    for document in manifest.documents:
        if document["kind"] == "ConfigMap":
            _own(client, namespace, document, jobset.body)
    return jobset.body


def _take_back(client: Client, namespace: str, made: list[Document]) -> None:
    for document in reversed(made):
        client.delete(place(namespace, document))


def _own(client: Client, namespace: str, document: Document, owner: Object) -> None:
    """Let the ConfigMap go with its JobSet. One of an earlier JobSet may be collected at this moment: then it is made anew."""
    reference = {key: owner[key] for key in ("apiVersion", "kind")}
    reference |= {key: owner["metadata"][key] for key in ("name", "uid")}
    for _ in range(3):
        found = client.apply(place(namespace, document), document).body
        patch = {"metadata": {"uid": found["metadata"]["uid"], "ownerReferences": [reference]}}
        try:
            client.merge(place(namespace, document), patch, _OWNER)
        except Declined as declined:
            if declined.status not in (404, 409):
                return  # without the right to patch it stays until `cancel` tidies up
        else:
            return


def wait_until_gone(client: Client, namespace: str, manifest: Manifest) -> None:
    """Until none of the manifest's objects is still being deleted. Raises Refused, with what holds it up."""
    deadline = time.monotonic() + GONE_SECONDS
    for document in manifest.documents:
        while True:
            found = client.get(place(namespace, document))
            if found is None or not found["metadata"].get("deletionTimestamp"):
                break
            if time.monotonic() > deadline:
                held = ", ".join(found["metadata"].get("finalizers") or ()) or "its pods"
                message = f"{title(document)} is still being deleted after {GONE_SECONDS:.0f} s; it waits for: {held}"
                hint = f"`kubectl -n {namespace} get pods -l jobset.sigs.k8s.io/jobset-name={manifest.name}` shows what hangs"
                raise Refused(issue("KUBE_ENDING", "", message, hint))
            time.sleep(_LOOK_SECONDS)


NO_NAMESPACE, NO_RIGHTS = "KUBE_NAMESPACE", "KUBE_RIGHTS"


def rehearse(
    client: Client, namespace: str, manifest: Manifest
) -> list[tuple[Document, Object | None, Object | Issue]]:
    """(document, what the cluster has, what it would have) of each; an Issue where the server would refuse. Changes nothing."""
    found: list[tuple[Document, Object | None, Object | Issue]] = []
    for document in manifest.documents:
        try:
            live = client.get(place(namespace, document))
            found.append((document, live, client.apply(place(namespace, document), document, dry=True).body))
        except Declined as declined:
            found.append((document, live if declined.status in (409, 422) else None, issue_of(document, declined)))
    return found


def already_there(jobset: Object, namespace: str) -> Issue:
    """Another start of the same content, of which this run's folder knows nothing."""
    name, made = jobset["metadata"]["name"], jobset["metadata"].get("creationTimestamp", "")
    message = f"JobSet {name} is in namespace {namespace} already (made {made}), not by this run's folder: two would share one folder"
    hint = (
        "the same experiment was submitted from another folder of runs, or by another person: follow it there; "
        f"or end it (kubectl -n {namespace} delete jobset {name}), or give this one another name: name=..."
    )
    return issue("JOBSET_THERE", "name", message, hint)


def issue_of(document: Document, declined: Declined) -> Issue:
    """The server's no in our words, with what would help."""
    what = title(document)
    for fits, say in _NOES:
        if fits(declined):
            return say(what, document, declined)
    return issue(
        "KUBE_REFUSED", "target.kubernetes", f"{what}: {declined.message}", "the words are the API server's own"
    )


def _conflict(what: str, document: Document, declined: Declined) -> Issue:
    owners = [f"{cause.get('field', '?')} ({cause.get('message', '')})" for cause in declined.causes]
    message = f"{what} is in the cluster, and others have set fields of it otherwise: {_some(owners)}"
    return issue("KUBE_CONFLICT", "name", f"{message}. Nothing is forced", _other_content(document))


def _invalid(what: str, document: Document, declined: Declined) -> Issue:
    wrong = [f"{cause.get('field', '?')}: {cause.get('message', '')}" for cause in declined.causes] or [
        declined.message
    ]
    if "immutable" in declined.message:
        message = f"{what} is in the cluster with other content, which cannot be changed: {_some(wrong)}"
        return issue("KUBE_OTHER_CONTENT", "name", message, _other_content(document))
    return issue(
        "KUBE_INVALID",
        "target.kubernetes",
        f"{what} is not valid: {_some(wrong)}",
        "the words are the API server's own",
    )


def _other_content(document: Document) -> str:
    kind, name = document["kind"].lower(), document["metadata"]["name"]
    return (
        f"`diff RUN --cluster` shows every field; keep the cluster's, or end it (kubectl delete {kind} {name}) and submit again, "
        "or give this one another name: name=..."
    )


def _forbidden(what: str, document: Document, declined: Declined) -> Issue:
    hint = f"`kubectl auth can-i patch {document['kind'].lower()}s` asks; k8s/ holds the rights that an admin gives"
    return issue(NO_RIGHTS, "target.kubernetes.namespace", f"{what}: {declined.message}", hint)


def _no_namespace(what: str, _document: Document, declined: Declined) -> Issue:
    hint = "set target.kubernetes.namespace to one of `kubectl get namespaces`"
    return issue(NO_NAMESPACE, "target.kubernetes.namespace", f"{what}: {declined.message}", hint)


def _no_kind(what: str, document: Document, _declined: Declined) -> Issue:
    return absent_kind(document["kind"], f"{what}: the cluster does not know this kind")


def absent_kind(kind: str, message: str) -> Issue:
    """A cluster without JobSet, or without NVIDIA's DRA driver."""
    if kind == "ComputeDomain":
        hint = "an admin installs NVIDIA's DRA driver for GPUs; without NVLink between nodes: target.kubernetes.compute_domain=false"
        return issue("COMPUTE_DOMAIN_CRD", "target.kubernetes.compute_domain", message, hint)
    hint = "an admin installs JobSet (jobset.sigs.k8s.io); docs/kubernetes.md says what a cluster needs"
    return issue("JOBSET_CRD", "target", message, hint)


_No = tuple[Callable[[Declined], bool], Callable[[str, Document, Declined], Issue]]
_NOES: tuple[_No, ...] = (
    (lambda no: no.status == 409 and bool(no.causes), _conflict),
    (lambda no: no.status == 422, _invalid),
    (lambda no: no.status == 403, _forbidden),
    (lambda no: no.status == 404 and "namespaces" in no.message, _no_namespace),
    (lambda no: no.status == 404, _no_kind),
)


def _some(parts: list[str]) -> str:
    return "; ".join(parts[:_SHOWN]) + (f"; and {len(parts) - _SHOWN} more" if len(parts) > _SHOWN else "")


def issue(code: str, field: str, message: str, hint: str) -> Issue:
    """An error."""
    return Issue(code, Severity.ERROR, field, message, hint)


def own_fields(live: Any, ours: Any) -> Any:
    """Of what the cluster has, the part that our document speaks of: what a dry run cannot tell when it is refused."""
    if isinstance(live, dict) and isinstance(ours, dict):
        return {key: own_fields(live.get(key), value) for key, value in ours.items() if key in live}
    return live
