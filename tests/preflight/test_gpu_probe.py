"""The probe of the GPU stack: what it sees of real shared libraries, and of those that crash; `doctor` on top of it."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.preflight import gpu_look, gpu_probe, gpu_stack
from launcher.preflight.finding import Finding

ROOT = Path(__file__).resolve().parents[2]


def bad(findings: list[Finding]) -> dict[str, str]:
    return {finding.name: finding.mark or "absent" for finding in findings if not finding.ok}


COMPILER = shutil.which("gcc") or shutil.which("cc")
compiled = pytest.mark.skipif(COMPILER is None, reason="no C compiler here")

BY_POINTER = "int {function}(int *v) {{ *v = {number}; return {status}; }}"
BY_VALUE = "#include <stddef.h>\nsize_t {function}(void) {{ return {number}; }}"
SOURCES: dict[str, tuple[str, str]] = {
    "libnccl.so.2": (BY_POINTER, "ncclGetVersion"),
    "libcuda.so.1": (BY_POINTER, "cuDriverGetVersion"),
    "libcublasLt.so.13": (BY_VALUE, "cublasLtGetVersion"),
    "libcudnn.so.9": (BY_VALUE, "cudnnGetVersion"),
}


def build(folder: Path, name: str, source: str) -> Path:
    """A shared library with its own name as SONAME, as NVIDIA's have."""
    folder.mkdir(parents=True, exist_ok=True)
    assert COMPILER is not None
    (folder / f"{name}.c").write_text(source)
    subprocess.run(
        [COMPILER, "-shared", "-fPIC", "-o", str(folder / name), f"-Wl,-soname,{name}", str(folder / f"{name}.c")],
        check=True,
    )
    return folder / name


def library(folder: Path, name: str, number: int, status: int = 0) -> Path:
    form, function = SOURCES[name]
    return build(folder, name, form.format(function=function, number=number, status=status))


def looked(limit_s: float = gpu_look.PROBE_S, **environment: str) -> gpu_look.Look:
    """What the probe sees in an environment with nothing of CUDA but what the test puts there."""
    plain = {name: value for name, value in os.environ.items() if not gpu_probe.ENVIRONMENT.fullmatch(name)}
    return gpu_look.look(sys.executable, {**plain, "PYTHONPATH": "", **environment}, limit_s)


@compiled
def test_versions_are_those_of_the_libraries_that_the_loader_gives(tmp_path: Path) -> None:
    numbers = {"libnccl.so.2": 23203, "libcuda.so.1": 13000, "libcublasLt.so.13": 130802, "libcudnn.so.9": 91900}
    for name, number in numbers.items():
        library(tmp_path / "lib", name, number)
    look = looked(LD_LIBRARY_PATH=str(tmp_path / "lib"))
    told = {part: look.seen[part].get("version") for part in ("nccl", "cuda_driver", "cublaslt", "cudnn")}
    assert told == {"nccl": "2.32.3", "cuda_driver": "13.0", "cublaslt": "13.8.2", "cudnn": "9.19.0"}
    assert look.seen["nccl"]["path"] == str(tmp_path / "lib" / "libnccl.so.2")
    assert look.seen["copies"]["nccl"] == [str(tmp_path / "lib" / "libnccl.so.2")]
    assert look.seen["python"]["environment"] == {"LD_LIBRARY_PATH": str(tmp_path / "lib")}
    assert not look.died


@compiled
def test_a_second_cudnn_under_the_name_without_a_number_is_seen(tmp_path: Path) -> None:
    """As on an image with pip's cuDNN and the system's: the second one's SONAME is the first one's."""
    library(tmp_path / "pip", "libcudnn.so.9", 91900)
    system = library(tmp_path / "system", "libcudnn.so.9", 91400)
    system.rename(tmp_path / "system" / "libcudnn.so.9.14.0")
    (tmp_path / "system" / "libcudnn.so").symlink_to("libcudnn.so.9.14.0")
    engine(tmp_path / "site", "")
    site = str(tmp_path / "site")
    look = looked(LD_LIBRARY_PATH=f"{tmp_path}/pip:{tmp_path}/system", PYTHONPATH=site)
    assert (look.seen["cudnn"]["version"], look.seen["cudnn_unversioned"]["version"]) == ("9.19.0", "9.14.0")
    assert look.seen["cudnn_unversioned"]["file"] == str(tmp_path / "system" / "libcudnn.so.9.14.0")
    assert bad(gpu_stack.judge(gpu_stack.from_probe(look.seen)))["libcudnn.so"] == "WRONG"
    assert look.seen["copies"]["cudnn_folders"] == [str(tmp_path / "pip")]
    # the cure: the name without a number is a link to the copy that JAX loads
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "libcudnn.so").symlink_to(tmp_path / "pip" / "libcudnn.so.9")
    cured = looked(LD_LIBRARY_PATH=f"{tmp_path}/links:{tmp_path}/pip:{tmp_path}/system", PYTHONPATH=site)
    assert cured.seen["cudnn_unversioned"]["version"] == "9.19.0"
    assert "libcudnn.so" not in bad(gpu_stack.judge(gpu_stack.from_probe(cured.seen)))


