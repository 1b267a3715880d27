"""The GPU stack: the rules about its versions, each with a stack that breaks it; stacks of real H200s as recorded."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from launcher.issue import Refused
from launcher.preflight import doctor, gpu_look, gpu_probe, gpu_stack
from launcher.preflight.finding import Finding, text
from launcher.preflight.gpu_stack import Rule, Thing

ROOT = Path(__file__).resolve().parents[2]

RULES = gpu_stack.own_rules()

DATA = Path(__file__).parent / "data"

GOOD: dict[str, Any] = {
    "python": {
        "version": "3.12.3",
        "packages": {
            "maxtext": "0.2.5", "jax": "0.12.0.1", "jaxlib": "0.12.0.1", "jax-cuda13-plugin": "0.12.0.1",
            "jax-cuda13-pjrt": "0.12.0.1", "transformer_engine": "2.20.2", "transformer_engine_cu13": "2.20.2",
            "transformer_engine_jax": "2.20.2",
        },
    },
    "gpus": [{"name": "NVIDIA H200", "memory_bytes": 143771 * 2**20, "compute_capability": "9.0", "driver": "580.159.03"}] * 2,
    "cuda_driver": {"version": "13.0", "path": "/usr/lib/libcuda.so.1"},
    "nccl": {"version": "2.32.3", "path": "/te/lib/libnccl.so.2"},
    "cublaslt": {"version": "13.8.2", "path": "/te/lib/libcublasLt.so.13"},
    "cudnn": {"version": "9.19.0", "path": "/nvidia/cudnn/lib/libcudnn.so.9"},
    "binding": {"path": "/te/libtransformer_engine.so", "borrows": True},
    "nccl_ep": {"path": "/te/libnccl_ep.so"},
    "nvcc": {"version": "13.0", "path": "/usr/local/cuda/bin/nvcc", "how": "CUDA_HOME"},
    "nccl_headers": {"version": "2.32.3", "path": "/te/nccl_include"},
    "copies": {"nccl": ["/te/lib/libnccl.so.2"], "cublaslt": ["/te/lib/libcublasLt.so.13"]},
}  # fmt: skip
"""A stack of two H200s in which everything fits."""

BLACKWELL = {
    "gpus": [{"name": "NVIDIA GB200", "memory_bytes": 197 << 30, "compute_capability": "10.0", "driver": "580.1"}]
}
CUDA12 = {"python.packages": {"jax": "0.12.0.1", "jax-cuda12-plugin": "0.12.0.1", "jaxlib": "0.12.0.1"}}


def changed(*changes: Mapping[str, Any]) -> dict[str, Any]:
    """GOOD with other parts; "python.packages" adds and (None) removes distributions."""
    seen = copy.deepcopy(GOOD)
    for change in changes:
        for key, value in change.items():
            if key == "python.packages":
                packages = seen["python"]["packages"] | value
                seen["python"]["packages"] = {name: version for name, version in packages.items() if version}
            else:
                seen[key] = value
    return seen


def judged(seen: Mapping[str, Any], **died: str) -> list[Finding]:
    return gpu_stack.judge(gpu_stack.from_probe(seen, died))


def bad(findings: list[Finding]) -> dict[str, str]:
    return {finding.name: finding.mark or "absent" for finding in findings if not finding.ok}


def packages(**versions: str | None) -> dict[str, Any]:
    return {"python.packages": {name.replace("__", "-"): version for name, version in versions.items()}}


BROKEN: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "driver too old for CUDA 13": (
        changed({"cuda_driver": {"version": "12.8"}, "nvcc": {"version": "12.8"}}),
        {"driver's CUDA": "WRONG"},
    ),
    "driver too old for CUDA 12": (
        changed(
            packages(jax__cuda13__plugin=None),
            CUDA12,
            {"cuda_driver": {"version": "11.8"}, "nvcc": {"version": "11.8"}},
        ),
        {"driver's CUDA": "WRONG"},
    ),
    "no libcuda": (changed({"cuda_driver": {}}), {"driver's CUDA": "WRONG"}),
    "GPU older than Hopper": (
        changed({"gpus": [{**GOOD["gpus"][0], "name": "NVIDIA A100", "compute_capability": "8.0"}]}),
        {"compute capability": "WRONG"},
    ),
    "one of two GPUs older than Hopper": (
        changed({"gpus": [*GOOD["gpus"], {**GOOD["gpus"][0], "name": "NVIDIA A100", "compute_capability": "8.0"}]}),
        {"compute capability": "WRONG"},
    ),
    "no CUDA plugin": (
        changed(packages(jax__cuda13__plugin=None, jax__cuda13__pjrt=None)),
        {"JAX's CUDA plugin": "absent"},
    ),
    "plugin of another version": (changed(packages(jax__cuda13__plugin="0.11.2")), {"JAX's CUDA plugin": "WRONG"}),
    "PJRT of another version": (changed(packages(jax__cuda13__pjrt="0.11.2")), {"JAX's CUDA PJRT": "WRONG"}),
    "jax newer than jaxlib": (changed(packages(jax="0.12.1")), {"jaxlib": "careful"}),
    "jaxlib that crashes with a scan": (
        changed(packages(jax="0.11.2", jaxlib="0.11.2", jax__cuda13__plugin="0.11.2", jax__cuda13__pjrt="0.11.2")),
        {"jaxlib": "careful"},
    ),
    "TE without its binding": (
        changed(packages(transformer_engine_jax=None, transformer_engine_cu13=None), {"binding": {}}),
        {"TE's JAX package": "absent"},
    ),
    "TE's core of another version": (changed(packages(transformer_engine_cu13="2.19")), {"TE's core library": "WRONG"}),
    "TE's binding of another version": (
        changed(packages(transformer_engine_jax="2.20.1")),
        {"TE's JAX package": "WRONG"},
    ),
    "TE older than MaxText wants": (
        changed(packages(transformer_engine="2.19", transformer_engine_cu13="2.19", transformer_engine_jax="2.19")),
        {"Transformer Engine": "WRONG"},
    ),
    "binding that does not load": (
        changed({"binding": {"error": "ImportError: undefined symbol: XLA_FFI_Call"}}),
        {"TE's JAX binding": "WRONG"},
    ),
    "binding without XLA's communicator": (
        changed({"binding": {**GOOD["binding"], "borrows": False}}),
        {"XLA's communicator": "careful"},
    ),
    "no NCCL EP": (changed({"nccl_ep": {}}), {"NCCL EP": "WRONG"}),
    "NCCL of the image": (
        changed({"nccl": {"version": "2.28.9"}, "nccl_headers": {"version": "2.28.9"}}),
        {"NCCL": "WRONG"},
    ),
    "NCCL too old for TE built from source": (
        changed(
            packages(transformer_engine="2.20.0+1a2b3c", transformer_engine_cu13=None, transformer_engine_jax=None),
            {"nccl": {"version": "2.30.3"}, "nccl_headers": {"version": "2.30.3"}},
        ),
        {"NCCL": "WRONG"},
    ),
    "headers of another NCCL": (changed({"nccl_headers": {"version": "2.28.9"}}), {"NCCL's headers": "WRONG"}),
    "no headers of NCCL": (changed({"nccl_headers": {}}), {"NCCL's headers": "WRONG"}),
    "two NCCLs": (changed({"copies": {"nccl": ["/a/libnccl.so.2", "/b/libnccl.so.2"]}}), {"copies of NCCL": "careful"}),
    "no nvcc": (changed({"nvcc": {}}), {"nvcc": "WRONG"}),
    "nvcc newer than the driver": (changed({"nvcc": {"version": "14.0"}}), {"nvcc": "WRONG"}),
    "cuBLAS of the image": (changed({"cublaslt": {"version": "13.1.0"}}), {"cuBLAS": "WRONG"}),
    "no cuBLAS": (changed({"cublaslt": {}}), {"cuBLAS": "WRONG"}),
    "cuBLAS too old on Blackwell": (changed(BLACKWELL, {"cublaslt": {"version": "13.2.1"}}), {"cuBLAS": "WRONG"}),
    "cuBLAS that corrupts": (changed({"cublaslt": {"version": "13.7.0"}}), {"cuBLAS": "WRONG"}),
    "cuBLAS that frees twice": (
        changed(
            BLACKWELL,
            packages(transformer_engine_jax=None, transformer_engine=None),
            {"cublaslt": {"version": "13.1.2"}},
        ),
        {"cuBLAS": "careful"},
    ),
    "two cuBLASes": (changed({"copies": {"cublaslt": ["/a/lib", "/b/lib"]}}), {"copies of cuBLAS": "careful"}),
    "two cuDNNs": (
        changed({"cudnn_unversioned": {"version": "9.14.0", "path": "/usr/lib/libcudnn.so"}}),
        {"libcudnn.so": "WRONG"},
    ),
    "cuDNN from two folders": (
        changed({"copies": {"cudnn": ["/a/libcudnn.so.9"], "cudnn_folders": ["/a", "/usr/lib"]}}),
        {"folders of cuDNN": "WRONG"},
    ),
    "cuDNN too old": (changed({"cudnn": {"version": "9.10.2"}}), {"cuDNN": "WRONG"}),
}
"""What is wrong -> what the probe saw, and the findings that are not ok."""


# ---- the rules


def test_a_stack_in_which_all_fits() -> None:
    found = judged(GOOD)
    assert not bad(found)
    told = {finding.name: finding.seen for finding in found}
    assert told["NCCL"] == "2.32.3 (/te/lib/libnccl.so.2)"
    assert {"driver's CUDA", "JAX's CUDA plugin", "TE's JAX binding", "NCCL EP", "cuBLAS", "cuDNN", "nvcc"} < set(told)


@pytest.mark.parametrize("name", BROKEN)
def test_what_does_not_fit(name: str) -> None:
    seen, wanted = BROKEN[name]
    found = judged(seen)
    assert bad(found) == wanted
    (wrong,) = [finding for finding in found if not finding.ok]
    assert wrong.cure
    assert "?" not in wrong.cure
    assert wrong.optional is (wanted[wrong.name] != "WRONG")


def test_every_rule_has_a_stack_that_breaks_it() -> None:
    stacks = [gpu_stack.from_probe(seen) for seen, _ in BROKEN.values()]
    unbroken = [
        f"{rule.what}: {rule.why}"
        for rule in RULES
        if not any(gpu_stack.holds(rule, stack) and not gpu_stack.fits(rule, stack) for stack in stacks)
    ]
    assert not unbroken


def meeting(rule: Rule) -> dict[str, Thing]:
    """The smallest stack that a rule is for and that keeps it."""
    stack = {name: Thing(bounds[0] if bounds else "1.0") for name, bounds in rule.when.items()}
    own = stack.get(rule.what, Thing("1.0")).version
    version = rule.minimum or ("99" if rule.excluded else "1") if not (rule.equal_to or rule.at_most) else own
    if rule.equal_to or rule.at_most:
        stack[rule.equal_to or rule.at_most] = Thing(version)
    return stack | {rule.what: Thing(version)}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.what}-{rule.needed_for}")
def test_a_rule_stands_on_its_own(rule: Rule) -> None:
    stack = meeting(rule)
    assert gpu_stack.holds(rule, stack)
    assert gpu_stack.fits(rule, stack)
    missing = stack | {rule.what: Thing()}
    if rule.what not in rule.when:
        (finding,) = [finding for finding in gpu_stack.judge(missing, [rule]) if not finding.ok]
        assert finding.seen.startswith("not found")
    for name in rule.when:
        assert not gpu_stack.holds(rule, {key: value for key, value in stack.items() if key != name})


@pytest.mark.parametrize(
    ("version", "fits"),
    [
        ("13.6.9", True),
        ("13.7", False),
        ("13.7.0", False),
        ("13.7.5", False),
        ("13.8.0", False),
        ("13.8.0.5", False),
        ("13.8.1", True),
    ],
)
def test_both_ends_of_a_range_are_out(version: str, fits: bool) -> None:
    assert (not bad(judged(changed({"cublaslt": {"version": version}})))) is fits


@pytest.mark.parametrize(("version", "fits"), [("13.3.9", False), ("13.4", True), ("13.4.0.1", True), ("13", False)])
def test_a_minimum_fits_itself(version: str, fits: bool) -> None:
    assert (not bad(judged(changed({"cublaslt": {"version": version}})))) is fits


@pytest.mark.parametrize("nvcc", ["12.8", "13.0", "13.4"])
def test_an_nvcc_of_the_driver_s_cuda_or_an_older_one_fits(nvcc: str) -> None:
    assert not bad(judged(changed({"nvcc": {"version": nvcc}})))


def test_the_image_s_own_stack_is_too_old_in_two_ways() -> None:
    found = gpu_stack.judge(
        gpu_stack.from_packages(
            {
                "transformer-engine": "2.20.2", "transformer_engine_cu13": "2.20.2", "transformer_engine_jax": "2.20.2",
                "nvidia-nccl-cu13": "2.28.9", "nvidia-cublas": "13.1.0.3", "nvidia-cudnn-cu13": "9.19.0.56",
                "jax": "0.12.0.1", "jaxlib": "0.12.0.1",
            },
            compute_capability="9.0",
        )
    )  # fmt: skip
    assert bad(found) == {"NCCL": "WRONG", "cuBLAS": "WRONG"}
    told = text(found)
    for wanted in ("2.28.9, wanted: 2.32.3 or newer", "13.1.0.3, wanted: 13.4 or newer", "cure: pip install --no-deps"):
        assert wanted in told
    assert f"```text\n{told}\n```" in (ROOT / "docs" / "preflight.md").read_text(encoding="utf-8")


def test_transformer_engine_built_from_source_is_one_distribution() -> None:
    seen = changed(
        packages(transformer_engine="2.20.0+1a2b3c", transformer_engine_cu13=None, transformer_engine_jax=None)
    )
    assert not bad(judged(seen | {"nccl": {"version": "2.31.1"}, "nccl_headers": {"version": "2.31.1"}}))


def recorded(name: str) -> dict[str, Any]:
    """What the probe wrote on two H200s (2026-11-30), there with the bundle of gpu/ in the default folder instead of /opt/gpu-stack."""
    seen, unfinished = gpu_look.parts((DATA / name).read_text(encoding="utf-8"))
    assert unfinished == ""
    return seen


def test_the_stack_of_two_h200s_as_recorded() -> None:
    seen = recorded("gpu_probe_h200.jsonl")
    found = judged(seen)
    assert bad(found) == {"jaxlib": "careful"}
    told = {finding.name: finding.seen.split()[0] for finding in found}
    wanted = {
        "driver's CUDA": "13.0",
        "NCCL": "2.32.3",
        "NCCL EP": "2.20.2",
        "cuBLAS": "13.8.2",
        "cuDNN": "9.19.0",
        "nvcc": "13.0",
    }
    assert wanted.items() <= told.items()
    gpus, hardware = doctor._gpus(gpu_look.Look(seen))[:2]
    assert gpus.seen == "2: NVIDIA H200, 140 GiB, driver 580.159.04"
    assert hardware.ok
    assert hardware.seen.startswith("hardware=h200_hgx;")
    image = recorded("gpu_probe_h200_image.jsonl")
    system = {"cudnn_unversioned": image["cudnn_unversioned"]}  # what libcudnn.so is there until gpu.setup links pip's
    assert (seen["cudnn_unversioned"]["version"], image["cudnn_unversioned"]["version"]) == ("9.19.0", "9.14.0")
    assert bad(judged(seen | system)) == {"jaxlib": "careful", "libcudnn.so": "WRONG"}


def test_transformer_engine_on_the_image_as_recorded() -> None:
    """The same machine before anything was put there: alone it is fine, and too old for Transformer Engine."""
    seen = recorded("gpu_probe_h200_image.jsonl")
    assert not bad(judged(seen))
    engine = recorded("gpu_probe_h200.jsonl")
    with_engine = {**engine, **{key: seen[key] for key in ("nccl", "cublaslt", "cudnn", "nccl_headers")}}
    assert bad(judged(with_engine)) == {"jaxlib": "careful", "NCCL": "WRONG", "cuBLAS": "WRONG"}


def test_where_there_is_neither_gpu_nor_binding_nothing_is_said() -> None:
    nothing = {name: {} for name in gpu_probe.PARTS} | {"gpus": []}
    bare = nothing | {"python": {"version": "3.12.1", "packages": {"jax": "0.12.0.1", "transformer_engine": "2.20.2"}}}
    assert judged(bare) == []
    assert judged({}) == []
    assert [finding.name for finding in doctor._gpus(gpu_look.Look(bare))] == ["GPUs"]


def test_what_killed_the_probe_is_a_finding() -> None:
    seen = changed()
    del seen["nccl"]
    found = {finding.name: finding for finding in judged(seen, nccl="SIGSEGV") if not finding.ok}
    assert set(found) == {"NCCL"}
    assert "killed the process: SIGSEGV" in found["NCCL"].seen


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ('minimum = "1"\nbelow = "2"', "exactly one of"),
        ("", "exactly one of"),
        ('minimum = "1"\nlevels = "x"', "no field 'levels'"),
        ('equal_to = "nickel"', "no thing 'nickel'"),
        ('minimum = "1"\nwhen = { nickel = [] }', "no thing 'nickel'"),
        ('minimum = "1"\nlevel = "bad"', "level 'bad' is none of"),
        ('minimum = "1"\ncure = "install {nickel}"', "no thing 'nickel'"),
        ('minimum = "1"\ncure = ""', "'cure' is missing"),
    ],
)
def test_a_rule_of_the_user_s_is_checked(row: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = {"what": "nccl", "level": "wrong", "for": "us", "why": "because", "cure": "do", "source": "we"}
    lines = [f'{key} = "{value}"' for key, value in plain.items() if f"{key} =" not in row]
    (tmp_path / "gpu_stack.toml").write_text("[[rule]]\n" + "\n".join([*lines, row]))
    monkeypatch.setenv("LAUNCHER_CONF", str(tmp_path))
    with pytest.raises(Refused) as refused:
        gpu_stack.all_rules()
    assert told in refused.value.issues[0].message


def test_a_rule_of_the_user_s_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rule = 'what = "nccl"\nlevel = "careful"\nfor = "our fabric"\nwhy = "w"\ncure = "c"\nsource = "s"\nminimum = "2.99"'
    (tmp_path / "gpu_stack.toml").write_text(f"[[rule]]\n{rule}")
    monkeypatch.setenv("LAUNCHER_CONF", str(tmp_path))
    assert bad(gpu_stack.judge(gpu_stack.from_probe(GOOD), gpu_stack.all_rules())) == {"NCCL": "careful"}
