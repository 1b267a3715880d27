"""Where a run comes from: versions, source, host, time and command line, as far as they are known at submission.

It lies beside the bundle (provenance.json) and outside its hash. It holds no environment and no secret.
"""

from __future__ import annotations

import datetime
import getpass
import importlib.metadata
import platform
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

from launcher import __version__
from launcher.config.secrets import hide, in_words

PACKAGES = (
    "hydra-core",
    "omegaconf",
    "maxtext",
    "jax",
    "jaxlib",
    "transformer_engine",
    "transformer_engine_jax",
    "transformer_engine_cu13",
)
"""What decides how an experiment is composed and what trains; of the Python that submits, an image has its own."""

MOST_DIFF_BYTES = 256 * 1024
"""A larger diff is cut: one that long is a change of branch, not a tweak to remember."""

GIT_SECONDS = 10.0
"""Longest wait for one git command; a repository on a slow file system must not hold a submission."""


def versions() -> dict[str, str | None]:
    """Installed version of each of PACKAGES, None where there is none; read from metadata, nothing is imported."""
    found: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def redact(words: Sequence[str]) -> list[str]:
    """A command line without its secrets: what the plan's own rule would refuse as a variable of that name, and any token.

    >>> redact(["submit", "+env.vars.HF_TOKEN=abcdef", "env.secrets=[HF_TOKEN]", "trainer.steps=5"])
    ['submit', '+env.vars.HF_TOKEN=***', 'env.secrets=[HF_TOKEN]', 'trainer.steps=5']
    """
    secrets = in_words(words)
    return [hide(word, secrets) for word in words]


def _git(folder: Path, *words: str) -> bytes | None:
    """What git prints; None without git, outside a repository, or when it takes too long."""
    command = ["git", "-c", "core.fsmonitor=false", "-c", "color.ui=false", "--no-optional-locks", *words]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, stdin=subprocess.DEVNULL, timeout=GIT_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _git_line(folder: Path, *words: str) -> str | None:
    told = _git(folder, *words)
    return told.decode(errors="replace").strip() or None if told is not None else None


def git(folder: Path) -> dict[str, object] | None:
    """Commit, branch, untracked files and dirty diff (cut at MOST_DIFF_BYTES) of `folder`; None outside a repository.

    `commit` is None before the first one, `branch` on a detached head. Text that looks like a token is blotted out.
    """
    root = _git_line(folder, "rev-parse", "--show-toplevel")
    if root is None:
        return None
    folder = Path(root)  # some git commands tell only what lies below the folder that they run in
    commit = _git_line(folder, "rev-parse", "--verify", "--quiet", "HEAD")
    diff = _git(folder, "diff", "--no-ext-diff", "--no-textconv", "HEAD") if commit else b""
    untracked = (_git(folder, "ls-files", "--others", "--exclude-standard", "-z") or b"").decode(errors="replace")
    return {
        "root": root,
        "commit": commit,
        "branch": _git_line(folder, "symbolic-ref", "--quiet", "--short", "HEAD"),
        "dirty": bool(diff),
        "diff": hide((diff or b"")[:MOST_DIFF_BYTES].decode(errors="replace")),
        "diff_cut": len(diff or b"") > MOST_DIFF_BYTES,
        "untracked": sorted(name for name in untracked.split("\0") if name)[:100],
    }


def _user() -> str | None:
    """The user's name; None for a user id without an entry, as in many containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return None


def collect(argv: Sequence[str], folder: Path | None = None) -> dict[str, object]:
    """Everything known about this submission, ready for JSON.

    Args:
        argv: the command line; values with secret-like names are left out.
        folder: whose git repository is told, default the current one (the user's experiment lies there).
    """
    return {
        "version": 1,
        "launcher": __version__,
        "python": platform.python_version(),
        "packages": versions(),
        "git": git(folder or Path.cwd()),
        "host": socket.gethostname(),
        "machine": platform.platform(),
        "user": _user(),
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": redact(argv),
    }
