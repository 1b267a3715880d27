"""The Kubernetes target as a person meets it: every state by `status`, `logs`, `cancel` and `resume`, on a real API server."""

import json
import os
import re
import subprocess
import sys

import pytest
from bench import STEPS, wait_until
from kube_harness import jobset_of, objects, only_run, rows, typed, with_words

from launcher.issue import Refused
from launcher.render.bundle import render
from launcher.runs import ending, starting
from launcher.runs.attempts import State, handle_file, judge_one, newest
from launcher.runs.status import status_of
from launcher.targets import base, kubernetes
from launcher.targets.base import Presence

# A run's life, command by command


def test_a_run_from_the_queue_to_its_end(kube_bench, on_kubernetes, type_):
    on_kubernetes.hold("0/8 nodes are available: 8 Insufficient nvidia.com/gpu.")
    code, out, _ = type_(*typed(kube_bench))
    run = only_run(kube_bench)
    assert code == 0
    assert f"{run.name}: submitted as JobSet {jobset_of(run)} in namespace {on_kubernetes.namespace}" in out
    wait_until(lambda: "Insufficient" in status_of(run).reason, 20, lambda: status_of(run))
    code, out, _ = type_("status", run.name)
    seen = rows(out)
    assert (code, seen["state"].split(",")[0]) == (0, "waiting")
    assert re.match(
        rf"pod {jobset_of(run)}-w-0-0-\w+ is pending: not enough GPUs are free on fitting nodes", seen["reason"]
    )
    assert "wait for other pods to end" in seen["reason"]
    assert type_("logs", run.name)[0] == 1
    code, out, _ = type_(*typed(kube_bench))
    assert (code, "is there already (waiting)" in out) == (1, True)
    on_kubernetes.release()
    code, out, _ = type_("logs", run.name, "-f", "--rank", "1")
    assert code == 0
    assert out.count("completed step:") == STEPS
    kube_bench.wait(run, State.FINISHED)
    assert rows(type_("status", run.name)[1])["steps"] == f"{STEPS} of {STEPS} done, last is step {STEPS - 1}"
    code, out, _ = type_("cancel", run.name)
    assert (code, "is not running: finished" in out) == (0, True)
    code, out, _ = type_("resume", run.name)
    assert (code, "nothing is left to resume" in out) == (1, True)
    assert len(objects(on_kubernetes, "jobsets")) == 1


def test_a_suspended_run_says_so(kube_bench, on_kubernetes, type_):
    on_kubernetes.hold("no room")
    run = kube_bench.start()
    on_kubernetes.suspend(jobset_of(run))
    wait_until(lambda: "suspended" in status_of(run).reason, 20, lambda: status_of(run))
    assert rows(type_("status", run.name)[1])["state"].startswith("waiting")
    on_kubernetes.release()
    on_kubernetes.suspend(jobset_of(run), False)
    kube_bench.wait(run, State.FINISHED)


def test_a_run_that_its_queue_took_back_goes_on_when_it_is_let_in_again(kube_bench, on_kubernetes):
    """Kueue preempts by suspending: the pods come again as the same attempt of the JobSet."""
    again = with_words(kube_bench, "monitor.max_preemptions=1")
    run = again.start("hold=6 attempt=1")
    again.wait_for_step(run, 5)
    on_kubernetes.suspend(jobset_of(run))
    again.wait(run, State.WAITING, State.RESTARTING)
    wait_until(lambda: "suspended" in status_of(run).reason, 30, lambda: status_of(run))
    on_kubernetes.suspend(jobset_of(run), False)
    again.wait(run, State.FINISHED)
    assert status_of(run).last_step == STEPS - 1
    assert len(objects(on_kubernetes, "jobsets")) == 1


def test_restarting_is_told_and_the_next_attempt_goes_on(kube_bench, on_kubernetes, type_):
    again = with_words(
        kube_bench, "monitor.max_failures=1", "monitor.max_preemptions=1"
    )  # a pod without last words was taken
    run = again.start("hold=6 attempt=1")
    again.wait_for_step(run, 5)
    on_kubernetes.hold("0/8 nodes are available: 8 Insufficient memory.")
    again.harness.kill_worker(run)
    again.wait(run, State.RESTARTING)
    wait_until(lambda: "Insufficient memory" in status_of(run).reason, 30, lambda: status_of(run))
    code, out, _ = type_("status", run.name)
    assert code == 0
    assert rows(out)["state"].startswith("restarting, attempt 1")
    assert "attempt 2 is about to begin: pod" in rows(out)["reason"]
    on_kubernetes.release()
    again.wait(run, State.FINISHED)
    assert (status_of(run).attempt, status_of(run).restarts, status_of(run).last_step) == (2, 1, STEPS - 1)
    code, out, _ = type_("logs", run.name, "--all", "--rank", "0")
    assert [line for line in out.splitlines() if line.startswith("==>")] == ["==> attempt 1 <==", "==> attempt 2 <=="]
    jobset = on_kubernetes.jobset(jobset_of(run))
    assert jobset["status"]["restarts"] == 1


