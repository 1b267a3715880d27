"""The stages of a build. Each begins with empty folders of its own, so one that was stopped can simply be started again."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tarfile
import zipfile
from pathlib import Path

from gpu.compress import compress_all, piece_path, spans
from gpu.parts import Item, Manifest, Piece, cut, digest
from gpu.unpack import UNLESS_THERE
from gpu.versions import normal, pins
from gpu.work import Failed, Work

ROOT = Path(__file__).resolve().parent.parent
BINDING = Path(__file__).with_name("binding.mk")
TE_LIBRARIES = ("libtransformer_engine.so", "libnccl_ep.so")
TARGETS = {
    **{name: f"site/transformer_engine/wheel_lib/{name}" for name in TE_LIBRARIES},
    "libnccl.so.2": "lib/libnccl.so.2",
    "libcublas.so.13": "lib/libcublas.so.13",
    "libcublasLt.so.13": "lib/libcublasLt.so.13",
}
"""Library -> where it goes on the GPU machine."""
IN_WHEELS = {
    "libnccl.so.2": "nvidia/nccl/lib/libnccl.so.2",
    "libcublas.so.13": "nvidia/cu13/lib/libcublas.so.13",
    "libcublasLt.so.13": "nvidia/cu13/lib/libcublasLt.so.13",
}
"""Library -> where NVIDIA's wheels have it in site-packages, here and on the GPU machine."""
TREE = "tree.tar"


def env(work: Work) -> None:
    """A virtual environment with what the binding includes and the libraries to carry."""
    shutil.rmtree(work.folder / "venv", ignore_errors=True)
    work.run(sys.executable, "-m", "venv", work.folder / "venv")
    work.pip("install", *pins(work.versions.build))
    work.pip("install", "--no-deps", *pins(work.versions.headers))


def fetch(work: Work) -> None:
    """Distributions as files; the source package of Hydra's parser becomes a wheel."""
    versions = work.versions
    te = versions.transformer_engine
    work.empty(work.downloads, work.wheels, work.folder / "cuda_version")
    binary = ("download", "--no-deps", "--only-binary", ":all:", "-d")
    names = (f"transformer_engine=={te}", f"transformer_engine_cu13=={te}", f"maxtext=={versions.maxtext}")
    work.pip(*binary, work.downloads, *names)
    packages = versions.carried | versions.unless_there
    # Not `download`: that takes no wheel that pip itself has to make.
    work.pip("wheel", "--no-deps", "--no-build-isolation", "-w", work.wheels, *pins(packages))
    # pip runs setup.py of a source package for its metadata. Transformer Engine's asks JAX's CUDA plugin for the CUDA version, and
    # looks for the CUDA headers: this module answers the first, the environment's wheels the second. Left alone it installs
    # jax[cuda12] first, only to throw it away (105 s).
    plugin = work.folder / "cuda_version/jax_cuda13_plugin"
    plugin.mkdir()
    (plugin / "__init__.py").touch()
    major, minor = map(int, versions.cuda.split("."))
    (plugin / "_versions.py").write_text(f"def cuda_runtime_get_version(): return {major * 1000 + minor * 10}\n")
    answers = {"PYTHONPATH": str(plugin.parent), "JAX_PLATFORMS": "cpu", "NVTE_BUILD_USE_NVIDIA_WHEELS": "1"}
    source = ("download", "--no-deps", "--no-build-isolation", "--no-binary", ":all:", "-d", work.downloads)
    work.pip(*source, f"transformer_engine_jax=={te}", environ={**os.environ, **answers})


def binding(work: Work) -> None:
    """Compile the binding: C++ alone, no CUDA code."""
    sdist = work.folder / "sdist"
    work.empty(sdist, work.binding)
    with tarfile.open(work.downloads / f"transformer_engine_jax-{work.versions.transformer_engine}.tar.gz") as file:
        file.extractall(sdist, filter="data")
    (source,) = sdist.iterdir()
    make = ("make", "-s", f"-j{work.jobs}", "-f", BINDING)
    work.run(*make, f"SDIST={source}", f"SITE={work.site}", f"PYTHON={work.python}", cwd=work.binding)


