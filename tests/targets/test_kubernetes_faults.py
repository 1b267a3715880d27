"""What networks and busy API servers do to the Kubernetes target: nothing is lost, submitted twice, or told wrongly."""

import threading
import time

import pytest
import yaml
from bench import Bench, wait_until
from kube_harness import KubeHarness, jobset_of

from k8s.testbed.faults import Fault, Proxy
from launcher.runs import ending, starting, store
from launcher.runs.attempts import State, judge_one, newest
from launcher.runs.status import status_of
from launcher.targets.kubernetes_client import Unanswered

WRONG = {State.DIED, State.FAILED, State.DAMAGED, State.CANCELLED, State.CREATED, State.PREEMPTED, State.STALLED}
"""What a run that finishes is at no moment."""


@pytest.fixture
def proxied(kube_cluster, tmp_path, monkeypatch):
    """The way to the cluster, with faults to order."""
    with Proxy(kube_cluster.server, tmp_path) as proxy:
        config = yaml.safe_load(proxy.kubeconfig.read_text())
        config["contexts"][0]["context"]["namespace"] = kube_cluster.namespace
        path = tmp_path / "kubeconfig"
        path.write_text(yaml.safe_dump(config))
        monkeypatch.setenv("KUBECONFIG", str(path))
        yield proxy


@pytest.fixture
def bench(tmp_path, proxied, kube_cluster):
    bench = Bench(tmp_path / "runs", KubeHarness(kube_cluster))
    yield bench
    proxied.clear()
    proxied.up()
    for run in store.all_runs(bench.root):
        if judge_one(run).is_live:
            ending.cancel_now(run, lambda _: None)


def seen_until(run, wanted, seconds=90):
    """Every state that the status told until it was the wanted one."""
    seen = set()

    def reached():
        seen.add(status_of(run).state)
        return wanted in seen

    wait_until(reached, seconds, lambda: status_of(run), 0.1)
    return seen


def check_whole(bench, run, cluster):
    """One JobSet, and each line of rank 0 exactly once."""
    names = [each["metadata"]["name"] for each in cluster.server.client.get(jobsets(cluster))["items"]]
    assert names == [jobset_of(run)]
    told = run.layout.attempt(1).rank_log(0).read_text()
    assert told == (bench.harness.output(run).parent / "attempts/1/rank0.log").read_text()


def jobsets(cluster):
    return f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{cluster.namespace}/jobsets"


MODIFIED = "Operation cannot be fulfilled on jobsets: the object has been modified; please apply your changes to the latest version"
APPLY = r"/jobsets/.*fieldManager=launcher&force=false&fieldValidation=Strict$"
TABLE = {
    "a conflict of two writers": [Fault("PATCH", APPLY, status=409, message=MODIFIED)],
    "too many requests, on everything": [Fault(status=429, retry_after_s=1, times=3)],
    "an internal error at the submission": [Fault("PATCH", APPLY, status=500)],
    "the answer to the submission is lost": [Fault("PATCH", APPLY, lost="answer")],
    "the submission itself is lost": [Fault("PATCH", APPLY, lost="request")],
    "the answer about the files is lost": [Fault("PATCH", "/configmaps/", lost="answer", times=2)],
    "unavailable while looking": [Fault("GET", "/(jobsets|pods)[?]", status=503, times=3)],
    "a page of a list has expired": [Fault("GET", "/(jobsets|pods)[?]", status=410, times=2)],
    "a list's answer is lost": [Fault("GET", "/(jobsets|pods)[?]", lost="answer", times=2)],
    "logs are cut": [Fault("GET", "/log[?]", cut_after=4, times=3)],
    "logs fail": [Fault("GET", "/log[?]", status=500, times=4)],
    "everything is slow": [Fault("GET", delay_s=0.3, times=8)],
}


@pytest.mark.parametrize("faults", TABLE.values(), ids=TABLE)
def test_a_run_goes_its_way(bench, proxied, kube_cluster, faults):
    given = [proxied.inject(Fault(**vars(fault))) for fault in faults]
    run = bench.start("pause=0.02")
    seen = seen_until(run, State.FINISHED)
    assert not seen & WRONG
    assert all(fault.times == 0 for fault in given), f"the fault did not happen: {given}"
    wait_until(lambda: "completed step" in run.layout.attempt(1).rank_log(0).read_text(), 10)
    proxied.clear()
    check_whole(bench, run, kube_cluster)


