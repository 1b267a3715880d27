"""Real MaxText on the CPU in pods, from the rendered manifest: a pod is killed, all come back, the run goes on and ends."""

import importlib.util
import json

import pytest

from launcher.config.compose import Composer
from launcher.node import speech
from launcher.node.checkpoints import newest
from launcher.node.layout import RunFolder, checkpoints_folder
from launcher.node.steps import parse_step
from launcher.plan.plan import make
from launcher.render.bundle import render

STEPS, PERIOD = 30, 5
MINUTES = 60

pytestmark = [
    pytest.mark.maxtext,
    pytest.mark.skipif(
        importlib.util.find_spec("maxtext") is None, reason="MaxText is not installed: pip install '.[local]'"
    ),
]


def manifest(pods, processes):
    """The tiny MoE on so many nodes, as a person would pipe it to kubectl; `container` names an image, here this Python."""
    words = [
        "+exp=moe_tiny_cpu",
        "target=kubernetes",
        "container=nvidia_maxtext",
        "target.kubernetes.claim=runs",
        f"nodes={pods}",
        f"hardware.gpus_per_node={processes}",
        f"hardware.domain_nodes={pods}",  # CPUs have no slices: the mesh is one domain
        f"mesh.ici.fsdp={pods * processes // 2}",
        f"trainer.steps={STEPS}",
        f"checkpoint.checkpoint_period={PERIOD}",
    ]
    return render(make(Composer().compose(words).experiment)).artefact


def steps_of(run, attempt):
    lines = run.attempt(attempt).rank_log(0).read_text(errors="replace").splitlines()
    return [step for step in map(parse_step, lines) if step is not None]


# 4 pods of 2 processes take 7 CPU minutes: 16 starts of MaxText, each compiling.
@pytest.mark.parametrize(("pods", "processes"), [(2, 1), pytest.param(4, 2, marks=pytest.mark.slow)])
def test_a_killed_pod_brings_all_back_and_the_run_goes_on_from_its_checkpoint(kube_cluster, pods, processes):
    kubectl, namespace = kube_cluster.server.kubectl, kube_cluster.namespace
    text = manifest(pods, processes)
    kubectl("apply", "--server-side", "--field-manager=launcher", "-n", namespace, "-f", "-", input=text)
    name = json.loads(kubectl("get", "jobset", "-n", namespace, "-o", "json").stdout)["items"][0]["metadata"]["name"]
    run = RunFolder(kube_cluster.volume / name)
    folder = checkpoints_folder(run.output, name)

    def saved():
        assert not run.attempt(1).result().exists(), run.attempt(1).result().read_text()
        return (newest(folder) or 0) >= PERIOD

    kube_cluster.wait(saved, 10 * MINUTES)
    kube_cluster.kill(kube_cluster.pods(name, attempt=0)[-1]["metadata"]["name"])
    kube_cluster.wait(lambda: run.attempt(2).started().exists(), 3 * MINUTES)
    kube_cluster.wait(lambda: condition(kube_cluster.jobset(name)), 10 * MINUTES)
    assert condition(kube_cluster.jobset(name)) == "Completed"
    assert kube_cluster.jobset(name)["status"]["restarts"] == 1

    result = json.loads(run.attempt(2).result().read_text())
    assert (result["outcome"], result["last_step"], result["checkpoint"]) == ("finished", STEPS - 1, STEPS - 1)
    decision = json.loads((run.attempt(1).path / "decision.json").read_text())
    assert decision["action"] == "restart"
    before, after = steps_of(run, 1), steps_of(run, 2)
    assert [step.step for step in after] == list(range(result["first_step"], STEPS))
    assert before[-1].step < STEPS - 1, "it was killed too late to show anything"
    assert before[-1].step + 1 - after[0].step <= PERIOD, "more was lost than the checkpoint period"
    # The steps that were trained twice gave the same loss: the state is the one that was saved.
    losses = {step.step: step.loss for step in before}
    for step in after:
        assert step.loss == pytest.approx(losses.get(step.step, step.loss), rel=2e-3)
    assert after[-1].loss < before[0].loss

    first = kube_cluster.pods(name, attempt=1)[0]["metadata"]["name"]
    said = list(filter(None, map(speech.parse, kubectl("logs", "-n", namespace, first).stdout.split("\n"))))
    assert [record.content["action"] for record in said if record.file == "decision.json"] == ["restart"]
    assert said[-1] == speech.Record(2, "result.json", result)
    saved_steps = [record.content["steps"] for record in said if record.file == "checkpoints.json"]
    assert saved_steps[-1][-1] == STEPS - 1


def condition(jobset):
    """The terminal condition of a JobSet, or None."""
    return (jobset or {}).get("status", {}).get("terminalState")
