"""The objects as Kubernetes takes them: ComputeDomain and JobSet with its pod template, plain dictionaries in the order of their text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from launcher.config.schema import Experiment, Monitor
from launcher.node.codes import Code
from launcher.plan.kubernetes import (
    BUNDLE,
    CONTAINER,
    JOB,
    Names,
    base_name,
    grace_seconds,
    layout,
    memory,
    placement,
    wants_domain,
)
from launcher.plan.kubernetes_patch import merged
from launcher.plan.mesh import MeshPlan

FIRST_ATTEMPT = "launcher/first-attempt"
"""Annotation of the pod template: the number of the JobSet's first attempt; the one value that a later submission changes."""

EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
"""Annotation of the JobSet: each Job alone in one domain of that node label."""

ARCHITECTURES: Mapping[str, str] = {"aarch64": "arm64", "x86_64": "amd64"}
"""A machine's architecture as Linux and as Kubernetes call it."""

_OWN_LABEL = "metadata.labels['jobset.sigs.k8s.io/{}']"

Object = dict[str, Any]


def labels(experiment: Experiment, names: Names) -> dict[str, str]:
    """Kubernetes' recommended labels."""
    found = {
        "name": "maxtext",
        "instance": names.jobset,
        "version": experiment.trainer.maxtext,
        "component": CONTAINER,
        "part-of": base_name(experiment.name),
        "managed-by": "launcher",
    }
    return {f"app.kubernetes.io/{key}": value for key, value in found.items()}


def metadata(experiment: Experiment, name: str, names: Names, more: Mapping[str, str] | None = None) -> Object:
    """Of one object. Without a namespace it goes where kubectl and the kubeconfig say."""
    namespace = experiment.target.kubernetes.namespace
    found: Object = {"name": name} | ({"namespace": namespace} if namespace else {})
    return found | {"labels": labels(experiment, names) | dict(more or {})}


def compute_domain(experiment: Experiment, names: Names) -> Object:
    """NVLink across the nodes (IMEX), for as long as pods hold its claim. It places no pod."""
    return {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomain",
        "metadata": metadata(experiment, names.domain, names),
        "spec": {
            "numNodes": experiment.target.kubernetes.compute_domain_nodes,
            "channel": {"resourceClaimTemplate": {"name": names.domain}},
        },
    }


