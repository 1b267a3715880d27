"""Where NCCL EP compiles its kernels while the trainers run, and what is kept of them for the next start on this node.

Every start compiles seven kernels, three seconds each (Transformer Engine 2.20.2 on two H200s). A folder that several starts share
would save that, but a SIGTERM during a compile leaves a `compile.failed` there after which no start succeeds. So each attempt has a
folder of its own; kernels that were finished go into it from a folder beside it, and back there once the attempt has made a step. An
attempt that dies of its kernels takes them along: the next one compiles anew.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from . import environment
from .codes import Code, WorkerError
from .launch import Launch
from .layout import AttemptFolder
from .place import host_name

KEPT = "nccl-ep-kernels"
"""The folder of finished kernels begins with this; the user's number follows, since $TMPDIR is everybody's."""

PARTS = ("kernel.cubin", "metadata.json")
"""What a finished kernel's folder holds, beside its source, its log and its lock (as recorded: tests/data/h200, nccl_ep.txt)."""

FAILED, LOCK = "compile.failed", "compile.lock"


@contextlib.contextmanager
def fresh(launch: Launch, attempt: AttemptFolder, bundle: Mapping[str, str]) -> Iterator[Path | None]:
    """A folder on this node's disk for NCCL EP's run-time compiles, inside the bundle's own or $TMPDIR. It goes at the end.

    In it: the finished kernels of earlier attempts, which are nowhere else then.
    """
    if launch.platform != "gpu":
        yield None
        return
    parent = bundle.get(environment.JIT_CACHE) or tempfile.gettempdir()
    try:
        os.makedirs(parent, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f"nccl-ep-jit-{attempt.number}-", dir=parent))
    except OSError as error:
        raise WorkerError(
            Code.BAD_NODE,
            f"cannot make a folder in {parent} on {host_name()}: {error.strerror}; is its disk full?",
        ) from error
    try:
        _move(_kept(folder), folder)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def keep(folder: Path) -> None:
    """Leaves the finished kernels of an attempt's folder to the next one. What cannot be kept is compiled again: no error."""
    kept = _kept(folder)
    with contextlib.suppress(OSError):
        if any(_is_finished(kernel) for kernel in folder.iterdir()):
            kept.mkdir(mode=0o700)
    _move(folder, kept)


def _kept(folder: Path) -> Path:
    return folder.parent / f"{KEPT}-{os.getuid()}"


def _move(source: Path, target: Path) -> None:
    """Kernels are code: none are taken from or left in a folder that others can write to."""
    if not (_is_ours(source) and _is_ours(target)):
        return
    with contextlib.suppress(OSError):
        for kernel in sorted(source.iterdir()):
            if _is_finished(kernel):
                with contextlib.suppress(OSError):  # another attempt's is there already
                    (kernel / LOCK).unlink(missing_ok=True)
                    kernel.rename(target / kernel.name)


def _is_ours(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        seen = folder.lstat()
        return stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.getuid() and not seen.st_mode & 0o022
    return False


def _is_finished(kernel: Path) -> bool:
    """NCCL EP writes each file under another name first, so one that is there is whole."""
    with contextlib.suppress(OSError):
        return not (kernel / FAILED).exists() and all((kernel / part).stat().st_size for part in PARTS)
    return False
