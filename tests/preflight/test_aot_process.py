"""How the compiling process can end, each as an Issue: programs here end as a compiler does, by real signals."""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import time
from pathlib import Path

import pytest

from launcher.issue import Issue, Refused
from launcher.preflight.aot_probe.aot_compile import refusal
from launcher.preflight.aot_process import Job, last_words, packages, run


def ended(tmp_path: Path, program: str, *, timeout_s: float = 30, request: dict[str, object] | None = None) -> Issue:
    """The Issue that comes of a probe with this program."""
    probe = tmp_path / "probe-source"
    probe.mkdir()
    (probe / "aot_compile.py").write_text("import os, signal, sys, json, time\n" + program)
    folder = tmp_path / "work"
    folder.mkdir()
    with pytest.raises(Refused) as refused:
        run(probe, request or {}, Job(sys.executable, dict(os.environ), folder, timeout_s, lambda _: None))
    (issue,) = refused.value.issues
    return issue


def test_of_a_traceback_in_an_error_what_it_ends_with_is_told() -> None:
    """XLA gives that of a partitioner in Python whole, and only its end says what is wrong."""
    frames = "".join(
        f'  File "jax/_src/{name}.py", line 1, in f\n    return g()\n           ^^^\n' for name in "ab" * 40
    )
    text = f"INTERNAL: custom_partitioner: Traceback (most recent call last):\n{frames}ValueError: got 12, wanted 16\n\nSuspected: x"
    told = refusal("compile", RuntimeError(text))
    assert told["text"] == "INTERNAL: custom_partitioner: ValueError: got 12, wanted 16 Suspected: x"
    assert refusal("trace", ValueError("plain\n words"))["text"] == "plain words"


@pytest.mark.parametrize(
    ("signal", "code", "told", "cure"),
    [
        ("SIGSEGV", "AOT_CRASHED", "SIGSEGV, exit code 139", "--dump"),
        ("SIGFPE", "AOT_CRASHED", "SIGFPE, exit code 136", "description"),
        ("SIGABRT", "AOT_CRASHED", "SIGABRT, exit code 134", "--dump"),
        ("SIGKILL", "AOT_OUT_OF_MEMORY", "SIGKILL, exit code 137", "memory"),
    ],
)
def test_a_compiler_that_dies(signal: str, code: str, told: str, cure: str, tmp_path: Path) -> None:
    words = "F1129 22:00:00.1 123 buffer_assignment.cc:1] Check failed: x"
    issue = ended(
        tmp_path, f"sys.stderr.write({words!r} + chr(10)); sys.stderr.flush()\nos.kill(os.getpid(), signal.{signal})\n"
    )
    assert issue.code == code
    assert told in issue.message
    assert "Check failed: x" in issue.message
    assert cure in issue.hint


def test_the_known_crash_of_jaxlib_0_11_is_named(tmp_path: Path) -> None:
    issue = ended(tmp_path, "os.kill(os.getpid(), signal.SIGSEGV)\n", request={"packages": {"jaxlib": "0.11.2"}})
    assert issue.field == "trainer.scan_layers"
    assert "jaxlib 0.12" in issue.hint
    assert "trainer.workarounds=[te_scan_constants]" in issue.hint


def test_what_the_trainer_would_refuse_is_refused(tmp_path: Path) -> None:
    words = "trainer.py refuses: trainer.workarounds=te_scan_constants replaces a private function"
    issue = ended(tmp_path, f"sys.stderr.write({words!r} + chr(10))\nsys.exit(78)\n")
    assert (issue.code, issue.field) == ("AOT_WORKAROUND", "trainer.workarounds")
    assert issue.message.startswith("trainer.workarounds=te_scan_constants replaces")


def test_the_known_crash_of_a_one_shot_all_reduce_is_named(tmp_path: Path) -> None:
    # As jaxlib 0.12.0.1 wrote it for qwen3_235b_a22b_64gpu, cut.
    words = (
        "E1129 21:57:55.1 3363 xtile_compiler.cc:576] LLVM Fatal Error while compiling Triton kernel: size mismatch when packing "
        'elements for LLVM struct Context: Fusion: all-reduce.18.0-fusion.1 = s32[] fusion(param), backend_config={"kind":"__triton_collective"}'
    )
    issue = ended(tmp_path, f"sys.stderr.write({words!r}); sys.exit(1)\n")
    assert (issue.code, issue.field) == ("AOT_CRASHED", "xla.flags")
    assert "size mismatch" in issue.message
    assert "one_shot_kernel=false" in issue.hint


def test_an_end_without_an_answer(tmp_path: Path) -> None:
    issue = ended(tmp_path, "raise SystemExit('no space left')\n")
    assert (issue.code, "exit code 1" in issue.message, "no space left" in issue.message) == ("AOT_CRASHED", True, True)


