"""What the cluster's lists say about a run, and its reasons in plain words; no cluster is needed."""

import pytest
from kube_objects import FAILED, HANDLE, PULLING, UNSCHEDULED, jobset, pod

from launcher.targets.base import Presence
from launcher.targets.kubernetes_reasons import sentence, table
from launcher.targets.kubernetes_sight import Seen, sight

# Reasons


@pytest.mark.parametrize("row", table(), ids=lambda row: f"{row['place']} {row['word']} {row.get('said', '')}")
def test_every_row_is_a_sentence_with_what_would_help(row):
    said = row["why"].format(pod="p", word="W", detail="d") + "; " + row["help"].format(pod="p", word="W", detail="d")
    assert "{" not in said
    assert "\n" not in said
    assert row["place"] in ("waiting", "scheduling", "kueue", "event")


@pytest.mark.parametrize(
    ("place", "word", "message", "parts"),
    [
        (
            "scheduling",
            "Unschedulable",
            "0/36 nodes are available: 36 Insufficient nvidia.com/gpu. preemption: 0/36 nodes are available",
            ["not enough GPUs", "36 Insufficient"],
        ),
        ("scheduling", "Unschedulable", "0/0 nodes are available", ["no node at all"]),
        ("scheduling", "Unschedulable", 'persistentvolumeclaim "runs" not found', ["target.kubernetes.claim"]),
        (
            "scheduling",
            "Unschedulable",
            "0/3 nodes are available: 3 node(s) had untolerated taint {x: y}",
            ["tolerations"],
        ),
        ("scheduling", "Unschedulable", "cannot allocate all claims", ["NVIDIA's DRA driver"]),
        ("scheduling", "SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates", ["topology"]),
        ("scheduling", "Odd", "something new", ["something new", "kubectl describe pod demo-w-0-0-x"]),
        ("waiting", "ErrImagePull", "failed: 401 Unauthorized", ["image_pull_secrets"]),
        ("waiting", "ErrImagePull", "manifest unknown", ["there is no such image", "container.image"]),
        ("waiting", "CreateContainerConfigError", 'secret "hf" not found', ["target.kubernetes.secrets"]),
        ("waiting", "NewWord", "eh", ["NewWord: eh"]),
        ("kueue", "Inadmissible", "LocalQueue gb200 doesn't exist", ["target.kubernetes.queue"]),
        (
            "kueue",
            "Pending",
            "couldn't assign flavors: insufficient unused quota for nvidia.com/gpu",
            ["wait", "priority_class"],
        ),
        ("kueue", "Pending", 'topology "gb200" doesn\'t allow to fit any of 2 slice(s)', ["close together"]),
        ("event", "FailedMount", 'configmap "x" not found', ["a volume cannot be mounted"]),
    ],
)
def test_the_clusters_words_in_plain_words(place, word, message, parts):
    said = sentence(place, word, message, "demo-w-0-0-x")
    for part in parts:
        assert part in said, said
    assert len(said) < 600


# What lists say


