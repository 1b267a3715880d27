"""jobset.yaml: everything that a run is in a Kubernetes cluster, complete: what a person can hand to kubectl, and what is submitted."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from launcher.config.schema import Experiment
from launcher.issue import Issue, Refused, Severity
from launcher.plan.kubernetes import CONTAINER, HASH, JOB, Names, base_name, memory, named, spans_nodes, wants_domain
from launcher.plan.kubernetes_objects import compute_domain, jobset, key_of, metadata
from launcher.plan.mesh import MeshPlan
from launcher.render.manifest_text import Comments, document

PODS_READ = ("maxtext.yml", "env", "xla_flags", "launch.json", "failures.json")
"""Files of the bundle that a pod needs, beside the worker (node/)."""

MOST_BYTES = 1 << 20
"""Of a ConfigMap's data, keys included (Kubernetes, MaxSecretSize; etcd takes 1.5 MiB a request)."""

HEAD = """\
# {name}: {nodes} node{plural} under JobSet. Submitted as it stands, by the launcher or by hand:
#     kubectl apply --server-side --field-manager=launcher -f jobset.yaml
# Made by `launcher render`; a changed experiment has another name, since most of a JobSet cannot be changed.
"""

_JOB = f"spec.replicatedJobs.{JOB}.template.spec"
_POD = f"{_JOB}.template.spec"


def jobset_name(experiment: Experiment, mesh: MeshPlan, files: Mapping[str, str]) -> str:
    """The JobSet's name for these files of the bundle, <experiment>-<hash of all that the objects hold but their names>."""
    return _names(experiment, mesh, files).jobset


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _names(experiment: Experiment, mesh: MeshPlan, files: Mapping[str, str]) -> Names:
    data = "".join(f"{_sha(text)}  {path}\n" for path, text in sorted(files.items()))
    base, zeros = base_name(experiment.name), "0" * HASH
    nameless = "".join(map(document, _objects(experiment, mesh, files, named(base, zeros, zeros))[1:]))
    return named(base, _sha(data + nameless), _sha(data))


def _config_map(experiment: Experiment, files: Mapping[str, str], names: Names) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(experiment, names.files, names),
        "immutable": True,
        "data": {key_of(path): text for path, text in sorted(files.items())},
    }


def _objects(experiment: Experiment, mesh: MeshPlan, files: Mapping[str, str], names: Names) -> list[dict[str, Any]]:
    """In the order in which they are applied: a pod never waits for what comes after it."""
    found = [_config_map(experiment, files, names)]
    if wants_domain(experiment, mesh):
        found.append(compute_domain(experiment, names))
    return [*found, jobset(experiment, mesh, names, sorted(files))]


def _comments(experiment: Experiment, mesh: MeshPlan) -> Comments:
    """Why it is so, where that is not obvious."""
    needed, kueue = memory(experiment, mesh), f"{_JOB}.template.metadata.annotations.kueue.x-k8s.io/podset-"
    share = mesh.nodes_per_domain
    found = {
        "spec.failurePolicy.restartStrategy": "New pods wait until all old ones are gone: else they meet in one JAX world.",
        "spec.failurePolicy.rules": (
            "The first that fits the failed Job's message; any other failure restarts all pods and counts.\n"
            "Taken nodes do not count: the worker bounds them (monitor.max_preemptions) by the attempts on the volume."
        ),
        f"{_JOB}.backoffLimit": "A lost pod ends the Job at once: a gang does not run with a new member.",
        f"{_JOB}.podReplacementPolicy": "Never two pods of one index.",
        f"{_JOB}.podFailurePolicy": "So that the Job's message names the cause, for the rules above.",
        f"{_POD}.terminationGracePeriodSeconds": "trainer.stop_grace_seconds for a checkpoint, and a minute to say so.",
        f"{_POD}.containers.{CONTAINER}.command": "One worker a node; it starts the trainer processes.",
        f"{_POD}.containers.{CONTAINER}.env": "The trainer's own variables are in the ConfigMap (env); these say which pod this is.",
        f"{kueue}required-topology": "All pods in one NVLink domain.",
        f"{kueue}slice-required-topology": f"Each {share} pods, in the order of their indexes, in one NVLink domain: the mesh's ICI part.",
        f"{_POD}.volumes.files": "Read-only; the folder is laid out as the bundle.",
        f"{_POD}.volumes.runs": "Checkpoints and the workers' records. It must exist, and is never deleted with the run.",
    }  # fmt: skip
    if needed is not None and experiment.target.kubernetes.memory_gib is None:
        found[f"{_POD}.containers.{CONTAINER}.resources"] = f"Memory: {needed.text}; no limit, since the node is ours."
    if spans_nodes(mesh, experiment) and wants_domain(experiment, mesh):
        found[f"{_POD}.resourceClaims"] = "The claim template is made by the ComputeDomain's controller."
    return found


def manifest(experiment: Experiment, mesh: MeshPlan, files: Mapping[str, str]) -> list[dict[str, Any]]:
    """The objects of the run. `files`: path in the bundle -> text, those that pods read.

    Raises:
        Refused: they are too large for a ConfigMap.
    """
    size = sum(len(key_of(path)) + len(text.encode()) for path, text in files.items())
    if size > MOST_BYTES:
        largest = max(files, key=lambda path: len(files[path]))
        message = f"the pods' files are {size} bytes, a ConfigMap holds {MOST_BYTES}; the largest is {largest} with {len(files[largest])}"
        hint = "shorten what becomes that file: env.vars, xla.flags or maxtext keys"
        raise Refused(Issue("KUBERNETES_FILES_SIZE", Severity.ERROR, "", message, hint))
    return _objects(experiment, mesh, files, _names(experiment, mesh, files))


def text(experiment: Experiment, mesh: MeshPlan, files: Mapping[str, str]) -> str:
    """jobset.yaml.

    Raises:
        Refused: the files are too large for a ConfigMap.
        ValueError, TypeError: a value that no YAML can hold.
    """
    comments = _comments(experiment, mesh)
    head = HEAD.format(name=experiment.name, nodes=mesh.nodes, plural="" if mesh.nodes == 1 else "s")
    made = manifest(experiment, mesh, files)
    return head + "".join(f"---\n{document(one, comments if one['kind'] == 'JobSet' else None)}" for one in made)
