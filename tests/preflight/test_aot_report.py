"""What is said of a compilation: the recorded answer for DeepSeek-V3 on 128 GB200, and what changes it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from launcher.cli.aot_text import json_of, text
from launcher.config.compose import Composer
from launcher.issue import Severity
from launcher.plan.plan import Plan, make
from launcher.preflight import aot_cache, aot_formulas, aot_report, aot_traffic, hlo
from launcher.preflight.aot_report import GIB, Report, build, issues_of

DATA = Path(__file__).parent / "data"
GB200 = ("NVIDIA GB200", 197897748480)


def plan_of(*words: str) -> Plan:
    composed = Composer().compose(["+exp=dsv3_128gpu", *words])
    assert composed.experiment is not None
    return make(composed.experiment)


@pytest.fixture(scope="module")
def article() -> Plan:
    return plan_of()


@pytest.fixture(scope="module")
def answer(article: Plan) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((DATA / "dsv3_128gpu_answer.json").read_text())
    assert article.mesh is not None
    where = aot_traffic.layout(told["mesh"], article.mesh)
    collectives, custom = hlo.read((DATA / "dsv3_128gpu_step.hlo.txt").read_text())
    exchange = aot_traffic.exchange(custom, told["exchange"], where)
    assert exchange is not None
    told["flows"] = [dataclasses.asdict(flow) for flow in (exchange, *aot_traffic.flows(collectives, where))]
    told["seconds"]["total"] = 85.0
    return told


@pytest.fixture
def report(answer: dict[str, Any], article: Plan) -> Report:
    return build(answer, article, GB200, cached=False)


def with_memory(answer: dict[str, Any], **changed: int) -> dict[str, Any]:
    return {**answer, "memory": {**answer["memory"], **changed}}


def codes(report: Report, plan: Plan) -> dict[str, Severity]:
    return {issue.code: issue.severity for issue in issues_of(report, plan)}


def test_the_article_does_not_fit(report: Report, article: Plan) -> None:
    assert report.device / GIB == pytest.approx(177.67, abs=0.01)
    assert report.limit / GIB == pytest.approx(162.2, abs=0.05)
    assert report.verdict == "OVER"
    assert report.repeated[0] == 15
    assert report.names.idle == ("mlpwi", "moe_mlpwo", "moe_mlpwi_0", "moe_mlpwi_1")
    assert codes(report, article) == {
        "AOT_OVER": Severity.ERROR, "AOT_REPEATED": Severity.WARNING, "AOT_NAMES": Severity.WARNING,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("gib", "verdict", "code"), [(100, "FITS", None), (128, "TIGHT", "AOT_TIGHT"), (133, "OVER", "AOT_OVER")]
)
def test_verdicts(gib: int, verdict: str, code: str | None, answer: dict[str, Any], article: Plan) -> None:
    # State takes 29.33 of 162.19 GiB; the last 5 % below that are tight.
    found = build(with_memory(answer, temp=gib * GIB), article, GB200, cached=False)
    assert found.verdict == verdict
    assert {"AOT_OVER", "AOT_TIGHT"} & set(codes(found, article)) == ({code} if code else set())


@pytest.mark.parametrize(
    ("words", "fraction"),
    [
        ((), 0.88),
        (("env.vars.XLA_PYTHON_CLIENT_MEM_FRACTION='0.5'",), 0.5),
        (("env.vars.XLA_PYTHON_CLIENT_MEM_FRACTION=lots",), 0.75),
        (("env=none",), 0.75),
    ],
)
def test_the_limit_is_what_jax_may_take(words: tuple[str, ...], fraction: float, answer: dict[str, Any]) -> None:
    found = build(answer, plan_of(*words), GB200, cached=False)
    assert (found.fraction, found.limit) == (fraction, int(fraction * GB200[1]))


def test_host_memory_is_held_against_the_node_and_the_variable(answer: dict[str, Any], article: Plan) -> None:
    def of(gib: int) -> set[str]:
        return set(
            codes(build(with_memory(answer, host_temp=gib * GIB, temp=0), article, GB200, cached=False), article)
        )

    # A node has 960 GB for 4 processes; XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB is 180.
    assert not {"AOT_HOST_OVER", "AOT_HOST_LIMIT"} & of(174)
    assert {"AOT_HOST_LIMIT"} == {"AOT_HOST_OVER", "AOT_HOST_LIMIT"} & of(200)
    assert {"AOT_HOST_LIMIT", "AOT_HOST_OVER"} <= of(230)


def test_names_matter_for_a_custom_policy_alone(answer: dict[str, Any]) -> None:
    names = aot_report.names_of(answer, custom=False)
    assert (names.kept, names.offloaded, names.idle) == ((), (), ())
    assert aot_report.names_of({**answer, "to_host": ["context"]}, custom=True).offloaded == ("context",)


def test_formulas_stand_beside_it(report: Report, article: Plan) -> None:
    found = {each.what: each for each in aot_formulas.differences(article, report)}
    assert found["state"].relative == pytest.approx(0, abs=0.002)
    assert found["GPU memory"].relative == pytest.approx(0, abs=0.08)
    # What XLA repeats is left out: it more than doubles the all-gathers over fsdp.
    repeated = sum(flow.nvlink for flow in report.flows) - found["NVLink, without repeats"].compiled
    assert repeated > 500e9
    assert found["NVLink, without repeats"].relative == pytest.approx(0, abs=0.15)
    assert aot_formulas.differences(dataclasses.replace(article, numbers=None), report) == []


def test_people_and_scripts_read_the_same(report: Report, article: Plan) -> None:
    shown = text(report, article)
    for said in (
        "177.67",
        "162.19",
        "verdict: OVER",
        "fsdp 16 x expert 8",
        "982.8",
        "expert exchange",
        "moe_mlpwi_0",
        "compiled in 85 s",
    ):
        assert said in shown
    assert max(len(line) for line in shown.splitlines()) <= 140
    told = json.loads(json.dumps(json_of(report, article, issues_of(report, article))))
    assert (told["device"], told["verdict"]) == (report.device, "OVER")
    assert told["repeated_all_gathers"]["instructions"] == 15
    assert {issue["code"] for issue in told["issues"]} == {"AOT_OVER", "AOT_REPEATED", "AOT_NAMES"}


def test_what_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(aot_cache.VARIABLE, str(tmp_path / "own"))
    assert aot_cache.load("x") is None
    aot_cache.store("x", {"a": 1})
    assert aot_cache.load("x") == {"a": 1}
    assert [file.name for file in aot_cache.folder().iterdir()] == ["x.json"]
    for broken in ("", "{", "[1]"):
        (aot_cache.folder() / "x.json").write_text(broken)
        assert aot_cache.load("x") is None
    assert aot_cache.last_seconds("exp") is None
    aot_cache.remember_seconds("exp", 85.04)
    assert aot_cache.last_seconds("exp") == 85.0
    monkeypatch.delenv(aot_cache.VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert aot_cache.folder() == tmp_path / "xdg" / "launcher" / "aot"
    monkeypatch.setenv(aot_cache.VARIABLE, str(tmp_path / "own" / "aot" / "x.json"))
    aot_cache.store("y", {})  # no folder can be made there: nothing is remembered, nothing breaks
    assert aot_cache.load("y") is None
