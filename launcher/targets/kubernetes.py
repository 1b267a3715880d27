"""The Kubernetes target: applies the bundle's jobset.yaml, whose JobSet keeps the run alive by itself.

A handle names one JobSet: its name and uid, its namespace, the context and the server that it went to. What the workers know
lies on the cluster's volume, which need not be seen from here: `bring` reads it from what they said (node/speech.py).
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.issue import Issue, Refused
from launcher.node.ending import read_object
from launcher.node.layout import RunFolder
from launcher.node.record import write_json
from launcher.targets import kubernetes_apply as applying
from launcher.targets import kubernetes_checks as checks
from launcher.targets import kubernetes_ends as ends
from launcher.targets import kubernetes_logs as logs
from launcher.targets import kubernetes_manifest as manifests
from launcher.targets import kubernetes_sight as sights
from launcher.targets.base import NOW, Conditions, Handle, Options, Presence, Sight
from launcher.targets.kubernetes_client import Client, Declined, Object, Unanswered, connect, path_of
from launcher.targets.kubernetes_manifest import Manifest

if TYPE_CHECKING:
    from launcher.plan.plan import Plan

_SUBMITTED = "submitted.json"
"""In an attempt's folder: which JobSet was about to be applied. By it a start is found whose handle nobody could note."""
_FRESH_SECONDS = 2.0  # what a look has listed need not be listed again to read logs
_KEYS = frozenset({"jobset", "uid", "namespace", "context", "folder", "first", "pods", "pods_per_job"})
_seen: dict[tuple[str, str], sights.Seen] = {}


def options(environ: Mapping[str, str]) -> Options:  # noqa: ARG001  the kubeconfig is the process's own
    """The current context and its namespace: a resume goes to the same cluster, whatever is current then."""
    try:
        client = connect()
    except Refused:
        return {}  # `refusals` says why
    return {"context": client.context, "namespace": client.namespace}


def refusals(plan: Plan, options: Options, conditions: Conditions = NOW) -> list[Issue]:
    """What this machine and the cluster lack for the plan, the server's own dry run included. Raises Unanswered."""
    issues = checks.order_issues(conditions)
    wanted = plan.experiment.target.kubernetes
    try:
        client = connect(wanted.context or options.get("context", ""))
    except Refused as refused:
        return [*issues, *refused.issues]
    manifest = _planned(plan)
    namespace = _namespace(manifest, client, options)
    return [*issues, *checks.lacking(client, namespace, manifest, wanted)]


def rehearse(plan: Plan, options: Options) -> list[str]:
    """What submitting it now would do, a line an object, as the server itself says. Raises Refused, Unanswered."""
    client = connect(plan.experiment.target.kubernetes.context or options.get("context", ""))
    manifest = _planned(plan)
    namespace = _namespace(manifest, client, options)
    lines = [f"{client.server}, namespace {namespace}: the server would take all of it"]
    for document, live, outcome in applying.rehearse(client, namespace, manifest):
        if isinstance(outcome, Issue):
            raise Refused(outcome)
        done = "would be made" if live is None else "is there already"
        lines.append(f"  {applying.title(document)}: {done}")
    return lines


def start(run: RunFolder, attempt: int, options: Options, conditions: Conditions = NOW) -> Handle:
    """Apply jobset.yaml as it lies in the bundle, with the attempt's number and without the nodes under suspicion.

    Never beside another JobSet of that name, and never twice: the name follows from the content.
    Raises Refused: what the cluster lacks, or the server's reasons. Unanswered: it does not answer; `resume` finds what was made.
    """
    wanted = manifests.settings(run.bundle.path)
    issues = checks.order_issues(conditions)
    if issues:
        raise Refused(*issues)
    client = connect(wanted.get("context") or options.get("context", ""))
    manifest = manifests.for_attempt(manifests.read(run.bundle.path), attempt, conditions.exclude)
    namespace = _namespace(manifest, client, options)
    missing = checks.missing_secrets(client, namespace, wanted.get("secrets") or {})
    if missing:
        raise Refused(*missing)
    _clear_the_name(client, namespace, manifest, run)
    note = run.attempt(attempt).path / _SUBMITTED
    place = {"jobset": manifest.name, "namespace": namespace, "context": client.context, "server": client.server}
    write_json(note, {**place, "at": time.time()})
    try:
        jobset = applying.submit(client, namespace, manifest)
    except Refused:
        note.unlink()
        raise
    return {**_handle(run, client, namespace, manifest, jobset), "exclude": sorted(conditions.exclude)}


