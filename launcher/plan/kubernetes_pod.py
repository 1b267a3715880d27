"""What the API server would refuse in a pod, beyond its schema (k8s.io/kubernetes, pkg/apis/core/validation)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from launcher.plan.kubernetes_scheduling import dicts, scheduling_faults, word
from launcher.plan.kubernetes_schema import Fault, element
from launcher.plan.kubernetes_syntax import (
    KEY_WORDS,
    LABEL_WORDS,
    SUBDOMAIN_WORDS,
    VALUE_WORDS,
    is_key,
    is_label,
    is_label_value,
    is_qualified,
    is_subdomain,
    is_variable,
    quantity,
)
from launcher.suggest import suggest

Found = Iterator[Fault]

CORE = ("cpu", "memory", "ephemeral-storage")
"""Resources that may be overcommitted; any other (a device) is asked for whole, request = limit."""

DNS_POLICIES = ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None")
MOST_ANNOTATION_BYTES = 256 << 10
PULL_POLICIES = ("Always", "IfNotPresent", "Never")
MESSAGE_POLICIES = ("File", "FallbackToLogsOnError")
PROPAGATIONS = ("None", "HostToContainer", "Bidirectional")
PROTOCOLS = ("TCP", "UDP", "SCTP")
PREEMPTION_POLICIES = ("PreemptLowerPriority", "Never")
USER_FIELDS = ("runAsUser", "runAsGroup", "fsGroup")
PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
HANDLERS = ("exec", "httpGet", "tcpSocket", "grpc")
TEXT_SOURCES = ("fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef")


def _each(spec: Mapping[str, Any], key: str, path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for number, one in enumerate(dicts(spec.get(key))):
        yield element(f"{path}.{key}", one, number), one


def _named(spec: Mapping[str, Any], key: str, path: str, fits: Callable[[str], bool], words: str) -> Found:
    """Names of a list: there, well-formed, each once."""
    seen: set[str] = set()
    for inner, one in _each(spec, key, path):
        name = one.get("name")
        if not isinstance(name, str) or not fits(name):
            yield Fault(f"{inner}.name", f"{name!r} is no name here", f"wanted {words}")
        elif name in seen:
            yield Fault(f"{path}.{key}", f"two elements are called {name}", "give each its own name")
        seen.add(str(name))


def pod_faults(template: Mapping[str, Any]) -> Found:
    """Every fault of a pod template (its `metadata` and `spec`)."""
    yield from _metadata(template.get("metadata", {}))
    spec = template.get("spec", {})
    if not isinstance(spec, Mapping):
        return
    yield from _volumes(spec)
    yield from _named(spec, "resourceClaims", "spec", is_label, LABEL_WORDS)
    for inner, claim in _each(spec, "resourceClaims", "spec"):
        if len([key for key in ("resourceClaimName", "resourceClaimTemplateName") if claim.get(key)]) != 1:
            hint = "give one of resourceClaimName and resourceClaimTemplateName"
            yield Fault(inner, "a claim names a claim or a template of claims, one of the two", hint)
    names: list[str] = []
    for key in ("initContainers", "containers"):
        yield from _named(spec, key, "spec", is_label, LABEL_WORDS)
        for inner, container in _each(spec, key, "spec"):
            if container.get("name") in names:
                yield Fault(inner, f"two containers are called {container.get('name')}", "give each its own name")
            yield from _container(container, spec, inner)
        names += [str(one.get("name")) for one in dicts(spec.get(key))]
    yield from scheduling_faults(spec)
    yield from _scalars(spec)


def _metadata(about: object) -> Found:
    if not isinstance(about, Mapping):
        yield Fault("metadata", "wanted a mapping", "write labels and annotations below it")
        return
    for key in about:
        if key not in ("labels", "annotations"):
            near = suggest(str(key), ("labels", "annotations"))
            hint = f"did you mean {near[0]}?" if near else "a pod template takes labels and annotations here"
            yield Fault(f"metadata.{key}", f"{key} cannot be set: the Job's controller names its pods", hint)
    for group in ("labels", "annotations"):
        found = about.get(group) or {}
        if not isinstance(found, Mapping):
            yield Fault(f"metadata.{group}", "wanted a mapping of text to text", "write KEY: VALUE below it")
            continue
        for key, value in found.items():
            path = f"metadata.{group}.{key}"
            if not is_qualified(str(key).lower() if group == "annotations" else str(key)):
                yield Fault(path, f"{key} cannot be a key", f"wanted {KEY_WORDS}")
            if not isinstance(value, str):
                yield Fault(path, f"{value!r}, wanted text (in quotes)", f'write "{value}"')
            elif group == "labels" and not is_label_value(value):
                yield Fault(path, f"{value!r} cannot be a label's value", f"wanted {VALUE_WORDS}")
        if group == "annotations":
            size = sum(len(str(key)) + len(str(value)) for key, value in found.items())
            if size > MOST_ANNOTATION_BYTES:
                hint = f"shorten them to {MOST_ANNOTATION_BYTES} bytes, all together"
                yield Fault("metadata.annotations", f"the annotations have {size} bytes", hint)


def _volumes(spec: Mapping[str, Any]) -> Found:
    yield from _named(spec, "volumes", "spec", is_label, LABEL_WORDS)
    for inner, volume in _each(spec, "volumes", "spec"):
        sources = sorted(key for key in volume if key != "name")
        if len(sources) != 1:
            seen = (
                "no source (it would be an empty folder)"
                if not sources
                else f"{len(sources)} sources: {', '.join(sources)}"
            )
            yield Fault(inner, f"volume {volume.get('name')} has {seen}", "give it one, such as hostPath or emptyDir")
        host, empty = volume.get("hostPath"), volume.get("emptyDir")
        if isinstance(host, Mapping):
            if not host.get("path"):
                yield Fault(f"{inner}.hostPath", "the node's path is missing", "add path: /FOLDER")
            elif ".." in str(host["path"]).split("/"):
                yield Fault(f"{inner}.hostPath.path", f"{host['path']} has .. in it", "write the path without ..")
        if isinstance(empty, Mapping) and "sizeLimit" in empty:
            size = quantity(empty["sizeLimit"])
            if size is None or size < 0:
                hint = "write a size such as 32Gi"
                yield Fault(f"{inner}.emptyDir.sizeLimit", f"{empty['sizeLimit']!r} is no size", hint)
        for key in ("configMap", "secret", "downwardAPI"):
            source = volume.get(key)
            for item in dicts(source.get("items")) if isinstance(source, Mapping) else ():
                sub = str(item.get("path") or "")
                if not sub or sub.startswith("/") or ".." in sub.split("/"):
                    yield Fault(
                        f"{inner}.{key}.items", f"{sub!r} leaves the volume", "write a relative path without .."
                    )
        claim = volume.get("persistentVolumeClaim")
        if isinstance(claim, Mapping) and not is_subdomain(str(claim.get("claimName") or "")):
            yield Fault(
                f"{inner}.persistentVolumeClaim", f"{claim.get('claimName')!r} is no claim's name", SUBDOMAIN_WORDS
            )


def _container(container: Mapping[str, Any], spec: Mapping[str, Any], path: str) -> Found:
    image = container.get("image")
    if not isinstance(image, str) or not image or image != image.strip():
        yield Fault(f"{path}.image", f"{image!r} is no image", "write REGISTRY/IMAGE:TAG")
    for key, legal in (("imagePullPolicy", PULL_POLICIES), ("terminationMessagePolicy", MESSAGE_POLICIES)):
        if container.get(key):
            yield from word(f"{path}.{key}", container[key], legal)
    yield from _mounts(container, spec, path)
    yield from _variables(container, path)
    yield from _handlers(container, path)
    yield from _resources(container, spec, path)
    for inner, port in _each(container, "ports", path):
        number, host = port.get("containerPort"), port.get("hostPort")
        if not isinstance(number, int) or not 1 <= number <= 65535:
            yield Fault(f"{inner}.containerPort", f"{number!r} is no port", "wanted 1 to 65535")
        if port.get("protocol"):
            yield from word(f"{inner}.protocol", port["protocol"], PROTOCOLS)
        if spec.get("hostNetwork") and host not in (None, number):
            yield Fault(f"{inner}.hostPort", f"{host}, but on the host's network it is {number}", "leave hostPort out")
    security = container.get("securityContext")
    yield from _users(security, f"{path}.securityContext")
    if (
        isinstance(security, Mapping)
        and security.get("privileged")
        and security.get("allowPrivilegeEscalation") is False
    ):
        hint = "leave allowPrivilegeEscalation out"
        yield Fault(f"{path}.securityContext", "privileged, and allowPrivilegeEscalation is false", hint)


def _users(security: object, path: str) -> Found:
    """Numbers of users and groups, the container's or the pod's."""
    for key in USER_FIELDS:
        seen = security.get(key) if isinstance(security, Mapping) else None
        if isinstance(seen, int) and not 0 <= seen < 1 << 31:
            yield Fault(f"{path}.{key}", f"{seen} is no user or group", "write a number from 0 to 2147483647")


def _mounts(container: Mapping[str, Any], spec: Mapping[str, Any], path: str) -> Found:
    volumes = [str(one.get("name")) for one in dicts(spec.get("volumes"))]
    seen: set[str] = set()
    for number, mount in enumerate(dicts(container.get("volumeMounts"))):
        name, where = mount.get("name"), str(mount.get("mountPath") or "")
        inner = f"{path}.volumeMounts.{number}"
        if name not in volumes:
            near = suggest(str(name), volumes)
            hint = f"did you mean {near[0]}? " if near else ""
            yield Fault(f"{inner}.name", f"there is no volume {name}", f"{hint}add it to spec.volumes")
        if not where or ":" in where:
            yield Fault(f"{inner}.mountPath", f"{where!r} is no path to mount at", "write an absolute path without :")
        elif where in seen:
            yield Fault(f"{inner}.mountPath", f"two volumes are mounted at {where}", "give each its own path")
        seen.add(where)
        if mount.get("mountPropagation"):
            yield from word(f"{inner}.mountPropagation", mount["mountPropagation"], PROPAGATIONS)
        sub = str(mount.get("subPath") or "")
        if sub.startswith("/") or ".." in sub.split("/"):
            yield Fault(f"{inner}.subPath", f"{sub} leaves the volume", "write a relative path without ..")


def _variables(container: Mapping[str, Any], path: str) -> Found:
    for inner, one in _each(container, "env", path):
        name, source = one.get("name"), one.get("valueFrom")
        if not isinstance(name, str) or not is_variable(name):
            yield Fault(
                f"{inner}.name", f"{name!r} is no variable's name", "wanted letters, digits and _, no digit first"
            )
        if source is None:
            continue
        if one.get("value"):
            yield Fault(inner, f"{name} has a value and valueFrom", "keep one of them")
        given = [key for key in TEXT_SOURCES if key in source] if isinstance(source, Mapping) else []
        if len(given) != 1:
            yield Fault(
                f"{inner}.valueFrom", f"{name} has {len(given)} sources", f"give one of {', '.join(TEXT_SOURCES)}"
            )
            continue
        reference = source[given[0]]
        if given[0].endswith("KeyRef") and isinstance(reference, Mapping):
            fits = is_subdomain(str(reference.get("name") or "")) and is_key(str(reference.get("key") or ""))
            if not fits:
                yield Fault(f"{inner}.valueFrom.{given[0]}", f"{name} refers to no object's key", "give name and key")


def _handlers(container: Mapping[str, Any], path: str) -> Found:
    """Probes and hooks each do one thing; variables taken from a whole object come from one."""
    for number, one in enumerate(dicts(container.get("envFrom"))):
        inner, prefix = f"{path}.envFrom.{number}", str(one.get("prefix") or "")
        sources = [one[key] for key in ("configMapRef", "secretRef") if isinstance(one.get(key), Mapping)]
        if len(sources) != 1 or not is_subdomain(str(sources[0].get("name") or "")):
            yield Fault(
                inner, "it names no ConfigMap or Secret", "give one of configMapRef and secretRef, with its name"
            )
        if prefix and not is_variable(prefix):
            yield Fault(f"{inner}.prefix", f"{prefix!r} cannot begin a variable's name", "wanted letters, digits and _")
    lifecycle = container.get("lifecycle")
    found: list[tuple[str, Any]] = [(f"{path}.{key}", container.get(key)) for key in PROBES]
    if isinstance(lifecycle, Mapping):
        found += [(f"{path}.lifecycle.{key}", lifecycle.get(key)) for key in ("postStart", "preStop")]
    for inner, one in found:
        if not isinstance(one, Mapping):
            continue  # it is not there
        given = [key for key in HANDLERS if one.get(key) is not None]
        if len(given) != 1 and "sleep" not in one:
            yield Fault(inner, f"it has {len(given)} things to do", f"give one of {', '.join(HANDLERS)}")
        for key, value in one.items():
            if isinstance(value, int) and not isinstance(value, bool) and value < 0:
                yield Fault(f"{inner}.{key}", f"{value}, wanted 0 or more", f"write {key}: 1")
        if inner.endswith("livenessProbe") and one.get("successThreshold") not in (None, 0, 1):
            yield Fault(f"{inner}.successThreshold", "it must be 1 here", "leave successThreshold out")
        port = one[given[0]].get("port") if given and isinstance(one[given[0]], Mapping) else None
        if isinstance(port, int) and not 1 <= port <= 65535:
            yield Fault(f"{inner}.{given[0]}.port", f"{port} is no port", "wanted 1 to 65535")


def _resources(container: Mapping[str, Any], spec: Mapping[str, Any], path: str) -> Found:
    wanted = container.get("resources")
    if not isinstance(wanted, Mapping):
        return
    inner = f"{path}.resources"
    amounts: dict[str, dict[str, Any]] = {"requests": {}, "limits": {}}
    for group, found in amounts.items():
        for name, value in (wanted.get(group) or {}).items():
            field, amount = f"{inner}.{group}.{name}", quantity(value)
            if amount is None or amount < 0:
                yield Fault(
                    field, f"{value!r} is no quantity", "write a number with a unit of Kubernetes: 500m, 4, 850Gi"
                )
                continue
            if name not in CORE and not name.startswith("hugepages-"):
                if "/" not in name or not is_qualified(name):
                    near = suggest(name, CORE)
                    hint = (
                        f"did you mean {near[0]}?" if near else "a device's name is DOMAIN/NAME, such as nvidia.com/gpu"
                    )
                    yield Fault(field, f"there is no resource {name}", hint)
                elif amount.denominator != 1:
                    yield Fault(field, f"{value!r} of {name}: a device is not shared", "write a whole number")
            found[name] = amount
    for name, amount in amounts["requests"].items():
        limit = amounts["limits"].get(name)
        device = name not in CORE
        if limit is not None and (amount > limit or (device and amount != limit)):
            wanted_words = "the same as" if device else "at most"
            hint = f"make the request {wanted_words} the limit"
            yield Fault(f"{inner}.requests.{name}", f"{name}: request and limit do not fit", hint)
        elif limit is None and device:
            yield Fault(f"{inner}.limits", f"{name} is requested without a limit", f"add limits: {{{name}: ...}}")
    yield from _claims(wanted, spec, inner)


def _claims(wanted: Mapping[str, Any], spec: Mapping[str, Any], path: str) -> Found:
    declared = [str(one.get("name")) for one in dicts(spec.get("resourceClaims"))]
    for one in dicts(wanted.get("claims")):
        if one.get("name") not in declared:
            near = suggest(str(one.get("name")), declared)
            hint = f"did you mean {near[0]}? " if near else ""
            yield Fault(
                f"{path}.claims",
                f"there is no resource claim {one.get('name')}",
                f"{hint}add it to spec.resourceClaims",
            )


def _scalars(spec: Mapping[str, Any]) -> Found:
    policy = spec.get("dnsPolicy", DNS_POLICIES[0])
    if policy not in DNS_POLICIES:
        near = suggest(str(policy), DNS_POLICIES) or DNS_POLICIES
        yield Fault("spec.dnsPolicy", f"{policy!r}, wanted {', '.join(DNS_POLICIES)}", f"write dnsPolicy: {near[0]}")
    if policy == "None" and not (spec.get("dnsConfig") or {}).get("nameservers"):
        yield Fault("spec.dnsPolicy", "None without dnsConfig.nameservers", "write dnsPolicy: ClusterFirst")
    yield from _users(spec.get("securityContext"), "spec.securityContext")
    for key in ("serviceAccountName", "priorityClassName", "runtimeClassName"):
        if spec.get(key) and not is_subdomain(str(spec[key])):
            yield Fault(f"spec.{key}", f"{spec[key]!r} is no name", f"wanted {SUBDOMAIN_WORDS}")
    if spec.get("preemptionPolicy"):
        yield from word("spec.preemptionPolicy", spec["preemptionPolicy"], PREEMPTION_POLICIES)
    for key, least in (("terminationGracePeriodSeconds", 0), ("activeDeadlineSeconds", 1)):
        seen = spec.get(key)
        if isinstance(seen, int) and seen < least:
            yield Fault(f"spec.{key}", f"{seen}, wanted {least} or more", f"write {key}: {least}, or leave it out")
    if spec.get("restartPolicy") not in ("Never",):
        hint = "leave restartPolicy out: it is Never"
        yield Fault("spec.restartPolicy", f"{spec.get('restartPolicy')!r}: a pod failure policy wants Never", hint)
