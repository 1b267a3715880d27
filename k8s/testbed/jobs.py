"""Plays the Job controller for the Jobs of JobSets: makes pods, counts them, and says when a Job has ended.

The API server's own Job type is of 1.20 and drops what is newer, so a Job's rules are read from its JobSet, which they came from.
"""

from __future__ import annotations

import copy
import datetime
import secrets

from k8s.testbed.client import Object
from k8s.testbed.rules import (
    ENDED,
    INDEX,
    Verdict,
    condition,
    index_of,
    job_failure,
    missing_indexes,
    now,
    phase_of,
    with_condition,
)
from k8s.testbed.world import TRACKING, Tally, World, is_ending, owner_reference

JOB_NAME, JOB_UID = "batch.kubernetes.io/job-name", "batch.kubernetes.io/controller-uid"
LETTERS = "bcdfghjklmnpqrstvwxz2456789"  # of a pod's random suffix, as Kubernetes draws it


def reconcile(world: World, job: Object, template: Object, suspended: bool) -> None:
    """Bring one Job nearer to its end; `template` is the JobSet's template of it."""
    spec, tally = template["spec"], world.tallies.setdefault(job["metadata"]["uid"], Tally())
    pods = world.owned("pods", job)
    for pod in pods:
        if phase_of(pod) == "Failed" and pod["metadata"]["uid"] not in world.uncounted:
            tally.failed[pod["metadata"]["uid"]] = pod
        elif phase_of(pod) == "Succeeded":
            tally.succeeded.add(index_of(pod))
    if not is_ending(job) and not _has_ended(job):
        job = _judge(world, job, spec, tally, pods, suspended=suspended)
    active = [pod for pod in pods if phase_of(pod) not in ENDED]
    if is_ending(job):
        pass  # the garbage collector deletes the pods
    elif _has_ended(job) or condition(job, "FailureTarget") or suspended:
        for pod in active:
            if not is_ending(pod):
                world.uncounted |= {pod["metadata"]["uid"]} if suspended else set()
                world.delete("pods", pod)
    else:
        for index in missing_indexes(spec, pods, tally.succeeded):
            world.create("pods", _pod(job, template, index))
    _let_go(world, pods)


def _has_ended(job: Object) -> bool:
    return bool(condition(job, "Complete") or condition(job, "Failed"))


def _judge(world: World, job: Object, spec: Object, tally: Tally, pods: list[Object], *, suspended: bool) -> Object:
    """Set the Job's conditions and counts; give the Job as it is then."""
    status = job.get("status", {})
    conditions = status.get("conditions") or []
    started = status.get("startTime") or now()
    target = condition(job, "FailureTarget")
    why = (
        Verdict(target["reason"], target["message"])
        if target
        else job_failure(spec, list(tally.failed.values()), _age(started))
    )
    active = [pod for pod in pods if phase_of(pod) not in ENDED]
    if why:
        conditions = with_condition(conditions, "FailureTarget", "True", why.reason, why.message)
        if not active:  # since 1.31 a Job has Failed when no pod of it runs any more
            conditions = with_condition(conditions, "Failed", "True", why.reason, why.message)
    elif len(tally.succeeded) >= spec.get("completions", 1):
        for kind in ("SuccessCriteriaMet", "Complete"):
            said = "Reached expected number of succeeded pods"
            conditions = with_condition(conditions, kind, "True", "CompletionsReached", said)
    elif suspended:
        conditions = with_condition(conditions, "Suspended", "True", "JobSuspended", "Job suspended")
    elif condition(job, "Suspended"):
        conditions = with_condition(conditions, "Suspended", "False", "JobResumed", "Job resumed")
    new = {"startTime": started, "active": len(active), "succeeded": len(tally.succeeded), "failed": len(tally.failed)}
    if conditions:
        new["conditions"] = conditions
    if {key: value for key, value in new.items() if value} != {key: status[key] for key in new if status.get(key)}:
        world.patch("jobs", job, {"status": new}, sub="/status")
    return world.mirrors["jobs"].get(job["metadata"]["uid"]) or job


def _age(started: str) -> float:
    since = datetime.datetime.fromisoformat(started)
    return (datetime.datetime.now(datetime.UTC) - since).total_seconds()


def _pod(job: Object, template: Object, index: int) -> Object:
    """Give the pod of one completion index."""
    pod = copy.deepcopy(template["spec"]["template"])
    name, uid = f"{job['metadata']['name']}-{index}", job["metadata"]["uid"]
    own = job["spec"]["template"]["metadata"]  # the JobSet's labels and annotations are there
    metadata = {
        "name": name + "-" + "".join(secrets.choice(LETTERS) for _ in range(5)),
        "labels": {**own.get("labels", {}), JOB_NAME: job["metadata"]["name"], JOB_UID: uid, INDEX: str(index)},
        "annotations": {**own.get("annotations", {}), INDEX: str(index)},
        "finalizers": [TRACKING],
        "ownerReferences": [owner_reference(job)],
    }
    spec = pod["spec"]
    spec["hostname"], spec["subdomain"] = name, job["spec"]["template"]["spec"]["subdomain"]
    field = {"fieldRef": {"fieldPath": f"metadata.labels['{INDEX}']"}}
    for one in spec["containers"]:
        one.setdefault("env", []).append({"name": "JOB_COMPLETION_INDEX", "valueFrom": field})
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _let_go(world: World, pods: list[Object]) -> None:
    """Take the tracking finalizer off pods that are counted."""
    for pod in pods:
        never_ran = is_ending(pod) and not pod["spec"].get("nodeName")
        if TRACKING in pod["metadata"].get("finalizers", ()) and (phase_of(pod) in ENDED or never_ran):
            world.finalize("pods", pod, TRACKING)
