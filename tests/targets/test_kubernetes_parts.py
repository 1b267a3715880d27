"""Parts of the Kubernetes target that need no cluster: each line once, ends, the manifest of an attempt, the client's patience."""

import json

import pytest
import yaml
from kube_objects import FAILED, HANDLE, jobset, pod

from launcher.config.schema import Kubernetes
from launcher.issue import Refused
from launcher.node import speech
from launcher.node.layout import RunFolder
from launcher.plan.kubernetes_objects import FIRST_ATTEMPT
from launcher.targets import (
    kubernetes,
    kubernetes_checks,
    kubernetes_client,
    kubernetes_ends,
    kubernetes_logs,
    kubernetes_manifest,
)
from launcher.targets.base import Presence
from launcher.targets.kubernetes_client import Declined

# Each line once


@pytest.fixture
def one(tmp_path):
    return kubernetes_logs.source(RunFolder(tmp_path / "demo"), HANDLE, pod(1, "Failed"))


def log(*texts, start=100):
    return "".join(
        f"1970-01-01T00:01:{40 + n // 2:02d}.{n % 2}Z {text}\n" for n, text in enumerate(texts, start - 100)
    ).encode()


def taken_from(one, data, done=False):
    stamps = kubernetes_logs._Stamps()
    lines = stamps.feed(data)
    kubernetes_logs.write(one, lines + (stamps.rest() if done else []), done=done)


def test_lines_come_once_however_they_are_read(one, tmp_path):
    texts = [f"[{n % 2}] line {n}" for n in range(10)] + ["[worker] bye"]
    whole = log(*texts)
    for end in (7, 90, 91, 200, len(whole), len(whole)):
        taken_from(one, whole[:end])
    taken_from(one, log(*texts[4:], start=104))
    attempt = one.run.attempt(1)
    assert attempt.rank_log(0).read_text() == "".join(f"line {n}\n" for n in range(0, 10, 2))
    assert attempt.rank_log(1).read_text() == "".join(f"line {n}\n" for n in range(1, 10, 2))
    assert attempt.worker_log(1).read_text() == "bye\n"


def test_lines_of_one_moment_are_told_apart(one):
    stamp = b"1970-01-01T00:01:40.5Z "
    lines = b"".join(stamp + b"[0] same\n" for _ in range(3))
    taken_from(one, lines[: 2 * len(stamp + b"[0] same\n")])
    taken_from(one, lines)
    assert one.run.attempt(1).rank_log(0).read_text() == "same\n" * 3


def test_a_reader_that_was_killed_while_writing_leaves_nothing_twice(one):
    taken_from(one, log("[0] a", "[0] b"))
    with open(one.run.attempt(1).rank_log(0), "a") as file:
        file.write("c\nd")  # written, and not noted
    taken_from(one, log("[0] a", "[0] b", "[0] c", "[0] d"))
    assert one.run.attempt(1).rank_log(0).read_text() == "a\nb\nc\nd\n"


def test_the_last_line_needs_no_end_and_odd_bytes_stay_in_their_line(one):
    taken_from(one, log("[0] 50%\r100%\x0b\u2028end")[:-1])
    assert not one.run.attempt(1).rank_log(0).exists()
    taken_from(one, log("[0] 50%\r100%\x0b\u2028end")[:-1], done=True)
    assert one.run.attempt(1).rank_log(0).read_bytes().decode() == "50%\r100%\x0b\u2028end\n"
    assert kubernetes_logs.taken(one.run.attempt(1), 1).done


def test_a_record_is_a_file_and_history_only_fills_in(one):
    own = speech.line(speech.Record(1, "result.json", {"code": 1}))
    taken_from(one, log(own))
    assert json.loads(one.run.attempt(1).result().read_text()) == {"code": 1}
    later = kubernetes_logs.source(one.run, HANDLE, pod(1, restart=1))
    told = [speech.Record(1, "result.json", {"code": 2}), speech.Record(1, "decision.json", {"action": "restart"})]
    told += [speech.Record(None, "adjust.json", {"maxtext": {}}), speech.Record(2, "checkpoints.json", {"steps": [3]})]
    taken_from(later, log(*[speech.line(record) for record in told]))
    assert json.loads(one.run.attempt(1).result().read_text()) == {"code": 1}
    assert json.loads((one.run.attempt(1).path / "decision.json").read_text()) == {"action": "restart"}
    assert json.loads((one.run.attempt(2).path / "checkpoints.json").read_text()) == {"steps": [3]}
    assert one.run.adjust.exists()