@compiled
@pytest.mark.parametrize(("plugin", "version"), [(True, "2.32.3"), (False, "2.28.9")])
def test_pip_s_copy_comes_before_the_library_path_where_jax_s_plugin_is(
    plugin: bool, version: str, tmp_path: Path
) -> None:
    library(tmp_path / "site" / "nvidia" / "nccl" / "lib", "libnccl.so.2", 23203)
    library(tmp_path / "lib", "libnccl.so.2", 22809)
    # the tests' own Python may have the plugin: this one hides it
    (tmp_path / "site" / "jax_plugins").mkdir()
    (tmp_path / "site" / "jax_plugins" / "__init__.py").touch()
    if plugin:
        (tmp_path / "site" / "jax_plugins" / "xla_cuda13").mkdir()
        (tmp_path / "site" / "jax_plugins" / "xla_cuda13" / "__init__.py").write_text(
            "raise SystemExit('never imported')"
        )
    look = looked(LD_LIBRARY_PATH=str(tmp_path / "lib"), PYTHONPATH=str(tmp_path / "site"))
    assert look.seen["nccl"]["version"] == version


CRASHES = {
    "SIGSEGV": "int ncclGetVersion(int *v) { volatile int *nowhere = 0; *nowhere = *v; return 0; }",
    "SIGABRT": "#include <stdlib.h>\n__attribute__((constructor)) static void at_load(void) { abort(); }",
    "exit code 3": "#include <unistd.h>\nint ncclGetVersion(int *v) { *v = 0; _exit(3); }",
}


@compiled
@pytest.mark.parametrize("how", CRASHES)
def test_a_library_that_kills_the_probe_is_a_finding_and_the_rest_is_seen(how: str, tmp_path: Path) -> None:
    build(tmp_path / "lib", "libnccl.so.2", CRASHES[how])
    library(tmp_path / "lib", "libcudnn.so.9", 91900)
    look = looked(LD_LIBRARY_PATH=str(tmp_path / "lib"))
    assert look.died == {"nccl": how}
    assert look.seen["cudnn"]["version"] == "9.19.0"
    assert look.seen["python"]["packages"] is not None
    assert "nccl" not in look.seen


@compiled
def test_a_library_that_never_answers_is_one_too(tmp_path: Path) -> None:
    build(tmp_path / "lib", "libnccl.so.2", "#include <unistd.h>\nint ncclGetVersion(int *v) { for (;;) pause(); }")
    look = looked(5, LD_LIBRARY_PATH=str(tmp_path / "lib"))
    assert look.died["nccl"] == "no answer in 5 s"
    assert "copies" in look.seen


@compiled
def test_libraries_that_answer_wrongly_are_told(tmp_path: Path) -> None:
    library(tmp_path / "lib", "libnccl.so.2", 0, status=5)
    build(tmp_path / "lib", "libcublasLt.so.13", "int something_else;")
    (tmp_path / "lib" / "libcudnn.so.9").write_text("version https://git-lfs.github.com/spec/v1\n")
    look = looked(LD_LIBRARY_PATH=str(tmp_path / "lib"))
    assert look.seen["nccl"]["error"] == "ncclGetVersion returned 5"
    assert "undefined symbol: cublasLtGetVersion" in look.seen["cublaslt"]["error"]
    assert re.search("invalid ELF header|file too short", look.seen["cudnn"]["error"])


