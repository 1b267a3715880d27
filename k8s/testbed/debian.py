"""Fetches packages and source packages of a Debian release through the machine's own mirror, touching no state of the machine."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from k8s.testbed.errors import Unavailable

# By these a Debian mirror is known among a machine's sources; such a mirror carries all of them.
RELEASES = ("bullseye", "bookworm", "trixie", "forky", "sid", "stable", "testing", "unstable")
KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


def fetch(suite: str, work: Path, *, binary: tuple[str, ...], source: str) -> list[Path]:
    """Download into `work` these packages (without what they depend on) and this source package. Errors: Unavailable."""
    address, keyring = _mirror()
    for folder in ("lists/partial", "apt-cache/archives/partial", "sources"):
        (work / folder).mkdir(parents=True)
    (work / "status").touch()
    lines = "".join(f"{kind} {keyring}{address} {suite} main\n" for kind in ("deb", "deb-src"))
    (work / "sources" / "debian.list").write_text(lines, encoding="utf-8")
    settings = {
        "Dir::Etc::sourcelist": "/dev/null",
        "Dir::Etc::sourceparts": f"{work}/sources",
        "Dir::State::lists": f"{work}/lists",
        "Dir::State::status": f"{work}/status",
        "Dir::Cache": f"{work}/apt-cache",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
        "Acquire::Retries": "3",
    }
    configuration = work / "apt.conf"
    configuration.write_text("".join(f'{key} "{value}";\n' for key, value in settings.items()), encoding="utf-8")
    environment = os.environ | {"APT_CONFIG": str(configuration)}
    for words in (["update", "--error-on=any"], ["source", "--download-only", source], ["download", *binary]):
        done = subprocess.run(["apt-get", "-q", *words], env=environment, cwd=work, capture_output=True, text=True)
        if done.returncode != 0:
            said = (done.stderr or done.stdout).strip()[-500:]
            raise Unavailable(f"apt-get {words[0]} for Debian's {suite} from {address} failed: {said}")
    return sorted(path for path in work.iterdir() if path.is_file())


def _mirror() -> tuple[str, str]:
    """Give the address of the machine's own Debian mirror and the option that names its keys, from apt's own view of its sources."""
    form = "$(REPO_URI) $(RELEASE) $(COMPONENT)"
    query = ["apt-get", "indextargets", "--no-release-info", "--format", form, "Created-By: Packages"]
    for line in subprocess.run(query, capture_output=True, text=True).stdout.splitlines():
        address, release, component = line.split()
        if component == "main" and release in RELEASES:
            return address, f"[signed-by={KEYS}] " if KEYS.exists() else ""
    raise Unavailable(f"no Debian mirror among apt's sources: one with `main` of {', '.join(RELEASES)} is needed")
