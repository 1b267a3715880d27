"""The manifest as a kustomize base: what an overlay's prefix, namespace and images reach, and what they would miss without help.

kustomize knows which fields of its own kinds name other objects; those of a JobSet it has to be told (kustomize issue 4674).
An overlay takes them over from its base.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from launcher.issue import Issue, Refused, Severity
from launcher.render.folder import ARTEFACTS, Bundle
from launcher.render.manifest_text import document

MANIFEST = ARTEFACTS["kubernetes"]
REFERENCES = "namereference.yaml"

_POD = "spec/replicatedJobs/template/spec/template/spec"
_CONTAINERS = (f"{_POD}/containers", f"{_POD}/initContainers")


def _in_jobset(*paths: str) -> list[dict[str, str]]:
    return [{"path": path, "kind": "JobSet"} for path in paths]


def _in_containers(*paths: str) -> list[dict[str, str]]:
    return _in_jobset(*(f"{containers}/{path}" for containers in _CONTAINERS for path in paths))


def references() -> dict[str, Any]:
    """Kind -> the fields of a JobSet that hold the name of one. A ComputeDomain's claim template is called as it is itself."""
    domain = {"path": "spec/channel/resourceClaimTemplate/name", "kind": "ComputeDomain"}
    files = [
        *_in_containers("env/valueFrom/configMapKeyRef/name", "envFrom/configMapRef/name"),
        *_in_jobset(f"{_POD}/volumes/configMap/name"),
    ]
    keys = [
        *_in_containers("env/valueFrom/secretKeyRef/name", "envFrom/secretRef/name"),
        *_in_jobset(f"{_POD}/volumes/secret/secretName", f"{_POD}/imagePullSecrets/name"),
    ]
    claims = _in_jobset(f"{_POD}/volumes/persistentVolumeClaim/claimName")
    found: list[dict[str, Any]] = [
        {"kind": "ConfigMap", "version": "v1", "fieldSpecs": files},
        {"kind": "Secret", "version": "v1", "fieldSpecs": keys},
        {"kind": "ServiceAccount", "version": "v1", "fieldSpecs": _in_jobset(f"{_POD}/serviceAccountName")},
        {"kind": "PersistentVolumeClaim", "version": "v1", "fieldSpecs": claims},
        {
            "kind": "ComputeDomain",
            "group": "resource.nvidia.com",
            "fieldSpecs": [*_in_jobset(f"{_POD}/resourceClaims/resourceClaimTemplateName"), domain],
        },
    ]
    return {"nameReference": found}


def _kustomization(resources: Iterable[str]) -> dict[str, Any]:
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": list(resources),
        "configurations": [REFERENCES],
    }


def base(bundle: Bundle) -> Mapping[str, str]:
    """File -> text of a kustomize base for a bundle of the kubernetes target.

    Raises:
        Refused: the bundle is for another target.
    """
    if MANIFEST not in bundle.files:
        message = f"{bundle.name} is not for Kubernetes: a kustomize base is made of its {MANIFEST}"
        raise Refused(Issue("KUSTOMIZE_TARGET", Severity.ERROR, "target", message, "type target=kubernetes"))
    return {
        "kustomization.yaml": document(_kustomization([MANIFEST])),
        REFERENCES: "# Which fields of a JobSet name other objects.\n" + document(references()),
        MANIFEST: bundle.files[MANIFEST].decode(),
    }
