"""The test bed's parts that need no server: what the controllers decide, what a container is given, who ends whom."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from k8s.testbed import container, keep
from k8s.testbed.admission import refusal, with_defaults
from k8s.testbed.podlog import PodLog, stamp
from k8s.testbed.rules import jobset_decision, missing_indexes, pod_failure, with_condition
from k8s.testbed.server import older


def pod(
    index: int = 0, *, phase: str = "Running", code: int | None = None, disrupted: bool = False, ending: bool = False
) -> Any:
    metadata = {
        "name": f"js-w-0-{index}-abcde",
        "namespace": "ns",
        "annotations": {"batch.kubernetes.io/job-completion-index": str(index)},
    }
    if ending:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    status: dict[str, Any] = {"phase": phase, "conditions": []}
    if code is not None:
        status["containerStatuses"] = [{"name": "trainer", "state": {"terminated": {"exitCode": code}}}]
    if disrupted:
        status["conditions"] = [{"type": "DisruptionTarget", "status": "True"}]
    return {"metadata": metadata, "status": status}


POLICY = {
    "podFailurePolicy": {
        "rules": [
            {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [9]}},
            {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            {"action": "FailJob", "onExitCodes": {"containerName": "trainer", "operator": "In", "values": [75, 78]}},
            {"action": "FailJob", "onExitCodes": {"containerName": "other", "operator": "NotIn", "values": [1]}},
        ]
    }
}
DISRUPTED = "Pod ns/js-w-0-0-abcde has condition DisruptionTarget matching FailJob rule at index 1"
CODE = "Container trainer for pod ns/js-w-0-0-abcde failed with exit code 78 matching FailJob rule at index 2"


@pytest.mark.parametrize(
    ("failed", "wanted"),
    [
        (pod(code=78), ("FailJob", CODE)),
        (pod(code=78, disrupted=True), ("FailJob", DISRUPTED)),  # the first rule that matches
        (pod(code=0, disrupted=True), ("FailJob", DISRUPTED)),
        (pod(code=1), ("Count", "")),
        (pod(), ("Count", "")),  # it never had a container
    ],
)
def test_the_first_matching_rule_of_the_pod_failure_policy_decides(failed: Any, wanted: tuple[str, str]) -> None:
    assert pod_failure(POLICY, failed) == wanted


def test_an_ignored_exit_code_is_ignored() -> None:
    assert pod_failure(POLICY, pod(code=9))[0] == "Ignore"


@pytest.mark.parametrize(
    ("policy", "pods", "succeeded", "wanted"),
    [
        ({}, [], set(), [0, 1, 2]),
        ({}, [pod(0), pod(2)], set(), [1]),
        ({}, [pod(0), pod(1, phase="Failed")], {2}, [1]),
        # A terminating pod keeps its place only if the Job waits for it.
        ({}, [pod(0), pod(1, ending=True), pod(2)], set(), [1]),
        ({"podReplacementPolicy": "Failed"}, [pod(0), pod(1, ending=True), pod(2)], set(), []),
        ({"parallelism": 1}, [], set(), [0]),
    ],
)
def test_indexes_without_a_pod_get_one(policy: Any, pods: list[Any], succeeded: set[int], wanted: list[int]) -> None:
    assert missing_indexes({"completions": 3, "parallelism": 3, **policy}, pods, succeeded) == wanted


def failed_job(name: str, reason: str, message: str, at: str) -> Any:
    why = {"type": "Failed", "status": "True", "reason": reason, "message": message, "lastTransitionTime": at}
    labels = {"jobset.sigs.k8s.io/replicatedjob-name": name}
    return {"metadata": {"name": f"js-{name}-0", "labels": labels}, "status": {"conditions": [why]}}


def decided(rules: list[Any] | None, failed: list[Any], counted: int = 0) -> tuple[str, bool, str]:
    policy = {} if rules is None else {"failurePolicy": {"maxRestarts": 2, "rules": rules}}
    decision = jobset_decision({"spec": policy, "status": {"restartsCountTowardsMax": counted}}, failed)
    if decision.failed:
        return decision.failed.reason, False, decision.failed.message.rpartition(" ")[2].rstrip(")")
    return decision.reason, decision.counts, decision.message.rpartition(" ")[2].rstrip(")")


EARLY = failed_job("a", "BackoffLimitExceeded", "Job has reached the specified backoff limit", "2026-01-01T00:00:01Z")
LATE = failed_job("b", "PodFailurePolicy", CODE, "2026-01-01T00:00:02Z")


@pytest.mark.parametrize(
    ("rules", "counted", "wanted"),
    [
        (None, 0, ("FailedJobs", False, "js-a-0")),
        ([], 0, ("DefaultFailurePolicy", True, "js-a-0")),
        ([], 2, ("ReachedMaxRestarts", False, "js-a-0")),
        # The first rule decides, though a later one matches an earlier failure.
        ([{"name": "x", "action": "FailJobSet", "onJobFailureMessagePatterns": ["exit code (76|78) "]}, {"name": "y", "action": "RestartJobSet"}],
         0, ("FailJobSetFailurePolicyAction", False, "js-b-0")),
        ([{"name": "x", "action": "FailJobSet", "onJobFailureMessagePatterns": ["exit code 7 "]}], 0, ("DefaultFailurePolicy", True, "js-a-0")),
        ([{"name": "x", "action": "FailJobSet", "targetReplicatedJobs": ["c"]}], 0, ("DefaultFailurePolicy", True, "js-a-0")),
        ([{"name": "x", "action": "RestartJobSetAndIgnoreMaxRestarts", "onJobFailureReasons": ["PodFailurePolicy"]}],
         2, ("FailurePolicy_x", False, "js-b-0")),
        ([{"name": "x", "action": "RestartJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}], 2, ("ReachedMaxRestarts", False, "js-b-0")),
    ],
)  # fmt: skip
def test_the_first_matching_rule_of_the_failure_policy_decides(rules: Any, counted: int, wanted: Any) -> None:
    assert decided(rules, [LATE, EARLY], counted) == wanted


def test_a_condition_keeps_its_time_until_its_status_changes() -> None:
    first = with_condition([], "Suspended", "True", "A", "a")
    first[0]["lastTransitionTime"] = "then"
    assert with_condition(first, "Suspended", "True", "B", "b")[0]["lastTransitionTime"] == "then"
    assert with_condition(first, "Suspended", "False", "B", "b")[0]["lastTransitionTime"] != "then"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("$(A)/$(A)", "1/1"), ("$$(A)", "$(A)"), ("$(B)", "$(B)"), ("$A ${A}", "$A ${A}"), ("$$$(A)", "$1"), ("$", "$")],
)
def test_references_are_expanded_as_kubernetes_does(text: str, wanted: str) -> None:
    assert container.expand(text, {"A": "1"}) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("/runs", "/tmp/runs/v"),
        ("--run=/runs/js:/etc/launcher", "--run=/tmp/runs/v/js:/tmp/l"),
        ("/etc/launcher/bundle/a", "/tmp/b/a"),
        ("/runsx /srv/runs ./runs", "/runsx /srv/runs ./runs"),
        ("js-w-0-0.js:1234", "127.0.0.1:1234"),
        ("js-w-0-0.js.ns.svc.cluster.local", "127.0.0.1"),
        ("ajs-w-0-0.js js-w-0-0.jsx", "ajs-w-0-0.js js-w-0-0.jsx"),
    ],
)
def test_paths_and_hosts_become_this_machines(text: str, wanted: str) -> None:
    folders = {"/runs": Path("/tmp/runs/v"), "/etc/launcher": Path("/tmp/l"), "/etc/launcher/bundle": Path("/tmp/b")}
    assert container.translate(text, folders, ["js-w-0-0.js"]) == wanted


def test_a_log_is_read_while_it_is_written(tmp_path: Path) -> None:
    log = PodLog(tmp_path / "log")
    times = [stamp(1_700_000_000_000_000_000 + i * 10**9) for i in range(3)]
    log.path.write_text("".join(f"{t} line {i}\n" for i, t in enumerate(times)) + f"{times[-1]} half a li")
    assert list(log.read({})) == [b"line 0\n", b"line 1\n", b"line 2\n"]
    assert list(log.read({"sinceTime": times[1]})) == [b"line 1\n", b"line 2\n"]
    assert list(log.read({"tailLines": "0"})) == []
    assert list(log.read({"tailLines": "1", "timestamps": "true"})) == [f"{times[2]} line 2\n".encode()]


def test_a_definition_is_mended_for_an_old_server() -> None:
    items = {"properties": {"name": {"type": "string", "default": ""}}, "x-kubernetes-validations": [{"rule": "true"}]}
    new = {"type": "array", "items": items, "x-kubernetes-list-map-keys": ["name"]}
    mended = older({"schema": new})["schema"]
    assert mended["items"] == {"properties": {"name": {"type": "string"}}, "required": ["name"]}
    assert "required" not in items


DEFINITION = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.org, annotations: {builder: v1}}
spec:
  group: example.org
  names: {kind: Thing, plural: things}
  versions:
  - name: v1
    schema:
      openAPIV3Schema:
        description: Prose.
        type: object
        properties:
          description: {type: string, description: Prose of a field that is called so.}
          parts: {type: array, x-kubernetes-list-map-keys: [name], items: {description: Prose., type: object, default: {description: kept}}}
"""


