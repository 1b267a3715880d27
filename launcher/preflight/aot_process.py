"""The process that compiles: what its Python must have, how far it is, and what its end means."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from launcher.issue import Issue, Refused, Severity
from launcher.node.trainer import CONFIG_REFUSED, REFUSES, TE_SCAN_CONSTANTS
from launcher.preflight.doctor import AOT_EXTRA

ASK_TIMEOUT_S = 60

ERRORS = "stderr.txt"
"""The file of what the compiling process said on stderr."""

LONGEST = 240
"""Characters of a compiler's last words: LLVM's hold the whole program."""

OLDEST_PYTHON = (3, 12)
"""MaxText 0.2.5's own floor."""

COMPILERS = ("jax-cuda13-pjrt", "jax-cuda12-pjrt")
"""XLA's GPU compiler as a package, for one CUDA or the other."""

MESSAGES: Mapping[str, str] = {
    "configure": "MaxText is reading the configuration",
    "shapes": "shapes and shardings",
    "trace": "tracing the train step",
    "lower": "lowering it",
    "compile": "XLA compiles for the GPU; most of the time goes here",
}
"""Stage of the probe -> what a waiting person is told."""

ASK = """
import importlib.metadata, json, sys
names = ["maxtext", "jax", "jaxlib", "jax-cuda13-pjrt", "jax-cuda12-pjrt", "transformer_engine", "flax"]
found = {}
for name in names:
    try: found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError: pass
print(json.dumps({"python": list(sys.version_info[:3]), "found": found}))
"""


@dataclass(frozen=True)
class Job:
    """Where and how the probe runs: `folder` is its working folder and holds its files; `say` is told how far it is."""

    python: str
    environment: Mapping[str, str]
    folder: Path
    timeout_s: float
    say: Callable[[str], None]


def _refused(code: str, where: str, message: str, hint: str) -> Refused:
    return Refused(Issue(code, Severity.ERROR, where, message, hint))


def _release(version: str) -> str:
    """A version without what a build of one's own adds: images have jax 0.12.1.dev20260909+abc beside 0.12.1.dev20260909."""
    return re.split(r"\.?dev|\+", version)[0]


def packages(python: str, engine: bool) -> dict[str, str]:
    """The versions that a Python has of what compiles. `engine`: Transformer Engine is needed too.

    Raises Refused: AOT_PYTHON (too old, or it does not start), AOT_MISSING (all that is not there), AOT_VERSIONS.
    """
    try:
        done = subprocess.run(
            [python, "-c", ASK], capture_output=True, text=True, errors="replace", timeout=ASK_TIMEOUT_S
        )
        told = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        raise _refused(
            "AOT_PYTHON", "python", f"{python} does not answer: {error}", "name another with --python"
        ) from error
    version, found = tuple(told["python"]), dict(told["found"])
    shown = ".".join(str(part) for part in version)
    if version[:2] < OLDEST_PYTHON:
        hint = f"name a newer one with --python, or make one: {AOT_EXTRA}"
        raise _refused("AOT_PYTHON", "python", f"{python} is Python {shown}, MaxText needs 3.12", hint)
    compiler = COMPILERS[1] if COMPILERS[1] in found and COMPILERS[0] not in found else COMPILERS[0]
    missing = [
        name for name in ("maxtext", "jax", compiler, *(("transformer_engine",) if engine else ())) if name not in found
    ]
    if missing:
        hint = f"name one that has it with --python, or install it: {AOT_EXTRA}"
        raise _refused("AOT_MISSING", "python", f"{python} has no {', '.join(missing)}", hint)
    if _release(found[compiler]) != _release(found["jax"]):
        message = f"jax {found['jax']} with {compiler} {found[compiler]}: compiler and jax have to be of one version"
        hint = f"pip install --no-deps {compiler}=={found['jax']}"
        raise _refused("AOT_VERSIONS", "python", message, hint)
    return {**found, "python": shown}


