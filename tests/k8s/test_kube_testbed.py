"""The test bed's cluster behaves as the launcher's tests assume: each fact that they rest on, over the real API and kubectl."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from k8s.testbed.controller import Controller
from k8s.testbed.rules import condition

DISRUPTED = "onPodConditions", [{"type": "DisruptionTarget", "status": "True"}]
CODES = "onExitCodes", {"containerName": "trainer", "operator": "In", "values": [75, 78]}
RULES = [
    ("refused", "FailJobSet", r"exit code 78 "),
    ("preempted", "RestartJobSetAndIgnoreMaxRestarts", r"DisruptionTarget|exit code 75 "),
]
SLEEP = "import time; print('up', flush=True); time.sleep(600)"


def manifest(program: str, *, pods: int = 2, jobs: int = 1, restarts: int = 0, grace: int = 5, **more: Any) -> str:
    """A ConfigMap with a program and a JobSet `js` whose pods run it, as the launcher writes them."""
    container = {
        "name": "trainer",
        "image": "registry.example/none:1",
        "command": ["python3", "-B", "/etc/launcher/bundle/node/main.py", "/runs/out"],
        "env": [
            {
                "name": "JOBSET",
                "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['jobset.sigs.k8s.io/jobset-name']"}},
            },
            {
                "name": "RESTART",
                "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['jobset.sigs.k8s.io/restart-attempt']"}},
            },
            {
                "name": "FIRST",
                "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['launcher/first-attempt']"}},
            },
            {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "COORDINATOR", "value": "$(JOBSET)-w-0-0.$(JOBSET):1234 $$(JOBSET) $(NOBODY)"},
            {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}},
            {"name": "OTHER", "valueFrom": {"secretKeyRef": {"name": "none", "key": "token", "optional": True}}},
        ],
        "volumeMounts": [
            {"name": "files", "mountPath": "/etc/launcher/bundle", "readOnly": True},
            {"name": "runs", "mountPath": "/runs"},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }
    pod = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": grace,
        "containers": [container],
        "volumes": [
            {"name": "files", "configMap": {"name": "js-files", "items": [{"key": "main", "path": "node/main.py"}]}},
            {"name": "runs", "persistentVolumeClaim": {"claimName": "runs"}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
        ],
        **more,
    }
    job = {
        "parallelism": pods,
        "completions": pods,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {"rules": [{"action": "FailJob", key: value} for key, value in (DISRUPTED, CODES)]},
        "template": {"metadata": {"annotations": {"launcher/first-attempt": "3"}}, "spec": pod},
    }
    rules = [
        {
            "name": name,
            "action": action,
            "onJobFailureReasons": ["PodFailurePolicy"],
            "onJobFailureMessagePatterns": [pattern],
        }
        for name, action, pattern in RULES
    ]
    spec = {
        "failurePolicy": {"maxRestarts": restarts, "restartStrategy": "BlockingRecreate", "rules": rules},
        "replicatedJobs": [{"name": "w", "replicas": jobs, "template": {"spec": job}}],
    }
    files = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "js-files"}, "data": {"main": program}}
    jobset = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "js"}, "spec": spec}
    if jobs > 1:
        jobset["metadata"]["annotations"] = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "nvidia.com/gpu.clique"}
    return yaml.safe_dump_all([files, jobset])


class Bench:
    """A cluster, kubectl in its namespace, and the manifest above."""

    def __init__(self, cluster: Controller) -> None:
        self.cluster = cluster
        self.kubectl("create", "secret", "generic", "hub", "--from-literal=token=s3cret")

    def kubectl(self, *words: str, **how: Any) -> str:
        return self.cluster.server.kubectl("-n", self.cluster.namespace, *words, **how).stdout

    def apply(self, program: str, **how: Any) -> str:
        return self.kubectl(
            "apply", "--server-side", "--field-manager=launcher", "-f", "-", input=manifest(program, **how)
        )

    def jobset(self) -> dict[str, Any]:
        return json.loads(self.kubectl("get", "jobset", "js", "-o", "json"))

    def job(self, name: str = "js-w-0") -> dict[str, Any]:
        return json.loads(self.kubectl("get", "job", name, "-o", "json"))

    def names(self, attempt: int | None = None) -> list[str]:
        return [pod["metadata"]["name"] for pod in self.cluster.pods("js", attempt)]

    def up(self, count: int, attempt: int = 0) -> list[str]:
        """Wait until the attempt's pods have all said something; give their names."""
        self.cluster.wait(lambda: len(self.said(attempt)) == count)
        return self.names(attempt)

    def said(self, attempt: int) -> list[str]:
        logs = (self.cluster.folder_of(name) / "log" for name in self.names(attempt))
        return [log.read_text() for log in logs if log.exists() and log.stat().st_size]

    def ended(self) -> str:
        self.cluster.wait(lambda: (self.cluster.jobset("js") or {}).get("status", {}).get("terminalState"))
        return self.jobset()["status"]["terminalState"]