def test_definitions_are_kept_without_their_prose(tmp_path: Path) -> None:
    (tmp_path / "crd.yaml").write_text(DEFINITION)
    tool = Path(__file__).resolve().parents[2] / "tools" / "kubernetes_schemas.py"
    words = [sys.executable, str(tool), str(tmp_path / "crd.yaml"), "from here", "--out", str(tmp_path)]
    subprocess.run(words, check=True, capture_output=True)
    written = json.loads((tmp_path / "things.json").read_text())
    assert written["metadata"] == {"name": "things.example.org", "annotations": {"source": "from here"}}
    assert written["spec"]["versions"][0]["schema"]["openAPIV3Schema"] == {
        "type": "object",
        "properties": {
            "description": {"type": "string"},
            "parts": {
                "type": "array",
                "x-kubernetes-list-map-keys": ["name"],
                "items": {"type": "object", "default": {"description": "kept"}},
            },
        },
    }


def a_jobset(suspend: bool = False, **pod: Any) -> Any:
    template = {"metadata": {"annotations": {"a": "1"}}, "spec": {"containers": [{"name": "trainer"}], **pod}}
    return {
        "spec": {"suspend": suspend, "replicatedJobs": [{"name": "w", "template": {"spec": {"template": template}}}]}
    }


@pytest.mark.parametrize(
    ("suspended", "change", "refused"),
    [
        (False, {"nodeSelector": {"rack": "7"}}, True),
        (True, {"nodeSelector": {"rack": "7"}, "tolerations": [], "schedulingGates": []}, False),  # as Kueue places it
        (True, {"nodeSelector": {"rack": "7"}, "hostNetwork": True}, True),
    ],
)
def test_a_suspended_jobset_may_be_placed_and_no_more(suspended: bool, change: Any, refused: bool) -> None:
    assert (refusal("JobSet", a_jobset(suspended), a_jobset(False, **change)) is not None) == refused


