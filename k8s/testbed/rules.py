"""What the JobSet controller (v0.12) and the Job controller (1.31 and later) decide, as functions of the objects alone.

Sources: jobset pkg/controllers/failure_policy.go, jobset_controller.go, pkg/constants/constants.go; Kubernetes
pkg/controller/job/{job_controller,pod_failure_policy}.go. Words of conditions are theirs, since programs match them.
"""

from __future__ import annotations

import datetime
import hashlib
import re
from dataclasses import dataclass
from typing import Any

from k8s.testbed.client import Object

JOBSET = "jobset.sigs.k8s.io"
RESTART = f"{JOBSET}/restart-attempt"
INDEX = "batch.kubernetes.io/job-completion-index"
ENDED = ("Succeeded", "Failed")  # a pod's last phases
RESTART_ALL, IGNORE_MAX, FAIL = "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts", "FailJobSet"


@dataclass(frozen=True)
class Verdict:
    """Why something failed: the condition's reason and message."""

    reason: str
    message: str


@dataclass(frozen=True)
class Decision:
    """What a JobSet does about failed Jobs: `failed` says why it ends, else it restarts everything."""

    failed: Verdict | None
    counts: bool = False
    reason: str = ""  # of the condition RestartingJobSet
    message: str = ""


def now() -> str:
    """Give the time as the API writes it: UTC, whole seconds."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def condition(found: Object, kind: str) -> Object | None:
    """Give the condition of that type if it holds (status True)."""
    for one in found.get("status", {}).get("conditions") or ():
        if one["type"] == kind and one["status"] == "True":
            return dict(one)
    return None


def with_condition(conditions: list[Object], kind: str, status: str, reason: str, message: str) -> list[Object]:
    """Give the conditions with this one set; its time changes only with its status."""
    new = {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": now()}
    for index, one in enumerate(conditions):
        if one["type"] == kind:
            if one["status"] == status:
                new["lastTransitionTime"] = one["lastTransitionTime"]
            return [*conditions[:index], new, *conditions[index + 1 :]]
    return [*conditions, new]


# ---- Jobs ----


def index_of(pod: Object) -> int:
    """Give the pod's completion index."""
    return int(pod["metadata"].get("annotations", {}).get(INDEX, 0))


def phase_of(pod: Object) -> str:
    """Give the pod's phase."""
    return str(pod.get("status", {}).get("phase", "Pending"))


def pod_failure(spec: Object, pod: Object) -> tuple[str, str]:
    """Give (action, message) of the first rule of the Job's podFailurePolicy that the failed pod matches; ("Count", "") if none does."""
    metadata, status = pod["metadata"], pod.get("status", {})
    name = f"{metadata['namespace']}/{metadata['name']}"
    for index, rule in enumerate(spec.get("podFailurePolicy", {}).get("rules", ())):
        end = f"matching {rule['action']} rule at index {index}"
        wanted = rule.get("onExitCodes")
        for container in status.get("containerStatuses", ()) if wanted else ():
            code = container.get("state", {}).get("terminated", {}).get("exitCode", 0)
            if code == 0 or wanted.get("containerName", container["name"]) != container["name"]:
                continue
            if (code in wanted["values"]) == (wanted["operator"] == "In"):
                return rule[
                    "action"
                ], f"Container {container['name']} for pod {name} failed with exit code {code} {end}"
        for pattern in rule.get("onPodConditions", ()):
            for one in status.get("conditions", ()):
                if one["type"] == pattern["type"] and one["status"] == pattern.get("status", "True"):
                    return rule["action"], f"Pod {name} has condition {one['type']} {end}"
    return "Count", ""


def job_failure(spec: Object, failed: list[Object], age_s: float) -> Verdict | None:
    """Say why a Job with these failed pods has failed, or None."""
    counted = 0
    for pod in failed:
        action, message = pod_failure(spec, pod)
        if action == "FailJob":
            return Verdict("PodFailurePolicy", message)
        counted += action == "Count"
    if counted > spec.get("backoffLimit", 6):
        return Verdict("BackoffLimitExceeded", "Job has reached the specified backoff limit")
    limit = spec.get("activeDeadlineSeconds")
    if limit is not None and age_s >= limit:
        return Verdict("DeadlineExceeded", "Job was active longer than specified deadline")
    return None


def missing_indexes(spec: Object, pods: list[Object], succeeded: set[int]) -> list[int]:
    """Give the completion indexes that need a pod now, the lowest first."""
    completions, parallelism = spec.get("completions", 1), spec.get("parallelism", 1)
    # While a pod terminates, its place is taken only if the Job does not wait for it to have ended.
    waits = spec.get("podReplacementPolicy") == "Failed" or "podFailurePolicy" in spec
    active = [p for p in pods if phase_of(p) not in ENDED and (waits or "deletionTimestamp" not in p["metadata"])]
    taken = {index_of(p) for p in active} | succeeded
    free = [index for index in range(completions) if index not in taken]
    return free[: max(0, min(parallelism, completions) - len(active))]


