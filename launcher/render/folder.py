"""A bundle as a folder: written at once, read back, and held against its manifest."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.issue import Issue, Refused, Severity

MANIFEST = "manifest.json"
PLAN = "plan.json"
FAILURES = "failures.json"
ARTEFACTS: Mapping[str, str] = {"local": "run.sh", "slurm": "job.sbatch", "kubernetes": "jobset.yaml"}
"""Target -> the file that it starts from, as a person would read it."""
EXECUTABLE = frozenset({"run.sh"})
_WORKER = "node/"
_TOLD = frozenset({PLAN, "plan.txt"})  # what the launcher thinks of the experiment: nothing on the nodes reads it


@dataclass(frozen=True)
class Bundle:
    """Everything that will run.

    Attributes:
        name: the run's name, <experiment>-<first 8 hex of asked_of>.
        content: sha256 over all files' hashes (content_of).
        files: path inside the bundle -> bytes, sorted, the manifest included.
    """

    name: str
    content: str
    files: Mapping[str, bytes]

    @property
    def artefact(self) -> str:
        """The text of the target's own file (`launcher render --print`)."""
        return self.files[ARTEFACTS[json.loads(self.files[PLAN])["target"]]].decode()


def run_name(experiment: str, asked: str) -> str:
    """The name of the run, and of its folder, for the hash of what was asked.

    >>> run_name("dsv3_128gpu", "0123456789abcdef")
    'dsv3_128gpu-01234567'
    """
    return f"{experiment}-{asked[:8]}"


def hashes_of(files: Mapping[str, bytes]) -> dict[str, str]:
    """Path -> sha256 of its bytes, sorted by path; the manifest does not hash itself."""
    return {name: hashlib.sha256(files[name]).hexdigest() for name in sorted(files) if name != MANIFEST}


def content_of(hashes: Mapping[str, str]) -> str:
    """The bundle's own hash: sha256 of what `sha256sum` prints for all files but the manifest, sorted by path."""
    listing = "".join(f"{hashes[name]}  {name}\n" for name in sorted(hashes))
    return hashlib.sha256(listing.encode()).hexdigest()


def _is_worker(name: str) -> bool:
    """Whether a file is the launcher's own: its worker, what starts that, and what it knows of failures."""
    return name.startswith(_WORKER) or name == FAILURES or name in ARTEFACTS.values()


def asked_of(hashes: Mapping[str, str]) -> str:
    """content_of the files that hold what was asked, without the launcher's own code and its plan of it.

    These are sealed like all else, but a newer launcher has to find the runs of an older one.
    """
    return content_of({name: sha for name, sha in hashes.items() if not _is_worker(name) and name not in _TOLD})


def worker_of(hashes: Mapping[str, str]) -> str:
    """Which worker a bundle holds: 8 hex of content_of the launcher's own code in it."""
    return content_of({name: sha for name, sha in hashes.items() if _is_worker(name)})[:8]


def hashes_in(folder: Path) -> dict[str, str]:
    """Path -> sha256 as the manifest in a bundle's folder has it. Raises Refused when that cannot be read."""
    file = folder / MANIFEST
    listed = _manifest({MANIFEST: file.read_bytes()} if file.is_file() else {})
    if listed is None:
        raise Refused(_error("BUNDLE_MANIFEST", MANIFEST, f"{folder} has no {MANIFEST} that can be read"))
    return listed


def seal(experiment: str, files: Mapping[str, bytes]) -> Bundle:
    """The bundle of these files: adds the manifest, works out content and name."""
    hashes = hashes_of(files)
    content = content_of(hashes)
    manifest = json.dumps({"content": content, "files": hashes}, indent=2) + "\n"
    sealed = {**files, MANIFEST: manifest.encode()}
    return Bundle(run_name(experiment, asked_of(hashes)), content, {name: sealed[name] for name in sorted(sealed)})


def _files_in(folder: Path) -> dict[str, bytes]:
    """Every file below, but the bytecode that running the worker leaves behind."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def _manifest(files: Mapping[str, bytes]) -> dict[str, str] | None:
    """The manifest's path -> hash, None when there is none that can be read."""
    try:
        listed = json.loads(files[MANIFEST])["files"]
        return {str(name): str(sha) for name, sha in listed.items()}
    except (KeyError, ValueError, TypeError, AttributeError):
        return None