def test_one_that_does_not_end_is_ended_with_all_its_children(tmp_path: Path) -> None:
    pid_file = tmp_path / "child"
    program = f"""
import subprocess
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
open({str(pid_file)!r}, "w").write(str(child.pid))
time.sleep(60)
"""
    began = time.monotonic()
    issue = ended(tmp_path, program, timeout_s=3)
    assert (issue.code, "--timeout" in issue.hint) == ("AOT_TIMEOUT", True)
    assert time.monotonic() - began < 20
    child = Path("/proc") / pid_file.read_text() / "stat"
    while time.monotonic() - began < 20 and child.exists() and child.read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.05)
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    ("refused", "code", "field"),
    [
        ({"stage": "configure", "kind": "ValueError", "text": "'pgle' is not one of its keys", "keys": ["pgle"]}, "MAXTEXT_REFUSED", "maxtext.pgle"),
        ({"stage": "shapes", "kind": "IndivisibleError", "text": "axis 0 of size 512 partitioned 1024 times", "keys": []}, "AOT_MESH", "mesh"),
        ({"stage": "shapes", "kind": "JaxRuntimeError", "text": "FAILED_PRECONDITION: proto", "keys": []}, "GPU_REFUSED", "hardware.gpu"),
        ({"stage": "compile", "kind": "JaxRuntimeError", "text": "INTERNAL: x", "keys": []}, "AOT_REFUSED", ""),
    ],
)  # fmt: skip
def test_a_refusal_is_told_by_its_stage(refused: dict[str, object], code: str, field: str, tmp_path: Path) -> None:
    answer = json.dumps({"versions": {"maxtext": "0.2.5"}, "refused": refused})
    issue = ended(tmp_path, f"open(sys.argv[2], 'w').write({answer!r})\n")
    assert (issue.code, issue.field) == (code, field)
    assert str(refused["text"]) in issue.message


def test_a_python_that_cannot_import_what_it_has(tmp_path: Path) -> None:
    answer = '{"versions": {}, "missing": "ImportError: libnccl.so.2"}'
    issue = ended(tmp_path, f"open(sys.argv[2], 'w').write({answer!r})\n")
    assert (issue.code, "libnccl" in issue.message) == ("AOT_MISSING", True)


def python(tmp_path: Path, version: tuple[int, int, int], has: dict[str, str]) -> str:
    """A program that answers as the Python of that version with these packages would."""
    program = tmp_path / "python"
    told = f'{{"python": {list(version)}, "found": {has}}}'.replace("'", '"')
    program.write_text(f"#!/bin/sh\necho '{told}'\n")
    program.chmod(0o755)
    return str(program)


WHOLE = {
    "maxtext": "0.2.5",
    "jax": "0.12.0.1",
    "jaxlib": "0.12.0.1",
    "jax-cuda13-pjrt": "0.12.0.1",
    "transformer_engine": "2.20.2",
}


@pytest.mark.parametrize(
    ("version", "without", "changed", "expected"),
    [
        ((3, 11, 7), (), {}, ("AOT_PYTHON", "is Python 3.11.7, MaxText needs 3.12")),
        ((3, 12, 1), ("jax-cuda13-pjrt", "maxtext"), {}, ("AOT_MISSING", "has no maxtext, jax-cuda13-pjrt")),
        ((3, 12, 1), ("transformer_engine",), {}, ("AOT_MISSING", "has no transformer_engine")),
        ((3, 12, 1), (), {"jax": "0.12.1"}, ("AOT_VERSIONS", "jax 0.12.1 with jax-cuda13-pjrt 0.12.0.1")),
    ],
)
def test_what_a_python_lacks(
    version: tuple[int, int, int],
    without: tuple[str, ...],
    changed: dict[str, str],
    expected: tuple[str, str],
    tmp_path: Path,
) -> None:
    has = {name: number for name, number in (WHOLE | changed).items() if name not in without}
    with pytest.raises(Refused) as refused:
        packages(python(tmp_path, version, has), engine=True)
    (issue,) = refused.value.issues
    assert (issue.code, expected[1] in issue.message) == (expected[0], True), issue


def test_a_whole_python_gives_its_versions_and_no_engine_is_asked_of_who_needs_none(tmp_path: Path) -> None:
    has = {name: number for name, number in WHOLE.items() if name != "transformer_engine"}
    assert packages(python(tmp_path, (3, 13, 0), has), engine=False) == has | {"python": "3.13.0"}


def test_an_image_has_builds_of_its_own_and_perhaps_the_other_cuda(tmp_path: Path) -> None:
    has = {name: number for name, number in WHOLE.items() if name != "jax-cuda13-pjrt"}
    has |= {"jax": "0.12.1.dev20260909+abc", "jax-cuda12-pjrt": "0.12.1.dev20260908"}
    assert packages(python(tmp_path, (3, 12, 3), has), engine=True) == has | {"python": "3.12.3"}


def test_no_python_at_all(tmp_path: Path) -> None:
    with pytest.raises(Refused) as refused:
        packages(str(tmp_path / "nothing"), engine=False)
    assert refused.value.issues[0].code == "AOT_PYTHON"


def test_the_question_is_understood_by_this_python() -> None:
    try:
        found = packages(sys.executable, engine=False)
    except Refused as refused:
        assert refused.issues[0].code in ("AOT_MISSING", "AOT_PYTHON")  # noqa: PT017
    else:
        assert found["jax"] == importlib.metadata.version("jax")


def test_last_words() -> None:
    assert (
        last_words('a\n  File "x.py", line 3\nFatal Python error: Segmentation fault\nthread')
        == "Fatal Python error: Segmentation fault"
    )
    assert last_words('W1129 noise\nboom\n  File "x.py", line 1') == "boom"
    assert last_words("") == "no output"
    stack = "F1129 21:57:55.1 3363 error_handler.cc:44] *** Begin stack trace ***\n\t\n*** End stack trace ***\n"
    llvm = (
        "E1129 21:57:55.1 3363 xtile_compiler.cc:576] LLVM Fatal Error while compiling Triton kernel: size mismatch\n"
    )
    assert last_words(f"x\n{llvm}{stack}") == "LLVM Fatal Error while compiling Triton kernel: size mismatch"
    assert last_words("E1129 22:00:00.1 1 a.cc:1] said once\nI1129 22:00:00.1 1 b.cc:1] later") == "said once"