# ---- JobSets ----


def jobset_decision(jobset: Object, failed: list[Object]) -> Decision:
    """Apply the JobSet's failurePolicy to its failed Jobs: the first rule that matches one of them decides."""
    policy = jobset["spec"].get("failurePolicy")
    first = _earliest(failed)
    if policy is None:
        return Decision(Verdict("FailedJobs", _with_first("jobset failed due to one or more job failures", first)))
    action, reason = RESTART_ALL, "DefaultFailurePolicy"
    for rule in policy.get("rules", ()):
        if matching := [job for job in failed if _applies(rule, job)]:
            action, reason, first = rule["action"], f"FailurePolicy_{rule['name']}", _earliest(matching)
            break
    if action == FAIL:
        said = _with_first("applying FailJobSet failure policy action", first)
        return Decision(Verdict("FailJobSetFailurePolicyAction", said))
    counted = jobset.get("status", {}).get("restartsCountTowardsMax", 0)
    if action == RESTART_ALL and counted >= policy.get("maxRestarts", 0):
        said = _with_first("jobset failed due to reaching max number of restarts", first)
        return Decision(Verdict("ReachedMaxRestarts", said))
    return Decision(None, action == RESTART_ALL, reason, _with_first(f"applying {action} failure policy action", first))


def _applies(rule: Object, job: Object) -> bool:
    why = condition(job, "Failed") or {}
    reasons, targets = rule.get("onJobFailureReasons"), rule.get("targetReplicatedJobs")
    patterns = rule.get("onJobFailureMessagePatterns")
    return (
        (not reasons or why["reason"] in reasons)
        and (not targets or job["metadata"]["labels"][f"{JOBSET}/replicatedjob-name"] in targets)
        # RE2's syntax is Python's for all that a message needs; like Go's MatchString it matches anywhere.
        and (not patterns or any(re.search(pattern, why["message"]) for pattern in patterns))
    )


def _earliest(jobs: list[Object]) -> Object:
    return min(jobs, key=lambda job: str((condition(job, "Failed") or {})["lastTransitionTime"]))


def _with_first(message: str, job: Object) -> str:
    return f"{message} (first failed job: {job['metadata']['name']})"


def labels(jobset: Object, replicated: Object, index: int) -> dict[str, str]:
    """Give the labels, which are annotations too, of the Job `index` of a replicated job and of its pods."""
    name, spec = jobset["metadata"]["name"], jobset["spec"]
    before = 0
    for one in spec["replicatedJobs"]:
        if one["name"] == replicated["name"]:
            break
        before += one.get("replicas", 1)
    return {
        f"{JOBSET}/jobset-name": name,
        f"{JOBSET}/jobset-uid": jobset["metadata"]["uid"],
        f"{JOBSET}/replicatedjob-name": replicated["name"],
        f"{JOBSET}/replicatedjob-replicas": str(replicated.get("replicas", 1)),
        f"{JOBSET}/global-replicas": str(sum(one.get("replicas", 1) for one in spec["replicatedJobs"])),
        f"{JOBSET}/job-index": str(index),
        f"{JOBSET}/job-global-index": str(before + index),
        f"{JOBSET}/job-key": job_key(jobset["metadata"]["namespace"], job_name(name, replicated["name"], index)),
        RESTART: str(jobset.get("status", {}).get("restarts", 0)),
    }


def job_name(jobset: str, replicated: str, index: int) -> str:
    """Give the name of a Job."""
    return f"{jobset}-{replicated}-{index}"


def job_key(namespace: str, job: str) -> str:
    """Give the label value that is the same for all pods of a Job, through restarts, and no other Job's."""
    return hashlib.sha1(f"{namespace}/{job}".encode()).hexdigest()


def replicated_status(replicated: Object, jobs: dict[str, Object], pods: dict[str, list[Object]]) -> dict[str, Any]:
    """Count the current Jobs of one replicated job as `status.replicatedJobsStatus` does; `pods` are each Job's, by its name."""
    spec = replicated["template"]["spec"]
    needed = min(spec.get("parallelism", 1), spec.get("completions", spec.get("parallelism", 1)))
    counts = dict.fromkeys(("active", "failed", "ready", "succeeded", "suspended"), 0)
    for name, job in jobs.items():
        own = pods.get(name, [])
        counts["succeeded"] += condition(job, "Complete") is not None
        counts["failed"] += condition(job, "Failed") is not None
        counts["suspended"] += condition(job, "Suspended") is not None
        counts["active"] += any(phase_of(pod) not in ENDED for pod in own)
        counts["ready"] += sum(is_ready(pod) or phase_of(pod) == "Succeeded" for pod in own) >= needed
    return {"name": replicated["name"], **counts}


def is_ready(pod: Object) -> bool:
    """Say whether the pod has the condition Ready."""
    return condition(pod, "Ready") is not None
