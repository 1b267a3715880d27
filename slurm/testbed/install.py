"""Unpacks a Debian release's Slurm under a prefix, beside whatever the machine has: nothing is installed on the machine itself.

Both versions come the same way: apt downloads Slurm, munge and all that they depend on, down to the C library, from the machine's own
Debian mirror into a private folder; the packages are unpacked, and the programs are told (patchelf) to use the loader and the
libraries that lie beside them. Jobs still see the machine's own files, so they run its Python.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from slurm.testbed.settings import TestbedError

SUITES = {"24.11": "trixie", "22.05": "bookworm"}  # Debian's releases and the Slurm that each carries
# By these a Debian mirror is known among a machine's sources; such a mirror carries all of them.
RELEASES = ("bullseye", "bookworm", "trixie", "forky", "sid", "stable", "testing", "unstable")
KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge", "libslurm-dev", "patchelf")
COMMANDS = (
    *(
        "sbatch",
        "srun",
        "salloc",
        "scancel",
        "scontrol",
        "squeue",
        "sinfo",
        "sattach",
        "sbcast",
        "sdiag",
        "sprio",
        "sstat",
    ),
    *("sacct", "sacctmgr", "sreport", "sshare", "strigger"),
)
PROGRAMS = ("apt-get", "dpkg", "unshare", "mount", "hostname", "gcc")  # of the machine itself
DAEMONS = ("slurmctld", "slurmd", "slurmstepd")
PLUGIN_SOURCE = Path(__file__).with_name("pyxis.c")


class Unavailable(TestbedError):
    """This machine cannot have the test bed: the reason, in words. Tests skip on it and on nothing else."""


@dataclass(frozen=True)
class Tree:
    """An unpacked Slurm."""

    root: Path

    @property
    def bin(self) -> Path:
        """The users' commands, those of Slurm and no others: a folder for PATH."""
        return self.root / "bin"

    @property
    def sbin(self) -> Path:
        """The daemons, by the names that they must be called by."""
        return self.root / "sbin"

    @property
    def plugins(self) -> Path:
        """Slurm's plugins."""
        return next(self.root.glob("usr/lib/*/slurm-wlm"))

    @property
    def libraries(self) -> list[Path]:
        """Where the programs find their libraries, Slurm's first."""
        return [self.plugins, *self.root.glob("usr/lib/*-linux-gnu"), *self.root.glob("lib/*-linux-gnu")]

    @property
    def loader(self) -> Path:
        """The dynamic loader of the C library in the tree."""
        return next(path for folder in self.libraries for path in folder.glob("ld-linux*.so.*"))


def obstacle() -> str | None:
    """Say why this machine cannot have the test bed, or None. Costs nothing and changes nothing."""
    if platform.system() != "Linux":
        return f"the test bed runs on Linux, this is {platform.system()}"
    if os.geteuid() != 0:
        return "the test bed needs root: device nodes, and a mount and a host name of its own for each node"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"the test bed needs {', '.join(missing)} here (Debian, or one of its family)" if missing else None


