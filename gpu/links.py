"""The places where the GPU machine's own libraries are replaced, and how they come back; and env.sh."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

ORIGINAL = ".orig"


class NotWritable(Exception):
    """site-packages belongs to somebody else."""


def may_write(site_packages: Path) -> None:
    """Refuse early where pip's NVIDIA libraries could not be replaced; where there are none, nothing needs to be."""
    for folder in (site_packages / "nvidia").glob("*/lib"):
        if not os.access(folder, os.W_OK):
            raise NotWritable(
                f"{folder} is not writable, and JAX's CUDA plugin loads NCCL and cuBLAS from there: run setup as the owner of"
                " this Python, or give it a virtual environment that holds its own jax and nvidia packages"
            )


def replace(wanted: dict[str, str], dest: Path, site_packages: Path) -> Iterator[str]:
    """Make each pip copy a link to ours, the original beside it as *.orig. Says what it did; a second time it does nothing.

    One file under two names would be two copies in a process; a link is one.
    """
    for name, ours in wanted.items():
        copy, library = site_packages / name, dest / ours
        if copy.is_symlink() and Path(os.readlink(copy)) == library:
            continue
        if not copy.is_symlink() and not copy.exists():
            yield f"{copy} is not there: nothing to replace, LD_LIBRARY_PATH of env.sh decides"
            continue
        original = copy.with_name(copy.name + ORIGINAL)
        if copy.is_symlink() and original.exists():
            copy.unlink()  # A link of an earlier setup with another destination.
        else:
            copy.rename(original)
        copy.symlink_to(library)
        yield f"{copy} -> {library} (the original: {original.name})"


def restore(dest: Path, site_packages: Path) -> Iterator[str]:
    """Put back every original whose place is taken by a link into ``dest``."""
    for original in sorted((site_packages / "nvidia").glob(f"*/lib/*{ORIGINAL}")):
        copy = original.with_name(original.name[: -len(ORIGINAL)])
        if copy.is_symlink() and Path(os.readlink(copy)).is_relative_to(dest):
            copy.unlink()
            original.rename(copy)
            yield f"{copy} is the original again"


def one_cudnn(dest: Path, site_packages: Path) -> Iterator[str]:
    """Make every name of cuDNN lead to pip's, by links in our folder of libraries, which env.sh puts first.

    Transformer Engine opens `libcudnn.so` without a version. Pip brings no file of that name, so the loader would take a system's
    cuDNN beside the one that JAX has loaded: two H200s with 9.19 by pip and 9.14 in /usr/lib then trained without cuDNN's
    attention, 1.4 times slower, and said so in one warning only.
    """
    pip = site_packages / "nvidia" / "cudnn" / "lib"
    links = {dest / "lib" / name: file for file in pip.glob("libcudnn*.so.9") for name in (file.name, file.stem)}
    new = {link: file for link, file in links.items() if not (link.is_symlink() and Path(os.readlink(link)) == file)}
    for link, file in new.items():
        link.unlink(missing_ok=True)
        link.symlink_to(file)
    if new:
        yield f"{dest / 'lib'}/libcudnn*.so -> {pip}: a process shall have one cuDNN"


def environment(dest: Path, site_packages: Path) -> str:
    """env.sh: what a shell needs so that Python and the loader find the bundle first."""
    site, lib = shlex.quote(str(dest / "site")), str(dest / "lib")
    nvidia = [str(site_packages / "nvidia" / name / "lib") for name in ("cu13", "cudnn", "nccl")]
    return f"""# Written by gpu.setup: . {dest}/env.sh
export GPU_STACK={shlex.quote(str(dest))}
export PYTHONPATH={site}${{PYTHONPATH:+:$PYTHONPATH}}
export LD_LIBRARY_PATH={shlex.quote(":".join([lib, *nvidia]))}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}
# NCCL EP compiles its kernels with nvcc when a run starts, against the headers of the NCCL in use.
export CUDA_HOME=${{CUDA_HOME:-/usr/local/cuda}}
export NCCL_EP_JIT_NVCC=$CUDA_HOME/bin/nvcc NCCL_EP_JIT_BUILD_INCLUDE_DIR={shlex.quote(str(dest / "nccl_include"))}
# MaxText without Google Cloud's packages, which are not carried.
export DECOUPLE_GCLOUD=TRUE
# NVLink multicast is off unless it was switched on: on a host that several users share it can put all GPUs out of service.
export NCCL_NVLS_ENABLE=${{NCCL_NVLS_ENABLE:-0}}
"""