def test_a_restart_of_the_server_is_sat_out(bench, kube_cluster):
    run = bench.start("hold=6")
    bench.wait_for_step(run, 1)
    kube_cluster.server.restart(down_s=2)
    bench.let_go(run)
    assert not seen_until(run, State.FINISHED) & WRONG
    check_whole(bench, run, kube_cluster)


def test_an_unreachable_server_is_not_an_end(bench, proxied):
    run = bench.start("hold=6")
    bench.wait_for_step(run, 5)
    proxied.down()
    told = status_of(run)
    assert told.state is State.UNKNOWN
    assert "does not answer" in told.reason
    assert told.last_step == 5, "what the files say is told all the same"
    with pytest.raises(store.RunsError, match="cannot be asked"):
        ending.cancel(run, lambda _: None)
    again = starting.resume(run)
    assert (again.attempt, again.exit_code) == (None, 1)
    assert "cannot be told" in again.message
    proxied.up()
    bench.let_go(run)
    bench.wait(run, State.FINISHED)


def test_a_submission_that_nobody_answered_is_found_and_not_repeated(bench, proxied, kube_cluster, monkeypatch):
    monkeypatch.setattr("launcher.targets.kubernetes_client.WRITE_SECONDS", 1.0)
    proxied.inject(Fault("PATCH", APPLY, lost="answer", times=-1))
    plan = bench.plan("hold=6")
    with pytest.raises(Unanswered, match="does not answer"):
        bench.submit(plan)
    proxied.clear()
    (run,) = store.all_runs(bench.root)
    again = bench.submit(plan)
    assert (again.attempt, again.exit_code, newest(run).number) == (None, 1, 1)
    bench.wait_for_step(run, 5)
    bench.let_go(run)
    assert not seen_until(run, State.FINISHED) & WRONG
    check_whole(bench, run, kube_cluster)


def test_a_cancel_whose_answer_is_lost_is_done_once(bench, proxied):
    run = bench.start("hold=6")
    bench.wait_for_step(run, 5)
    proxied.inject(Fault("DELETE", "/jobsets/", lost="answer"))
    told = []
    assert ending.cancel(run, told.append) == 0
    assert status_of(run).state is State.CANCELLED
    assert status_of(run).checkpoint == 6


def test_last_words_are_heard_although_the_stream_is_cut(bench, proxied):
    run = bench.start("hold=6")
    bench.wait_for_step(run, 5)
    proxied.inject(Fault("GET", "/log[?].*follow=true", cut_after=1, times=2))
    assert ending.cancel(run, lambda _: None) == 0
    told = run.layout.attempt(1).rank_log(0).read_text()
    assert told == (bench.harness.output(run).parent / "attempts/1/rank0.log").read_text()


def test_a_follower_survives_everything(bench, proxied, capsys):
    from launcher.runs.logs import print_logs

    run = bench.start("hold=6")
    bench.wait_for_step(run, 2)
    out = open(bench.root / "followed", "w+")  # noqa: SIM115  read below
    follower = threading.Thread(target=print_logs, args=(run, out), kwargs={"follow": True, "rank": 1}, daemon=True)
    follower.start()
    time.sleep(1.5)
    proxied.down()
    time.sleep(1)
    proxied.up()
    proxied.inject(Fault("GET", "/log[?].*follow=true", cut_after=2, times=2))
    proxied.inject(Fault("GET", "/(jobsets|pods)[?]", status=410, times=1))
    bench.let_go(run)
    follower.join(90)
    assert not follower.is_alive()
    out.seek(0)
    assert out.read() == (bench.harness.output(run).parent / "attempts/1/rank1.log").read_text()


def test_nothing_is_ever_forced(bench, proxied):
    run = bench.start()
    bench.wait(run, State.FINISHED)
    assert proxied.count("PATCH", "force=true") == 0
    assert proxied.count("PATCH", "force=false") > 0