def test_a_failed_run_says_why_and_resume_is_a_new_jobset(kube_bench, on_kubernetes, type_):
    run = kube_bench.start("mode=die at=6 attempt=1")
    kube_bench.wait(run, State.FAILED)
    wait_until(lambda: "the JobSet failed" in status_of(run).reason, 20, lambda: status_of(run))
    first = judge_one(run).handle
    seen = rows(type_("status", run.name)[1])
    assert seen["state"].startswith("failed, attempt 1")
    assert seen["job"] == f"JobSet {first['jobset']} in namespace {on_kubernetes.namespace}"
    code, out, _ = type_("resume", run.name)
    assert code == 0
    assert f"attempt 2 resumes from the checkpoint of step {status_of(run).checkpoint}" in out
    kube_bench.wait(run, State.FINISHED)
    second = judge_one(run).handle
    assert (second["jobset"], second["uid"] != first["uid"], second["first"]) == (first["jobset"], True, 2)
    (jobset,) = objects(on_kubernetes, "jobsets")
    (template,) = [job["template"]["spec"]["template"] for job in jobset["spec"]["replicatedJobs"]]
    assert template["metadata"]["annotations"]["launcher/first-attempt"] == "2"


def test_cancel_deletes_the_jobset_and_hears_its_last_words(kube_bench, on_kubernetes, type_):
    run = kube_bench.start("hold=6")
    kube_bench.wait_for_step(run, 5)
    code, out, _ = type_("cancel", run.name)
    assert code == 0
    assert "newest checkpoint: step 6" in out
    assert status_of(run).state is State.CANCELLED
    wait_until(lambda: not objects(on_kubernetes, "jobsets") and not objects(on_kubernetes, "pods"), 30)
    wait_until(
        lambda: not [c for c in objects(on_kubernetes, "configmaps") if jobset_of(run) in c["metadata"]["name"]], 30
    )
    last = run.layout.attempt(1).rank_log(0).read_text()
    assert last == (on_kubernetes.volume / jobset_of(run) / "attempts/1/rank0.log").read_text()


def test_a_jobset_that_somebody_deleted_is_gone_and_can_be_resumed(kube_bench, on_kubernetes):
    run = kube_bench.start("hold=6 attempt=1")
    kube_bench.wait_for_step(run, 5)
    on_kubernetes.server.kubectl("-n", on_kubernetes.namespace, "delete", "jobset", jobset_of(run), "--wait=true")
    kube_bench.wait(run, State.DIED, State.PREEMPTED)
    starting.resume(run)
    kube_bench.wait(run, State.FINISHED)


# Never twice, never another's


def test_a_lost_start_is_found_again(kube_bench, on_kubernetes):
    """The launcher was killed between the server's yes and its own note."""
    run = kube_bench.start("hold=6")
    kube_bench.wait_for_step(run, 1)
    uid = judge_one(run).handle["uid"]
    handle_file(newest(run)).unlink()
    for name in ("attempt.json", "rank0.log", "rank1.log", "worker0.log", ".pod0.json"):
        (newest(run).path / name).unlink()
    again = kube_bench.submit(kube_bench.plan("hold=6"))
    assert (again.attempt, again.exit_code) == (None, 1)
    assert judge_one(run).handle["uid"] == uid
    kube_bench.let_go(run)
    kube_bench.wait(run, State.FINISHED)
    assert [each["metadata"]["uid"] for each in objects(on_kubernetes, "jobsets")] == [uid]


def test_the_same_experiment_from_another_folder_is_refused(kube_bench, on_kubernetes, tmp_path):
    run = kube_bench.start("hold=2")
    plan = kube_bench.plan("hold=2")
    with pytest.raises(Refused) as refused:
        starting.submit(tmp_path / "other", render(plan), plan, os.environ, {})
    (issue,) = refused.value.issues
    assert (issue.code, jobset_of(run) in issue.message, "name=" in issue.hint) == ("JOBSET_THERE", True, True)
    assert len(objects(on_kubernetes, "jobsets")) == 1
    assert status_of(run).state.value in ("starting", "compiling", "running", "waiting")


def test_other_content_under_its_name_is_explained_and_not_forced(kube_bench, on_kubernetes, type_):
    run = kube_bench.start("hold=2")
    name = jobset_of(run)
    where = ("-n", on_kubernetes.namespace)
    assert type_("diff", run.name, "--cluster")[:2] == (0, f"{run.name}: the cluster has exactly this\n")
    applied = run.layout.bundle.path / "jobset.yaml"
    kubectl = on_kubernetes.server.kubectl(
        *where, "diff", "--server-side", "--field-manager=launcher", "-f", str(applied)
    )
    assert (kubectl.returncode, kubectl.stdout) == (0, ""), "kubectl sees it alike"
    on_kubernetes.server.kubectl(*where, "label", "jobset", name, "app.kubernetes.io/component=other", "--overwrite")
    code, out, _ = type_("diff", run.name, "--cluster")
    assert code == 1
    assert f"JobSet {name}" in out
    assert "app.kubernetes.io/component" in out
    plan = kube_bench.plan("hold=2")
    told = [
        issue for issue in kubernetes.refusals(plan, kubernetes.options(os.environ)) if issue.code == "KUBE_CONFLICT"
    ]
    assert told
    assert "app.kubernetes.io/component" in told[0].message
    assert on_kubernetes.jobset(name)["metadata"]["labels"]["app.kubernetes.io/component"] == "other"