def distribution(site: Path, name: str, version: str) -> None:
    info = site / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def engine(site: Path, program: str, *, source: bool = False) -> None:
    """A package that stands where Transformer Engine's Python part stands, and runs `program` when it is imported.

    source: as a build from source leaves it, with the binding inside and one distribution; else as pip's three do.
    """
    for folder in ("jax/cpp_extensions", "common"):
        (site / "transformer_engine" / folder).mkdir(parents=True)
    for name in ("__init__.py", "jax/__init__.py", "jax/cpp_extensions/__init__.py"):
        (site / "transformer_engine" / name).touch()
    (site / "transformer_engine" / "jax" / "cpp_extensions" / "ep.py").write_text(
        "def use_nccl_comm_from_xla(): return True\n"
    )
    core = site / "transformer_engine" / "wheel_lib" / "libtransformer_engine.so"
    (site / "transformer_engine" / "common" / "__init__.py").write_text(
        f"{program}\ndef _get_shared_object_file(_): return {str(core)!r}\n"
    )
    core.parent.mkdir()
    (core.parent / "libnccl_ep.so").touch()
    for name in ("", *(() if source else ("_cu13", "_jax"))):
        distribution(site, f"transformer_engine{name}", "2.20.2")
    if source:
        (site / "transformer_engine" / "transformer_engine_jax.cpython-312-x86_64-linux-gnu.so").touch()


@compiled
def test_a_second_copy_in_the_process_is_seen(tmp_path: Path) -> None:
    mine = library(tmp_path / "lib", "libnccl.so.2", 23203)
    other = library(tmp_path / "other", "libnccl.so.2", 22809)
    engine(tmp_path / "site", f"import ctypes\nprint('hello from a library')\nctypes.CDLL({str(other)!r})")
    look = looked(LD_LIBRARY_PATH=str(tmp_path / "lib"), PYTHONPATH=str(tmp_path / "site"))
    assert look.seen["copies"]["nccl"] == sorted([str(mine), str(other)])
    assert look.seen["binding"]["borrows"] is True
    assert look.seen["nccl_ep"]["path"].endswith("/libnccl_ep.so")
    stack = gpu_stack.from_probe(look.seen)
    assert bad(gpu_stack.judge(stack))["copies of NCCL"] == "careful"


def test_a_binding_that_was_built_from_source_is_tried_too(tmp_path: Path) -> None:
    engine(tmp_path / "site", "raise ImportError('libnccl.so.2')", source=True)
    look = looked(PYTHONPATH=str(tmp_path / "site"))
    stack = gpu_stack.from_probe(look.seen)
    assert stack["te_jax"].version == "2.20.2"
    assert bad(gpu_stack.judge(stack))["TE's JAX binding"] == "WRONG"


@compiled
def test_parts_of_cudnn_from_another_folder_are_seen(tmp_path: Path) -> None:
    library(tmp_path / "pip", "libcudnn.so.9", 91900)
    graph = build(tmp_path / "system", "libcudnn_graph.so.9", "int version = 91400;")
    engine(tmp_path / "site", f"import ctypes; ctypes.CDLL({str(graph)!r})")
    look = looked(LD_LIBRARY_PATH=str(tmp_path / "pip"), PYTHONPATH=str(tmp_path / "site"))
    assert look.seen["copies"]["cudnn_folders"] == [str(tmp_path / "pip"), str(tmp_path / "system")]
    assert bad(gpu_stack.judge(gpu_stack.from_probe(look.seen)))["folders of cuDNN"] == "WRONG"


