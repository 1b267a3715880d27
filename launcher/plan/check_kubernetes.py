"""What JobSet, the Job's controller or the API server would refuse in target.kubernetes: said before. Silent for other targets."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping

from launcher.issue import Issue
from launcher.plan.case import Case, Rule, error, shown, warning
from launcher.plan.check_container import PATHS
from launcher.plan.kubernetes import (
    BUNDLE,
    DNS_LABEL,
    HASH,
    LAYOUTS,
    LONGEST_LABEL,
    base_name,
    layout,
    longest_pod,
    room_for_name,
)
from launcher.plan.kubernetes_syntax import (
    KEY_WORDS,
    LABEL_WORDS,
    SUBDOMAIN_WORDS,
    is_key,
    is_label,
    is_qualified,
    is_subdomain,
    quantity,
)
from launcher.suggest import suggest

K = "target.kubernetes"

NAMES: Mapping[str, tuple[Callable[[str], bool], str]] = {
    "namespace": (is_label, LABEL_WORDS),
    **dict.fromkeys(("claim", "service_account"), (is_subdomain, SUBDOMAIN_WORDS)),
    # Kueue repeats them as labels' values.
    **dict.fromkeys(("queue", "priority_class"), (lambda text: len(text) <= 63 and is_subdomain(text), SUBDOMAIN_WORDS)),
    **dict.fromkeys(("topology", "topology_block"), (is_qualified, KEY_WORDS)),
}  # fmt: skip
"""Field of target.kubernetes -> does a name fit, and what fits in words."""

NUMBERS: Mapping[str, tuple[int, int | None]] = {
    "compute_domain_nodes": (0, 0), "memory_gib": (1, None), "shm_gib": (1, 32), "ttl_seconds": (0, None),
    "active_deadline_seconds": (1, None),
}  # fmt: skip
"""Field of target.kubernetes -> the least that makes sense, and what to type instead."""

MOST = (1 << 31) - 1
"""Of numbers that the API holds in 32 bits."""

OUR_MOUNTS = (BUNDLE, "/dev/shm")

_IMAGE = re.compile(
    r"(?:[A-Za-z0-9.-]+(?::[0-9]+)?/)?[a-z0-9]+(?:[._/-]+[a-z0-9]+)*(?::\w[\w.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)


def on_kubernetes(case: Case) -> bool:
    """The rules about Kubernetes have something to say."""
    return case.experiment.target.kind == "kubernetes"


def experiment_name(case: Case) -> Iterator[Issue]:
    """JobSet, Jobs, pods and their DNS names are made of the experiment's name."""
    if not on_kubernetes(case) or case.mesh is None:
        return
    split = layout(case.experiment, case.mesh)
    base, room = base_name(case.experiment.name), room_for_name(split.jobs, split.pods)
    if not DNS_LABEL.fullmatch(f"{base}-0"):
        message = f"name={case.experiment.name}: a JobSet's name begins with a letter and has small letters, digits and - only"
        right = re.sub(r"[^-a-z0-9]+", "-", base).strip("-")
        right = right if re.match("[a-z]", right) else f"run-{right}".strip("-")
        yield error("KUBERNETES_NAME", "name", message, f"type name={right[:room].strip('-')}")
    elif len(base) > room:
        pod = longest_pod(f"{base}-{'0' * HASH}", split.jobs, split.pods)
        message = f"name={case.experiment.name}: the last pod would be {pod}, {len(pod)} characters of at most {LONGEST_LABEL}"
        yield error(
            "KUBERNETES_NAME", "name", message, f"type name={base[:room].strip('-')}, {room} characters at most"
        )


