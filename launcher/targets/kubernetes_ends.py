"""How a JobSet ended, noted in the run's folder while the cluster still knows: a JobSet is forgotten after its ttl."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any

from launcher.node.codes import MEANINGS, Code, Outcome, outcome_of
from launcher.node.ending import read_object
from launcher.node.layout import AttemptFolder, RunFolder
from launcher.node.record import write_json
from launcher.targets.base import Handle
from launcher.targets.kubernetes_client import Client, Declined, Object, Unanswered, path_of
from launcher.targets.kubernetes_logs import BY_JOBSET, taken
from launcher.targets.kubernetes_sight import JOBSET_NAME, attempt_of, end_of, has_completed, number_of, seconds_of

_CODE = re.compile(r"failed with exit code (\d+)")


def note(client: Client, run: RunFolder, handle: Handle, jobset: Object, pods: Sequence[Object]) -> None:
    """Write the end of a JobSet that is over: decision.json (nothing follows), and a result where no worker's was heard."""
    attempt = run.attempt(number_of(handle, jobset))
    decision = attempt.path / "decision.json"
    if decision.exists():
        return
    attempt.path.mkdir(parents=True, exist_ok=True)
    said = end_of(jobset) or ""
    why = "" if has_completed(jobset) else _why(client, handle, attempt.number, pods)
    if not attempt.result().exists():
        result = _result(jobset, why)
        if result is not None:
            write_json(attempt.result(), {**result, **_times(attempt, jobset)})
    reason = f"{said}; {why}" if why else said
    write_json(decision, {"action": "stop", "reason": reason, "at": time.time(), "by": BY_JOBSET})


def is_all_known(run: RunFolder, handle: Handle, nodes: set[int] | None) -> bool:
    """Whether the end is noted and all that these nodes (None = all) said is here: then nobody needs to be asked."""
    numbers = run.attempt_numbers()
    if not numbers:
        return False
    attempt = run.attempt(numbers[-1])
    is_noted = (read_object(attempt.path / "decision.json") or {}).get("by") == BY_JOBSET
    if not is_noted and (read_object(attempt.result()) or {}).get("outcome") != Outcome.FINISHED.value:
        return False
    return all(taken(attempt, node).done for node in (range(int(handle["pods"])) if nodes is None else nodes))


def _why(client: Client, handle: Handle, attempt: int, pods: Sequence[Object]) -> str:
    """The failed Job's own message; without one, the first failed pod's exit code."""
    selector = {"labelSelector": f"{JOBSET_NAME}={handle['jobset']}"}
    try:
        jobs = client.list_all(path_of("Job", handle["namespace"]), selector, patience=2.0)
    except (Unanswered, Declined):
        jobs = []
    for job in jobs:
        if not any(owner.get("uid") == handle["uid"] for owner in job["metadata"].get("ownerReferences") or ()):
            continue
        for condition in (job.get("status") or {}).get("conditions") or ():
            if condition.get("type") == "Failed" and condition.get("status") == "True" and condition.get("message"):
                return str(condition["message"])
    ended = [(pod, code) for pod in pods if attempt_of(handle, pod) == attempt and (code := _code(pod))]
    return f"pod {ended[0][0]['metadata']['name']} failed with exit code {ended[0][1]}" if ended else ""


def _code(pod: Object) -> int | None:
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        terminated = (status.get("state") or {}).get("terminated")
        if terminated is not None:
            return int(terminated.get("exitCode") or 0)
    return None


def _result(jobset: Object, why: str) -> dict[str, Any] | None:
    """What the end alone proves: all pods ended well, were taken away, or one ended with a code of the worker's table."""
    if has_completed(jobset):
        return _made(Code.FINISHED, "the JobSet completed; what the worker itself said was not heard")
    if "DisruptionTarget" in why:
        return _made(Code.PREEMPTED, f"Kubernetes took a node away before its worker could say more: {why}")
    code = _CODE.search(why)
    if code is not None and outcome_of(int(code.group(1))) is not Outcome.TRAINER:
        known = Code(int(code.group(1)))
        return _made(known, f"{MEANINGS[outcome_of(known)]}; the worker's own words were not heard: {why}")
    return None


def _made(code: Code, reason: str) -> dict[str, Any]:
    unknown = dict.fromkeys(("first_step", "last_step", "checkpoint"))
    return {
        "code": int(code),
        "outcome": outcome_of(code).value,
        "reason": reason,
        **unknown,
        "ranks": [],
        "by": BY_JOBSET,
    }


def _times(attempt: AttemptFolder, jobset: Object) -> dict[str, float]:
    started = (read_object(attempt.started()) or {}).get("started") or seconds_of(
        jobset["metadata"]["creationTimestamp"]
    )
    ended = [
        seconds_of(condition["lastTransitionTime"])
        for condition in (jobset.get("status") or {}).get("conditions") or ()
        if condition.get("type") in ("Completed", "Failed") and condition.get("lastTransitionTime")
    ]
    return {"started": float(started), "ended": max([float(started), *ended])}
