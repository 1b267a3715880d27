"""What can be chosen: the config groups and their options, read from the folders (no Hydra, so that `--help` stays fast)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

CONF_DIR = Path(__file__).resolve().parent.parent / "conf"
CONF_DIRS_VARIABLE = "LAUNCHER_CONF"
"""Folders of the user's own groups, separated as in PATH; they are laid out as `conf/` is and win over it."""


def search_path(extra: Sequence[str | Path] = ()) -> tuple[Path, ...]:
    """The folders in which a config is looked up, the first one wins: given ones, $LAUNCHER_CONF, the launcher's own.

    Raises:
        NotADirectoryError: one of the named folders is not there.
    """
    named = [Path(p).expanduser() for p in extra]
    named += [Path(p).expanduser() for p in os.environ.get(CONF_DIRS_VARIABLE, "").split(os.pathsep) if p]
    for path in named:
        if not path.is_dir():
            raise NotADirectoryError(f"{path}: no such folder of configs (from --config-dir or ${CONF_DIRS_VARIABLE})")
    return (*(p.resolve() for p in named), CONF_DIR)


def groups(path: Sequence[Path] = (CONF_DIR,)) -> list[str]:
    """Names of all groups, sorted."""
    return sorted({d.name for root in path for d in root.iterdir() if d.is_dir() and not d.name.startswith((".", "_"))})


def options(group: str, path: Sequence[Path] = (CONF_DIR,)) -> list[str]:
    """Names that `group=NAME` accepts, sorted; empty when there is no such group."""
    return sorted({f.stem for root in path for f in (root / group).glob("*.yaml")})


def experiments(path: Sequence[Path] = (CONF_DIR,)) -> list[tuple[str, str]]:
    """Each experiment with its one-line description (the file's `description:` line), sorted by name."""
    found: dict[str, str] = {}
    for root in reversed(path):
        for file in sorted((root / "exp").glob("*.yaml")):
            lines = (line for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("description:"))
            found[file.stem] = next(lines, "").removeprefix("description:").strip().strip("\"'")
    return sorted(found.items())
