"""What launch.json tells the worker to ask of its node."""

from __future__ import annotations

import pytest

from launcher.node import health
from launcher.render.bundle import render
from launcher.render.launch import launch
from launcher.render.node_check import SECONDS

DSV3 = "+exp=dsv3_128gpu"


def asked(plan_of, *words: str) -> dict | None:
    return launch(plan_of(*words))["node_check"]


def test_what_is_expected_of_a_node(plan_of) -> None:
    check = asked(plan_of, DSV3)
    expected = ["--gpus", "4", "--gpu-name", "GB200", "--host-bytes", "960000000000", "--imex", "--no-compute"]
    assert check == {"words": expected, "timeout_seconds": SECONDS["quick"]}
    assert asked(plan_of, DSV3, "monitor.node_check=full") == {
        "words": expected[:-1],
        "timeout_seconds": SECONDS["full"],
    }


@pytest.mark.parametrize("exp", [DSV3, "+exp=moe_tiny_cpu"])
def test_alone_it_is_the_full_check_on_any_platform(plan_of, exp) -> None:
    alone = asked(plan_of, exp, "monitor.node_check=only")
    full = asked(plan_of, exp, "monitor.node_check=full") or {"words": [], "timeout_seconds": SECONDS["only"]}
    assert alone == {**full, "only": True}


@pytest.mark.parametrize(("word", "restarts"), [("only", 0), ("full", 3)])
def test_no_jobset_starts_a_mere_check_again(plan_of, word, restarts) -> None:
    plan = plan_of(DSV3, "target=kubernetes", "target.kubernetes.claim=runs", f"monitor.node_check={word}")
    text = render(plan).artefact
    assert f"maxRestarts: {restarts}\n" in text


def test_health_takes_every_word(plan_of, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(health, "examine", lambda given: seen.append(given) or {"findings": []})
    assert health.main([*asked(plan_of, DSV3)["words"], "--python", "py", "--disk", "/a", "--disk", "/b"]) == 0
    (given,) = seen
    assert (given.gpus, given.gpu_name, given.imex, given.no_compute) == (4, "GB200", True, True)
    assert given.disk == ["/a", "/b"]


@pytest.mark.parametrize(
    "words",
    [(DSV3, "monitor.node_check=none"), ("+exp=moe_tiny_cpu",), ("+exp=moe_tiny_cpu", "monitor.node_check=full")],
)
def test_nobody_is_asked(plan_of, words: tuple[str, ...]) -> None:
    assert asked(plan_of, *words) is None


def test_a_channel_between_nodes_only_where_nvlink_spans_them(plan_of) -> None:
    two_hosts = (
        "hardware=h200_hgx",
        "mesh.ici.fsdp=1",
        "mesh.ici.expert=8",
        "mesh.dcn.data=2",
        "mesh.dcn.fsdp=1",
        "nodes=2",
    )
    assert "--imex" not in asked(plan_of, "+exp=qwen3_30b_a3b_16gpu", *two_hosts)["words"]
    kubernetes = (DSV3, "target=kubernetes", "target.kubernetes.claim=runs")
    assert "--imex" in asked(plan_of, *kubernetes)["words"]
    assert "--imex" not in asked(plan_of, *kubernetes, "target.kubernetes.compute_domain=false")["words"]


def test_the_trainer_does_not_get_our_word(plan_of) -> None:
    assert "node_check" not in plan_of(DSV3).settings.keys