def prune(work: Work) -> None:
    """Strip and zero what the architecture does not need; offsets and dynamic symbols stay."""
    te = work.folder / "te"
    work.empty(te, work.libraries, work.packed)
    _unzip(work.downloads, "transformer_engine_cu13", te)
    for name in TE_LIBRARIES:
        work.run("strip", "--strip-all", "-o", work.libraries / name, te / "transformer_engine/wheel_lib" / name)
    nccl, cublas, cublaslt = IN_WHEELS
    work.run("strip", "--strip-debug", "-o", work.libraries / nccl, work.site / IN_WHEELS[nccl])
    for name in (cublas, cublaslt):
        shutil.copyfile(work.site / IN_WHEELS[name], work.libraries / name)
    # Only nvcc's device linker reads NCCL's __nv_relfatbin; cublasLt has most of its kernels in zstd frames.
    special = {nccl: ("--zero-section", "__nv_relfatbin"), cublaslt: ("--zstd-section", ".ldata")}
    for library in sorted(work.libraries.iterdir()):
        library.chmod(0o755)
        words = ("-m", "gpu.prune", library, "--sm", str(work.versions.sm), *special.get(library.name, ()))
        work.run(work.python, *words, cwd=ROOT)


def tree(work: Work) -> None:
    """Python packages, headers, and the packages that are for some machines only."""
    site = work.tree / "site"
    work.empty(work.tree)
    _stale(work, work.folder / TREE)
    install = ("install", "--no-deps", "--no-compile", "--no-index", "--target")
    work.pip(*install, site, *(_wheel(work.wheels, name) for name in work.versions.carried))
    for name in work.versions.unless_there:
        work.pip(*install, work.tree / UNLESS_THERE / name, _wheel(work.wheels, name))
    _transformer_engine(work, site)
    _maxtext(work, site)
    # Tokamax imports xprof for its benchmarks alone; the real one has 32 MB.
    tools = site / "xprof/cli/tools"
    tools.mkdir(parents=True)
    for folder in (site / "xprof", site / "xprof/cli", tools):
        (folder / "__init__.py").touch()
    (tools / "get_kernel_stats_tool.py").write_text('"""Stands in for xprof."""\n')
    # NCCL EP compiles its kernels when a run starts, against these.
    shutil.copytree(work.site / "nvidia/nccl/include", work.tree / "nccl_include")
    for folder in [*work.tree.rglob("__pycache__"), site / "bin", *work.tree.glob(f"{UNLESS_THERE}/*/bin")]:
        shutil.rmtree(folder, ignore_errors=True)
    for path in work.tree.rglob("direct_url.json"):
        # Where the wheel lay on this machine; without it two builds give the same bytes.
        path.unlink()
        record = path.with_name("RECORD")
        lines = record.read_text(encoding="utf-8").splitlines(keepends=True)
        record.write_text("".join(line for line in lines if "/direct_url.json," not in line), encoding="utf-8")
    tar(work.tree, work.folder / TREE)


def _transformer_engine(work: Work, site: Path) -> None:
    """Its Python part and binding. TE compares the versions of its three distributions and wants the first to come from a wheel."""
    version = work.versions.transformer_engine
    leave_out = shutil.ignore_patterns("pytorch", "*.so")
    shutil.copytree(work.folder / "te", site, dirs_exist_ok=True, ignore=leave_out)
    (module,) = work.binding.glob("transformer_engine_jax*.so")
    shutil.copy(module, site)
    _unzip(work.downloads, "transformer_engine", site, only=f"transformer_engine-{version}.dist-info/")
    info = site / f"transformer_engine_jax-{version}.dist-info"
    info.mkdir()
    tag = f"cp{work.versions.python.replace('.', '')}"
    files = {
        "METADATA": f"Metadata-Version: 2.1\nName: transformer_engine_jax\nVersion: {version}\n",
        "WHEEL": f"Wheel-Version: 1.0\nGenerator: gpu.build\nRoot-Is-Purelib: false\nTag: {tag}-{tag}-linux_x86_64\n",
        "top_level.txt": "transformer_engine_jax\n",
        "RECORD": "",
    }
    for name, text in files.items():
        (info / name).write_text(text)


