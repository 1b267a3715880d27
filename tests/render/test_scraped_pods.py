"""What a Prometheus server looks for in the pods: there when a port is asked for, and not otherwise."""

import pytest
import yaml

from launcher.render.bundle import render


def template(plan_of, *words):
    text = render(plan_of("+exp=dsv3_128gpu", "target=kubernetes", *words)).artefact
    (jobset,) = (
        one
        for one in yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        if one["kind"] == "JobSet"
    )
    return jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]


def scraping(pod):
    return {key: value for key, value in pod["metadata"]["annotations"].items() if key.startswith("prometheus.io/")}


def test_a_port_is_announced(plan_of):
    pod = template(plan_of, "monitor.metrics_port=9400")
    assert scraping(pod) == {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": "9400",
        "prometheus.io/path": "/metrics",
    }
    assert pod["spec"]["containers"][0]["ports"] == [{"name": "metrics", "containerPort": 9400}]


def test_without_a_port_nothing_is(plan_of):
    pod = template(plan_of)
    assert scraping(pod) == {}
    assert "ports" not in pod["spec"]["containers"][0]


def test_a_fabrics_own_annotations_win(plan_of):
    words = ("monitor.metrics_port=9400", "+fabric.pod.metadata.annotations={prometheus.io/scrape: 'false'}")
    assert scraping(template(plan_of, *words))["prometheus.io/scrape"] == "false"


@pytest.mark.parametrize("given", [80, 1023, 65536, 0, -1])
def test_a_port_that_no_trainer_can_have_is_an_error(plan_of, given):
    (issue,) = (
        issue
        for issue in plan_of("+exp=moe_tiny_cpu", f"monitor.metrics_port={given}").issues
        if issue.code == "MONITOR_PORT"
    )
    assert "monitor.metrics_port=9400" in issue.hint