def find(run: RunFolder) -> Handle | None:
    """The JobSet that was about to be applied when its launcher ended or lost the answer, if it got there. Raises Unanswered."""
    numbers = run.attempt_numbers()
    note = read_object(run.attempt(numbers[-1]).path / _SUBMITTED) if numbers else None
    if note is None:
        return None
    client = connect(str(note["context"]))
    jobset = client.get(path_of("JobSet", str(note["namespace"]), str(note["jobset"])))
    if jobset is None or manifests.first_attempt(jobset) != numbers[-1]:
        return None
    manifest = manifests.for_attempt(manifests.read(run.bundle.path), numbers[-1])
    return _handle(run, client, str(note["namespace"]), manifest, jobset)


def adopt(started: Mapping[str, Any], folder: str) -> Handle | None:  # noqa: ARG001
    """None: a worker's word is only brought by a handle that is known."""
    return None


def look(handles: Sequence[Handle]) -> list[Sight]:
    """One list of JobSets and one of pods for all runs of a namespace; the reasons of those that wait cost a question more."""
    found: dict[int, Sight] = {}
    groups: dict[tuple[str, str], list[int]] = {}
    for index, handle in enumerate(handles):
        if handle.keys() >= _KEYS:
            groups.setdefault((str(handle["context"]), str(handle["namespace"])), []).append(index)
        else:
            found[index] = Sight(Presence.UNKNOWN, "what was noted of its JobSet is damaged")
    for (context, namespace), indexes in groups.items():
        try:
            client = connect(context)
            seen = sights.ask(client, namespace, [str(handles[index]["jobset"]) for index in indexes])
            _seen[context, namespace] = seen
            found.update((index, sights.sight(client, handles[index], seen)) for index in indexes)
        except (Unanswered, Refused) as error:
            found.update((index, Sight(Presence.UNKNOWN, str(error))) for index in indexes)
        except Declined as declined:
            why = f"the cluster may not be asked: {declined}"
            found.update((index, Sight(Presence.UNKNOWN, why)) for index in indexes)
    return [found[index] for index in range(len(handles))]


def bring(run: RunFolder, handle: Handle, ranks: frozenset[int] | None) -> list[str]:
    """What these ranks' nodes said since the last time (None = all), and how the JobSet ended; what cannot be read now."""
    try:
        return _bring(run, handle, ranks)
    except (OSError, Refused, Declined) as error:  # no answer, or a folder that this user may only read
        return [f"what its workers say cannot be brought now: {error}"]


def listen(run: RunFolder, handle: Handle, ranks: frozenset[int] | None) -> list[str]:
    """bring, and from now on every word as it is said, by threads that end with the pods or with this process."""
    try:
        client = connect(str(handle["context"]))
        for pod in _wanted(run, handle, _recent(client, handle).pods.get(handle["jobset"], ()), ranks):
            logs.listen(client, run, handle, pod, math.inf)
        return _bring(run, handle, ranks)
    except (OSError, Refused, Declined) as error:  # no answer, or a folder that this user may only read
        return [f"what its workers say cannot be brought now: {error}"]


