"""What a cluster would not take is told before anything is submitted, and the server's own word can be had without submitting."""

import json
import os
import re
from pathlib import Path

import pytest
import yaml
from bench import wait_until
from kube_harness import jobset_of, objects, typed, with_words

from launcher.issue import Refused
from launcher.runs import ending, starting, store
from launcher.runs.attempts import State, judge_one
from launcher.targets import kubernetes
from launcher.targets.base import Conditions

ROOT = Path(__file__).resolve().parent.parent.parent


def test_a_dry_run_asks_the_server_and_leaves_nothing(kube_bench, on_kubernetes, type_):
    code, out, _ = type_(*typed(kube_bench), "--dry-run=server")
    assert code == 0
    assert re.search(r"JobSet moe-tiny-cpu-\w+: would be made", out)
    assert not store.all_runs(kube_bench.root)
    assert not objects(on_kubernetes, "jobsets")
    words = typed(
        kube_bench, **{"target.kubernetes.claim": "nowhere", "target.kubernetes.namespace": on_kubernetes.namespace}
    )
    code, _, err = type_(*words, "--dry-run=server")
    assert code == 1
    assert "there is no volume claim nowhere" in err
    assert "--dry-run is a cluster's" in type_("+exp=moe_tiny_cpu", "--dry-run=server")[2]


def test_an_experiment_can_be_compared_before_it_is_submitted(kube_bench, on_kubernetes, type_):
    code, out, _ = type_("diff", "--cluster", *typed(kube_bench))
    assert code == 1
    assert "not in the cluster: it would be created" in out
    assert not objects(on_kubernetes, "jobsets")


def become(user, kube_bench, monkeypatch):
    """From now on the commands are that user's, who has no rights but what the test gives."""
    cluster = kube_bench.harness.cluster
    config = json.loads(cluster.server.kubeconfig_of(user).read_text())
    config["contexts"][0]["context"]["namespace"] = cluster.namespace
    path = kube_bench.root.parent / user
    path.write_text(json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", str(path))


def test_the_rights_that_an_admin_gives_are_enough(kube_bench, on_kubernetes, monkeypatch):
    """k8s/base/access.yaml, for a person of this namespace: a run's whole life, and what `tidy` removes."""
    given = [document for document in yaml.safe_load_all((ROOT / "k8s/base/access.yaml").read_text()) if document]
    for document in given:
        document["metadata"]["namespace"] = on_kubernetes.namespace
        if document["kind"] == "RoleBinding":
            document["subjects"] = [{"kind": "User", "name": "ann", "apiGroup": "rbac.authorization.k8s.io"}]
            on_kubernetes.server.kubectl("apply", "-f", "-", input=json.dumps(document))
        elif document["kind"] == "Role":
            on_kubernetes.server.kubectl("apply", "-f", "-", input=json.dumps(document))
    become("ann", kube_bench, monkeypatch)
    wait_until(lambda: not kubernetes.refusals(kube_bench.plan("hold=2"), kubernetes.options(os.environ)), 20)
    run = kube_bench.start("hold=2 attempt=1")
    kube_bench.wait_for_step(run, 1)
    handle = judge_one(run).handle
    assert ending.cancel(run, lambda _: None) == 0
    wait_until(lambda: kubernetes.tidy({**handle, "compute_domains": ["none"]}) == [], 20)
    starting.resume(run)
    kube_bench.wait(run, State.FINISHED)
    assert kubernetes.bring(run.layout, judge_one(run).handle, None) == []


def test_a_user_without_rights_is_told_which(kube_bench, monkeypatch):
    become("bob", kube_bench, monkeypatch)
    with pytest.raises(Refused) as refused:
        kube_bench.submit(kube_bench.plan())
    issue = refused.value.issues[0]
    assert issue.code == "KUBE_RIGHTS"
    assert "create jobsets" in issue.message
    assert not store.all_runs(kube_bench.root)


def test_a_user_without_rights_is_told_so_instead_of_a_difference(kube_bench, type_, monkeypatch):
    become("bob", kube_bench, monkeypatch)
    code, out, err = type_("diff", "--cluster", *typed(kube_bench))
    assert (code, out) == (1, "")
    assert "[KUBE_RIGHTS]" in err


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("target.kubernetes.context=elsewhere",), "KUBE_CONTEXT"),
        (("target.kubernetes.namespace=nowhere",), "KUBE_NAMESPACE"),
        (("target.kubernetes.claim=nothing",), "CLAIM_MISSING"),
        (("target.kubernetes.queue=launcher",), "KUEUE_MISSING"),
    ],
)
def test_what_the_cluster_lacks_is_refused_before_anything_is_written(kube_bench, words, code):
    with pytest.raises(Refused) as refused:
        with_words(kube_bench, *words).submit(with_words(kube_bench, *words).plan())
    assert [issue.code for issue in refused.value.issues] == [code]
    assert not store.all_runs(kube_bench.root)


def test_order_between_runs_is_refused(kube_bench):
    plan = kube_bench.plan()
    issues = kubernetes.refusals(plan, kubernetes.options(os.environ), Conditions(singleton=True))
    assert [issue.code for issue in issues] == ["KUBE_ORDER"]


def test_suspects_are_left_out_of_the_next_start(kube_bench, on_kubernetes):
    run = kube_bench.start("mode=die at=2 attempt=1")
    kube_bench.wait(run, State.FAILED)
    node = on_kubernetes.pods(jobset_of(run))[0]["spec"]["nodeName"]
    starting.resume(run, Conditions(exclude=(node,)))
    kube_bench.wait(run, State.FINISHED)
    assert on_kubernetes.pods(jobset_of(run))[0]["spec"]["nodeName"] != node
