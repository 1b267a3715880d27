"""The folder of runs: made, found by name, listed. Everything about a run lies in its own folder."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.issue import Issue, Refused, Severity
from launcher.node.layout import RunFolder, checkpoints_folder
from launcher.node.record import write_json
from launcher.suggest import suggest

VERSION = 1
"""Of the layout of a run's folder, in run.json. A run of a newer layout is refused, not guessed at."""

ROOT_VARIABLE = "LAUNCHER_RUNS"
_SHOWN = 8  # names listed in a message


class RunsError(Refused):
    """What was asked of a run cannot be done; nothing was changed. `message`: what was seen. `hint`: what to type."""

    def __init__(self, message: str, hint: str = "", code: str = "RUN") -> None:
        super().__init__(Issue(code, Severity.ERROR, "", message, hint))


class Damaged(RunsError):
    """A file of a run cannot be read as what it should be. `path`: which."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path} {why}", code="RUN_DAMAGED")
        self.path = path


class Missing(Damaged):
    """A file of a run is not there."""


@dataclass(frozen=True)
class Run:
    """One submitted bundle. `layout`: where its files lie. `record`: run.json. `damage`: why that cannot be read."""

    layout: RunFolder
    record: Mapping[str, Any]
    damage: str = ""

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.layout.name

    @property
    def folder(self) -> Path:
        """The folder, absolute."""
        return self.layout.path

    @property
    def target(self) -> str:
        """The kind of its target."""
        return str(self.record.get("target", ""))

    def launch(self) -> dict[str, Any]:
        """The bundle's launch.json. Raises Damaged."""
        return read_object(self.layout.bundle.launch)

    def checkpoints(self) -> Path | None:
        """Where MaxText keeps this run's checkpoints; None when that is remote storage. Raises Damaged."""
        directory = self.launch().get("output_directory")
        if directory and "://" in directory:
            return None
        return checkpoints_folder(Path(directory) if directory else self.layout.output, self.name)


def root(asked: str | None = None) -> Path:
    """The folder of runs, absolute: `--runs DIR`, else $LAUNCHER_RUNS, else ./runs. It need not exist."""
    return Path(asked or os.environ.get(ROOT_VARIABLE) or "runs").absolute()


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        Damaged: missing, unreadable, cut off, or no object.
    """
    try:
        data = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise Missing(path, "is not there") from None
    except OSError as error:
        raise Damaged(path, f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise Damaged(path, f"is damaged, it is no JSON: {error}") from error
    if not isinstance(data, dict):
        raise Damaged(path, f"is damaged: it holds a {type(data).__name__}, wanted an object")
    return data


def read_object_if_there(path: Path) -> dict[str, Any] | None:
    """read_object, but None for a file that does not exist (yet); it may come while it is looked for."""
    try:
        return read_object(path)
    except Missing:
        return None


def load(folder: Path) -> Run:
    """The run in a folder. Raises RunsError: damaged, or of a newer layout."""
    layout = RunFolder(folder.absolute())
    record = read_object(layout.run)
    version = record.get("version")
    if not isinstance(version, int):
        raise Damaged(layout.run, f"has version {version!r}, wanted a number")
    if version > VERSION:
        raise RunsError(
            f"run {layout.name} was written by a newer launcher: its layout is {version}, this one reads {VERSION}",
            "update the launcher: pip install --upgrade launcher",
            "RUN_NEWER",
        )
    return Run(layout, record)


def names(folder: Path) -> list[str]:
    """All runs in the folder of runs, sorted; what has no run.json is none. Empty when there is no such folder."""
    try:
        with os.scandir(folder) as entries:
            found = [entry for entry in entries if not entry.name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(entry.name for entry in found if os.path.exists(os.path.join(entry.path, "run.json")))


def all_runs(folder: Path) -> list[Run]:
    """All runs, oldest first. One that cannot be read is in it, with its `damage`."""
    found = []
    for name in names(folder):
        try:
            found.append(load(folder / name))
        except RunsError as error:
            found.append(Run(RunFolder((folder / name).absolute()), {}, str(error)))
    return sorted(found, key=lambda run: (str(run.record.get("created", "")), run.name))


def open_run(folder: Path, name: str) -> Run:
    """A run by its name, a unique beginning of it, or the path of its folder.

    Raises:
        RunsError: no such run (with the nearest names), several (with all of them), damaged, or of a newer layout.
    """
    if "/" in name:
        if RunFolder(Path(name)).run.exists():
            return load(Path(name))
        raise RunsError(f"{name} is no run's folder: it holds no run.json", code="RUN_UNKNOWN")
    known = names(folder)
    if name in known:
        return load(folder / name)
    matching = [candidate for candidate in known if name and candidate.startswith(name)]
    if len(matching) == 1:
        return load(folder / matching[0])
    if matching:
        message = f"{name} is the beginning of {len(matching)} runs: {_listed(matching)}"
        raise RunsError(message, "type more of it", "RUN_AMBIGUOUS")
    raise RunsError(f"there is no run {name} in {folder}", _nearest(name, known), "RUN_UNKNOWN")


def _nearest(name: str, known: list[str]) -> str:
    if not known:
        return f"it holds no run; name another folder with --runs DIR or {ROOT_VARIABLE}"
    near = suggest(name, known) or suggest(name, [candidate.rpartition("-")[0] for candidate in known])
    near = [candidate for candidate in known if any(candidate.startswith(word) for word in near)]
    return f"did you mean {_listed(near)}?" if near else f"there are: {_listed(known)}"


def _listed(known: list[str]) -> str:
    more = f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
    return ", ".join(known[:_SHOWN]) + more


def create(folder: Path, name: str, record: Mapping[str, Any], fill: Callable[[RunFolder], None]) -> bool:
    """Make the run's folder, whole or not at all. False when there is one of that name: somebody was faster.

    `record`: what run.json holds besides version, name and time. `fill` writes the rest into the folder it is given.
    """
    if (folder / name).exists():
        return False
    try:
        folder.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=folder))
    except OSError as error:
        hint = f"name another folder with --runs DIR or {ROOT_VARIABLE}"
        raise RunsError(f"cannot write to {folder}: {error.strerror}", hint, "RUNS_FOLDER") from error
    try:
        fill(RunFolder(fresh))
        created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        write_json(RunFolder(fresh).run, {"version": VERSION, "run": name, "created": created, **record})
        umask = os.umask(0)
        os.umask(umask)
        fresh.chmod(0o777 & ~umask)  # mkdtemp made it private
        fresh.rename(folder / name)
    except BaseException as error:
        shutil.rmtree(fresh, ignore_errors=True)
        if isinstance(error, OSError) and error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise
    return True


@contextmanager
def locked(run: Run) -> Iterator[None]:
    """Only one process at a time starts an attempt of this run. Held by the kernel: a dead holder frees it."""
    with open(lock_file(run), "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        _held.add(run.folder)
        try:
            yield
        finally:
            _held.discard(run.folder)


_held: set[Path] = set()
"""Runs that this process has locked itself."""


def is_locked(run: Run) -> bool:
    """Whether some other process is starting an attempt right now."""
    if run.folder in _held:
        return False
    try:
        with open(lock_file(run), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def lock_file(run: Run) -> Path:
    """What is locked while an attempt is being started."""
    return run.folder / ".lock"
