"""Looks at the GPU stack from inside the Python that trains, and writes what it saw, a JSON line a part. Standard library only.

Run by its path, so the launcher need not be installed there (Python >= 3.9). Libraries are loaded as the trainer loads them:
first what JAX's CUDA plugin takes from pip's nvidia/* folders, in its order (jax 0.12.0.1, jax_plugins/xla_cuda13/__init__.py,
_load_nvidia_libraries); whatever is asked for by name later gets that copy, and LD_LIBRARY_PATH decides only what is left.
Then Transformer Engine, which MaxText 0.2.5 imports after JAX has its devices (inside functions of its layers).

No CUDA context is made and no GPU memory taken: only functions that return a version are called, and Transformer Engine is
imported with no GPU visible. A part that kills the process has written {"part": NAME} and nothing after it; whoever started the
probe starts it again with `--without NAME`.
"""

from __future__ import annotations

import ctypes
import glob
import importlib.machinery
import importlib.metadata
import importlib.util
import json
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any

Seen = dict[str, Any]

PACKAGES = (
    "maxtext", "jax", "jaxlib", "jax-cuda13-plugin", "jax-cuda12-plugin", "jax-cuda13-pjrt", "jax-cuda12-pjrt", "flax",
    "orbax-checkpoint", "transformer_engine", "transformer_engine_cu13", "transformer_engine_cu12",
    "transformer_engine_jax", "nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-cublas", "nvidia-cublas-cu12",
    "nvidia-cudnn-cu13", "nvidia-cudnn-cu12", "submitit", "kubernetes",
)  # fmt: skip
"""Distributions whose versions are told."""

ENVIRONMENT = re.compile(
    r"(LD_LIBRARY_PATH|LD_PRELOAD|CUDA_HOME|CUDA_PATH|CUDA_VISIBLE_DEVICES|NCCL_HOME|JAX_PLATFORMS"
    r"|NCCL_EP_(HOME|JIT_\w+)|NVTE_JAX_EP_NCCL_COMM_FROM_XLA|XLA_PYTHON_CLIENT_\w+)"
)
"""Variables that decide which of several copies is used, and what XLA takes of the GPU's memory; none of them is a secret."""

BY_NAME = {
    "cuda_driver": (["libcuda.so.1"], "cuDriverGetVersion"),
    "cudart": (["libcudart.so.13", "libcudart.so.12"], "cudaRuntimeGetVersion"),
    "nvrtc": (["libnvrtc.so.13", "libnvrtc.so.12"], ""),
    "cublas": (["libcublas.so.13", "libcublas.so.12"], ""),
    "cublaslt": (["libcublasLt.so.13", "libcublasLt.so.12"], "cublasLtGetVersion"),
    "nccl": (["libnccl.so.2"], "ncclGetVersion"),
    "cudnn": (["libcudnn.so.9"], "cudnnGetVersion"),
    # the name that Transformer Engine's cuDNN frontend asks for when it first builds an attention graph
    "cudnn_unversioned": (["libcudnn.so"], "cudnnGetVersion"),
}
"""Library -> its names in the order in which they are tried, and its function that returns a version ("": none is asked)."""

RETURNS_SIZE_T = ("cublasLtGetVersion", "cudnnGetVersion")
"""These return their version; the others write it to an int and return 0."""

FOLDERS = {
    "libcudart.so.13": "cu13", "libcudart.so.12": "cuda_runtime", "libnvrtc.so.13": "cu13",
    "libnvrtc.so.12": "cuda_nvrtc", "libcublas.so.13": "cu13", "libcublas.so.12": "cublas", "libcublasLt.so.13": "cu13",
    "libcublasLt.so.12": "cublas", "libnccl.so.2": "nccl", "libcudnn.so.9": "cudnn",
}  # fmt: skip
"""Where JAX's CUDA plugin looks for them: nvidia/<folder>/lib."""

NVIDIA_SMI_S = 30
NVCC_S = 30
"""Bounds in seconds; each answers within a few."""