def words(case: Case) -> Iterator[Issue]:
    """Names, numbers and words of target.kubernetes."""
    wanted = case.experiment.target.kubernetes
    if not on_kubernetes(case):
        return
    for name, (fits, told) in NAMES.items():
        seen = getattr(wanted, name)
        if seen is not None and not fits(seen):
            right = "launcher-runs" if name == "claim" else "null"
            message = f"{K}.{name}={shown(seen)}, wanted {told}"
            yield error("KUBERNETES_WORD", f"{K}.{name}", message, f"type {K}.{name}={right}, or a name that fits")
    for name, (least, instead) in NUMBERS.items():
        seen = getattr(wanted, name)
        if seen is not None and not least <= seen <= MOST:
            message = f"{K}.{name}={seen}, wanted {least} to {MOST}"
            yield error("KUBERNETES_NUMBER", f"{K}.{name}", message, f"type {K}.{name}={shown(instead)}")
    if wanted.layout not in LAYOUTS:
        near = suggest(wanted.layout, LAYOUTS) or LAYOUTS
        message = f"{K}.layout={shown(wanted.layout)}: there is {', '.join(LAYOUTS)}"
        hint = "type " + " or ".join(f"{K}.layout={word}" for word in near)
        yield error("KUBERNETES_LAYOUT", f"{K}.layout", message, hint)
    if wanted.context is not None and not wanted.context.strip():
        yield error("KUBERNETES_WORD", f"{K}.context", "the name of the context is empty", f"type {K}.context=null")
    cpu = None if wanted.cpu is None else quantity(wanted.cpu)
    if wanted.cpu is not None and (cpu is None or cpu <= 0):
        message = f"{K}.cpu={shown(wanted.cpu)}, wanted processors of a pod, such as 140 or 500m"
        yield error("KUBERNETES_QUANTITY", f"{K}.cpu", message, f"type {K}.cpu=null, or {K}.cpu=140")
    for secret in wanted.image_pull_secrets:
        if not is_subdomain(secret):
            message = f"{K}.image_pull_secrets: {shown(secret)} is no secret's name: {SUBDOMAIN_WORDS}"
            yield error("KUBERNETES_WORD", f"{K}.image_pull_secrets", message, f"type '{K}.image_pull_secrets=[NAME]'")
    if wanted.priority_class is not None and wanted.queue is None:
        message = f"{K}.priority_class={wanted.priority_class} is Kueue's, and no queue is named: it would not be read"
        hint = f"type {K}.queue=NAME, or {K}.priority_class=null"
        yield error("KUBERNETES_PRIORITY", f"{K}.priority_class", message, hint)


def storage(case: Case) -> Iterator[Issue]:
    """The volume for the runs: an existing claim, mounted where nothing of ours lies."""
    wanted = case.experiment.target.kubernetes
    if not on_kubernetes(case):
        return
    if wanted.claim is None:
        message = "no claim is named: checkpoints and the workers' records would be lost with their pods"
        hint = f"type {K}.claim=NAME of a PersistentVolumeClaim that all nodes can mount at once (`kubectl get pvc`)"
        yield error("KUBERNETES_CLAIM", f"{K}.claim", message, hint)
    mount, field = posixpath.normpath(wanted.mount), f"{K}.mount"
    clash = next(
        (ours for ours in OUR_MOUNTS if f"{ours}/".startswith(f"{mount}/") or f"{mount}/".startswith(f"{ours}/")), None
    )
    if not re.fullmatch(r"/[^:\s$]+", wanted.mount) or mount == "/" or ".." in wanted.mount.split("/"):
        message = f"{field}={shown(wanted.mount)}, wanted an absolute path below /, without spaces, : or $"
        yield error("KUBERNETES_MOUNT", field, message, f"type {field}=/runs")
    elif clash is not None:
        message = f"{field}={wanted.mount} lies over {clash}, which pods need"
        yield error("KUBERNETES_MOUNT", field, message, f"type {field}=/runs")


def image(case: Case) -> Iterator[Issue]:
    """A pod needs an image from a registry; what is pyxis' alone is refused."""
    wanted = case.experiment.container
    if not on_kubernetes(case):
        return
    field = "container.image"
    if wanted.image is None:
        message = "no image is named: a pod runs in one"
        yield error(
            "KUBERNETES_IMAGE", field, message, "type container=nvidia_maxtext, or container.image=REGISTRY/IMAGE:TAG"
        )
    elif not _IMAGE.fullmatch(wanted.image.removeprefix("docker://")):
        squashed = " (a file and # are pyxis' words)" if re.search(r"^[./~]|#|\.sqsh$", wanted.image) else ""
        message = f"{field}={shown(wanted.image)}, wanted REGISTRY/IMAGE:TAG{squashed}"
        yield error(
            "KUBERNETES_IMAGE", field, message, "type container=nvidia_maxtext, or container.image=REGISTRY/IMAGE:TAG"
        )
    if wanted.mounts:
        message = f"container.mounts={','.join(wanted.mounts)}: pods mount volumes, not folders of the node"
        hint = f"type 'container.mounts=[]': the claim {K}.claim is mounted at {K}.mount; others go into fabric.pod (docs/kubernetes.md)"
        yield error("KUBERNETES_MOUNTS", "container.mounts", message, hint)
    if wanted.import_folder is not None:
        message = f"container.import_folder={shown(wanted.import_folder)} is for SLURM: here every node keeps the images that it pulled"
        yield warning("KUBERNETES_IMPORT", "container.import_folder", message, "type container.import_folder=null")
    if wanted.workdir is not None and not wanted.workdir.startswith("/"):
        message = f"container.workdir={shown(wanted.workdir)}, wanted an absolute path"
        yield error("KUBERNETES_WORKDIR", "container.workdir", message, "type container.workdir=null")


