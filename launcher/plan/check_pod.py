"""The JobSet as it will be, with the fabric's patch, against its own definition, the pod's rules, Kueue's and ours."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

from launcher.config.secrets import sounds_secret
from launcher.issue import Issue
from launcher.plan.case import Case, Rule, error, warning
from launcher.plan.check_env import OWNED
from launcher.plan.check_kubernetes import K, on_kubernetes
from launcher.plan.kubernetes import CONTAINER, HASH, JOB, base_name, named
from launcher.plan.kubernetes_objects import environment, jobset
from launcher.plan.kubernetes_pod import pod_faults
from launcher.plan.kubernetes_schema import Fault, faults
from launcher.plan.kubernetes_syntax import is_qualified
from launcher.plan.mesh import MeshPlan

TEMPLATE = f"spec.replicatedJobs.{JOB}.template.spec.template."
KUEUE = "kueue.x-k8s.io/podset-"

OUR_FIELDS = (
    "restartPolicy",
    "terminationGracePeriodSeconds",
    "enableServiceLinks",
    "hostname",
    "subdomain",
    "nodeName",
    "schedulingGates",
)
"""Fields of the pod's spec that the launcher or JobSet's controller decides."""

OUR_CONTAINER = ("command", "args", "image", "workingDir")
OUR_VOLUMES = ("files", "runs", "shm")
OUR_LABELS = ("jobset.sigs.k8s.io/", "app.kubernetes.io/", "batch.kubernetes.io/", "launcher/")
HOMES: Mapping[str, str] = {
    "terminationGracePeriodSeconds": "trainer.stop_grace_seconds=SECONDS", "image": "container.image=REGISTRY/IMAGE:TAG",
    "workingDir": "container.workdir=/FOLDER",
}  # fmt: skip
"""Field -> the setting of ours that decides it."""


def _template(value: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = value["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    return found


def _home(case: Case, path: str, template: Mapping[str, Any]) -> str:
    """The setting that a path of the pod template comes from."""
    wanted = case.experiment.target.kubernetes
    place = re.match(r"spec\.tolerations\.(\d+)", path)
    if place and template["spec"]["tolerations"][int(place[1])] in wanted.tolerations:
        return f"{K}.tolerations"
    key = path.removeprefix("spec.nodeSelector.")
    if key in wanted.node_selector:
        return f"{K}.node_selector.{key}"
    return f"fabric.pod.{path}"


def as_submitted(case: Case) -> Iterator[Issue]:
    """Every fault of the JobSet as it will be submitted."""
    if not on_kubernetes(case) or case.mesh is None:
        return
    patch = case.experiment.fabric.pod
    shape = _shape(patch)
    if shape:
        yield error("KUBERNETES_POD", *shape)
        return
    value = _jobset(case, case.mesh)
    template = _template(value)
    found = [_of_template(fault) for fault in faults(value)]
    # What its schema says is not said again in other words.
    paths = {fault.path for fault in found}
    if not any(re.fullmatch(r"(metadata|spec)(\.\w+)?", path) for path in paths):
        found += [fault for fault in pod_faults(template) if not _told(fault.path, paths)]
    for fault in found:
        field = _home(case, fault.path, template)
        if not _ours(case, fault.path):
            yield error("KUBERNETES_POD", field, f"{fault.path}: {fault.message}", fault.hint)


def _jobset(case: Case, mesh: MeshPlan) -> dict[str, Any]:
    """The JobSet as it will be; what other rules report about its own settings is mended here, so that it is said once."""
    wanted = case.experiment.target.kubernetes

    def label(name: str | None) -> str | None:
        return name if name is None or is_qualified(name) else "topology"

    mended = dataclasses.replace(
        wanted, claim="claim", mount="/runs", namespace=None, queue="queue" if wanted.queue else None, priority_class=None,
        service_account=None, image_pull_secrets=[], cpu=None, memory_gib=None, shm_gib=1,
        secrets=dict.fromkeys(case.experiment.env.secrets, "name/key"), ttl_seconds=None, active_deadline_seconds=None,
        topology=label(wanted.topology or (wanted.layout == "job_per_domain" and "topology") or None),
        topology_block=label(wanted.topology_block),
    )  # fmt: skip
    target = dataclasses.replace(case.experiment.target, kubernetes=mended)
    container = dataclasses.replace(case.experiment.container, image="image", workdir=None)
    trainer = dataclasses.replace(case.experiment.trainer, stop_grace_seconds=0)
    monitor = dataclasses.replace(case.experiment.monitor, max_failures=0)
    experiment = dataclasses.replace(
        case.experiment, name="x", target=target, container=container, trainer=trainer, monitor=monitor
    )
    zeros = "0" * HASH
    return jobset(experiment, mesh, named(base_name("x"), zeros, zeros), ["env"])


def _of_template(fault: Fault) -> Fault:
    return fault._replace(path=fault.path.removeprefix(TEMPLATE))


def _told(path: str, paths: set[str]) -> bool:
    return any(path == told or path.startswith(f"{told}.") or told.startswith(f"{path}.") for told in paths)


def _ours(case: Case, path: str) -> bool:
    """What another rule reports: names of secrets, and fields that the patch may not touch at all."""
    secrets = [f"spec.containers.{CONTAINER}.env.{name}" for name in case.experiment.env.secrets]
    return any(path.startswith(one) for one in secrets) or path in [f"spec.{key}" for key in OUR_FIELDS]


def _shape(patch: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """Field, message and hint when the patch is no pod template's at all."""
    for key, value in patch.items():
        if key not in ("metadata", "spec"):
            hint = f"write it below spec: fabric.pod.spec.{key}"
            return f"fabric.pod.{key}", f"a pod template has metadata and spec, not {key}", hint
        if not isinstance(value, Mapping):
            return f"fabric.pod.{key}", f"fabric.pod.{key} is {value!r}, wanted a mapping", "write fields below it"
    spec, about = patch.get("spec", {}), patch.get("metadata", {})
    for key in ("labels", "annotations"):
        if key in about and not isinstance(about[key], Mapping):
            return f"fabric.pod.metadata.{key}", "wanted a mapping of text to text", "write KEY: VALUE below it"
    for key in ("containers", "volumes", "tolerations", "resourceClaims", "initContainers"):
        if key in spec and not isinstance(spec[key], list):
            return f"fabric.pod.spec.{key}", f"{key} is {spec[key]!r}, wanted a list", "write each element behind a -"
        if key in spec and not all(isinstance(one, Mapping) for one in spec[key]):
            return f"fabric.pod.spec.{key}", f"an element of {key} is no mapping", "write name: VALUE in each"
    for one in spec.get("containers", []):
        for key in ("env", "volumeMounts", "ports"):
            if key in one and not isinstance(one[key], list):
                return f"fabric.pod.spec.containers.{key}", f"{key} is no list", "write each element behind a -"
        if "resources" in one and not isinstance(one["resources"], Mapping):
            return (
                "fabric.pod.spec.containers.resources",
                "resources is no mapping",
                "write requests and limits below it",
            )
    return None