# What is left, and what is light


def test_a_compute_domain_goes_after_the_pods_and_not_before(kube_bench, on_kubernetes):
    run = kube_bench.start("hold=2")
    kube_bench.wait_for_step(run, 1)
    name = jobset_of(run)
    domain = {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomain",
        "metadata": {"name": name},
        "spec": {"numNodes": 0, "channel": {"resourceClaimTemplate": {"name": name}}},
    }
    on_kubernetes.server.kubectl("-n", on_kubernetes.namespace, "create", "-f", "-", input=json.dumps(domain))
    handle = {**judge_one(run).handle, "compute_domains": [name]}
    handle_file(newest(run)).write_text(json.dumps(handle))
    assert kubernetes.tidy(handle) == [f"ComputeDomain {name} stays until its pods are gone"]
    assert len(objects(on_kubernetes, "computedomains")) == 1
    assert not status_of(run).left
    kube_bench.let_go(run)
    kube_bench.wait(run, State.FINISHED)
    assert f"ComputeDomain {name}" in status_of(run).left
    assert ending.cancel(run, lambda _: None) == 0
    assert not objects(on_kubernetes, "computedomains")
    assert not status_of(run).left


def test_a_run_that_is_over_asks_nobody(kube_bench, on_kubernetes, monkeypatch):
    run = kube_bench.start("mode=die at=6")
    kube_bench.wait(run, State.FAILED)
    wait_until(lambda: "the JobSet failed" in status_of(run).reason, 20, lambda: status_of(run))
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    assert status_of(run).state is State.FAILED
    program = (
        "import sys; from launcher.cli.main import main; main(sys.argv[1:])\n"
        "print(sorted(m for m in sys.modules if m.split('.')[0] in ('kubernetes', 'urllib3', 'yaml')), file=sys.stderr)"
    )
    for words in (["status", run.name], ["runs"], ["logs", run.name, "--rank", "0"]):
        done = subprocess.run(
            [sys.executable, "-c", program, *words, "--runs", str(kube_bench.root)], capture_output=True, text=True
        )
        assert done.stderr.splitlines()[-1:] == ["[]"], done.stderr


def test_two_hundred_runs_cost_two_questions(kube_bench, on_kubernetes, monkeypatch):
    on_kubernetes.hold("no room")
    run = kube_bench.start()
    handle = judge_one(run).handle
    client = kubernetes.connect(handle["context"])
    asked = []
    real = client._try
    monkeypatch.setattr(client, "_try", lambda ask: asked.append(ask.path) or real(ask))
    others = [{**handle, "jobset": f"demo-{number:08x}", "uid": str(number)} for number in range(199)]
    seen = base.get("kubernetes").look([handle, *others])
    assert len(asked) == 2, asked
    assert [sight.presence for sight in seen] == [Presence.WAITING] + [Presence.GONE] * 199


def test_another_cluster_is_not_taken_for_the_runs_own(kube_bench):
    run = kube_bench.start("hold=2")
    handle = judge_one(run).handle
    (sight,) = kubernetes.look([{**handle, "jobset": "demo-0", "server": "https://elsewhere:6443"}])
    assert sight.presence is Presence.UNKNOWN
    assert "submitted through https://elsewhere:6443" in sight.why
    (sight,) = kubernetes.look([{**handle, "context": "gone"}])
    assert (sight.presence, "has no context 'gone'" in sight.why) == (Presence.UNKNOWN, True)


def test_two_who_look_at_once_write_each_line_once(kube_bench):
    run = kube_bench.start("pause=0.05")
    looking = "import sys; from pathlib import Path; from launcher.runs import store, status\n"
    looking += "while status.status_of(store.open_run(Path(sys.argv[1]), sys.argv[2])).state != 'finished': pass"
    others = [subprocess.Popen([sys.executable, "-c", looking, str(kube_bench.root), run.name]) for _ in range(2)]
    kube_bench.wait(run, State.FINISHED)
    assert [other.wait(60) for other in others] == [0, 0]
    wait_until(lambda: kubernetes.bring(run.layout, judge_one(run).handle, None) == [], 20)
    told = run.layout.attempt(1).rank_log(0).read_text()
    assert told == (kube_bench.harness.output(run).parent / "attempts/1/rank0.log").read_text()


def test_who_may_not_write_here_still_sees_the_state(kube_bench):
    run = kube_bench.start("hold=6")
    kube_bench.wait_for_step(run, 5)
    (run.folder / ".bring").unlink()
    (run.folder / ".bring").mkdir()  # no one can write to it
    seen = status_of(run)
    assert (seen.state, seen.last_step) == (State.RUNNING, 5)
    (said,) = kubernetes.bring(run.layout, judge_one(run).handle, None)
    assert ".bring" in said
    (run.folder / ".bring").rmdir()
    kube_bench.let_go(run)
    kube_bench.wait(run, State.FINISHED)