def _error(code: str, name: str, message: str, hint: str = "render the bundle again") -> Issue:
    return Issue(code, Severity.ERROR, name, message, hint)


def _compare(folder: Path, files: Mapping[str, bytes]) -> list[Issue]:
    listed = _manifest(files)
    if listed is None:
        seen = f"{folder} has no {MANIFEST} that can be read" if folder.is_dir() else f"there is no folder {folder}"
        return [_error("BUNDLE_MANIFEST", MANIFEST, seen)]
    actual = hashes_of(files)
    issues = []
    for name in sorted(listed.keys() | actual.keys()):
        if name not in actual:
            issues.append(_error("BUNDLE_FILE_MISSING", name, f"{name} is in the manifest, but not in {folder}"))
        elif name not in listed:
            seen = f"{name} is in {folder}, but not in the manifest"
            issues.append(_error("BUNDLE_FILE_EXTRA", name, seen, f"move it away: mv {folder / name} ELSEWHERE"))
        elif listed[name] != actual[name]:
            seen = f"{name} was edited: its sha256 is {actual[name][:12]}..., the manifest says {listed[name][:12]}..."
            issues.append(
                _error("BUNDLE_FILE_EDITED", name, seen, "change the experiment, then render the bundle again")
            )
    if not issues and json.loads(files[MANIFEST]).get("content") != content_of(listed):
        issues.append(_error("BUNDLE_MANIFEST", MANIFEST, f"the content hash in {MANIFEST} is not that of its files"))
    return issues


def verify(folder: Path) -> list[Issue]:
    """What in the folder is not as it was rendered: edited, missing or extra files. Empty = intact.

    A stray base.yml or models/ beside maxtext.yml would be taken by MaxText for its own: extra files are errors too.
    """
    return _compare(folder, _files_in(folder))


def read(folder: Path) -> Bundle:
    """The bundle in a folder. Raises Refused, with every issue of `verify`, when it is not intact."""
    files = _files_in(folder)
    issues = _compare(folder, files)
    if issues:
        raise Refused(*issues)
    return seal(json.loads(files[PLAN])["experiment"], {name: data for name, data in files.items() if name != MANIFEST})


def _taken(bundle: Bundle, folder: Path) -> Refused:
    """What lies where the bundle should go, and what to type."""
    if not folder.is_dir():
        seen = "is a file"
    else:
        files = _files_in(folder)
        issues = _compare(folder, files)
        if not issues:
            there = read(folder)
            other = "the same with another version of the worker" if there.name == bundle.name else "another bundle"
            seen = f"holds {other}, {there.name}"
        elif _manifest(files) is not None:
            seen = f"holds a bundle that was changed since ({', '.join(issue.field for issue in issues[:3])})"
        else:
            first = sorted(path.name for path in folder.iterdir())[:3]
            seen = f"holds what is no bundle ({', '.join(first)}{', ...' if len(first) == 3 else ''})"
    message = f"{folder} {seen}: it is not overwritten with {bundle.name}"
    return Refused(_error("BUNDLE_FOLDER_TAKEN", "", message, "name another folder: --out DIR"))


def write(bundle: Bundle, folder: Path) -> None:
    """Put the bundle into `folder`, all of it or nothing; the same bundle already there is left alone.

    Raises Refused when anything else is there, with what it is and what to type; OSError when the disk refuses.
    """
    if folder.is_dir() and _files_in(folder) == dict(bundle.files):
        return
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise _taken(bundle, folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        _fill(bundle, fresh)
        fresh.rename(folder)  # replaces an empty folder, fails on any other
    except BaseException as error:
        shutil.rmtree(fresh, ignore_errors=True)
        if isinstance(error, OSError) and folder.is_dir() and any(folder.iterdir()):
            raise _taken(bundle, folder) from error
        raise


def _fill(bundle: Bundle, folder: Path) -> None:
    for name, data in bundle.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        if name in EXECUTABLE:
            mode = path.stat().st_mode
            path.chmod(mode | (mode & 0o444) >> 2)  # who may read may run
    umask = os.umask(0o077)
    os.umask(umask)
    folder.chmod(0o777 & ~umask)  # mkdtemp made it private
