"""MaxText itself accepts the bundle of every shipped experiment, on as many fake devices as the experiment has GPUs.

One case an experiment, each a process of its own (3 to 5 s on two idle cores, 1,024 devices included), so they may run side
by side. Here and not in tests/preflight, because what is judged are the config files.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from launcher.config import groups
from launcher.config.compose import Composer
from launcher.plan.plan import Plan, make
from launcher.preflight.maxtext import Verdict, check
from launcher.render.bundle import render, write

pytestmark = [
    pytest.mark.maxtext,
    pytest.mark.skipif(importlib.util.find_spec("maxtext") is None, reason="MaxText is not installed in this Python"),
]

DATA: dict[str, tuple[str, ...]] = {
    "hf": ("data.tokenizer_path=deepseek-ai/DeepSeek-V3",),
    "grain": ("data.tokenizer_path=deepseek-ai/DeepSeek-V3", "data.grain_train_files=/data/c4/*.array_record"),
}


def plan_of(*words: str) -> Plan:
    composed = Composer().compose(words)
    assert composed.experiment is not None, composed.issues
    return make(composed.experiment)


def ask(plan: Plan, folder: Path) -> Verdict:
    bundle = folder / "bundle"
    write(render(plan), bundle)
    return check(bundle)


@pytest.mark.parametrize("name", groups.options("exp"))
def test_maxtext_accepts(name: str, tmp_path: Path) -> None:
    plan = plan_of(f"+exp={name}")
    verdict = ask(plan, tmp_path)
    assert verdict.accepted, verdict.issue
    assert verdict.version == plan.experiment.trainer.maxtext
    assert verdict.resolved is not None
    assert plan.mesh is not None
    assert plan.batch is not None
    assert (verdict.resolved.devices, verdict.resolved.domains) == (plan.mesh.gpus, plan.mesh.domains)
    assert verdict.resolved.ici == {axis: size for axis, size in plan.mesh.ici.items() if size != 1}
    assert verdict.resolved.dcn == {axis: size for axis, size in plan.mesh.dcn.items() if size != 1}
    assert verdict.resolved.global_batch == plan.batch.sequences
    remat = {f: getattr(plan.experiment.remat, f) for f in vars(plan.experiment.remat) if f != "remat_policy"}
    assert set(verdict.resolved.tensors_to_offload) == {tensor for tensor, where in remat.items() if where == "offload"}
    assert {tensor for tensor, where in remat.items() if where == "device"} <= set(verdict.resolved.tensors_on_device)


@pytest.mark.parametrize("option", sorted(DATA))
def test_maxtext_accepts_real_data(option: str, tmp_path: Path) -> None:
    verdict = ask(plan_of("+exp=dsv3_128gpu_fits", f"data={option}", *DATA[option]), tmp_path)
    assert verdict.accepted, verdict.issue
