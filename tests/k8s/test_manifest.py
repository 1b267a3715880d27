"""Manifests on a real API server: every experiment for every fabric, and every right variant of the mistakes that we refuse.

The server knows JobSet and ComputeDomain by their definitions. Pod templates it judges as batch Jobs, for which it has the
real validation of pods; JobSet keeps them unread.
"""

from __future__ import annotations

import copy
import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "plan"))

from kubernetes_mistakes import FITS, MISTAKES, RIGHT, Mistake

from k8s.testbed.client import Refused
from k8s.testbed.server import ApiServer
from launcher.config.compose import Composer
from launcher.config.groups import options
from launcher.config.schema import Experiment
from launcher.plan.kubernetes import named
from launcher.plan.kubernetes_objects import compute_domain, jobset
from launcher.plan.plan import make
from launcher.render.bundle import render

Object = dict[str, Any]

APPLY = ("apply", "--server-side", "--field-manager=launcher")
COMPOSER = Composer()


def experiment_of(*words: str) -> Experiment:
    composed = COMPOSER.compose(words)
    assert composed.experiment is not None, composed.issues
    return composed.experiment


def shipped() -> Iterator[tuple[str, str, str]]:
    """Experiment, fabric, jobset.yaml of all."""
    fabrics = {name: experiment_of(f"+exp={FITS}", f"fabric={name}").fabric for name in options("fabric")}
    for name in options("exp"):
        experiment = experiment_of(f"+exp={name}", "target=kubernetes", "container=nvidia_maxtext")
        for fabric, patch in fabrics.items():
            asked = copy.copy(experiment)
            asked.fabric = patch
            yield name, fabric, render(make(asked)).files["jobset.yaml"].decode()


@pytest.fixture(scope="module")
def manifests() -> dict[tuple[str, str], str]:
    """(experiment, fabric) -> jobset.yaml."""
    return {(name, fabric): text for name, fabric, text in shipped()}


@pytest.fixture(scope="module")
def namespace(kube: ApiServer, request: pytest.FixtureRequest) -> str:
    name = request.module.__name__.replace("_", "-")  # another module takes this fixture too
    kube.kubectl("create", "namespace", name)
    return name