def decoded(library: str, number: int) -> str:
    """A library's number as people write it.

    >>> decoded("nccl", 23203), decoded("cublaslt", 130802), decoded("cudnn", 91900), decoded("cuda_driver", 13000)
    ('2.32.3', '13.8.2', '9.19.0', '13.0')
    """
    if library in ("cuda_driver", "cudart"):
        return f"{number // 1000}.{number % 1000 // 10}"
    return f"{number // 10000}.{number % 10000 // 100}.{number % 100}"


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def python(_: Seen) -> Seen:
    """This Python, the distributions in it, and the variables that matter."""
    found = {name: version for name in PACKAGES if (version := _version(name))}
    environment = {name: value for name, value in sorted(os.environ.items()) if ENVIRONMENT.fullmatch(name)}
    return {
        "version": sys.version.split()[0],
        "executable": sys.executable,
        "packages": found,
        "environment": environment,
    }


def gpus(_: Seen) -> list[Seen]:
    """The GPUs as nvidia-smi tells them: name, memory in bytes, compute capability, driver."""
    if shutil.which("nvidia-smi") is None:
        return []
    fields = "name,memory.total,compute_cap,driver_version"
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=NVIDIA_SMI_S)
    rows = (
        [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines()] if not done.returncode else []
    )
    return [
        {
            "name": row[0],
            "memory_bytes": int(row[1]) * 2**20 if row[1].isdigit() else 0,
            "compute_capability": row[2],
            "driver": row[3],
        }
        for row in rows
        if len(row) == 4
    ]


class _Symbol(ctypes.Structure):
    _fields_ = [
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("at", ctypes.c_void_p),
    ]


def _file_of(function: Any) -> str:
    """The file that the dynamic loader took a function from."""
    found = _Symbol()
    address = ctypes.cast(function, ctypes.c_void_p)
    told = ctypes.CDLL(None).dladdr(address, ctypes.byref(found))
    return os.fsdecode(found.file) if told and found.file else ""


def _pip_copy(name: str) -> str | None:
    """The copy that JAX's CUDA plugin would load before anything else."""
    try:
        if not (
            importlib.util.find_spec("jax_plugins.xla_cuda13") or importlib.util.find_spec("jax_plugins.xla_cuda12")
        ):
            return None
        package = importlib.util.find_spec(f"nvidia.{FOLDERS[name]}")
    except ImportError:
        return None
    places = list(package.submodule_search_locations or []) if package else []
    path = os.path.join(places[0], "lib", name) if places else ""
    return path if os.path.exists(path) else None


def _load(names: list[str]) -> tuple[ctypes.CDLL | None, str, list[str]]:
    """The first of them that loads, its name, and what was said of those that are there and do not load."""
    said: list[str] = []
    for name in names:
        copy = _pip_copy(name) if name in FOLDERS else None
        try:
            if copy is not None:
                ctypes.CDLL(copy)
            return ctypes.CDLL(name), name, said
        except OSError as error:
            if not str(error).startswith(f"{name}: cannot open shared object file"):
                said.append(str(error))
    return None, "", said


def library(key: str) -> Callable[[Seen], Seen]:
    """The part that loads one library and asks for its version."""
    names, function = BY_NAME[key]

    def look(_: Seen) -> Seen:
        loaded, name, said = _load(names)
        if loaded is None:
            return {"error": "; ".join(said)} if said else {}
        if not function:
            return {"name": name}
        try:
            ask = getattr(loaded, function)
        except AttributeError as error:
            return {"name": name, "error": str(error)}
        if function in RETURNS_SIZE_T:
            ask.restype = ctypes.c_size_t
            number = int(ask())
        else:
            value = ctypes.c_int()
            status = ask(ctypes.byref(value))
            if status:
                return {"name": name, "path": _file_of(ask), "error": f"{function} returned {status}"}
            number = value.value
        path = _file_of(ask)
        return {"name": name, "path": path, "file": os.path.realpath(path), "version": decoded(key, number)}

    return look


