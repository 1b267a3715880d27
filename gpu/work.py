"""The folder in which the stages of a build work, and the programs that they start."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpu.compress import PIECE_BYTES
from gpu.versions import Versions


class Failed(Exception):
    """A stage cannot go on; the message says why and what to do."""


@dataclass(frozen=True)
class Work:
    """A work folder: each stage writes folders of its own, and reads those of the stages before it."""

    folder: Path
    versions: Versions
    jobs: int
    piece_bytes: int = PIECE_BYTES

    @property
    def python(self) -> Path:
        """The interpreter of the build's virtual environment."""
        return self.folder / "venv/bin/python"

    @property
    def site(self) -> Path:
        """The site-packages of that environment."""
        return self.folder / f"venv/lib/python{self.versions.python}/site-packages"

    @property
    def downloads(self) -> Path:
        """Transformer Engine's distributions and MaxText's."""
        return self.folder / "dl"

    @property
    def wheels(self) -> Path:
        """Packages that the image lacks, or may lack."""
        return self.folder / "wheels"

    @property
    def binding(self) -> Path:
        """Objects and the module of Transformer Engine's JAX binding."""
        return self.folder / "obj"

    @property
    def libraries(self) -> Path:
        """Pruned libraries, under the names that they have on the GPU machine."""
        return self.folder / "lib"

    @property
    def tree(self) -> Path:
        """The files that the GPU machine gets as they lie here."""
        return self.folder / "tree"

    @property
    def packed(self) -> Path:
        """xz streams."""
        return self.folder / "xz"

    def empty(self, *folders: Path) -> None:
        """Make these folders anew."""
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)

    def pip(self, *words: str | Path, environ: Mapping[str, str] | None = None) -> None:
        """Run the environment's pip."""
        self.run(self.python, "-m", "pip", "--disable-pip-version-check", "-q", *words, environ=environ)

    def run(self, *words: str | Path, environ: Mapping[str, str] | None = None, cwd: Path | None = None) -> None:
        """Run a program to its end; what it printed is shown if it fails.

        Raises:
            Failed: it ended with another code than 0.
        """
        command = [str(word) for word in words]
        done = subprocess.run(command, env=environ, cwd=cwd, capture_output=True, text=True)
        if done.returncode != 0:
            told = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
            raise Failed(f"exit code {done.returncode} of: {' '.join(command)[:400]}\n{told}")