@pytest.fixture
def bench(kube_cluster: Controller) -> Bench:
    return Bench(kube_cluster)


def test_a_manifest_applied_twice_differs_in_nothing(bench: Bench) -> None:
    assert "serverside-applied" in bench.apply(SLEEP)
    bench.up(2)
    before = bench.jobset()["metadata"]["generation"]
    bench.apply(SLEEP)
    assert bench.jobset()["metadata"]["generation"] == before
    diff = ["-n", bench.cluster.namespace, "diff", "--server-side", "--field-manager=launcher", "-f", "-"]
    server = bench.cluster.server
    assert server.kubectl(*diff, input=manifest(SLEEP), check=False).returncode == 0
    changed = manifest(SLEEP).replace("spec:\n  failurePolicy", "spec:\n  ttlSecondsAfterFinished: 5\n  failurePolicy")
    differs = server.kubectl(*diff, input=changed, check=False)
    assert differs.returncode == 1
    assert "+  ttlSecondsAfterFinished: 5" in differs.stdout


@pytest.mark.parametrize(
    ("old", "new", "refused"),
    [
        ("maxRestarts: 0", "maxRestarts: 1", "spec.failurePolicy: Invalid value: Value is immutable"),
        (
            "launcher/first-attempt: '3'",
            "launcher/first-attempt: '4'",
            "spec.replicatedJobs: Invalid value: field is immutable",
        ),
    ],
)
def test_a_jobset_that_is_there_cannot_be_changed(bench: Bench, old: str, new: str, refused: str) -> None:
    bench.cluster.hold("no room")
    bench.apply(SLEEP)
    assert bench.jobset()["spec"]["network"] == {"enableDNSHostnames": True, "publishNotReadyAddresses": True}
    assert old in manifest(SLEEP)
    words = ("-n", bench.cluster.namespace, "apply", "--server-side", "--field-manager=launcher", "-f", "-")
    done = bench.cluster.server.kubectl(*words, input=manifest(SLEEP).replace(old, new), check=False)
    assert done.returncode == 1
    assert refused in done.stderr


def test_a_container_gets_what_the_manifest_says(bench: Bench) -> None:
    bench.apply(
        "import json, os, sys\nopen(sys.argv[1] + os.environ['JOB_COMPLETION_INDEX'], 'w').write('here')\n"
        "print(json.dumps([sys.argv, dict(os.environ)]))"
    )
    assert bench.ended() == "Completed"
    for index, name in enumerate(bench.names()):
        argv, environment = json.loads(bench.kubectl("logs", name))
        assert (bench.cluster.volume / f"out{index}").read_text() == "here"
        assert argv[0].endswith("volumes/files/node/main.py")
        assert {key: environment.get(key) for key in ("JOBSET", "RESTART", "FIRST", "TOKEN", "OTHER", "JOB_COMPLETION_INDEX")} == {
            "JOBSET": "js", "RESTART": "0", "FIRST": "3", "TOKEN": "s3cret", "OTHER": None, "JOB_COMPLETION_INDEX": str(index),
        }  # fmt: skip
        assert environment["NODE"] == bench.cluster.pods("js")[index]["spec"]["nodeName"]
        assert environment["COORDINATOR"] == "127.0.0.1:1234 $(JOBSET) $(NOBODY)"
        assert "PYTEST_CURRENT_TEST" not in environment
    assert condition(bench.job(), "Complete")["reason"] == "CompletionsReached"
    assert [one["succeeded"] for one in bench.jobset()["status"]["replicatedJobsStatus"]] == [1]