@pytest.mark.parametrize(
    ("program", "seen"),
    [
        ("raise ImportError('undefined symbol: XLA_FFI_Call')", "ImportError: undefined symbol: XLA_FFI_Call"),
        ("import os; os.kill(os.getpid(), 11)", "looking at it killed the process: SIGSEGV"),
        ("import os; assert os.environ['CUDA_VISIBLE_DEVICES'] == ''; 1/0", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_binding_that_does_not_load(program: str, seen: str, tmp_path: Path) -> None:
    engine(tmp_path / "site", program)
    look = looked(PYTHONPATH=str(tmp_path / "site"), CUDA_VISIBLE_DEVICES="0,1")
    (finding,) = [
        f for f in gpu_stack.judge(gpu_stack.from_probe(look.seen, look.died)) if f.name == "TE's JAX binding"
    ]
    assert (finding.mark, finding.seen) == ("WRONG", seen)
    assert "transformer_engine_jax==2.20.2" in finding.cure


def script(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def test_nvcc_is_the_one_that_nccl_ep_would_start(tmp_path: Path) -> None:
    """Its own variable, then CUDA_HOME, then the PATH."""
    for folder, release in (("a", "12.8"), ("b/bin", "13.0"), ("c", "13.4")):
        script(tmp_path / folder / "nvcc", f"echo 'Cuda compilation tools, release {release}, V{release}.88'")
    path = f"{tmp_path / 'c'}:{os.environ['PATH']}"
    steps: list[tuple[dict[str, str], str | None]] = [
        ({"PATH": path}, "13.4"),
        ({"PATH": path, "CUDA_HOME": str(tmp_path / "b")}, "13.0"),
        ({"PATH": path, "CUDA_HOME": str(tmp_path / "b"), "NCCL_EP_JIT_NVCC": str(tmp_path / "a" / "nvcc")}, "12.8"),
        ({"PATH": path, "NCCL_EP_JIT_NVCC": str(tmp_path / "nowhere")}, None),
    ]
    for environment, version in steps:
        assert looked(**environment).seen["nvcc"].get("version") == version


def test_an_nvcc_without_cuda_s_headers_is_told(tmp_path: Path) -> None:
    engine(tmp_path / "site", "")
    nvcc = script(
        tmp_path / "nvcc",
        '[ "$1" != --version ] || { echo release 13.0; exit; }\necho "fatal error: cuda_runtime.h: No such file" >&2; exit 1',
    )
    look = looked(PYTHONPATH=str(tmp_path / "site"), NCCL_EP_JIT_NVCC=str(nvcc))
    (finding,) = [f for f in gpu_stack.judge(gpu_stack.from_probe(look.seen)) if f.name == "nvcc"]
    assert finding.mark == "WRONG"
    assert finding.seen.endswith("compiles not even an empty program: fatal error: cuda_runtime.h: No such file")


def headers(folder: Path, version: str) -> Path:
    folder.mkdir(parents=True)
    parts = zip(("MAJOR", "MINOR", "PATCH"), version.split("."), strict=True)
    (folder / "nccl.h").write_text("".join(f"#define NCCL_{name} {number}\n" for name, number in parts))
    return folder


@compiled
def test_headers_of_nccl_are_those_beside_the_library_that_runs(tmp_path: Path) -> None:
    library(tmp_path / "nccl" / "lib", "libnccl.so.2", 23203)
    old = headers(tmp_path / "nccl" / "lib" / "include", "2.28.9")
    right = headers(tmp_path / "nccl" / "include", "2.32.3")
    environment = {"LD_LIBRARY_PATH": str(tmp_path / "nccl" / "lib")}
    assert looked(**environment).seen["nccl_headers"]["path"] == str(right)
    told = looked(**environment, NCCL_EP_JIT_BUILD_INCLUDE_DIR=str(old)).seen["nccl_headers"]
    assert (told["version"], told["how"]) == ("2.28.9", "NCCL_EP_JIT_BUILD_INCLUDE_DIR")
    nowhere = looked(**environment, NCCL_HOME=str(tmp_path)).seen["nccl_headers"]
    assert nowhere["error"] == f"no {tmp_path}/include/nccl.h"


# ---- doctor, whole


def doctored(tmp_path: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "launcher", "doctor", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_doctor_on_a_machine_with_gpus(tmp_path: Path) -> None:
    script(
        tmp_path / "bin" / "nvidia-smi",
        "echo 'NVIDIA H200, 143771, 9.0, 580.159.03'\necho 'NVIDIA H200, 143771, 9.0, 580.159.03'",
    )
    path = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    found = {f["name"]: f for f in json.loads(doctored(tmp_path, "--json", **path).stdout)}
    assert found["GPUs"]["seen"] == "2: NVIDIA H200, 140 GiB, driver 580.159.03"
    assert found["hardware"]["seen"].startswith("hardware=h200_hgx; hardware.gpus_per_node=2")
    assert found["XLA's memory"]["ok"]


@compiled
def test_doctor_fails_on_a_stack_that_does_not_fit(tmp_path: Path) -> None:
    library(tmp_path / "lib", "libnccl.so.2", 22809)
    engine(tmp_path / "site", "")
    python = script(
        tmp_path / "python", f'PYTHONPATH={tmp_path}/site LD_LIBRARY_PATH={tmp_path}/lib exec {sys.executable} "$@"'
    )
    done = doctored(tmp_path, "--python", str(python))
    assert done.returncode == 1
    assert f"WRONG    NCCL                2.28.9, wanted: 2.32.3 or newer ({tmp_path}/lib/libnccl.so.2)" in done.stdout


def test_a_python_that_says_nothing_is_told(tmp_path: Path) -> None:
    for body, told in (("exit 3", "exit code 3"), ("kill -9 $$", "SIGKILL"), ("echo hello", "exit code 0")):
        look = gpu_look.look(str(script(tmp_path / "python", body)))
        assert told in look.problem
    assert "does not start: No such file" in gpu_look.look(str(tmp_path / "nowhere")).problem
    assert dataclasses.asdict(gpu_look.Look()) == {"seen": {}, "died": {}, "problem": ""}
