"""Prepare the bundle on a machine with a package index; it needs no GPU and no CUDA toolkit.

    python3.12 -m gpu.build [--out build/gpu-parts] [--part-bytes 56MiB] [--work build/gpu-work] [--jobs N]

Needs the image's version of Python with its C headers, g++ (C++17), make and strip. The work folder keeps the stages that are done,
so a second start goes on after the last of them; with other versions in versions.toml it starts anew.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from gpu import stages
from gpu.parts import write_parts
from gpu.versions import Versions, read
from gpu.work import Failed, Work

UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "kB": 10**3, "MB": 10**6, "GB": 10**9}
# One transfer to the machine of the recorded H200 runs holds 64 MiB, the checkout (7 MiB) included.
PART_BYTES = "56MiB"


@dataclass(frozen=True)
class Stage:
    """One step of the build, done once for the versions of one versions.toml."""

    name: str
    does: str
    run: Callable[[Work], None]


STAGES = (
    Stage(
        "env", "a virtual environment with jaxlib and NVIDIA's wheels: headers, and the libraries to prune", stages.env
    ),
    Stage("fetch", "Transformer Engine, MaxText and the packages that the image lacks", stages.fetch),
    Stage("binding", "g++ on Transformer Engine's JAX binding", stages.binding),
    Stage("prune", "zero the GPU code of other architectures", stages.prune),
    Stage("tree", "put the Python files together", stages.tree),
    Stage("pack", "xz", stages.pack),
)


def size(text: str) -> int:
    """Bytes of `58MiB`, `60 MB` or a bare number.

    >>> size("58MiB"), size("60 MB"), size("1000")
    (60817408, 60000000, 1000)
    """
    match = re.fullmatch(r"(\d+) *([A-Za-z]*)", text)
    if not match or match.group(2) not in UNITS:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no size: a number and {', '.join(filter(None, UNITS))}, as 58MiB"
        )
    return int(match.group(1)) * UNITS[match.group(2)]


def able(versions: Versions) -> None:
    """Refuse at once what would fail after minutes."""
    wrong = []
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if here != versions.python:
        wrong.append(
            f"this is Python {here}, the GPU machine's is {versions.python}: start the build with python{versions.python}"
            " (gpu/versions.toml, [image] python)"
        )
    if platform.machine() != "x86_64":
        wrong.append(f"this machine is {platform.machine()}: Transformer Engine's wheel and the binding are for x86_64")
    if not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        wrong.append(f"{sys.executable} has no Python.h: install its headers (python{here}-dev)")
    if lacking := [tool for tool in ("g++", "make", "strip") if shutil.which(tool) is None]:
        wrong.append(f"not found: {', '.join(lacking)} (Debian: apt-get install g++ make binutils)")
    if wrong:
        raise Failed("\n".join(wrong))


def run_stages(work: Work) -> None:
    """Run what is not done yet, in order; a stage that ran makes the later ones undone."""
    marks = [work.folder / f"done-{stage.name}" for stage in STAGES]
    wanted = hashlib.sha256(json.dumps(asdict(work.versions), sort_keys=True).encode()).hexdigest()
    for index, (stage, mark) in enumerate(zip(STAGES, marks, strict=True)):
        if mark.exists() and mark.read_text() == wanted:
            print(f"== {stage.name:8} done before")
            continue
        for later in marks[index:]:
            later.unlink(missing_ok=True)
        print(f"== {stage.name:8} {stage.does} ...", flush=True)
        start = time.monotonic()
        stage.run(work)
        mark.write_text(wanted)
        print(f"== {stage.name:8} {time.monotonic() - start:.0f} s", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """0: the parts are written; 1: they are not."""
    parser = argparse.ArgumentParser(prog="python3 -m gpu.build", description="Prepare the bundle for a GPU machine.")
    parser.add_argument("--out", type=Path, default=Path("build/gpu-parts"), help="folder of the parts (%(default)s)")
    parser.add_argument(
        "--work", type=Path, default=Path("build/gpu-work"), help="folder of the stages, 5 GB (%(default)s)"
    )
    parser.add_argument(
        "--part-bytes", type=size, default=size(PART_BYTES), help=f"the most that a part has ({PART_BYTES})"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time (%(default)s)")
    args = parser.parse_args(argv)
    versions = read()
    try:
        able(versions)
        work = Work(args.work.resolve(), versions, args.jobs)
        work.folder.mkdir(parents=True, exist_ok=True)
        run_stages(work)
        manifest = stages.manifest(work, args.part_bytes)
        for old in args.out.glob("gpu-stack-*.tar"):
            old.unlink()
        for path in write_parts(manifest, work.packed, args.out):
            left = args.part_bytes - path.stat().st_size
            print(f"{path}: {path.stat().st_size:,} bytes, {left / 1024:,.0f} KiB below the limit")
    except (Failed, ValueError, OSError, subprocess.SubprocessError) as error:
        print(f"build: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
