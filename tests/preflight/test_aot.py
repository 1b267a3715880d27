"""MaxText's real train step through XLA's GPU compiler, with no GPU."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher.config.compose import Composer
from launcher.issue import Refused, Severity
from launcher.plan.plan import Plan, make
from launcher.preflight import aot, aot_cache, aot_process
from launcher.preflight.aot_report import GIB, Report, issues_of

MODULES = ("maxtext", "jax", "jax_plugins", "transformer_engine")
MISSING = [name for name in MODULES if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.maxtext,
    pytest.mark.skipif(bool(MISSING), reason=f"no {', '.join(MISSING)} in this Python: pip install 'launcher[aot]'"),
]

TINY = ["+exp=moe_tiny_cpu", "hardware=gb200_nvl72", "mesh.ici.fsdp=2", "xla=stock"]
"""A dense and a MoE layer on 4 GB200, fsdp 2 x expert 2, MaxText's own expert path."""

TINY_TE = [
    "+exp=dsv3_128gpu", "model=deepseek3-tiny", "nodes=1", "mesh.ici.fsdp=2", "mesh.ici.expert=2", "mesh.dcn.fsdp=1",
    "precision=te_bf16", "trainer.max_target_length=256", "trainer.per_device_batch_size=1", "trainer.attention=dot_product",
    "model.overrides.base_num_decoder_layers=4", "model.overrides.first_num_dense_layers=1",
]  # fmt: skip
"""The same with Transformer Engine's block, the article's flags and its remat words."""


