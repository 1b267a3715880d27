"""What a pod's container means on this machine: its command, its environment and its folders.

There is no container: the command runs as a process that sees the machine's files. Wherever the resolved command line and environment
hold a mount path (as a whole or as the beginning of a path), the folder that plays the volume is put instead; host names of the pods,
`<job>-<index>.<subdomain>`, become 127.0.0.1. Files are left alone, those of a ConfigMap too: what is to run here must take
its paths from the command line or the environment.
"""

from __future__ import annotations

import base64
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from k8s.testbed.client import Object, Refused

REFERENCE = re.compile(r"\$(\$|\((\w[\w.-]*)\))")
ADDRESS = "127.0.0.1"
FIELD = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")
Read = Callable[[str, str], Object]  # (configmaps | secrets, name) -> the object; Refused if it is not there


class NotYet(Exception):
    """The container cannot be created now; the kubelet tries again: a container's waiting reason and message."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def expand(text: str, variables: dict[str, str]) -> str:
    """Replace $(NAME) as Kubernetes does: an unknown one stays, $$ is a dollar sign."""

    def one(found: re.Match[str]) -> str:
        return "$" if found[1] == "$" else variables.get(found[2], found[0])

    return REFERENCE.sub(one, text)


def environment(pod: Object, container: Object, read: Read) -> dict[str, str]:
    """Give the container's variables in their order. Errors: NotYet if a ConfigMap, a Secret or a key is missing."""
    given: dict[str, str] = {}
    for source in container.get("envFrom", ()):
        kind = "configMapRef" if "configMapRef" in source else "secretRef"
        for key, value in _data(kind.removesuffix("Ref"), source[kind], read).items():
            given[source.get("prefix", "") + key] = value
    for one in container.get("env", ()):
        origin = one.get("valueFrom")
        if not origin:
            given[one["name"]] = expand(one.get("value", ""), given)
        elif "fieldRef" in origin:
            given[one["name"]] = _field(pod, origin["fieldRef"]["fieldPath"])
        elif "secretKeyRef" in origin or "configMapKeyRef" in origin:
            kind = "secret" if "secretKeyRef" in origin else "configMap"
            reference = origin[f"{kind}KeyRef"]
            data = _data(kind, reference, read)
            if reference["key"] in data:
                given[one["name"]] = data[reference["key"]]
            elif not reference.get("optional"):
                name, space = reference["name"], pod["metadata"]["namespace"]
                said = f"couldn't find key {reference['key']} in {kind.capitalize()} {space}/{name}"
                raise NotYet("CreateContainerConfigError", said)
        else:
            raise NotYet("CreateContainerConfigError", f"the test bed knows no env source {', '.join(origin)}")
    return given


def mounts(pod: Object, container: Object, home: Path, claim: Path, read: Read) -> dict[str, Path]:
    """Make the container's volumes below `home` and give the folder (or file) of each mount path. Errors: NotYet."""
    volumes = {one["name"]: one for one in pod["spec"].get("volumes", ())}
    found = {}
    for mount in container.get("volumeMounts", ()):
        folder = _volume(volumes[mount["name"]], home / "volumes" / mount["name"], claim, read)
        if folder is not None:
            found[mount["mountPath"].rstrip("/")] = folder / mount.get("subPath", "")
    return found


def translate(text: str, folders: dict[str, Path], hosts: list[str]) -> str:
    """Put this machine's folders for mount paths, and its address for pods' host names."""
    longest_first = "|".join(re.escape(path) for path in sorted(folders, key=len, reverse=True))
    if folders:
        text = re.sub(rf"(?<![\w.\-/])({longest_first})(?=$|[^\w.\-])", lambda found: str(folders[found[1]]), text)
    for host in hosts:
        text = re.sub(
            rf"(?<![\w.\-]){re.escape(host)}(\.[\w\-]+\.svc(\.cluster\.local)?)?(?=$|[^\w.\-])", ADDRESS, text
        )
    return text


def hosts_of(pods: list[Object]) -> list[str]:
    """Give the host names under which the pods are found in their namespace."""
    specs = [pod["spec"] for pod in pods if pod["spec"].get("subdomain")]
    return sorted({f"{spec['hostname']}.{spec['subdomain']}" for spec in specs}, key=len, reverse=True)


def _field(pod: Object, path: str) -> str:
    if found := FIELD.fullmatch(path):
        return str(pod["metadata"].get(found[1], {}).get(found[2], ""))
    simple: dict[str, str] = {
        "metadata.name": pod["metadata"]["name"],
        "metadata.namespace": pod["metadata"]["namespace"],
        "metadata.uid": pod["metadata"]["uid"],
        "spec.nodeName": pod["spec"].get("nodeName", ""),
        "spec.serviceAccountName": pod["spec"].get("serviceAccountName", "default"),
        "status.hostIP": ADDRESS,
        "status.podIP": ADDRESS,
        "status.podIPs": ADDRESS,
    }
    if path not in simple:
        raise NotYet("CreateContainerConfigError", f"the test bed knows no field {path}")
    return simple[path]


def _data(kind: str, reference: Object, read: Read) -> dict[str, str]:
    """Give the data of a ConfigMap or Secret as text; empty if it is not there and need not be."""
    collection = f"{kind.lower()}s"
    try:
        found = read(collection, reference.get("name") or reference["secretName"])
    except Refused as why:
        if why.code != 404:
            raise NotYet("CreateContainerConfigError", str(why)) from why
        if reference.get("optional"):
            return {}
        raise NotYet("CreateContainerConfigError", why.message) from why
    if kind == "configMap":
        data = {key: base64.b64decode(value).decode() for key, value in found.get("binaryData", {}).items()}
        data.update(found.get("data", {}))
        return data
    return {key: base64.b64decode(value).decode() for key, value in found.get("data", {}).items()}


def _volume(volume: dict[str, Any], folder: Path, claim: Path, read: Read) -> Path | None:
    """Make one volume; None if the machine's own path plays it (hostPath)."""
    if "persistentVolumeClaim" in volume:
        return claim
    if "hostPath" in volume:
        return None
    if "emptyDir" in volume:
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    kind = next((kind for kind in ("configMap", "secret") if kind in volume), None)
    if kind is None:
        raise NotYet("ContainerCreating", f"the test bed knows no volume of the kind of {volume['name']}")
    source = volume[kind]
    try:
        data = _data(kind, source, read)
    except NotYet as why:
        raise NotYet("ContainerCreating", f'MountVolume.SetUp failed for volume "{volume["name"]}": {why}') from why
    shutil.rmtree(folder, ignore_errors=True)
    paths = {item["key"]: item["path"] for item in source.get("items", ())} or {key: key for key in data}
    for key, path in paths.items():
        if key not in data:
            raise NotYet("ContainerCreating", f'references non-existent config key: {key} (volume "{volume["name"]}")')
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(data[key], encoding="utf-8")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