def test_logs_are_asked_for_as_of_a_kubelet(bench: Bench) -> None:
    lines = "import time\nfor i in range(4):\n    print('line', i, flush=True)\n    time.sleep(1.1 if i == 1 else 0)\ntime.sleep(3)\nprint('end')"
    bench.apply(lines, pods=1)
    name = bench.up(1)[0]
    bench.cluster.wait(lambda: "line 3" in bench.said(0)[0])
    stamped = bench.kubectl("logs", name, "--timestamps").splitlines()
    stamps = [line.split()[0] for line in stamped]
    assert [line.partition(" ")[2] for line in stamped] == [f"line {i}" for i in range(4)]
    assert bench.kubectl("logs", name, "--tail=2") == "line 2\nline 3\n"
    assert bench.kubectl("logs", name, "--limit-bytes=8") == "line 0\nl"
    # The API carries whole seconds: all of the second in which line 2 came, and nothing of the one before.
    assert bench.kubectl("logs", name, f"--since-time={stamps[2]}") == "line 2\nline 3\n"
    assert bench.kubectl("logs", name, "-f", "--tail=1") == "line 3\nend\n"
    assert "previous terminated container" in bench.cluster.server.kubectl(
        "-n", bench.cluster.namespace, "logs", name, "--previous", check=False
    ).stderr  # fmt: skip


def test_a_refused_configuration_ends_the_jobset_at_once(bench: Bench) -> None:
    bench.apply(
        "import os, sys, time\ntime.sleep(600 if os.environ['JOB_COMPLETION_INDEX'] == '0' else 0)\nsys.exit(78)",
        restarts=5,
    )
    assert bench.ended() == "Failed"
    failed = condition(bench.jobset(), "Failed")
    assert failed["reason"] == "FailJobSetFailurePolicyAction"
    assert failed["message"] == "applying FailJobSet failure policy action (first failed job: js-w-0)"
    assert "restarts" not in bench.jobset()["status"]
    why = condition(bench.job(), "Failed")
    # Of a Job that has failed, the pods that still ran are ended and go.
    bench.cluster.wait(lambda: [name[:8] for name in bench.names()] == ["js-w-0-1"])
    pod = f"{bench.cluster.namespace}/{bench.names()[0]}"
    assert why["reason"] == "PodFailurePolicy"
    assert (
        why["message"] == f"Container trainer for pod {pod} failed with exit code 78 matching FailJob rule at index 1"
    )


def test_a_killed_pod_restarts_all_and_none_starts_before_all_have_ended(bench: Bench) -> None:
    # Each pod notes when it starts and, having been told to end, when it has ended; the second takes its time.
    bench.apply(
        "import os, signal, sys, time\n"
        "def say(what): open(sys.argv[1], 'a').write(f\"{what} {os.environ['RESTART']}\\n\")\n"
        "def end(*_):\n    time.sleep(1); say('end'); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end); say('start'); print('up', flush=True); time.sleep(600)",
        pods=3,
        restarts=1,
    )
    first = bench.up(3)
    bench.cluster.kill(first[1])
    second = bench.up(3, attempt=1)
    assert not set(first) & set(second)
    assert (bench.cluster.volume / "out").read_text().split("\n")[:-1] == ["start 0"] * 3 + ["end 0"] * 2 + [
        "start 1"
    ] * 3
    status = bench.jobset()["status"]
    assert (status["restarts"], status["restartsCountTowardsMax"]) == (1, 1)
    bench.cluster.kill(second[0], exit_code=1)
    assert bench.ended() == "Failed"
    assert condition(bench.jobset(), "Failed")["reason"] == "ReachedMaxRestarts"
    assert condition(bench.job(), "Failed")["reason"] == "BackoffLimitExceeded"
    assert bench.kubectl("get", "jobset", "js", "--no-headers").split()[:3] == ["js", "Failed", "1"]