def patch_takes_ours(case: Case) -> Iterator[Issue]:
    """What the launcher decides itself, and a patch would break."""
    patch = case.experiment.fabric.pod
    if not on_kubernetes(case) or case.mesh is None or _shape(patch):
        return
    spec = patch.get("spec", {})
    for key in OUR_FIELDS:
        if key in spec:
            cure = HOMES.get(key)
            hint = f"type {cure}" if cure else f"leave {key} out of the patch"
            yield error(
                "KUBERNETES_POD_OURS",
                f"fabric.pod.spec.{key}",
                f"{key} of the pod is set by the launcher or JobSet",
                hint,
            )
    for one in spec.get("volumes", []):
        if one.get("name") in OUR_VOLUMES:
            message = f"the volume {one['name']} is the launcher's"
            yield error(
                "KUBERNETES_POD_OURS", "fabric.pod.spec.volumes", message, "give the patch's volume another name"
            )
    for group in ("labels", "annotations"):
        for key in patch.get("metadata", {}).get(group, {}):
            if str(key).startswith(OUR_LABELS):
                field = f"fabric.pod.metadata.{group}.{key}"
                yield error(
                    "KUBERNETES_POD_OURS",
                    field,
                    f"{key} is set by the launcher or a controller",
                    "leave it out of the patch",
                )
    for one in spec.get("containers", []):
        yield from _container(case, case.mesh, one)