def objects(text: str) -> list[Object]:
    return list(yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


def template_of(value: Object) -> Object:
    template: Object = value["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    return template


def as_job(value: Object, number: int) -> Object:
    """A JobSet's pod template in a Job of its own, which the server validates as a pod."""
    spec = {"backoffLimit": 0, "template": template_of(value)}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": f"pod-{number}"}, "spec": spec}


def listed(items: list[Object]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


def held(kube: ApiServer, namespace: str, kinds: str) -> dict[str, Object]:
    """Our objects as the server has them. Its version of an object moves with the time of the last apply (up to Kubernetes 1.20)."""
    label = "app.kubernetes.io/managed-by=launcher"
    found = json.loads(kube.kubectl("get", kinds, "-n", namespace, "-l", label, "-o", "json").stdout)["items"]
    for one in found:
        del one["metadata"]["resourceVersion"]
    return {f"{one['kind']}/{one['metadata']['name']}": one for one in found}


def as_applied(manifests: dict[tuple[str, str], str]) -> str:
    """All of them in one text. The workers' sources are 0.2 MB each, so most are without their ConfigMap: one a fabric, one an
    experiment is whole.
    """
    whole = {name for name, _ in manifests} | {fabric for _, fabric in manifests}
    texts = []
    for (name, fabric), text in manifests.items():
        if name in whole or fabric in whole:
            whole -= {name, fabric}
            texts.append(text)
        else:
            texts.append("---\n" + text.split("\n---\n", 2)[2])
    return "".join(texts)


def test_every_experiment_on_every_fabric_is_created_and_stays_as_it_is(
    kube: ApiServer, namespace: str, manifests: dict[tuple[str, str], str]
) -> None:
    everything = as_applied(manifests)
    kube.kubectl(*APPLY, "-n", namespace, "-f", "-", input=everything)
    made = held(kube, namespace, "jobsets,computedomains")
    assert len([key for key in made if key.startswith("JobSet/")]) == len(manifests) >= 12 * 6
    files = {key: one["data"] for key, one in held(kube, namespace, "configmaps").items()}
    assert len(files) >= 12
    assert all("node.worker.py" in data for data in files.values())
    # rc 1 would be a difference between what the server has and what it would have.
    assert (
        kube.kubectl(
            "diff", "--server-side", "--field-manager=launcher", "-n", namespace, "-f", "-", input=everything
        ).stdout
        == ""
    )
    kube.kubectl(*APPLY, "-n", namespace, "-f", "-", input=everything)
    assert held(kube, namespace, "jobsets,computedomains") == made


def test_every_pod_template_is_one_that_the_server_takes(
    kube: ApiServer, namespace: str, manifests: dict[tuple[str, str], str]
) -> None:
    # The files of a bundle do not change its pod: each text from the line of its JobSet on.
    found = [objects(text[text.index("apiVersion: jobset.x-k8s.io") :])[0] for text in manifests.values()]
    jobs = listed([as_job(value, number) for number, value in enumerate(found)])
    done = kube.kubectl("create", "--dry-run=server", "--validate=false", "-n", namespace, "-f", "-", input=jobs)
    assert done.stdout.count("created") == len(found)


def right_ones() -> list[Object]:
    """The objects of everything that we call right, without the pods' files."""
    found: list[Object] = []
    said = dict.fromkeys([*((m.experiment, m.right) for m in MISTAKES), *((FITS, words) for words in RIGHT)])
    for number, (experiment, words) in enumerate(said):
        plan = make(experiment_of(f"+exp={experiment}", "target=kubernetes", *shlex.split(words)))
        assert plan.errors == ()
        assert plan.mesh is not None
        names = named(f"right-{number}", "0" * 64, "0" * 64)
        plan.experiment.target.kubernetes.namespace = None
        found += [compute_domain(plan.experiment, names), jobset(plan.experiment, plan.mesh, names, ["env"])]
    return found


def test_nothing_that_we_call_right_is_refused(kube: ApiServer, namespace: str) -> None:
    found = right_ones()
    done = kube.kubectl(*APPLY, "--dry-run=server", "-n", namespace, "-f", "-", input=listed(found))
    assert done.stdout.count("serverside-applied") == len(found) >= 2 * 90
    jobs = [as_job(value, number) for number, value in enumerate(found) if value["kind"] == "JobSet"]
    done = kube.kubectl(
        "create", "--dry-run=server", "--validate=false", "-n", namespace, "-f", "-", input=listed(jobs)
    )
    assert done.stdout.count("created") == len(jobs)


def refused_by(kube: ApiServer, namespace: str, value: Object) -> str:
    """What the server says against a JobSet, or against its pod; empty when it takes both."""
    for path, body in (
        (f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{namespace}/jobsets", value),
        (f"/apis/batch/v1/namespaces/{namespace}/jobs", as_job(value, 0)),
    ):
        try:
            kube.client.request("POST", path, body, query={"dryRun": "All"})
        except Refused as why:
            return why.message
    return ""


# A server of Kubernetes 1.20 drops fields that it does not know; a newer one, asked strictly, refuses them.
PRUNED = ("no field", "names its pods", "resource claim", "one of the two", "metadata and spec")
# It takes a volume without a source for an empty folder, and leaves it to the node to fail on the colon.
STRICTER = ("no source", "/a:b")


@pytest.mark.parametrize("mistake", [m for m in MISTAKES if m.code == "KUBERNETES_POD"], ids=lambda m: m.words)
def test_what_we_refuse_of_a_pod_the_server_would_refuse(kube: ApiServer, namespace: str, mistake: Mistake) -> None:
    plan = make(experiment_of(f"+exp={mistake.experiment}", "target=kubernetes", *shlex.split(mistake.words)))
    assert plan.mesh is not None
    try:
        value = jobset(plan.experiment, plan.mesh, named("wrong", "0" * 64, "0" * 64), ["env"])
    except (TypeError, AttributeError, ValueError):
        return  # a patch that is no pod's at all
    said = refused_by(kube, namespace, value)
    assert said or any(words in mistake.message for words in (*PRUNED, *STRICTER))