@pytest.mark.parametrize(
    ("js", "pods", "presence", "part", "attempt"),
    [
        (jobset(), [pod(0), pod(1)], Presence.ALIVE, "", 1),
        (
            jobset(),
            [pod(0), pod(1, "Pending", **UNSCHEDULED)],
            Presence.ALIVE,
            "1 of 2 pods run; pod demo-0a1b2c3d-w-0-1",
            1,
        ),
        (jobset(), [pod(0)], Presence.ALIVE, "1 of 2 pods are there", 1),
        (
            jobset(),
            [pod(0, "Pending", **PULLING), pod(1, "Pending", **UNSCHEDULED)],
            Presence.WAITING,
            "image cannot",
            1,
        ),
        (
            jobset(),
            [pod(0, "Pending", **UNSCHEDULED), pod(1)],
            Presence.WAITING,
            "w-0-0-abcde is pending: not enough GPUs",
            1,
        ),
        (jobset(), [], Presence.WAITING, "the JobSet controller may be down", 1),
        (jobset(2), [pod(0, restart=1), pod(1, restart=1)], Presence.WAITING, "restarts everyone; 2 of its pods", 3),
        (jobset(2), [pod(0, restart=2), pod(1, restart=2)], Presence.ALIVE, "", 3),
        (
            jobset(0, [FAILED]),
            [pod(0, "Failed"), pod(1, "Failed")],
            Presence.GONE,
            "the JobSet failed: jobset failed",
            None,
        ),
        (
            jobset(0, [FAILED]),
            [pod(0, "Failed"), pod(1)],
            Presence.ALIVE,
            "is over; 1 of its pods is still ending",
            None,
        ),
        (jobset(0, [{"type": "Completed"}]), [pod(0, "Succeeded")], Presence.GONE, "the JobSet completed", None),
        (
            jobset(deletionTimestamp="2026-11-29T22:01:00Z"),
            [pod(0)],
            Presence.ALIVE,
            "was deleted; 1 of its pods",
            None,
        ),
        (jobset(deletionTimestamp="2026-11-29T22:01:00Z"), [], Presence.GONE, "was deleted", None),
        (None, [pod(0)], Presence.ALIVE, "its JobSet was deleted", None),
        (None, [], Presence.GONE, "not in namespace ml any more", None),
        (
            {**jobset(), "metadata": {**jobset()["metadata"], "uid": "u2"}},
            [pod(0, uid="u2")],
            Presence.GONE,
            "another one",
            None,
        ),
    ],
)
def test_what_lists_say(js, pods, presence, part, attempt):
    seen = Seen({"demo-0a1b2c3d": js} if js else {}, {"demo-0a1b2c3d": pods})
    client = type("Client", (), {"server": "https://api:6443"})()
    found = sight(client, HANDLE, seen)
    assert (found.presence, found.attempt) == (presence, attempt)
    assert part in found.why
    assert "\n" not in found.why


class Kueue:
    """A cluster with Kueue and one Workload."""

    server = "https://api:6443"

    def __init__(self, *conditions, owner="u1"):
        self.workload = {
            "metadata": {"ownerReferences": [{"kind": "JobSet", "uid": owner}]},
            "status": {"conditions": list(conditions)},
        }

    def get(self, path, **_):
        assert path == "/apis/kueue.x-k8s.io"
        return {"preferredVersion": {"groupVersion": "kueue.x-k8s.io/v1beta2"}}

    def list_all(self, path, *_, **__):
        assert path == "/apis/kueue.x-k8s.io/v1beta2/namespaces/ml/workloads"
        return [self.workload]


NO_QUOTA = {
    "type": "QuotaReserved",
    "status": "False",
    "reason": "Pending",
    "message": "couldn't assign flavors to pod set w: insufficient unused quota for nvidia.com/gpu in flavor gb200, 64 more needed",
}


@pytest.mark.parametrize(
    ("kueue", "part"),
    [
        (Kueue(NO_QUOTA), "queued by Kueue: others use the queue's quota now: couldn't assign flavors"),
        (
            Kueue({**NO_QUOTA, "reason": "Inadmissible", "message": "LocalQueue x doesn't exist"}),
            "its queue does not exist",
        ),
        (Kueue({"type": "Evicted", "status": "True", "message": "Preempted"}), "Kueue took its place away: Preempted"),
        (Kueue(), "it has not looked at it yet"),
        (Kueue(NO_QUOTA, owner="other"), "no Workload of Kueue says why"),
    ],
)
def test_a_suspended_run_says_what_its_queue_says(kueue, part):
    suspended = jobset()
    suspended["spec"]["suspend"] = True
    found = sight(kueue, HANDLE, Seen({"demo-0a1b2c3d": suspended}, {"demo-0a1b2c3d": []}))
    assert found.presence is Presence.WAITING
    assert part in found.why


def test_a_pod_that_should_have_ended_names_its_node_and_the_way_out():
    late = pod(0)
    late["metadata"]["deletionTimestamp"] = "2020-01-01T00:00:00Z"
    seen = Seen({"demo-0a1b2c3d": jobset(deletionTimestamp="2020-01-01T00:00:00Z")}, {"demo-0a1b2c3d": [late]})
    found = sight(None, HANDLE, seen)
    assert found.presence is Presence.ALIVE
    assert "on n0 should have ended by now: its node may be dead" in found.why
    assert "kubectl delete pod demo-0a1b2c3d-w-0-0-abcde --force" in found.why