def install(version: str, prefix: Path) -> Tree:
    """Give the tree of `version` below `prefix`; download and unpack it if it is not there. Errors: Unavailable, TestbedError."""
    if reason := obstacle():
        raise Unavailable(reason)
    tree = Tree(prefix / version)
    prefix.mkdir(parents=True, exist_ok=True)
    with (prefix / f"{version}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (tree.root / "complete").exists():
            return tree
        shutil.rmtree(tree.root, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=prefix) as work:
            for package in _download(SUITES[version], Path(work)):
                _run(["dpkg", "-x", str(package), str(tree.root)])
        for ballast in ("usr/share", "var", "etc"):
            shutil.rmtree(tree.root / ballast, ignore_errors=True)
        _relocate(tree)
        (tree.root / "complete").touch()
    return tree


def compile_pyxis(tree: Tree) -> Path:
    """Give the stand-in pyxis compiled for the tree; its name holds the hash of the source, so a changed source is compiled anew."""
    source = PLUGIN_SOURCE.read_bytes()
    plugin = tree.root / f"pyxis-{hashlib.sha256(source).hexdigest()[:12]}.so"
    if not plugin.exists():
        partial = plugin.with_suffix(f".{os.getpid()}")
        flags = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-I{tree.root}/usr/include"]
        _run(["gcc", *flags, "-o", str(partial), str(PLUGIN_SOURCE)])
        partial.rename(plugin)
    return plugin


def _download(suite: str, work: Path) -> list[Path]:
    """Let apt fetch the packages with everything that they depend on, as if nothing was installed, touching no state of the machine."""
    source, keyring = _mirror()
    for folder in ("lists/partial", "cache/archives/partial", "sources"):
        (work / folder).mkdir(parents=True)
    (work / "status").touch()
    (work / "sources" / "debian.list").write_text(f"deb {keyring}{source} {suite} main\n", encoding="utf-8")
    settings = {
        "Dir::Etc::sourcelist": "/dev/null",
        "Dir::Etc::sourceparts": f"{work}/sources",
        "Dir::State::lists": f"{work}/lists",
        "Dir::State::status": f"{work}/status",
        "Dir::Cache": f"{work}/cache",
        "APT::Sandbox::User": "root",
        "APT::Install-Recommends": "false",
        "Acquire::Languages": "none",
        "Acquire::Retries": "3",
    }
    configuration = work / "apt.conf"
    configuration.write_text("".join(f'{key} "{value}";\n' for key, value in settings.items()), encoding="utf-8")
    environment = os.environ | {"APT_CONFIG": str(configuration), "DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update", "--error-on=any"], ["install", "--yes", "--download-only", *PACKAGES]):
        done = subprocess.run(["apt-get", "-q", *words], env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            raise Unavailable(
                f"apt-get {words[0]} for Debian's {suite} from {source} failed: {(done.stderr or done.stdout).strip()[-500:]}"
            )
    return sorted((work / "cache" / "archives").glob("*.deb"))


def _mirror() -> tuple[str, str]:
    """Give the address of the machine's own Debian mirror and the option that names its keys, from apt's own view of its sources."""
    query = [
        "apt-get",
        "indextargets",
        "--no-release-info",
        "--format",
        "$(REPO_URI) $(RELEASE) $(COMPONENT)",
        "Created-By: Packages",
    ]
    done = subprocess.run(query, capture_output=True, text=True)
    for line in done.stdout.splitlines():
        address, release, component = line.split()
        if component == "main" and release in RELEASES:
            return address, f"[signed-by={KEYS}] " if KEYS.exists() else ""
    raise Unavailable(f"no Debian mirror among apt's sources: one with `main` of {', '.join(RELEASES)} is needed")


def _relocate(tree: Tree) -> None:
    """Bind Slurm's and munge's programs to the tree's own loader and libraries, and gather them in bin and sbin."""
    libraries = ":".join(map(str, tree.libraries))
    patchelf = [str(tree.loader), "--library-path", libraries, str(tree.root / "usr/bin/patchelf")]
    tree.bin.mkdir(exist_ok=True)
    tree.sbin.mkdir(exist_ok=True)
    programs = {tree.bin / name: tree.root / "usr/bin" / name for name in COMMANDS}
    # The daemons look at the name that they are called by, and Debian gives them another one.
    programs |= {tree.sbin / name: tree.root / "usr/sbin" / f"{name}-wlm" for name in DAEMONS}
    programs[tree.sbin / "munged"] = tree.root / "usr/sbin/munged"
    for name, program in programs.items():
        _run(
            [*patchelf, "--set-interpreter", str(tree.loader), "--force-rpath", "--set-rpath", libraries, str(program)]
        )
        name.unlink(missing_ok=True)
        name.symlink_to(program)


def _run(words: list[str]) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        raise TestbedError(
            f"{' '.join(words[:8])} ...: exit code {done.returncode}: {(done.stderr or done.stdout).strip()[-800:]}"
        )