# Ends that no worker told


@pytest.mark.parametrize(
    ("condition", "why", "outcome"),
    [
        ({"type": "Completed"}, "", "finished"),
        (FAILED, "Pod ml/x has condition DisruptionTarget matching FailJob rule at index 0", "preempted"),
        (
            FAILED,
            "Container trainer for pod ml/x failed with exit code 78 matching FailJob rule at index 1",
            "config_refused",
        ),
        (FAILED, "Container trainer for pod ml/x failed with exit code 1 matching FailJob rule at index 1", None),
        (FAILED, "Job has reached the specified backoff limit", None),
    ],
)
def test_an_end_proves_no_more_than_it_does(condition, why, outcome):
    result = kubernetes_ends._result(jobset(0, [condition]), why)
    assert (result or {}).get("outcome") == outcome


# The manifest of one attempt


MANIFEST = """
kind: ConfigMap
metadata: {name: demo-files}
---
kind: JobSet
metadata: {name: demo-0a1b2c3d}
spec:
  replicatedJobs:
  - replicas: 2
    template:
      spec:
        parallelism: 4
        template:
          metadata: {annotations: {launcher/first-attempt: "1"}}
          spec: {terminationGracePeriodSeconds: 660}
"""


def test_an_attempt_changes_its_number_and_the_nodes_to_avoid_alone():
    manifest = kubernetes_manifest.parse(MANIFEST)
    assert (manifest.pods, manifest.pods_per_job, manifest.grace_seconds) == (8, 4, 660)
    third = kubernetes_manifest.for_attempt(manifest, 3, ["n2", "n1"])
    assert kubernetes_manifest.first_attempt(third.jobset) == 3
    (template,) = third.templates
    terms = template["spec"].pop("affinity")["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    wanted = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["n1", "n2"]}
    assert terms == {"nodeSelectorTerms": [{"matchExpressions": [wanted]}]}
    template["metadata"]["annotations"][FIRST_ATTEMPT] = "1"
    assert third == manifest
    assert kubernetes_manifest.FIRST_ATTEMPT == FIRST_ATTEMPT


def test_every_term_of_an_affinity_avoids_them():
    document = yaml.safe_load(
        "nodeSelectorTerms: [{matchFields: [a]}, {matchExpressions: [{key: k, operator: Exists}]}]"
    )
    pod_spec = {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": document}}}
    kubernetes_manifest._exclude(pod_spec, ["n1"])
    assert [term["matchExpressions"][-1]["values"] for term in document["nodeSelectorTerms"]] == [["n1"], ["n1"]]
    assert len(document["nodeSelectorTerms"]) == 2


# The client's patience


class Pool:
    """Answers in order."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    def request(self, method, url, **_):
        self.asked.append((method, url))
        status, body, headers = self.answers.pop(0)
        return type("R", (), {"status": status, "data": json.dumps(body).encode(), "headers": headers, "reason": ""})()


def client_of(*answers):
    configuration = type("C", (), {"host": "https://api:6443/", "auth_settings": lambda _: {}})()
    return kubernetes_client.Client("c", "ml", configuration, Pool(*answers))


def test_a_list_begins_again_when_its_page_has_expired():
    first = (200, {"items": [{"n": 1}], "metadata": {"continue": "x"}}, {})
    gone = (410, {"reason": "Expired", "message": "The provided continue parameter is too old"}, {})
    client = client_of(first, gone, first, (200, {"items": [{"n": 2}], "metadata": {}}, {}))
    assert client.list_all("/api/v1/namespaces/ml/pods", {}) == [{"n": 1}, {"n": 2}]


def test_a_refusal_is_an_answer_and_is_not_repeated():
    client = client_of((403, {"reason": "Forbidden", "message": "no"}, {}))
    with pytest.raises(Declined, match="no"):
        client.get("/api/v1/namespaces/ml/pods/x")
    assert client_of((404, {"reason": "NotFound"}, {})).get("/x") is None
    with pytest.raises(kubernetes_client.Unanswered, match="log in again"):
        client_of((401, {}, {})).get("/x")


def test_a_busy_server_is_asked_again_when_it_says(monkeypatch):
    slept = []
    monkeypatch.setattr(kubernetes_client.time, "sleep", slept.append)
    client = client_of((429, {}, {"Retry-After": "7"}), (500, {}, {}), (200, {"kind": "Pod"}, {}))
    assert client.get("/x") == {"kind": "Pod"}
    assert slept == [7.0, 0.5]
    with pytest.raises(kubernetes_client.Unanswered, match=r"https://api:6443 does not answer: .*HTTP 503"):
        client_of((503, {}, {})).get("/x", patience=0)


def test_a_delete_of_what_is_gone_or_another_is_no_error():
    assert not client_of((404, {}, {})).delete("/x")
    uid = {"preconditions": {"uid": "u1"}}
    assert not client_of((409, {"message": "the UID in the precondition does not match"}, {})).delete("/x", uid)
    with pytest.raises(Declined):
        client_of((409, {"message": "no"}, {})).delete("/x")


# What is lacking before any request


LOGIN = """
apiVersion: v1
kind: Config
current-context: there
contexts: [{name: there, context: {cluster: there, user: me}}]
clusters: [{name: there, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: me, user: {exec: {apiVersion: client.authentication.k8s.io/v1beta1, command: no-such-login}}}]
"""
"""A login plug-in that this machine does not have."""


def test_a_machine_that_cannot_ask_is_told_why(tmp_path, monkeypatch):
    damaged = tmp_path / "damaged"
    damaged.write_text("contexts: [")
    empty = tmp_path / "empty"
    empty.write_text("apiVersion: v1\nkind: Config\ncontexts: []\nclusters: []\nusers: []\ncurrent-context: ''\n")
    other = tmp_path / "other"
    other.write_text("a text of another kind")
    login = tmp_path / "login"
    login.write_text(LOGIN)
    for path, code in (
        (tmp_path / "none", "KUBECONFIG"),
        (damaged, "KUBECONFIG"),
        (empty, "KUBECONFIG"),
        (other, "KUBECONFIG"),
        (login, "KUBECONFIG"),
    ):
        monkeypatch.setenv("KUBECONFIG", str(path))
        with pytest.raises(Refused) as refused:
            kubernetes_client.connect()
        (issue,) = refused.value.issues
        assert (issue.code, str(path) in issue.message, bool(issue.hint)) == (code, True, True)
        assert kubernetes.options({}) == {}
        (sight,) = kubernetes.look([HANDLE])
        assert sight.presence is Presence.UNKNOWN
        assert str(path) in sight.why
    monkeypatch.setattr(kubernetes_client, "is_installed", lambda: False)
    with pytest.raises(Refused, match="no kubernetes client"):
        kubernetes_client.connect()


SERVES = (200, {"resources": [{"name": "jobsets"}]}, {})
DOMAIN = "kind: ComputeDomain\nmetadata: {name: demo}\n---"


@pytest.mark.parametrize(
    ("answers", "codes"),
    [
        ([(404, {}, {}), (404, {}, {})], ["JOBSET_CRD", "COMPUTE_DOMAIN_CRD"]),
        ([SERVES, (404, {}, {})], ["COMPUTE_DOMAIN_CRD"]),
        ([(200, {"resources": []}, {}), (200, {"resources": [{"name": "computedomains"}]}, {})], ["JOBSET_CRD"]),
    ],
)
def test_a_cluster_without_the_kinds_says_who_installs_them(answers, codes):
    found = kubernetes_checks.lacking(
        client_of(*answers), "ml", kubernetes_manifest.parse(DOMAIN + MANIFEST), Kubernetes()
    )
    assert [issue.code for issue in found] == codes
    assert all("an admin installs" in issue.hint for issue in found)


@pytest.mark.parametrize("status", [400, 403])
def test_a_server_that_does_not_tell_its_kinds_is_told_in_its_own_words(status):
    client = client_of((status, {"message": "not for you"}, {}))
    (found,) = kubernetes_checks.lacking(client, "ml", kubernetes_manifest.parse(MANIFEST), Kubernetes())
    assert found.code == "KUBE_REFUSED"
    assert f"not for you (HTTP {status})" in found.message
    assert "api-resources" in found.hint


def test_a_servers_no_that_nobody_caught_is_no_traceback():
    """The command line tells an OSError in one line."""
    declined = Declined(403, {"reason": "Forbidden", "message": "not  for you"})
    assert isinstance(declined, OSError)
    assert (str(declined), declined.status, declined.reason) == ("not for you", 403, "Forbidden")