def _field(name: str, path: str) -> Object:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def environment(experiment: Experiment, mesh: MeshPlan) -> list[Object]:
    """The container's variables: who this pod is, and secrets by reference. The trainer's own lie in the bundle's `env`."""
    wanted, split = experiment.target.kubernetes, layout(experiment, mesh)
    found = [
        _field("POD_NAME", "metadata.name"),
        _field("NODE_NAME", "spec.nodeName"),
        _field("JOBSET_NAME", _OWN_LABEL.format("jobset-name")),
        _field("LAUNCHER_JOBSET_UID", _OWN_LABEL.format("jobset-uid")),
        _field("LAUNCHER_RESTART", _OWN_LABEL.format("restart-attempt")),
        _field("LAUNCHER_FIRST_ATTEMPT", f"metadata.annotations['{FIRST_ATTEMPT}']"),
    ]
    if wanted.layout == "job_per_domain":
        found.append(_field("LAUNCHER_JOB_INDEX", _OWN_LABEL.format("job-global-index")))
        found.append({"name": "LAUNCHER_NODES_PER_JOB", "value": str(split.pods)})
    found.append({"name": "LAUNCHER_NODES", "value": str(mesh.nodes)})
    found.append({"name": "LAUNCHER_COORDINATOR", "value": f"$(JOBSET_NAME)-{JOB}-0-0.$(JOBSET_NAME)"})
    for name in sorted(set(experiment.env.secrets)):
        secret, _, key = str(wanted.secrets.get(name, "")).partition("/")
        found.append({"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}})
    return found


def _resources(experiment: Experiment, mesh: MeshPlan) -> Object:
    wanted, needed = experiment.target.kubernetes, memory(experiment, mesh)
    requests: Object = {} if wanted.cpu is None else {"cpu": wanted.cpu}
    limits: Object = {}
    if wanted.memory_gib is not None:
        requests["memory"] = limits["memory"] = f"{wanted.memory_gib}Gi"
    elif needed is not None:
        requests["memory"] = f"{needed.needed}Gi"
    if experiment.hardware.platform == "gpu":
        requests["nvidia.com/gpu"] = limits["nvidia.com/gpu"] = experiment.hardware.gpus_per_node
    found = {"requests": requests, "limits": limits}
    return {key: value for key, value in found.items() if value} | (
        {"claims": [{"name": "imex"}]} if wants_domain(experiment, mesh) else {}
    )


def _container(experiment: Experiment, mesh: MeshPlan) -> Object:
    wanted, image = experiment.target.kubernetes, experiment.container.image
    found: Object = {"name": CONTAINER} | ({"image": image.removeprefix("docker://")} if image else {})
    found["command"] = [
        "python3", "-B", f"{BUNDLE}/node/worker.py", "--bundle", BUNDLE, "--run", f"{wanted.mount.rstrip('/')}/$(JOBSET_NAME)", "--pod",
    ]  # fmt: skip
    if experiment.container.workdir:
        found["workingDir"] = experiment.container.workdir
    found["env"] = environment(experiment, mesh)
    port = experiment.monitor.metrics_port
    if port is not None:
        found["ports"] = [{"name": "metrics", "containerPort": port}]
    if experiment.hardware.platform == "gpu":
        found["securityContext"] = {"capabilities": {"add": ["IPC_LOCK"]}}
    resources = _resources(experiment, mesh)
    if resources:
        found["resources"] = resources
    found["volumeMounts"] = [
        {"name": "files", "mountPath": BUNDLE, "readOnly": True},
        {"name": "runs", "mountPath": wanted.mount},
        {"name": "shm", "mountPath": "/dev/shm"},
    ]
    return found


def _nodes(experiment: Experiment) -> Object:
    """Which nodes will do: selector and tolerations."""
    wanted, hardware = experiment.target.kubernetes, experiment.hardware
    selector, tolerations = {str(k): v for k, v in sorted(wanted.node_selector.items())}, []
    if hardware.platform == "gpu":
        arch = ARCHITECTURES.get(hardware.arch, hardware.arch)
        selector = {"kubernetes.io/arch": arch} | selector
        tolerations = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
        if arch == "arm64":
            # GKE taints Arm nodes so that images for another processor do not land there.
            same = {"key": "kubernetes.io/arch", "operator": "Equal", "value": arch, "effect": "NoSchedule"}
            tolerations.append(same)
    found: Object = {"nodeSelector": selector} if selector else {}
    tolerations += [one for one in wanted.tolerations if one not in tolerations]
    return found | ({"tolerations": tolerations} if tolerations else {})


def _volumes(experiment: Experiment, names: Names, files: Sequence[str]) -> list[Object]:
    wanted = experiment.target.kubernetes
    items = [{"key": key_of(path), "path": path} for path in files]
    return [
        {"name": "files", "configMap": {"name": names.files, "items": items}},
        {"name": "runs", "persistentVolumeClaim": {"claimName": wanted.claim}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{wanted.shm_gib}Gi"}},
    ]


def key_of(path: str) -> str:
    """A file's key in the ConfigMap, where a slash may not be.

    >>> key_of("node/worker.py")
    'node.worker.py'
    """
    return path.replace("/", ".")


def _scraped(experiment: Experiment) -> dict[str, str]:
    """What most Prometheus servers look for to find a pod's metrics; a PodMonitor names the port `metrics` instead."""
    port = experiment.monitor.metrics_port
    if port is None:
        return {}
    return {
        f"prometheus.io/{key}": value for key, value in (("scrape", "true"), ("port", str(port)), ("path", "/metrics"))
    }


def pod_template(experiment: Experiment, mesh: MeshPlan, names: Names, files: Sequence[str]) -> Object:
    """The pod of one node, with the fabric's patch in it."""
    wanted = experiment.target.kubernetes
    spec: Object = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": grace_seconds(experiment),
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
    }
    if wanted.service_account:
        spec["serviceAccountName"] = wanted.service_account
    if wanted.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in wanted.image_pull_secrets]
    spec |= _nodes(experiment)
    if wants_domain(experiment, mesh):
        spec["resourceClaims"] = [{"name": "imex", "resourceClaimTemplateName": names.domain}]
    spec |= {"containers": [_container(experiment, mesh)], "volumes": _volumes(experiment, names, files)}
    annotations = {
        "kubectl.kubernetes.io/default-container": CONTAINER,
        FIRST_ATTEMPT: "1",
        **placement(experiment, mesh),
        **_scraped(experiment),
    }
    template = {"metadata": {"labels": labels(experiment, names), "annotations": annotations}, "spec": spec}
    return merged(template, experiment.fabric.pod)


def _rules(experiment: Experiment) -> list[Object]:
    """What a failed Job means for the whole JobSet; the first that fits. Any other failure restarts, and counts."""
    monitor = experiment.monitor
    reasons = {"onJobFailureReasons": ["PodFailurePolicy"]}

    def rule(name: str, action: str, *patterns: str) -> Object:
        return {"name": name, "action": action, **reasons, "onJobFailureMessagePatterns": list(patterns)}

    def code(which: Code) -> str:
        return f"exit code {which.value} "

    again = "RestartJobSetAndIgnoreMaxRestarts" if monitor.max_preemptions > 0 else "FailJobSet"
    found = [rule("configRefused", "FailJobSet", code(Code.CONFIG_REFUSED))]
    if monitor.overflow == "stop":
        found.append(rule("overflow", "FailJobSet", code(Code.OVERFLOW)))
    if monitor.max_rollbacks > 0:
        found.append(rule("diverged", "RestartJobSetAndIgnoreMaxRestarts", code(Code.DIVERGED)))
    return [*found, rule("preempted", again, "condition DisruptionTarget ", code(Code.PREEMPTED))]


def _job(experiment: Experiment, mesh: MeshPlan, template: Object) -> Object:
    wanted, pods = experiment.target.kubernetes, layout(experiment, mesh).pods
    codes = sorted(code.value for code in Code if code is not Code.FINISHED)
    found: Object = {"parallelism": pods, "completions": pods, "completionMode": "Indexed", "backoffLimit": 0}
    if wanted.active_deadline_seconds is not None:
        found["activeDeadlineSeconds"] = wanted.active_deadline_seconds
    return found | {
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {
            "rules": [
                {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                {
                    "action": "FailJob",
                    "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": codes},
                },
            ]
        },
        "template": template,
    }


def _max_restarts(monitor: Monitor) -> int:
    """All restarts that this policy's rules count; the worker bounds each budget of a kind by itself."""
    own = sum(int(most) for most in monitor.max_of_kind.values())
    return 0 if monitor.node_check == "only" else monitor.max_failures + own


def jobset(experiment: Experiment, mesh: MeshPlan, names: Names, files: Sequence[str]) -> Object:
    """The JobSet; `files` are the paths below the bundle that its pods see."""
    wanted = experiment.target.kubernetes
    kueue = {"queue-name": wanted.queue, "priority-class": wanted.priority_class if wanted.queue else None}
    more = {f"kueue.x-k8s.io/{key}": value for key, value in kueue.items() if value}
    about = metadata(experiment, names.jobset, names, more)
    if wanted.layout == "job_per_domain":
        about["annotations"] = {EXCLUSIVE: wanted.topology}
    spec: Object = {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "failurePolicy": {
            "maxRestarts": _max_restarts(experiment.monitor),
            "restartStrategy": "BlockingRecreate",
            "rules": _rules(experiment),
        },
    }
    if wanted.ttl_seconds is not None:
        spec["ttlSecondsAfterFinished"] = wanted.ttl_seconds
    job = _job(experiment, mesh, pod_template(experiment, mesh, names, files))
    replicated = {"name": JOB, "replicas": layout(experiment, mesh).jobs, "template": {"spec": job}}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": about,
        "spec": spec | {"replicatedJobs": [replicated]},
    }
