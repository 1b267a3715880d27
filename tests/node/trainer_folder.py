"""A working folder with modules of its own, in which launcher/node/trainer.py runs as a real process."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from launcher.node.environment import PROGRAM


class Folder:
    """A working folder with modules of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def module(self, name: str, text: str) -> None:
        file = self.path / f"{name.replace('.', '/')}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))

    def package(self, name: str, version: str) -> None:
        folder = self.path / f"{name}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")

    def run(self, *words: str, python: str = sys.executable, **environ: str) -> subprocess.CompletedProcess[str]:
        """Python with those words, in this folder."""
        return subprocess.run(
            [python, "-u", *words],
            cwd=self.path,
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, **environ},
        )

    def trainer(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return self.run(str(PROGRAM), *words, **environ)
