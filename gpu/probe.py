"""Whether the bundle works here: which libraries are loaded, of which versions, and whether a matrix product is right.

    . ~/.local/share/gpu-stack/env.sh; python3 -m gpu.probe

`python3 -m launcher doctor` judges the whole stack by its versions; this computes, which shows code that was zeroed and is needed.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

from gpu.versions import read

# Relative to a product of the same bf16 numbers in float32: bf16 keeps 8 bits, so rounding alone gives about 2e-3.
GEMM_ERROR_MAX = 1e-2
CARRIED = ("libnccl.so", "libcublas", "libtransformer_engine", "libnccl_ep")


def loaded() -> list[str]:
    """The files of carried libraries that this process has; two of one name are two copies in it."""
    found = set()
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        path = line.split(maxsplit=5)[-1]
        if path.startswith("/") and any(name in path for name in CARRIED):
            found.add(path)
    return sorted(found)


def nccl_version() -> int:
    """As NCCL_VERSION_CODE: 23203 is 2.32.3."""
    version = ctypes.c_int()
    ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(version))
    return version.value


def cublaslt_version() -> int:
    """As cublasLtGetVersion: 130802 is 13.8.2."""
    function = ctypes.CDLL("libcublasLt.so.13").cublasLtGetVersion
    function.restype = ctypes.c_size_t
    return int(function())


def code(version: str) -> int:
    """The number that NCCL and cuBLAS make of a version: its first three numbers, two digits each."""
    major, minor, patch = (int(number) for number in version.split(".")[:3])
    return major * 10000 + minor * 100 + patch


def gemm_error() -> float:
    """Relative error of rows of a bf16 product of 4096 x 4096 on the first device, against float32."""
    import jax
    import jax.numpy as jnp

    a = jax.random.normal(jax.random.PRNGKey(0), (4096, 4096), jnp.bfloat16)
    exact = jnp.matmul(a[:64].astype(jnp.float32), a.astype(jnp.float32), precision="highest")
    return float(jnp.linalg.norm((a @ a)[:64].astype(jnp.float32) - exact) / jnp.linalg.norm(exact))


def main() -> int:
    """0: all is as it should be; 1: something is not, and is marked."""
    if not (stack := os.environ.get("GPU_STACK")):
        print("GPU_STACK is not set: read the env.sh that setup wrote", file=sys.stderr)
        return 1
    import jax
    import transformer_engine.jax  # type: ignore[import-untyped, import-not-found, unused-ignore]
    import transformer_engine_jax  # type: ignore[import-not-found, unused-ignore]

    libraries = read().libraries
    targets = set(transformer_engine_jax.registrations())
    error = gemm_error()
    nccl, cublas = code(libraries["nvidia-nccl-cu13"]), code(libraries["nvidia-cublas"])
    borrowed = transformer_engine.jax.cpp_extensions.ep.use_nccl_comm_from_xla()
    has_nccl, has_cublas = nccl_version(), cublaslt_version()
    files, dest = loaded(), Path(stack).resolve()
    elsewhere = [path for path in files if not Path(path).is_relative_to(dest)]
    lines = [
        ("devices", jax.devices(), True),
        (f"NCCL (wanted: {nccl})", has_nccl, has_nccl == nccl),
        (f"cuBLASLt (wanted: {cublas})", has_cublas, has_cublas == cublas),
        ("Transformer Engine's calls", len(targets), "te_grouped_gemm_v2_ffi" in targets and _has_ep(targets)),
        ("borrows XLA's communicator", borrowed, bool(borrowed)),
        (f"bf16 product off by (at most {GEMM_ERROR_MAX})", f"{error:.1e}", error < GEMM_ERROR_MAX),
        *((Path(path).name, path, path not in elsewhere) for path in files),
    ]
    for name, value, good in lines:
        print(f"{'' if good else 'WRONG':6}{name}: {value}")
    if elsewhere:
        print(f"setup: the libraries marked are not those of {dest}: python3 -m gpu.setup --status --dest {dest}")
    return 0 if all(good for *_, good in lines) else 1


def _has_ep(targets: set[str]) -> bool:
    return any(name.startswith("te_ep_") for name in targets)


if __name__ == "__main__":
    sys.exit(main())
