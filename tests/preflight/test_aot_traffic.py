"""Collectives as flows over mesh axes and fabrics."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.config.compose import Composer
from launcher.plan.plan import make
from launcher.preflight import aot_traffic, hlo
from launcher.preflight.aot_traffic import Flow, Layout

STEP = (Path(__file__).parent / "data" / "dsv3_128gpu_step.hlo.txt").read_text()
SIZES = {"data": 1, "stage": 1, "fsdp": 16, "context": 1, "expert": 8}
EXCHANGE = {
    "ep_size": 8,
    "max_tokens_per_rank": 24576,
    "top_k": 8,
    "hidden_dim": 7168,
    "recv_capacity_per_rank": 393216,
}


@pytest.fixture(scope="module")
def article() -> Layout:
    composed = Composer().compose(["+exp=dsv3_128gpu"])
    assert composed.experiment is not None
    mesh = make(composed.experiment).mesh
    assert mesh is not None
    return aot_traffic.layout(SIZES, mesh)


def test_axes_and_domains_of_the_articles_mesh(article: Layout) -> None:
    # fsdp = 2 domains x 8, expert 8: ranks 0..63 lie in the first rack.
    assert article.axes(range(8)) == ("expert",)
    assert article.axes(range(0, 128, 8)) == ("fsdp",)
    assert article.axes(range(128)) == ("fsdp", "expert")
    assert article.axes([0, 1, 8]) == ()
    assert {article.domain(rank) for rank in range(64)} != {article.domain(rank) for rank in range(64, 128)}
    assert len({article.domain(rank) for rank in range(64)}) == 1


def test_the_articles_step_by_axis_and_fabric(article: Layout) -> None:
    flows = {(f.kind, f.axes): f for f in aot_traffic.flows(hlo.read(STEP)[0], article)}
    gathered = flows["all-gather", ("fsdp",)]
    assert gathered.calls == 348
    # Of what all 16 ranks hold, 7/8 come over NVLink and half an eighth over the network first.
    assert gathered.nvlink == pytest.approx(gathered.result * 7 / 8)
    assert gathered.network == pytest.approx(gathered.result / 16)
    everywhere = flows["all-gather", ("fsdp", "expert")]
    assert gathered.repeated + everywhere.repeated == 15
    assert gathered.repeated_calls + everywhere.repeated_calls == 15 * 58
    assert gathered.repeated_bytes > 100e9


def test_the_expert_exchange_is_counted_from_tes_calls(article: Layout) -> None:
    flow = aot_traffic.exchange(hlo.read(STEP)[1], EXCHANGE, article)
    assert flow is not None
    # 5 passes x 58 layers, each 24,576 tokens x 8 experts x 7,168 x 2 bytes, of which 1/8 stays.
    assert flow.calls == 5 * 58
    assert flow.nvlink == 5 * 58 * 24576 * 8 * 7168 * 2 * 7 // 8
    assert flow.network == 0
    assert aot_traffic.exchange({}, EXCHANGE, article) is None
    assert aot_traffic.exchange({"te_ep_dispatch_ffi": 1}, None, article) is None


def test_an_expert_axis_between_domains_uses_the_network() -> None:
    across = Layout({"expert": 4}, {"expert": 2})
    flow = aot_traffic.exchange({"te_ep_dispatch_ffi": 1}, {**EXCHANGE, "ep_size": 4}, across)
    assert flow is not None
    assert flow.network == 2 * flow.nvlink


@pytest.mark.parametrize(
    ("kind", "members", "domains", "received"),
    [
        ("all-gather", 4, 1, (12.0, 0.0)),
        ("reduce-scatter", 4, 1, (48.0, 0.0)),
        ("all-reduce", 4, 1, (24.0, 0.0)),
        ("all-to-all", 2, 2, (4.0, 8.0)),
        ("collective-permute", 1, 2, (0.0, 16.0)),
    ],
)
def test_bytes_received(kind: str, members: int, domains: int, received: tuple[float, float]) -> None:
    assert aot_traffic.received(kind, 16, members, domains) == received


def test_collectives_of_one_gpu_move_nothing() -> None:
    alone = hlo.Collective("x", "all-reduce", ((0,), (1,)), 8, 1)
    assert aot_traffic.flows([alone], Layout({"data": 2}, {"data": 2})) == []


def test_no_groups_means_all_devices() -> None:
    (flow,) = aot_traffic.flows([hlo.Collective("x", "all-gather", (), 8, 3)], Layout({"data": 2}, {"data": 2}))
    assert flow == Flow("all-gather", ("data",), 3, 24, 12, 0)