def last_words(text: str) -> str:
    """The line that says why a compiler stopped: XLA's or LLVM's fatal one, else Python's, else the last."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    own = [line for line in lines if re.match(r"[EF]\d{4} ", line) and "***" not in line]
    chosen = [line for line in own if "Fatal Error" in line] + [line for line in own if line.startswith("F")]
    chosen += [line for line in lines if line.startswith("Fatal Python error")] + own[-1:]
    noise = ('File "', "Extension modules", "Thread 0x", "Current thread", "***")
    chosen += [line for line in lines if not line.startswith(noise) and "***" not in line][-1:]
    first = (chosen or ["no output"])[0]
    return first.partition("] ")[2] or first if first in own else first


def _crash(code: int, said: str, versions: Mapping[str, str]) -> Refused:
    """The end of a process that left no answer but what it `said` on stderr."""
    if code == CONFIG_REFUSED and said.startswith(REFUSES):
        hint = "what the trainer would say: type trainer.workarounds=[] trainer.scan_layers=false, or take another jaxlib (--python)"
        return _refused("AOT_WORKAROUND", "trainer.workarounds", said[len(REFUSES) :], hint)
    number = -code if code < 0 else code - 128 if code > 128 else 0
    name = signal.Signals(number).name if number in {int(each) for each in signal.Signals} else f"exit code {code}"
    ended = f"{name}, exit code {128 + number}" if number else name
    message = f"the compiler died ({ended}): {last_words(said)[:LONGEST]}"
    if number == signal.SIGKILL:
        hint = (
            "the system killed it, most often for want of memory (it takes 1 to 2 GiB): free some, or compile elsewhere"
        )
        return _refused("AOT_OUT_OF_MEMORY", "", message, hint)
    if number == signal.SIGFPE:
        hint = "a number of the GPU's description is 0 or absent: compare it with launcher/data/gpu/gb200.txtpb"
        return _refused("AOT_CRASHED", "hardware.gpu", message, hint)
    if "LLVM Fatal Error" in said and "__triton_collective" in said:
        # Seen with jaxlib 0.12.0.1: all-reduces of a scalar inside one NVLink domain.
        hint = "type +xla.flags.xla_gpu_unsupported_use_all_reduce_one_shot_kernel=false: XLA's one-shot kernel does not compile here"
        return _refused("AOT_CRASHED", "xla.flags", message, hint)
    if number == signal.SIGSEGV and versions.get("jaxlib", "").startswith("0.11."):
        # Shardy of jaxlib 0.11.2 dies of a shard_map that is given an empty constant, as TE's grouped GEMM in a scan is.
        hint = (
            "jaxlib 0.11 cannot compile TE's block with trainer.scan_layers=true: jaxlib 0.12 can, or type trainer.scan_layers=false, "
            f"or trainer.workarounds=[{TE_SCAN_CONSTANTS}]"
        )
        return _refused("AOT_CRASHED", "trainer.scan_layers", message, hint)
    hint = "see what it said with --dump DIR; another jaxlib (--python) or trainer.scan_layers=false may pass"
    return _refused("AOT_CRASHED", "", message, hint)


def _shards(text: str) -> str:
    """JAX's IndivisibleError without the mesh and the place in our own program; any other text as it is.

    >>> _shards("key path state['model']['wkv_b'].value was ... array axis 0 is partitioned 1024 times, but the dimension size is 512 (")
    'model.wkv_b: 512 along axis 0 for 1024 shards'
    """
    said = re.search(
        r"key path state(\S+?)(?:\.value)? .*axis (\d+) is partitioned (\d+) times, but the dimension size is (\d+)",
        text,
    )
    if said is None:
        return text
    return f"{'.'.join(re.findall(r'[A-Za-z_0-9]+', said[1]))}: {said[4]} along axis {said[2]} for {said[3]} shards"


def _refusal(refused: Mapping[str, Any], versions: Mapping[str, str]) -> Refused:
    """What MaxText, JAX or XLA said no to, by the stage in which they did."""
    stage, kind, text = refused["stage"], refused["kind"], refused["text"]
    if stage == "configure":
        where = f"maxtext.{refused['keys'][0]}" if refused["keys"] else "maxtext"
        message = f"MaxText {versions.get('maxtext', '')} refuses this: {text}"
        return _refused("MAXTEXT_REFUSED", where, message, "correct the keys that the text names")
    if kind == "IndivisibleError" or "divisible" in text or "partitioned" in text:
        hint = "type smaller axes that shard it, and give the rest of the GPUs to mesh.dcn.data"
        return _refused("AOT_MESH", "mesh", f"this mesh cannot hold the model: {_shards(text)}", hint)
    if stage == "shapes" and kind in ("JaxRuntimeError", "XlaRuntimeError"):
        return _refused(
            "GPU_REFUSED",
            "hardware.gpu",
            f"XLA refuses the GPU's description: {text}",
            "compare it with launcher/data/gpu",
        )
    return _refused("AOT_REFUSED", "", f"stopped at `{stage}`: {kind}: {text}", "correct what the text names")


def _listen(stream: IO[str], say: Callable[[str], None]) -> None:
    for line in stream:
        word, _, stage = line.strip().partition(" ")
        if word == "stage" and stage in MESSAGES:
            say(f"  {MESSAGES[stage]}")


def _end(process: subprocess.Popen[str]) -> None:
    """It and all that it started: they are a process group of their own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _wait(command: list[str], job: Job, errors: Path) -> int:
    """The exit code of the probe; it and all that it started have ended."""
    with errors.open("wb") as stderr:
        process = subprocess.Popen(
            command, cwd=job.folder, env=dict(job.environment), text=True, errors="replace",
            stdout=subprocess.PIPE, stderr=stderr, start_new_session=True,
        )  # fmt: skip
        assert process.stdout is not None
        listener = threading.Thread(target=_listen, args=(process.stdout, job.say), daemon=True)
        listener.start()
        try:
            return process.wait(job.timeout_s)
        except subprocess.TimeoutExpired as error:
            hint = "try on an idle machine, or allow more with --timeout SECONDS"
            raise _refused("AOT_TIMEOUT", "", f"not compiled within {job.timeout_s:.0f} s", hint) from error
        finally:
            _end(process)
            process.wait()
            listener.join(5)


def run(probe: Path, request: Mapping[str, Any], job: Job) -> dict[str, Any]:
    """One compilation; the probe's answer.

    Raises Refused: it refuses, lacks something, crashes, or does not end within the job's seconds.
    """
    folder, python = job.folder, job.python
    # A copy: Python puts the program's folder on its path, and bytecode may not be written beside the original.
    program = Path(shutil.copytree(probe, folder / "probe")) / "aot_compile.py"
    asked, answered, errors = folder / "request.json", folder / "answer.json", folder / ERRORS
    asked.write_text(json.dumps(request), encoding="utf-8")
    python = os.path.abspath(python) if os.sep in python else python  # the working folder is another one
    code = _wait([python, str(program), str(asked), str(answered)], job, errors)
    if not answered.exists():
        raise _crash(
            code, last_words(errors.read_text(encoding="utf-8", errors="replace")), request.get("packages", {})
        )
    answer: dict[str, Any] = json.loads(answered.read_text(encoding="utf-8"))
    if "missing" in answer:
        raise _refused(
            "AOT_MISSING",
            "python",
            f"{python} cannot import what it needs ({answer['missing']})",
            f"install it: {AOT_EXTRA}",
        )
    if "refused" in answer:
        raise _refusal(answer["refused"], answer["versions"])
    return answer
