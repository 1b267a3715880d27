"""Where NCCL EP compiles its kernels while the trainers run."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from . import environment
from .codes import Code, WorkerError
from .launch import Launch
from .layout import AttemptFolder
from .place import host_name


@contextlib.contextmanager
def fresh(launch: Launch, attempt: AttemptFolder, bundle: Mapping[str, str]) -> Iterator[Path | None]:
    """An empty folder on this node's disk for NCCL EP's run-time compiles, inside the bundle's own or $TMPDIR.

    Never a fixed one: a SIGTERM during a compile leaves a mark there after which no start succeeds. It goes at the end.
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
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