def test_defaults_leave_what_is_said() -> None:
    said = {"spec": {**a_jobset(restartPolicy="Never")["spec"], "network": {"enableDNSHostnames": False}}}
    spec = with_defaults(said)["spec"]
    assert spec["network"] == {"enableDNSHostnames": False, "publishNotReadyAddresses": True}
    assert spec["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["restartPolicy"] == "Never"
    assert (
        with_defaults(a_jobset())["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["restartPolicy"]
        == "OnFailure"
    )


# ---- keep.py ----

TREE = """
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "MARK"], start_new_session=True)  # detached, and orphaned below
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
print("up", flush=True)
"""


def marked(mark: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes()
                stat = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if mark.encode() in words and stat != "Z":
                found.append(int(entry.name))
    return found


def keeping(tmp_path: Path, end: str) -> tuple[subprocess.Popen[bytes], str]:
    mark = f"mark-{tmp_path}"
    words = keep.command([sys.executable, "-c", TREE.replace("MARK", mark) + end, mark])
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    deadline = time.monotonic() + 10
    while len(marked(mark)) < 4:  # the shim, the program, and two that have left it
        assert time.monotonic() < deadline, marked(mark)
        time.sleep(0.01)
    return process, mark


def test_all_descendants_end_with_the_program(tmp_path: Path) -> None:
    flag = tmp_path / "end"
    process, mark = keeping(tmp_path, f"while not os.path.exists({str(flag)!r}): time.sleep(0.01)\nsys.exit(7)")
    flag.touch()
    assert process.wait(10) == 7
    assert marked(mark) == []


def test_all_end_when_the_leash_is_let_go(tmp_path: Path) -> None:
    process, mark = keeping(tmp_path, "time.sleep(600)")
    process.stdin.close()  # type: ignore[union-attr]
    assert process.wait(10) == 137
    assert marked(mark) == []


def test_sigterm_is_for_the_program_alone_and_sigusr1_for_all(tmp_path: Path) -> None:
    end = "import signal; signal.signal(signal.SIGTERM, lambda *_: print('saved', flush=True)); print('set', flush=True)\nwhile True: time.sleep(1)"
    process, mark = keeping(tmp_path, end)
    assert process.stdout is not None
    assert process.stdout.readline() == b"set\n"
    before = len(marked(mark))
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == b"saved\n"
    assert len(marked(mark)) == before
    process.send_signal(signal.SIGUSR1)
    assert process.wait(10) == 137
    assert marked(mark) == []
    process.stdin.close()  # type: ignore[union-attr]


def test_a_program_that_is_not_there_is_127() -> None:
    done = subprocess.run(keep.command(["/no/such/program"]), stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 127
    assert "/no/such/program: No such file or directory" in done.stderr