def _container(case: Case, mesh: MeshPlan, one: Mapping[str, Any]) -> Iterator[Issue]:
    path = "fabric.pod.spec.containers"
    if one.get("name") != CONTAINER:
        message = f"a container {one.get('name')!r} beside {CONTAINER}: the pod, and with it the run, ends when both have ended"
        hint = "put it into initContainers, with restartPolicy: Always"
        yield warning("KUBERNETES_SIDECAR", path, message, hint)
        return
    for key in OUR_CONTAINER:
        if key in one:
            hint = f"type {HOMES[key]}" if key in HOMES else f"leave {key} out of the patch"
            yield error(
                "KUBERNETES_POD_OURS",
                f"{path}.{CONTAINER}.{key}",
                f"{key} of the container is set by the launcher",
                hint,
            )
    ours = {str(variable["name"]) for variable in environment(case.experiment, mesh)}
    for variable in one.get("env", []):
        name = str(variable.get("name")) if isinstance(variable, Mapping) else ""
        field = f"{path}.{CONTAINER}.env.{name}"
        if name in ours or name in OWNED or name.startswith("LAUNCHER_") or name == "JOB_COMPLETION_INDEX":
            why = OWNED.get(name, "it says which pod this is")
            yield error("KUBERNETES_POD_OURS", field, f"{name} cannot be set here: {why}", "leave it out of the patch")
        elif sounds_secret(name) and isinstance(variable, Mapping) and variable.get("value"):
            message = f"{name} sounds like a secret, and its value would lie in the manifest for all to read"
            hint = f"type 'env.secrets=[{name}]' {K}.secrets.{name}=NAME/KEY and leave it out of the patch"
            yield error("KUBERNETES_SECRET", field, message, hint)


def host_network(case: Case) -> Iterator[Issue]:
    """Pods on the host's network take the host's DNS, which does not know the other pods."""
    spec = case.experiment.fabric.pod.get("spec")
    if not on_kubernetes(case) or not isinstance(spec, Mapping) or spec.get("hostNetwork") is not True:
        return
    several = case.mesh is not None and case.mesh.nodes > 1
    if several and spec.get("dnsPolicy") != "ClusterFirstWithHostNet":
        field = "fabric.pod.spec.dnsPolicy"
        message = (
            "hostNetwork: true without dnsPolicy: ClusterFirstWithHostNet: the pods do not find the coordinator's name"
        )
        yield error("KUBERNETES_POD_DNS", field, message, f"type {field}=ClusterFirstWithHostNet")


def kueue(case: Case) -> Iterator[Issue]:
    """Kueue's webhook: which annotations of its topology-aware scheduling go together."""
    if not on_kubernetes(case) or case.mesh is None or _shape(case.experiment.fabric.pod):
        return
    about = case.experiment.fabric.pod.get("metadata", {}).get("annotations", {})
    for key, value in about.items():
        if str(key).startswith(KUEUE):
            field = f"fabric.pod.metadata.annotations.{key}"
            message = f"{key}={value}: where pods lie follows from the mesh"
            hint = f"type {K}.topology=LABEL (of a rack) and {K}.topology_block=LABEL (above it), and leave it out of the patch"
            yield error("KUBERNETES_POD_OURS", field, message, hint)


RULES: tuple[Rule, ...] = (as_submitted, patch_takes_ours, host_network, kueue)