def _maxtext(work: Work, site: Path) -> None:
    _unzip(work.downloads, "maxtext", site, only="maxtext")
    for name in work.versions.maxtext_leave_out:
        path = site / "maxtext" / name
        if not path.exists():
            raise Failed(
                f"MaxText {work.versions.maxtext} has no {name}: take it out of leave_out in gpu/versions.toml"
            )
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def tar(folder: Path, target: Path) -> None:
    """The files of ``folder``, the same bytes at each build."""

    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.mtime = info.uid = info.gid = 0
        info.uname = info.gname = ""
        return info

    with tarfile.open(target, "w") as file:
        for name in sorted(path.name for path in folder.iterdir()):
            file.add(folder / name, name, filter=plain)  # tarfile goes through a folder in the order of names


def pack(work: Work) -> None:
    """Compress; pieces of an earlier start are kept."""
    for path in compress_all(_sources(work), work.packed, work.jobs, work.piece_bytes):
        print(f"   {path.name}: {path.stat().st_size / 1e6:.1f} MB", flush=True)


def manifest(work: Work, part_bytes: int) -> Manifest:
    """What the bundle is, its pieces split over parts of at most ``part_bytes``."""
    versions = work.versions
    items = []
    for source in _sources(work):
        pieces = []
        with source.open("rb") as file:
            for number, (begin, length) in enumerate(spans(source.stat().st_size, work.piece_bytes)):
                name = piece_path(work.packed, source, number).name
                pieces.append(Piece(name, begin, length, digest(file, length)))
        is_tree = source.name == TREE
        target = TREE if is_tree else TARGETS[source.name]
        items.append(Item(target, source.stat().st_size, 0o644 if is_tree else 0o755, tuple(pieces), is_tree))
    return Manifest(
        python=versions.python,
        machine=platform.machine(),
        sm=versions.sm,
        versions={
            "Transformer Engine": versions.transformer_engine,
            "MaxText": versions.maxtext,
            "NCCL": versions.libraries["nvidia-nccl-cu13"],
            "cuBLAS": versions.libraries["nvidia-cublas"],
            "jaxlib": versions.image["jaxlib"],
        },
        items=tuple(items),
        links={place: TARGETS[name] for name, place in IN_WHEELS.items()},
        unless_there=versions.at_least,
        parts=cut(work.packed, [piece.name for item in items for piece in item.pieces], part_bytes),
    )


def _sources(work: Work) -> list[Path]:
    """What is packed: the tree first, so that the first part already holds something to look at."""
    return [work.folder / TREE, *(work.libraries / name for name in TARGETS)]


def _stale(work: Work, source: Path) -> None:
    for path in work.packed.glob(f"{source.name}.*"):
        path.unlink()


def _wheel(folder: Path, name: str) -> Path:
    """The one wheel of a package in ``folder``."""
    found = [path for path in folder.glob("*.whl") if normal(path.name.split("-")[0]) == normal(name)]
    if len(found) != 1:
        raise Failed(f"{folder} has {len(found)} wheels of {name}, wanted one: delete the folder and start again")
    return found[0]


def _unzip(folder: Path, name: str, target: Path, only: str = "") -> None:
    """Unpack a package's wheel, or what of it begins with ``only``."""
    with zipfile.ZipFile(_wheel(folder, name)) as wheel:
        wheel.extractall(target, [member for member in wheel.namelist() if member.startswith(only)])
