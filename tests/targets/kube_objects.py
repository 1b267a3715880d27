"""Objects as a cluster's lists show them, made by hand."""

from launcher.plan.kubernetes_objects import FIRST_ATTEMPT

HANDLE = {
    "kind": "kubernetes",
    "jobset": "demo-0a1b2c3d",
    "uid": "u1",
    "namespace": "ml",
    "context": "c",
    "server": "https://api:6443",
    "folder": "/runs/demo",
    "first": 1,
    "pods": 2,
    "pods_per_job": 2,
}


def pod(index, phase="Running", restart=0, uid="u1", **status):
    return {
        "metadata": {
            "name": f"demo-0a1b2c3d-w-0-{index}-abcde",
            "uid": f"pod{index}",
            "creationTimestamp": "2026-11-29T22:00:00Z",
            "labels": {
                "jobset.sigs.k8s.io/jobset-uid": uid,
                "jobset.sigs.k8s.io/restart-attempt": str(restart),
                "jobset.sigs.k8s.io/job-global-index": "0",
            },
            "annotations": {"batch.kubernetes.io/job-completion-index": str(index), FIRST_ATTEMPT: "1"},
        },
        "spec": {"nodeName": f"n{index}"},
        "status": {"phase": phase, **status},
    }


def jobset(restarts=0, conditions=(), **metadata):
    template = {"metadata": {"annotations": {FIRST_ATTEMPT: "1"}}}
    return {
        "metadata": {"name": "demo-0a1b2c3d", "uid": "u1", "creationTimestamp": "2026-11-29T22:00:00Z", **metadata},
        "spec": {"replicatedJobs": [{"template": {"spec": {"template": template}}}]},
        "status": {"restarts": restarts, "conditions": [{"status": "True", **c} for c in conditions]},
    }


UNSCHEDULED = {
    "conditions": [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "1 Insufficient nvidia.com/gpu",
        }
    ]
}
PULLING = {"containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off"}}}]}
FAILED = {"type": "Failed", "reason": "FailedJobs", "message": "jobset failed due to one or more job failures"}
