"""A small bundle of real files, and a machine that takes it."""

import dataclasses
import random
import subprocess
import sys
from pathlib import Path

from gpu import stages
from gpu.parts import Manifest, write_parts
from gpu.versions import Versions, read
from gpu.work import Work

ROOT = Path(__file__).resolve().parents[2]
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
MIB = 1 << 20
NOBODY = "a-package-that-nobody-has"


@dataclasses.dataclass(frozen=True)
class Made:
    """A small bundle, made by the stages of the real build, and what it was made from."""

    parts: list[Path]
    work: Work
    manifest: Manifest


def small_versions() -> Versions:
    at_least = {"pytest": "1", NOBODY: "2.5"}
    return dataclasses.replace(read(), python=HERE, unless_there=dict.fromkeys(at_least, "9.9"), at_least=at_least)


def make(folder: Path, seed: int = 0, part_bytes: int = MIB) -> Made:
    work = Work(folder / "work", small_versions(), jobs=1, piece_bytes=500_000)
    work.empty(work.libraries, work.tree / "site/maxtext", work.tree / "nccl_include", work.packed)
    chance = random.Random(seed)
    for name in stages.TARGETS:
        # Incompressible, as GPU code nearly is, and zeros where code was pruned.
        (work.libraries / name).write_bytes(chance.randbytes(1_600_000 if "Lt" in name else 200_000) + bytes(300_000))
    (work.tree / "site/maxtext/__init__.py").write_text("")
    (work.tree / "nccl_include/nccl.h").write_text("#define NCCL_MAJOR 2\n")
    for name in work.versions.unless_there:
        package = work.tree / "unless_there" / name / name.replace("-", "_")
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("carried = True\n")
    stages.tar(work.tree, work.folder / stages.TREE)
    stages.pack(work)
    manifest = stages.manifest(work, part_bytes)
    return Made(write_parts(manifest, work.packed, folder / "parts"), work, manifest)


class Machine:
    """A GPU machine's folders: site-packages as pip fills it, and a destination."""

    def __init__(self, folder: Path) -> None:
        self.site, self.dest = folder / "image/site-packages", folder / "a stack"
        self.copies = {self.site / place: f"the image's {name}".encode() for name, place in stages.IN_WHEELS.items()}
        for path, content in self.copies.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def setup(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "gpu.setup", *words, "--dest", self.dest, "--site-packages", self.site]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    def untouched(self) -> bool:
        return all(not path.is_symlink() and path.read_bytes() == content for path, content in self.copies.items())