def test_an_evicted_pod_does_not_count_and_has_its_grace(bench: Bench) -> None:
    bench.apply(
        "import signal, sys, time\n"
        "def end(*_):\n    print('saving', flush=True); time.sleep(1); print('saved', flush=True); sys.exit(75)\n"
        "signal.signal(signal.SIGTERM, end); print('up', flush=True); time.sleep(600)",
    )
    name = bench.up(2)[0]
    job = bench.job()
    bench.cluster.evict(name)
    bench.cluster.wait(lambda: condition(bench.cluster.jobset("js"), "RestartingJobSet"))
    assert "saved" in (bench.cluster.folder_of(name) / "log").read_text()
    bench.up(2, attempt=1)
    status = bench.jobset()["status"]
    assert (status["restarts"], status["restartsCountTowardsMax"]) == (1, 0)
    assert bench.job()["metadata"]["uid"] != job["metadata"]["uid"]
    assert name not in bench.kubectl("get", "pods", "-o", "name")


def test_held_pods_say_why_and_suspended_jobsets_have_none(bench: Bench) -> None:
    bench.cluster.hold("0/8 nodes are available: 8 Insufficient nvidia.com/gpu.")
    bench.apply(SLEEP)
    bench.cluster.wait(lambda: len([p for p in bench.cluster.pods("js") if p["status"].get("conditions")]) == 2)
    pods = json.loads(bench.kubectl("get", "pods", "-o", "json"))["items"]
    assert {pod["status"]["phase"] for pod in pods} == {"Pending"}
    told = next(one for one in pods[0]["status"]["conditions"] if one["type"] == "PodScheduled")
    assert (told["status"], told["reason"], told["message"][:5]) == ("False", "Unschedulable", "0/8 n")
    bench.cluster.release()
    bench.up(2)
    bench.cluster.suspend("js")
    bench.cluster.wait(lambda: not bench.cluster.pods("js"))
    assert condition(bench.jobset(), "Suspended")["reason"] == "SuspendedJobs"
    assert condition(bench.job(), "Suspended")["reason"] == "JobSuspended"
    bench.cluster.wait(lambda: bench.jobset()["status"]["replicatedJobsStatus"][0]["suspended"] == 1)
    bench.apply(SLEEP)  # the launcher's manifest has no opinion about it
    assert bench.jobset()["spec"]["suspend"] is True
    bench.cluster.suspend("js", False)
    bench.cluster.wait(lambda: bench.cluster.running("js", 2))
    assert not condition(bench.jobset(), "Failed")


def test_a_jobset_deleted_in_the_foreground_goes_after_its_pods(bench: Bench) -> None:
    bench.apply(
        "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), print('last', flush=True), sys.exit(0)))\n"
        "print('up', flush=True); time.sleep(600)"
    )
    name = bench.up(2)[0]
    uid = bench.jobset()["metadata"]["uid"]
    owner = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "js", "uid": uid}
    bench.kubectl(
        "patch", "configmap", "js-files", "--type=merge", "-p", json.dumps({"metadata": {"ownerReferences": [owner]}})
    )
    begin = time.monotonic()
    bench.kubectl("delete", "jobset", "js", "--cascade=foreground", "--wait=false")
    assert bench.kubectl("logs", "-f", name).splitlines() == ["up", "last"]
    bench.cluster.wait(lambda: bench.cluster.jobset("js") is None)
    assert time.monotonic() - begin > 1
    left = bench.kubectl("get", "jobset,job,pod,service,configmap", "-o", "name").split()
    assert left in ([], ["configmap/kube-root-ca.crt"])