def _with_binding() -> bool:
    """Whether TE's JAX binding is installed: as a distribution of pip's, or (built from source, as in images) beside its Python."""
    if _version("transformer_engine_jax"):
        return True
    spec = importlib.util.find_spec("transformer_engine")
    package = os.path.dirname(spec.origin) if spec and spec.origin else ""
    places = (os.path.dirname(package), package, os.path.join(package, "wheel_lib"))
    return bool(package) and any(glob.glob(f"{glob.escape(place)}/transformer_engine_jax*.so") for place in places)


def binding(_: Seen) -> Seen:
    """Transformer Engine's JAX binding: does it load into this jaxlib, and would it borrow XLA's NCCL communicator."""
    if not _with_binding():
        return {}
    os.environ.update(CUDA_VISIBLE_DEVICES="", JAX_PLATFORMS="cpu")
    try:
        importlib.import_module("transformer_engine.jax")
        ep = importlib.import_module("transformer_engine.jax.cpp_extensions.ep")
        common = importlib.import_module("transformer_engine.common")
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
    core = getattr(common, "_get_shared_object_file", None)
    found: Seen = {"path": str(core("core")) if core else ""}
    try:
        found["borrows"] = bool(ep.use_nccl_comm_from_xla())
    except Exception as error:
        found["borrows_error"] = f"{type(error).__name__}: {error}".splitlines()[0]
    return found


def nccl_ep(seen: Seen) -> Seen:
    """libnccl_ep.so: where Transformer Engine looks for it (nccl_ep_provider.cpp: NCCL_EP_HOME, then beside its own library)."""
    core = seen.get("binding", {}).get("path", "")
    home = os.environ.get("NCCL_EP_HOME", "")
    folders = [os.path.join(home, "lib"), os.path.join(home, "lib64")] if home else []
    found = [
        path
        for folder in [*folders, os.path.dirname(core)]
        if folder
        for path in glob.glob(f"{glob.escape(folder)}/libnccl_ep.so*")
    ]
    return {"path": found[0]} if found else {}


def nvcc(_: Seen) -> Seen:
    """The compiler that NCCL EP would start: $NCCL_EP_JIT_NVCC, $CUDA_HOME/bin, $CUDA_PATH/bin, PATH (libnccl_ep of TE 2.20.2)."""
    path, how = os.environ.get("NCCL_EP_JIT_NVCC", ""), "NCCL_EP_JIT_NVCC"
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if not path and os.environ.get(name):
            path, how = os.path.join(os.environ[name], "bin", "nvcc"), name
    if not path:
        path, how = shutil.which("nvcc") or "", "PATH"
    if not path:
        return {}
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, errors="replace", timeout=NVCC_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"path": path, "how": how, "error": str(error)}
    release = re.search(r"release (\d+\.\d+)", done.stdout)
    if done.returncode or release is None:
        return {"path": path, "how": how, "error": f"{path} --version: rc {done.returncode}, tells no release"}
    if _with_binding():
        # an empty program takes cuda_runtime.h and the host's C++ compiler, as every kernel does
        command = [path, "-E", "-x", "cu", "/dev/null"]
        tried = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=NVCC_S)
        if tried.returncode:
            said = (tried.stderr.strip().splitlines() or ["it says nothing"])[-1]
            return {
                "path": path,
                "how": how,
                "error": f"{path} {release[1]} compiles not even an empty program: {said}",
            }
    return {"path": path, "how": how, "version": release[1]}


def _header_version(folder: str) -> str | None:
    try:
        with open(os.path.join(folder, "nccl.h"), encoding="utf-8", errors="replace") as file:
            told = dict(re.findall(r"^#define NCCL_(MAJOR|MINOR|PATCH) (\d+)", file.read(), re.MULTILINE))
    except OSError:
        return None
    return ".".join(told.get(name, "?") for name in ("MAJOR", "MINOR", "PATCH"))


