"""Plays the JobSet controller: makes Jobs, restarts them together, and says when the JobSet has ended."""

from __future__ import annotations

import copy
from typing import Any

from k8s.testbed import jobs
from k8s.testbed.client import Object
from k8s.testbed.rules import (
    JOBSET,
    RESTART,
    condition,
    job_name,
    jobset_decision,
    labels,
    replicated_status,
    with_condition,
)
from k8s.testbed.world import World, is_ending, owner_reference

EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"


def reconcile(world: World, jobset: Object) -> None:
    """Bring one JobSet, its Jobs and their pods nearer to what they ought to be."""
    owned = world.owned("jobs", jobset)
    restarts = jobset.get("status", {}).get("restarts", 0)
    current = [job for job in owned if int(job["metadata"]["labels"][RESTART]) == restarts]
    previous = [job for job in owned if int(job["metadata"]["labels"][RESTART]) < restarts]
    suspended = bool(jobset["spec"].get("suspend"))
    if not is_ending(jobset):
        _manage(world, jobset, current, previous, suspended)
    templates = {one["name"]: one["template"] for one in jobset["spec"]["replicatedJobs"]}
    for job in world.owned("jobs", jobset):
        jobs.reconcile(world, job, templates[job["metadata"]["labels"][f"{JOBSET}/replicatedjob-name"]], suspended)


def _manage(world: World, jobset: Object, current: list[Object], previous: list[Object], suspended: bool) -> None:
    ended = condition(jobset, "Completed") or condition(jobset, "Failed")
    running = [job for job in current if not condition(job, "Complete") and not condition(job, "Failed")]
    for job in [*previous, *(running if ended else ())]:
        if not is_ending(job):
            world.delete("jobs", job, foreground=True)
    status = _counted(world, jobset, current)
    failed = [job for job in current if condition(job, "Failed")]
    if ended:
        pass
    elif failed:
        status |= _after_failure(jobset, failed)
    elif current and len(current) == _wanted(jobset) == sum(bool(condition(job, "Complete")) for job in current):
        conditions = _without_restarting(jobset, "JobSetCompleted", "jobset completed successfully")
        said = ("True", "AllJobsCompleted", "jobset completed successfully")
        status |= {"terminalState": "Completed", "conditions": with_condition(conditions, "Completed", *said)}
    else:
        status |= _conditions(jobset, status, suspended)
    before = jobset.get("status", {})
    if {key: before.get(key) for key in status} != status:
        world.patch("jobsets", jobset, {"status": status}, sub="/status")
    waits = jobset["spec"].get("failurePolicy", {}).get("restartStrategy") == "BlockingRecreate" and previous
    if not ended and not failed and not waits:
        _make(world, jobset, {job["metadata"]["name"] for job in [*current, *previous]})


def _counted(world: World, jobset: Object, current: list[Object]) -> dict[str, Any]:
    counts = []
    for replicated in jobset["spec"]["replicatedJobs"]:
        mine = f"{JOBSET}/replicatedjob-name"
        own = {j["metadata"]["name"]: j for j in current if j["metadata"]["labels"][mine] == replicated["name"]}
        pods = {name: world.owned("pods", job) for name, job in own.items()}
        counts.append(replicated_status(replicated, own, pods))
    return {"replicatedJobsStatus": counts}


def _after_failure(jobset: Object, failed: list[Object]) -> dict[str, Any]:
    decision = jobset_decision(jobset, failed)
    status = jobset.get("status", {})
    if decision.failed:
        conditions = _without_restarting(jobset, "JobSetFailed", "jobset failed")
        why = ("True", decision.failed.reason, decision.failed.message)
        return {"terminalState": "Failed", "conditions": with_condition(conditions, "Failed", *why)}
    why = ("True", decision.reason, decision.message)
    return {
        "restarts": status.get("restarts", 0) + 1,
        "restartsCountTowardsMax": status.get("restartsCountTowardsMax", 0) + decision.counts,
        "conditions": with_condition(status.get("conditions") or [], "RestartingJobSet", *why),
    }


def _conditions(jobset: Object, status: dict[str, Any], suspended: bool) -> dict[str, Any]:
    """Give the conditions of a JobSet that goes on; nothing if they stay."""
    conditions = jobset.get("status", {}).get("conditions") or []
    wanted = {one["name"]: one.get("replicas", 1) for one in jobset["spec"]["replicatedJobs"]}
    if all(one["ready"] + one["succeeded"] >= wanted[one["name"]] for one in status["replicatedJobsStatus"]):
        conditions = _without_restarting(jobset, "JobsReady", "all jobs are ready")
    if suspended:
        conditions = with_condition(conditions, "Suspended", "True", "SuspendedJobs", "jobset is suspended")
    elif condition(jobset, "Suspended"):
        conditions = with_condition(conditions, "Suspended", "False", "ResumeJobs", "jobset is resumed")
    return {"conditions": conditions} if conditions else {}


def _without_restarting(jobset: Object, reason: str, message: str) -> list[Object]:
    conditions: list[Object] = jobset.get("status", {}).get("conditions") or []
    if condition(jobset, "RestartingJobSet"):
        return with_condition(conditions, "RestartingJobSet", "False", reason, message)
    return conditions


def _wanted(jobset: Object) -> int:
    return sum(one.get("replicas", 1) for one in jobset["spec"]["replicatedJobs"])


def _make(world: World, jobset: Object, there: set[str]) -> None:
    """Create the Service and the Jobs that are not there."""
    name = jobset["metadata"]["name"]
    network = jobset["spec"].get("network", {})
    subdomain = network.get("subdomain") or name
    if network.get("enableDNSHostnames", True) and world.mirrors["services"].named(subdomain) is None:
        selector = {f"{JOBSET}/jobset-name": name}
        addresses = network.get("publishNotReadyAddresses", True)
        spec = {"clusterIP": "None", "selector": selector, "publishNotReadyAddresses": addresses}
        metadata = {"name": subdomain, "ownerReferences": [owner_reference(jobset)]}
        world.create("services", {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})
    for replicated in jobset["spec"]["replicatedJobs"]:
        for index in range(replicated.get("replicas", 1)):
            if job_name(name, replicated["name"], index) not in there:
                world.create("jobs", _job(jobset, replicated, index, subdomain))


def _job(jobset: Object, replicated: Object, index: int, subdomain: str) -> Object:
    given, template = labels(jobset, replicated, index), copy.deepcopy(replicated["template"])
    exclusive = jobset["metadata"].get("annotations", {}).get(EXCLUSIVE)
    marks = {**given, EXCLUSIVE: exclusive} if exclusive else given
    pod = template["spec"]["template"]
    for metadata in (template.setdefault("metadata", {}), pod.setdefault("metadata", {})):
        metadata["labels"] = {**metadata.get("labels", {}), **given}
        metadata["annotations"] = {**metadata.get("annotations", {}), **marks}
    pod["spec"]["subdomain"] = subdomain
    template["metadata"]["name"] = job_name(jobset["metadata"]["name"], replicated["name"], index)
    template["metadata"]["ownerReferences"] = [owner_reference(jobset)]
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": template["metadata"], "spec": template["spec"]}
