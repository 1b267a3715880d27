"""What differs between two runs or bundles: what was asked, what MaxText is told, flags, variables, versions, results."""

from __future__ import annotations

import json
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.node.layout import BundleFolder, RunFolder
from launcher.render.folder import Bundle, write
from launcher.runs import store
from launcher.runs.history import hosts_of
from launcher.runs.status import status_of
from launcher.runs.store import RunsError, read_object, read_object_if_there

_HIDDEN = "(not shown)"  # a secret's value, by its name or its shape
_ABSENT = "(none)"


def diff(a: Bundle | Path, b: Bundle | Path) -> dict[str, Any]:
    """Everything that differs between two sides, each a bundle in memory, a bundle's folder or a run's folder.

    Returns {"same_content": the two bundles are the same bytes, "differences": [{"section", "key", "a", "b"}, ...]};
    sections: experiment, maxtext, xla, env, files and, for two runs, versions, placement and results; "a" and "b" are text.
    Raises RunsError: a side that is neither, or damaged.
    """
    with ExitStack() as stack:
        return _compare(_open(a, stack), _open(b, stack))


@dataclass(frozen=True)
class _Side:
    bundle: BundleFolder
    run: store.Run | None = None


def _open(side: Bundle | Path, stack: ExitStack) -> _Side:
    if isinstance(side, Bundle):
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="launcher-diff-"))) / side.name
        write(side, folder)
        return _Side(BundleFolder(folder))
    if BundleFolder(side).manifest.exists():
        return _Side(BundleFolder(side))
    if not RunFolder(side).run.exists():
        raise RunsError(f"{side} is neither a run's folder (run.json) nor a bundle (manifest.json)")
    run = store.load(side)
    return _Side(run.layout.bundle, run)


def _compare(a: _Side, b: _Side) -> dict[str, Any]:
    found: list[dict[str, str]] = []
    same = read_object(a.bundle.manifest).get("content") == read_object(b.bundle.manifest).get("content")
    if not same:
        for section, read in _SECTIONS.items():
            found += _differences(section, read(a.bundle), read(b.bundle))
        found += _differences("files", _other_files(a.bundle), _other_files(b.bundle))
    if a.run is not None and b.run is not None:
        found += _differences("versions", _provenance(a.run), _provenance(b.run))
        found += _differences("placement", _placement(a.run), _placement(b.run))
        found += _differences("results", _results(a.run), _results(b.run))
    return {"same_content": same, "differences": found}


def _differences(section: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, str]]:
    keys = sorted(key for key in a.keys() | b.keys() if a.get(key, _ABSENT) != b.get(key, _ABSENT))
    return [{"section": section, "key": key, "a": _shown(key, a), "b": _shown(key, b)} for key in keys]


def _shown(key: str, values: Mapping[str, Any]) -> str:
    from launcher.config.secrets import format_of, sounds_secret

    if key not in values:
        return _ABSENT
    value = values[key]
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return _HIDDEN if sounds_secret(key) or format_of(key, text) is not None else text


def flat(data: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted keys; lists are values.

    >>> flat({"mesh": {"ici": {"fsdp": 16}}, "nodes": 32})
    {'mesh.ici.fsdp': 16, 'nodes': 32}
    """
    if not isinstance(data, Mapping):
        return {prefix: data}
    if not data and prefix:
        return {prefix: "{}"}
    return {
        key: value
        for name, part in data.items()
        for key, value in flat(part, f"{prefix}.{name}" if prefix else str(name)).items()
    }


def _yaml(path: Path) -> dict[str, Any]:
    import yaml

    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise store.Damaged(path, f"cannot be read: {error}") from error
    return flat(data or {})


def _experiment(bundle: BundleFolder) -> dict[str, Any]:
    return _yaml(bundle.experiment)


def _maxtext(bundle: BundleFolder) -> dict[str, Any]:
    arguments = read_object(bundle.launch).get("arguments", {})
    return {**_yaml(bundle.maxtext), **arguments}


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise store.Damaged(path, f"cannot be read: {error.strerror}") from error


def _xla(bundle: BundleFolder) -> dict[str, Any]:
    flags = (line.strip().lstrip("-") for line in _lines(bundle.xla_flags) if line.strip())
    return {name: value for name, _, value in (flag.partition("=") for flag in flags)}


def _env(bundle: BundleFolder) -> dict[str, Any]:
    words = shlex.split("\n".join(_lines(bundle.env)), comments=True)
    return {name: value for name, _, value in (word.partition("=") for word in words if word != "export")}


_SECTIONS = {"experiment": _experiment, "maxtext": _maxtext, "xla": _xla, "env": _env}
_READ = ("experiment.yaml", "maxtext.yml", "xla_flags", "env", "launch.json", "plan.txt", "plan.json", "manifest.json")


def _other_files(bundle: BundleFolder) -> dict[str, Any]:
    """sha256 of the files that no section speaks of: the worker's sources, the target's artefacts."""
    files = read_object(bundle.manifest).get("files", {})
    return {name: sha[:12] for name, sha in files.items() if name not in _READ}


_UNTOLD = ("time", "command", "git.root", "git.branch", "git.diff", "git.diff_cut", "git.untracked")
"""Of provenance.json: what differs between any two submissions, or says nothing about what was submitted."""


def _provenance(run: store.Run) -> dict[str, Any]:
    found = flat(read_object_if_there(run.layout.provenance) or {})
    return {key: value for key, value in found.items() if key not in _UNTOLD and value is not None}


def _placement(run: store.Run) -> dict[str, Any]:
    """Where its newest attempt ran."""
    numbers = run.layout.attempt_numbers()
    hosts = hosts_of(run.layout.attempt(numbers[-1])) if numbers else ()
    return {"nodes": ", ".join(hosts)} if hosts else {}


def _results(run: store.Run) -> dict[str, Any]:
    status = status_of(run)
    numbers = {
        "last_step": status.last_step,
        "loss": status.loss,
        "seconds_per_step": _rounded(status.seconds_per_step, 4),
        "tokens_per_second_per_device": _rounded(status.tokens_per_second_per_device, 1),
        "restarts": status.restarts,
    }
    return {"state": str(status.state), **{key: value for key, value in numbers.items() if value is not None}}


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def diff_text(found: Mapping[str, Any], a: str, b: str) -> str:
    """The lines of `diff A B`: by section `key: a -> b`, and plainly when there is nothing. `a`, `b`: their names."""
    differences: Sequence[Mapping[str, str]] = found["differences"]
    lines = [f"a: {a}", f"b: {b}"]
    if found["same_content"]:
        lines.append("same content: the two bundles are the same bytes")
    for section in dict.fromkeys(difference["section"] for difference in differences):
        lines += ["", section]
        lines += [f"  {d['key']}: {d['a']} -> {d['b']}" for d in differences if d["section"] == section]
    return "\n".join(lines)