def _above(file: str) -> list[str]:
    """include folders beside a library and beside each folder above it."""
    found, folder = [], os.path.dirname(file)
    while folder and os.path.dirname(folder) != folder:
        found += [os.path.join(folder, "include"), os.path.join(folder, "nvidia", "nccl", "include")]
        folder = os.path.dirname(folder)
    return found


def nccl_headers(seen: Seen) -> Seen:
    """NCCL's headers that NCCL EP's kernels would be compiled with, as nccl_ep_provider.cpp of Transformer Engine looks for them.

    A folder that a variable names is taken as it is; else the first that is of the run time's version.
    """
    for name, below in (("NCCL_EP_JIT_BUILD_INCLUDE_DIR", ""), ("NCCL_HOME", "include")):
        if os.environ.get(name):
            folder = os.path.join(os.environ[name], below).rstrip("/")
            version = _header_version(folder)
            return {
                "path": folder,
                "how": name,
                **({"version": version} if version else {"error": f"no {folder}/nccl.h"}),
            }
    places = _above(seen.get("nccl", {}).get("path", "")) + _above(seen.get("binding", {}).get("path", ""))
    places += ["/opt/nvidia/nccl/include", "/usr/local/nccl/include", "/usr/include"]
    known = [(folder, version) for folder in places if (version := _header_version(folder))]
    runs = seen.get("nccl", {}).get("version")
    for folder, version in [pair for pair in known if pair[1] == runs] or known:
        return {"path": folder, "how": "search", "version": version}
    return {}


def copies(_: Seen) -> dict[str, list[str]]:
    """Files of one library name that are in this process: two of them are two libraries with two states.

    Of cuDNN, which is many libraries, the folders that they are from.
    """
    found: dict[str, dict[tuple[str, str], str]] = {}
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            fields = line.split(maxsplit=5)
            path = fields[5].strip() if len(fields) == 6 else ""
            if re.match(r"libcudnn(_\w+)?\.so", os.path.basename(path)):
                folder = os.path.dirname(path)
                found.setdefault("cudnn_folders", {})[folder, ""] = folder
            name = re.match(r"lib(nccl|cublasLt|cublas|cudnn)\.so", os.path.basename(path))
            if name:
                found.setdefault(name[1].lower(), {})[fields[3], fields[4]] = path
    return {name: sorted(files.values()) for name, files in sorted(found.items())}


PARTS: dict[str, Callable[[Seen], Seen | list[Seen]]] = {
    "python": python,
    "gpus": gpus,
    **{key: library(key) for key in BY_NAME if key != "cudnn_unversioned"},
    "binding": binding,
    "nccl_ep": nccl_ep,
    "nvcc": nvcc,
    "nccl_headers": nccl_headers,
    "copies": copies,
    # last: it may bring a second cuDNN into this process
    "cudnn_unversioned": library("cudnn_unversioned"),
}
"""In the order in which they are looked at; a later one is told what the earlier ones saw."""


def main(words: list[str]) -> None:
    """Each part: a line before it, a line after it. `--without NAME` leaves one out."""
    without = set(words[1::2])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # what the libraries print on stdout must not come between the lines
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    seen: Seen = {}
    for name, look in PARTS.items():
        if name in without:
            continue
        out.write(json.dumps({"part": name}) + "\n")
        out.flush()
        try:
            seen[name] = look(seen)
        except Exception as error:
            seen[name] = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
        out.write(json.dumps({"part": name, "seen": seen[name]}) + "\n")
        out.flush()
    out.write(json.dumps({"part": "end"}) + "\n")
    out.close()
    # a library's own clean-up at the end is none of this probe's business, and may crash
    os._exit(0)


if __name__ == "__main__":
    # the script's folder stands first in the path: it must not shadow what the trainer imports
    sys.path[:] = [
        place for place in sys.path if os.path.realpath(place or ".") != os.path.dirname(os.path.realpath(__file__))
    ]
    main(sys.argv[1:])
