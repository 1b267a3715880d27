"""The documents of a bundle's jobset.yaml, and the two things that differ from start to start: the attempt's number and the
nodes to do without."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ARTEFACT = "jobset.yaml"
"""What is applied: this file of the bundle."""

FIRST_ATTEMPT = "launcher/first-attempt"
"""Annotation of the pods: the number of the attempt that the JobSet's first start is; its restarts count on from there."""

_HOSTNAME = "kubernetes.io/hostname"

Document = dict[str, Any]


@dataclass(frozen=True)
class Manifest:
    """The documents in their order: what pods read, what they claim, the JobSet."""

    documents: tuple[Document, ...]

    @property
    def jobset(self) -> Document:
        """The JobSet."""
        return next(document for document in self.documents if document["kind"] == "JobSet")

    @property
    def name(self) -> str:
        """The JobSet's."""
        return str(self.jobset["metadata"]["name"])

    @property
    def namespace(self) -> str | None:
        """None = the context's."""
        named = self.jobset["metadata"].get("namespace")
        return str(named) if named else None

    def names(self, kind: str) -> list[str]:
        """The names of the documents of that kind."""
        return [str(document["metadata"]["name"]) for document in self.documents if document["kind"] == kind]

    @property
    def templates(self) -> list[Document]:
        """The pod templates, one a replicated job."""
        return _templates(self.jobset)

    @property
    def pods_per_job(self) -> int:
        """Pods of one Job; with several Jobs a node's index counts on over them."""
        return int(self.jobset["spec"]["replicatedJobs"][0]["template"]["spec"].get("parallelism") or 1)

    @property
    def pods(self) -> int:
        """Pods of the whole JobSet: the nodes of the run."""
        return sum(
            int(job.get("replicas", 1)) * int(job["template"]["spec"].get("parallelism") or 1)
            for job in self.jobset["spec"]["replicatedJobs"]
        )

    @property
    def claim(self) -> str:
        """The volume claim that keeps the run's files."""
        volumes = [volume for template in self.templates for volume in template["spec"].get("volumes") or ()]
        claims = [
            volume["persistentVolumeClaim"]["claimName"] for volume in volumes if "persistentVolumeClaim" in volume
        ]
        return str(claims[0]) if claims else ""

    @property
    def grace_seconds(self) -> float:
        """How long a pod may take to end."""
        return max(float(template["spec"].get("terminationGracePeriodSeconds", 30)) for template in self.templates)


def parse(text: str) -> Manifest:
    """The manifest in the text of a jobset.yaml."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return Manifest(tuple(document for document in yaml.load_all(text, loader) if document))


def read(bundle: Path) -> Manifest:
    """The manifest of a bundle's folder."""
    return parse((bundle / ARTEFACT).read_text(encoding="utf-8"))


def settings(bundle: Path) -> dict[str, Any]:
    """target.kubernetes of a bundle's experiment."""
    return settings_in((bundle / "experiment.yaml").read_text(encoding="utf-8"))


def settings_in(experiment: str) -> dict[str, Any]:
    """The same of the text of an experiment.yaml."""
    import yaml

    return ((yaml.safe_load(experiment) or {}).get("target") or {}).get("kubernetes") or {}


def for_attempt(manifest: Manifest, attempt: int, exclude: Iterable[str] = ()) -> Manifest:
    """The same, started as that attempt and on none of these nodes; nothing else differs."""
    made = Manifest(tuple(copy.deepcopy(manifest.documents)))
    excluded = sorted(set(exclude))
    for template in made.templates:
        template["metadata"].setdefault("annotations", {})[FIRST_ATTEMPT] = str(attempt)
        if excluded:
            _exclude(template["spec"], excluded)
    return made


def _exclude(pod: Document, nodes: Sequence[str]) -> None:
    """Required of every term, since one that fits is enough for the scheduler."""
    affinity = pod.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    terms = affinity.setdefault("requiredDuringSchedulingIgnoredDuringExecution", {}).setdefault(
        "nodeSelectorTerms", []
    )
    for term in terms or [terms.append({}) or terms[0]]:
        term.setdefault("matchExpressions", []).append({"key": _HOSTNAME, "operator": "NotIn", "values": list(nodes)})


def first_attempt(jobset: Document) -> int | None:
    """The attempt that a JobSet, ours or the cluster's, began with; None for one that does not say."""
    for template in _templates(jobset):
        said = str((template.get("metadata") or {}).get("annotations", {}).get(FIRST_ATTEMPT, ""))
        return int(said) if said.isdigit() else None
    return None


def _templates(jobset: Document) -> list[Document]:
    return [job["template"]["spec"]["template"] for job in jobset["spec"]["replicatedJobs"]]