def mounted(case: Case) -> list[str]:
    """Where something of the cluster's is mounted: the claim, and the fabric's volumes."""
    spec = case.experiment.fabric.pod.get("spec")
    containers = spec.get("containers") if isinstance(spec, Mapping) else None
    found = [case.experiment.target.kubernetes.mount]
    for container in containers if isinstance(containers, list) else ():
        mounts = container.get("volumeMounts") if isinstance(container, Mapping) else None
        for mount in mounts if isinstance(mounts, list) else ():
            found += [str(mount["mountPath"])] if isinstance(mount, Mapping) and mount.get("mountPath") else []
    return [posixpath.normpath(path) for path in found]


def paths(case: Case) -> Iterator[Issue]:
    """What is written outside a volume is gone with the pod, and what is read there is looked for in the image."""
    if not on_kubernetes(case):
        return
    for field in PATHS:
        group, _, name = field.partition(".")
        seen = getattr(getattr(case.experiment, group), name)
        if not isinstance(seen, str) or not seen.startswith("/"):
            continue
        path = posixpath.normpath(seen)
        if not any(path == at or path.startswith(at.rstrip("/") + "/") for at in mounted(case)):
            out = field == "checkpoint.directory"
            lost = "checkpoints written there are lost with the pod" if out else "it is looked for in the image"
            message = f"{field}={seen} is on no volume: {lost}; {case.experiment.target.kubernetes.mount} is one"
            typed = (
                f"{field}=null (the run's own folder)"
                if out
                else f"{field}={case.experiment.target.kubernetes.mount}/..."
            )
            yield warning("KUBERNETES_PATH", field, message, f"type {typed}")


def secrets(case: Case) -> Iterator[Issue]:
    """Each variable of env.secrets comes from a Secret of the cluster, by reference."""
    if not on_kubernetes(case):
        return
    wanted, names = case.experiment.target.kubernetes, case.experiment.env.secrets
    for name in sorted(set(names)):
        if name not in wanted.secrets:
            message = f"{name} is a secret (env.secrets): pods do not get it from your shell, but from a Secret of the cluster"
            hint = f"kubectl create secret generic NAME --from-literal=KEY=...; then type {K}.secrets.{name}=NAME/KEY"
            yield error("KUBERNETES_SECRET", f"{K}.secrets", message, hint)
    for name, reference in wanted.secrets.items():
        secret, slash, key = reference.partition("/") if isinstance(reference, str) else ("", "", "")
        if not slash or not is_subdomain(secret) or not is_key(key):
            # The text itself is not repeated: it may be the secret.
            message = f"{K}.secrets.{name} wants SECRET/KEY: the names of a Secret in the cluster and of a key in it"
            yield error("KUBERNETES_SECRET", f"{K}.secrets.{name}", message, f"type {K}.secrets.{name}=NAME/KEY")
        elif name not in names:
            message = f"{K}.secrets.{name} is not read: env.secrets does not name {name}"
            kept = ",".join([*names, str(name)])
            yield warning("KUBERNETES_SECRET_UNUSED", f"{K}.secrets.{name}", message, f"type 'env.secrets=[{kept}]'")


def start(case: Case) -> Iterator[Issue]:
    """JAX's own detection of SLURM finds none in a pod."""
    if on_kubernetes(case) and case.experiment.trainer.start == "autodetect":
        message = "trainer.start=autodetect lets JAX find its processes in SLURM's variables, which a pod does not have"
        yield error("KUBERNETES_START", "trainer.start", message, "type trainer.start=env")


RULES: tuple[Rule, ...] = (experiment_name, words, storage, image, paths, secrets, start)