def plan_of(*words: str) -> Plan:
    composed = Composer().compose(list(words))
    assert composed.experiment is not None, composed.issues
    made = make(composed.experiment)
    assert made.errors == ()
    return made


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(aot_cache.VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def refusal(plan: Plan, **asked: Any) -> str:
    with pytest.raises(Refused) as refused:
        aot.check(plan, aot.Asked(**asked))
    return refused.value.issues[0].code


def flows(report: Report) -> dict[tuple[str, tuple[str, ...]], Any]:
    return {(flow.kind, flow.axes): flow for flow in report.flows}


def test_a_small_model_is_compiled_once_and_remembered(cache: Path, tmp_path: Path) -> None:
    plan, said = plan_of(*TINY), list[str]()
    report = aot.check(plan, aot.Asked(dump=tmp_path / "seen", say=said.append))
    assert report.mesh == {"fsdp": 2, "expert": 2}
    assert "4 x NVIDIA GB200 (fsdp 2 x expert 2)" in said[0]
    # fp32 weights and two moments, 12 bytes a parameter, and the batch. JAX takes 0.75 of a GPU where nothing says otherwise.
    assert report.limit == int(0.75 * 197897748480)
    assert report.verdict == "FITS"
    assert 0 < report.arguments < report.device < 2 * GIB
    assert report.host == 0
    assert any("fsdp" in axes for _, axes in flows(report))
    assert all(flow.network == 0 for flow in report.flows), "4 GPUs of a rack are one domain"
    assert (tmp_path / "seen" / "module.txt").stat().st_size > 10_000
    assert list((tmp_path / "seen" / "xla").glob("*memory-usage-report.txt"))

    again = aot.check(plan, aot.Asked(timeout_s=0.01))
    assert again.cached
    assert dataclasses.replace(again, cached=False) == report
    # Another flag is another compilation: not remembered, so the bound of a hundredth of a second is met.
    assert refusal(plan_of(*TINY, "+xla.flags.xla_gpu_autotune_level=0"), timeout_s=0.01) == "AOT_TIMEOUT"
    assert refusal(plan, timeout_s=0.01, fresh=True) == "AOT_TIMEOUT"
    # Where it is submitted is none.
    assert aot.check(plan_of(*TINY, "target=slurm", "target.slurm.account=moe"), aot.Asked(timeout_s=0.01)).cached


@pytest.mark.slow
def test_transformer_engines_block_is_compiled(cache: Path) -> None:
    report = aot.check(plan_of(*TINY_TE), aot.Asked())
    assert report.verdict == "FITS"
    exchange = flows(report)["expert exchange", ("expert",)]
    # 3 MoE layers x (dispatch, combine, both gradients, and dispatch again in the backward pass).
    assert exchange.calls == 15
    assert set(report.names.idle) == {"mlpwi", "moe_mlpwi_0", "moe_mlpwi_1", "moe_mlpwo"} | (
        {"context"} & set(report.names.idle)
    )
    (warning,) = [issue for issue in issues_of(report, plan_of(*TINY_TE)) if issue.code == "AOT_NAMES"]
    assert "moe_mlpwi_0" in warning.message
    assert warning.severity is Severity.WARNING


@pytest.mark.slow
def test_copies_with_transformer_engines_block_are_compiled_by_the_workaround(cache: Path) -> None:
    """Two copies of FSDP 2 x EP 2: each rank gets the tokens of one, so the experts exchange as many; their gradients go over both axes."""
    words = [*TINY_TE, "trainer.per_device_batch_size=2"]
    alone = aot.check(plan_of(*words), aot.Asked())
    copies = aot.check(plan_of(*words, "nodes=2", "mesh.ici.data=2", "trainer.workarounds=[te_data_axis]"), aot.Asked())
    assert copies.verdict == "FITS"
    key = ("expert exchange", ("expert",))
    assert flows(copies)[key].calls == flows(alone)[key].calls
    assert flows(copies)[key].nvlink == flows(alone)[key].nvlink
    assert flows(copies)["all-reduce", ("data", "fsdp")].calls >= 3, "one for each MoE layer's experts"


ARTICLE = {
    # facts/te_aot.md section 3: GiB on a GPU, of state, of the host; all-gathers that XLA repeats. Its second row was compiled
    # without the article's flags (with them 139.34 GiB were seen here).
    ("+exp=dsv3_128gpu",): (177.67, 29.33, 0.0, 15, "OVER"),
    ("+exp=dsv3_128gpu_fits", "xla=stock"): (137.21, 29.33, 46.47, 0, "FITS"),
    # Seen here (2026-11-30): FSDP 64 has a quarter of the state, the copies of 128 GPUs all of it.
    ("+exp=dsv3_512gpu",): (102.8, 7.33, 46.47, 0, "FITS"),
    ("+exp=dsv3_1024gpu",): (138.5, 29.33, 46.47, 0, "FITS"),
}


@pytest.mark.slow
@pytest.mark.parametrize("words", ARTICLE, ids=lambda words: words[0])
def test_the_articles_configuration(words: tuple[str, ...], cache: Path) -> None:
    device, state, host, repeated, verdict = ARTICLE[words]
    plan = plan_of(*words)
    report = aot.check(plan, aot.Asked())
    assert report.device / GIB == pytest.approx(device, rel=0.01)
    assert report.arguments / GIB == pytest.approx(state, rel=0.002)
    assert report.host / GIB == pytest.approx(host, rel=0.01, abs=1e-9)
    assert (report.verdict, report.repeated[0]) == (verdict, repeated)
    codes = {issue.code for issue in issues_of(report, plan)}
    assert ("AOT_OVER" in codes, "AOT_REPEATED" in codes) == (verdict == "OVER", repeated > 0)
    assert flows(report)["expert exchange", ("expert",)].calls == 5 * 58
    gathered = flows(report)["all-gather", ("fsdp",)]
    if repeated:
        assert (gathered.calls, gathered.result) == (348, pytest.approx(982.8e9, rel=0.01))
        assert report.names.idle == ("mlpwi", "moe_mlpwo", "moe_mlpwi_0", "moe_mlpwi_1")
    else:
        assert gathered.result == pytest.approx(327e9, rel=0.01)
        assert report.names.offloaded == ("context",)


def test_a_bad_flag_is_told_before_anything_is_compiled(cache: Path) -> None:
    plan = plan_of(*TINY, "+xla.flags.xla_gpu_bogus=1")
    assert refusal(plan, timeout_s=0.01) == "XLA_FLAG_UNKNOWN"


def test_a_gpu_that_is_not_described_or_described_in_vain(cache: Path, tmp_path: Path) -> None:
    assert refusal(plan_of("+exp=moe_tiny_cpu")) == "GPU_UNKNOWN"
    empty = tmp_path / "empty.txtpb"
    empty.write_text("")
    assert refusal(plan_of(*TINY), gpu=empty) == "GPU_EMPTY"


def probed(plan: Plan, tmp_path: Path, gpu_text: str | None = None, **keys: Any) -> str:
    """The Issue's code when the probe is asked although the launcher's own checks would have refused."""
    work = aot._work(plan, aot.Asked())
    folder = tmp_path / "work"
    folder.mkdir()
    request = aot._request(work, folder)
    request["arguments"] += [f"{key}={json.dumps(value)}" for key, value in keys.items()]
    if gpu_text is not None:
        Path(request["gpu"]).write_text(gpu_text)
    job = aot_process.Job(sys.executable, aot._environment(work), folder, 600, lambda _: None)
    with pytest.raises(Refused) as refused:
        aot_process.run(aot.PROBE, request, job)
    return refused.value.issues[0].code


@pytest.mark.parametrize(
    ("keys", "code"),
    [
        ({"no_such_key": 1}, "MAXTEXT_REFUSED"),
        ({"override_model_config": True, "base_emb_dim": 63}, "AOT_MESH"),
    ],
)
def test_what_maxtext_and_jax_refuse_is_an_issue(keys: dict[str, Any], code: str, tmp_path: Path) -> None:
    assert probed(plan_of(*TINY), tmp_path, **keys) == code


@pytest.mark.slow
def test_a_description_that_is_none_is_an_issue(tmp_path: Path) -> None:
    assert probed(plan_of(*TINY), tmp_path, gpu_text="this is { no proto") == "GPU_REFUSED"


@pytest.mark.slow
def test_a_partial_description_kills_the_compiler_and_is_an_issue(tmp_path: Path) -> None:
    partial = 'gpu_device_info { name: "x" cuda_compute_capability { major: 10 } }\nplatform_name: "CUDA"\n'
    assert probed(plan_of(*TINY), tmp_path, gpu_text=partial) == "AOT_CRASHED"


def test_the_command_says_the_same_for_people_and_scripts(cache: Path) -> None:
    command = [sys.executable, "-m", "launcher", "preflight", "aot", *TINY, "+xla.flags.xla_gpu_bogus=1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=dict(os.environ))
    assert (done.returncode, "XLA_FLAG_UNKNOWN" in done.stderr, "Traceback" in done.stderr) == (1, True, False)
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=120, env=dict(os.environ))
    assert done.returncode == 1
    assert [issue["code"] for issue in json.loads(done.stdout)["issues"]] == ["XLA_FLAG_UNKNOWN"]