def test_what_ignores_sigterm_is_killed_and_less_grace_shortens_the_wait(bench: Bench) -> None:
    bench.apply(
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)",
        grace=300,
    )
    bench.up(2)
    bench.kubectl("delete", "jobset", "js", "--cascade=foreground", "--wait=false")
    bench.cluster.wait(lambda: all("deletionTimestamp" in pod["metadata"] for pod in bench.cluster.pods("js")))
    time.sleep(1)
    assert bench.cluster.running("js", 2)
    bench.kubectl("delete", "pods", "--all", "--grace-period=1", "--wait=false")
    bench.cluster.wait(lambda: bench.cluster.jobset("js") is None)


def test_a_pod_waits_for_its_secret_and_its_claim(bench: Bench) -> None:
    bench.kubectl("delete", "secret", "hub")
    bench.apply(SLEEP, pods=1)
    bench.cluster.wait(lambda: [p for p in bench.cluster.pods("js") if p["status"].get("containerStatuses")])
    waiting = bench.cluster.pods("js")[0]["status"]["containerStatuses"][0]["state"]["waiting"]
    assert (waiting["reason"], waiting["message"]) == ("CreateContainerConfigError", 'secrets "hub" not found')
    said = bench.cluster.server.kubectl("-n", bench.cluster.namespace, "logs", bench.names()[0], check=False).stderr
    assert "is waiting to start: CreateContainerConfigError" in said
    bench.kubectl("create", "secret", "generic", "hub", "--from-literal=token=x")
    bench.up(1)


def test_the_cluster_outlives_a_restart_of_the_server(bench: Bench) -> None:
    bench.apply("import time\nprint('up', flush=True); time.sleep(3)", restarts=1)
    first = bench.up(2)
    bench.cluster.server.restart()
    assert bench.names(0) == first
    assert bench.ended() == "Completed"
    assert "restarts" not in bench.jobset()["status"]


def test_jobs_that_want_a_rack_for_themselves_get_it(start_kube_cluster: Any) -> None:
    bench = Bench(start_kube_cluster(nodes=9, rack=3))
    cluster = bench.cluster
    other = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "NotIn", "values": [f"{cluster.namespace}-n1"]}]}
    ]}}}  # fmt: skip
    bench.apply(SLEEP, pods=2, jobs=2, affinity=other)
    bench.cluster.wait(lambda: cluster.running("js", 4))
    placed = [
        (p["metadata"]["labels"]["jobset.sigs.k8s.io/job-global-index"], p["spec"]["nodeName"])
        for p in cluster.pods("js")
    ]
    racks = [(job, int(node.rpartition("n")[2]) // 3) for job, node in placed]
    assert len(set(racks)) == 2
    assert len({rack for _, rack in racks}) == 2
    assert f"{cluster.namespace}-n1" not in [node for _, node in placed]


def test_the_nodes_are_the_clusters_own(bench: Bench) -> None:
    nodes = json.loads(bench.kubectl("get", "nodes", "-o", "json"))["items"]
    mine = [node for node in nodes if node["metadata"]["name"].startswith(bench.cluster.namespace + "-")]
    assert len(mine) == 8
    assert {node["metadata"]["labels"]["kubernetes.io/arch"] for node in mine} == {"arm64"}


def test_another_user_may_nothing(kube: Any, tmp_path: Path) -> None:
    path = kube.kubeconfig_of("nobody")
    done = kube.kubectl("--kubeconfig", str(path), "get", "jobsets", "-A", check=False)
    assert done.returncode == 1
    assert "forbidden" in done.stderr
    assert os.stat(kube.pki).st_mode & 0o077 == 0