def _bring(run: RunFolder, handle: Handle, ranks: frozenset[int] | None) -> list[str]:
    if not handle.keys() >= _KEYS or ends.is_all_known(run, handle, _nodes(run, ranks)):
        return []
    client = connect(str(handle["context"]))
    seen = _recent(client, handle)
    pods = _wanted(run, handle, seen.pods.get(handle["jobset"], ()), None)
    logs.hear_out(handle, pods)
    jobset = seen.jobsets.get(handle["jobset"])
    over = jobset is not None and jobset["metadata"]["uid"] == handle["uid"] and sights.end_of(jobset) is not None
    wanted = _wanted(run, handle, pods, ranks)
    wanted += [pod for pod in pods if over and _failed(pod) and pod not in wanted]
    said = logs.bring(client, run, handle, [pod for pod in wanted if not logs.is_heard(handle, pod)])
    if over and jobset is not None and not any(sights.is_living(pod) for pod in pods):
        ends.note(client, run, handle, jobset, pods)
    return said


def _nodes(run: RunFolder, ranks: frozenset[int] | None) -> set[int] | None:
    per_node = int((read_object(run.bundle.launch) or {}).get("processes_per_node") or 1)
    return None if ranks is None else {rank // per_node for rank in ranks}


def _wanted(run: RunFolder, handle: Handle, pods: Sequence[Object], ranks: frozenset[int] | None) -> list[Object]:
    """The pods of the handle's own JobSet that run these ranks."""
    nodes = _nodes(run, ranks)
    mine = [pod for pod in pods if (pod["metadata"].get("labels") or {}).get(sights.JOBSET_UID) == handle["uid"]]
    return [pod for pod in mine if nodes is None or sights.node_of(handle, pod) in nodes]


def stop(handle: Handle) -> None:
    """Delete the JobSet: its pods get SIGTERM and have MaxText save. Somebody listens to rank 0's last words meanwhile."""
    client = connect(str(handle["context"]))
    jobset = _jobset(client, handle)
    if jobset is None:
        return
    run = RunFolder(Path(handle["folder"]))
    for pod in _pods(client, handle):
        if sights.node_of(handle, pod) == 0 and sights.is_living(pod):
            logs.listen(client, run, handle, pod, float(handle.get("grace") or math.inf))
    _delete(client, handle)


def kill(handle: Handle) -> None:
    """Delete the JobSet, and let its pods end within a second. Of one that is over, what its pods said is brought first."""
    client = connect(str(handle["context"]))
    pods = _pods(client, handle)
    jobset = _jobset(client, handle)
    if jobset is not None:
        run = RunFolder(Path(handle["folder"]))
        logs.bring(client, run, handle, [pod for pod in pods if not sights.is_living(pod)])
        _delete(client, handle)
    if any(sights.is_living(pod) for pod in pods):
        mine = {"labelSelector": f"{sights.JOBSET_UID}={handle['uid']}"}
        client.delete(path_of("Pod", handle["namespace"]), {"gracePeriodSeconds": 1}, mine)


def tidy(handle: Handle) -> list[str]:
    """Remove what a JobSet leaves once its pods are gone: the ComputeDomain, and a ConfigMap that no JobSet owns."""
    client = connect(str(handle["context"]))
    domains = handle.get("compute_domains") or ()  # a ConfigMap goes with its JobSet
    if any(sights.is_living(pod) for pod in _pods(client, handle)):
        return [f"ComputeDomain {name} stays until its pods are gone" for name in domains]
    jobset = client.get(path_of("JobSet", handle["namespace"], handle["jobset"]))
    if jobset is not None and not _is_over(handle, jobset):
        return [f"ComputeDomain {name} is in use by JobSet {handle['jobset']}" for name in domains]
    for kind, name in _left(handle):
        path = path_of(kind, handle["namespace"], name)
        there = client.get(path)
        if there is not None and not there["metadata"].get("ownerReferences"):
            client.delete(path, {"preconditions": {"uid": there["metadata"]["uid"]}})
    return []


def _is_over(handle: Handle, jobset: Object) -> bool:
    """Whether a JobSet is the handle's own and will start no pod any more."""
    is_own = jobset["metadata"]["uid"] == handle["uid"]
    return is_own and (sights.end_of(jobset) is not None or bool(jobset["metadata"].get("deletionTimestamp")))


def _left(handle: Handle) -> list[tuple[str, str]]:
    domains = [("ComputeDomain", name) for name in handle.get("compute_domains") or ()]
    return domains + [("ConfigMap", name) for name in handle.get("config_maps") or ()]


def _planned(plan: Plan) -> Manifest:
    from launcher.render.bundle import render

    return manifests.parse(render(plan).artefact)


def _namespace(manifest: Manifest, client: Client, options: Options) -> str:
    noted = options.get("namespace", "") if options.get("context", "") == client.context else ""
    return manifest.namespace or noted or client.namespace


def _handle(run: RunFolder, client: Client, namespace: str, manifest: Manifest, jobset: Object) -> Handle:
    return {
        "kind": "kubernetes",
        "jobset": manifest.name,
        "uid": jobset["metadata"]["uid"],
        "namespace": namespace,
        "context": client.context,
        "server": client.server,
        "folder": str(run.path.resolve()),
        "first": manifests.first_attempt(manifest.jobset) or 1,
        "pods": manifest.pods,
        "pods_per_job": manifest.pods_per_job,
        "grace": manifest.grace_seconds + sights.QUIET_SECONDS,
        "claim": manifest.claim,
        "compute_domains": manifest.names("ComputeDomain"),
        "config_maps": manifest.names("ConfigMap"),
    }


def _clear_the_name(client: Client, namespace: str, manifest: Manifest, run: RunFolder) -> None:
    """Remove an ended JobSet of this run's own, and wait until what is being deleted is gone. Raises Refused."""
    path = path_of("JobSet", namespace, manifest.name)
    there = client.get(path)
    if there is not None and not there["metadata"].get("deletionTimestamp"):
        handle = _known(run, there)
        if handle is None:
            raise Refused(applying.already_there(there, namespace))
        if sights.end_of(there) is None:
            message = f"JobSet {manifest.name} of {run.name} is still there: two would write into the same checkpoints"
            hint = f"wait for its end, or end it: cancel {run.name}"
            raise Refused(applying.issue("JOBSET_LIVES", "", message, hint))
        kill(handle)
    applying.wait_until_gone(client, namespace, manifest)


def _known(run: RunFolder, jobset: Object) -> Handle | None:
    for number in reversed(run.attempt_numbers()):
        handle = read_object(run.attempt(number).path / "handle.json") or {}
        if handle.get("uid") == jobset["metadata"]["uid"]:
            return handle
    return None


def _jobset(client: Client, handle: Handle) -> Object | None:
    """The handle's own JobSet; None when it is gone, or another's of the same name."""
    found = client.get(path_of("JobSet", handle["namespace"], handle["jobset"]))
    return found if found is not None and found["metadata"]["uid"] == handle["uid"] else None


def _pods(client: Client, handle: Handle) -> list[Object]:
    return client.list_all(
        path_of("Pod", handle["namespace"]), {"labelSelector": f"{sights.JOBSET_UID}={handle['uid']}"}
    )


def _delete(client: Client, handle: Handle) -> None:
    """In the foreground: the JobSet is there as long as its pods are."""
    options: Object = {"propagationPolicy": "Foreground", "preconditions": {"uid": handle["uid"]}}
    client.delete(path_of("JobSet", handle["namespace"], handle["jobset"]), options)


def _recent(client: Client, handle: Handle) -> sights.Seen:
    seen = _seen.get((str(handle["context"]), str(handle["namespace"])))
    if seen is not None and handle["jobset"] in seen.pods and time.monotonic() - seen.at < _FRESH_SECONDS:
        return seen
    return sights.ask(client, str(handle["namespace"]), [str(handle["jobset"])], logs.PATIENCE)


def _failed(pod: Object) -> bool:
    return bool((pod.get("status") or {}).get("phase") == "Failed")
