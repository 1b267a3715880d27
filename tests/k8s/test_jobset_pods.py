"""The worker in the pods of rendered JobSets, under the controllers' rules, with the stand-in that speaks MaxText's texts."""

import json
from pathlib import Path

import pytest

from launcher.config.compose import Composer
from launcher.node.layout import RunFolder
from launcher.plan.plan import make
from launcher.render.bundle import render

TESTS = Path(__file__).resolve().parents[1]
TRAINERS = f"{TESTS / 'targets'}:{TESTS / 'node'}"
WORDS = (
    "+exp=moe_tiny_cpu",
    "target=kubernetes",
    "container=nvidia_maxtext",
    "target.kubernetes.claim=runs",
    "nodes=4",
    "hardware.domain_nodes=4",
    "mesh.ici.fsdp=4",
    "trainer.module=conformance_trainer",
    "trainer.steps=10",
    "checkpoint.checkpoint_period=2",
)


class Applied:
    """A JobSet on the small cluster. `orders` go to the stand-in trainer (tests/targets/conformance_trainer.py)."""

    def __init__(self, cluster, *words):
        text = render(make(Composer().compose([*WORDS, *words]).experiment)).artefact
        kubectl = cluster.server.kubectl
        kubectl("apply", "--server-side", "-n", cluster.namespace, "-f", "-", input=text)
        listed = json.loads(kubectl("get", "jobset", "-n", cluster.namespace, "-o", "json").stdout)
        self.cluster, self.name = cluster, listed["items"][0]["metadata"]["name"]
        self.run = RunFolder(cluster.volume / self.name)

    @property
    def status(self):
        return self.cluster.jobset(self.name).get("status", {})

    def wait(self, state, seconds=120):
        self.cluster.wait(lambda: self.status.get("terminalState"), seconds)
        assert self.status["terminalState"] == state, (self.status, self.results())

    def wait_text(self, text, attempt=1, rank=7, seconds=60):
        log = self.run.attempt(attempt).rank_log(rank)
        self.cluster.wait(lambda: log.exists() and text in log.read_text(), seconds)

    def pod(self, node, restart):
        return self.cluster.pods(self.name, attempt=restart)[node]["metadata"]["name"]

    def results(self):
        return {str(path): path.read_text() for path in self.run.attempts.glob("*/*.json")}

    def json(self, name, attempt):
        return json.loads((self.run.attempt(attempt).path / name).read_text())


@pytest.fixture
def apply(start_kube_cluster):
    """Applies the rendered manifest, with more words, on a cluster whose image holds the stand-in and its orders."""

    def go(orders, *words, **cluster):
        image = {"PYTHONPATH": TRAINERS, "STANDIN": orders}
        return Applied(start_kube_cluster(image=image, **cluster), *words)

    return go


def test_an_evicted_pod_costs_no_restart_budget(apply):
    jobset = apply("hold=5 attempt=1", "monitor.max_failures=0")
    for rank in (0, 7):
        jobset.wait_text("completed step: 4,", rank=rank)
    jobset.cluster.evict(jobset.pod(2, restart=0))
    jobset.wait("Completed")
    assert (jobset.status["restarts"], jobset.status.get("restartsCountTowardsMax", 0)) == (1, 0)
    assert jobset.json("decision.json", 1)["charged"] == "preemptions"
    assert jobset.json("result.json", 2)["first_step"] == 6
    assert jobset.json("attempt-node2.json", 2)["host"] in {f"{jobset.cluster.namespace}-n{i}" for i in range(8)}


def test_evictions_that_bring_nothing_are_bounded_by_the_worker(apply):
    jobset = apply("mode=early", "monitor.max_failures=1", "checkpoint.enable_checkpointing=false")
    for restart in range(2):
        jobset.wait_text("importing", attempt=restart + 1, rank=0)
        jobset.cluster.evict(jobset.pod(0, restart))
    jobset.wait("Failed")
    assert (jobset.status["restarts"], jobset.status.get("restartsCountTowardsMax", 0)) == (2, 0)
    reason = jobset.json("result.json", 3)["reason"]
    assert "failures: 2 of 1 allowed (monitor.max_failures)" in reason
    assert [condition["type"] for condition in jobset.status["conditions"] if condition["status"] == "True"][
        -1
    ] == "Failed"


def test_an_overflow_is_healed_by_the_restart_of_all(apply):
    jobset = apply("mode=overflow at=3")
    jobset.wait("Completed")
    assert jobset.status["restarts"] == 1
    adjusted = json.loads(jobset.run.adjust.read_text())
    assert adjusted["maxtext"] == {"ragged_buffer_factor": 1.29}
    for node in ("attempt.json", "attempt-node3.json"):
        assert "ragged_buffer_factor=1.29" in jobset.json(node, 2)["command"]
    assert (jobset.json("result.json", 1)["code"], jobset.json("result.json", 2)["first_step"]) == (76, 3)


def test_an_overflow_that_is_left_to_a_person_fails_the_jobset(apply):
    jobset = apply("mode=overflow at=3", "monitor.overflow=stop")
    jobset.wait("Failed")
    assert jobset.status.get("restarts", 0) == 0
    assert jobset.json("result.json", 1)["code"] == 76
    assert not jobset.run.adjust.exists()


def test_a_refused_configuration_is_not_tried_again(apply):
    jobset = apply("mode=config")
    jobset.wait("Failed")
    assert jobset.status.get("restarts", 0) == 0
    assert jobset.json("result.json", 1)["outcome"] == "config_refused"


def test_a_jobset_that_kueue_preempts_goes_on_when_it_is_resumed(apply):
    jobset = apply("hold=5")
    for rank in (0, 7):
        jobset.wait_text("completed step: 4,", rank=rank)
    jobset.cluster.suspend(jobset.name)
    jobset.cluster.wait(lambda: jobset.run.attempt(1).result(3).exists() and not jobset.cluster.running(jobset.name, 1))
    (jobset.run.output / "go").touch()
    jobset.cluster.suspend(jobset.name, False)
    jobset.wait("Completed")
    assert jobset.status.get("restarts", 0) == 0
    assert jobset.run.attempt_numbers() == [1]
    assert jobset.json("result.json", 1)["first_step"] == 6


def test_one_job_for_each_domain_is_one_gang(apply):
    """CPUs know no domains: GPUs by name, which the stand-in does not touch."""
    layout = ("target.kubernetes.layout=job_per_domain", "target.kubernetes.topology=nvidia.com/gpu.clique")
    hardware = ("hardware=gb200_nvl72", "hardware.gpus_per_node=2", "hardware.domain_nodes=2")
    mesh = ("mesh.ici.expert=4", "mesh.ici.fsdp=1", "mesh.dcn.fsdp=2")
    alone = ("target.kubernetes.queue=null", "target.kubernetes.compute_domain=false", "monitor.node_check=none")
    jobset = apply("", *layout, *hardware, *mesh, *alone, rack=2)
    jobset.wait("Completed")
    started = [jobset.json("attempt.json" if node == 0 else f"attempt-node{node}.json", 1) for node in range(4)]
    places = ["-w-0-0-", "-w-0-1-", "-w-1-0-", "-w-1-1-"]
    assert [place in node["pod"] for place, node in zip(places, started, strict=True)] == [True] * 4
    assert "completed step: 9," in jobset.run.attempt(1).rank_log(7).read_text()
