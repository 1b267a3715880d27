"""What differs between a manifest and the cluster, field by field, by the server's own dry run: `kubectl diff` without kubectl."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from launcher.issue import Issue, Refused
from launcher.targets.base import Handle
from launcher.targets.kubernetes_apply import NO_RIGHTS, own_fields, rehearse, title
from launcher.targets.kubernetes_client import Client, Object, connect
from launcher.targets.kubernetes_manifest import Manifest, for_attempt, parse, read, settings_in

ABSENT = "(none)"
_BOOKKEEPING = ("managedFields", "resourceVersion", "generation", "creationTimestamp", "uid", "selfLink")
_LONG = 100  # characters of a value in a line


def of_run(bundle: Path, handle: Handle) -> list[dict[str, str]]:
    """`differences` of what a run's newest start applied. Raises Refused, Unanswered, Declined."""
    manifest = for_attempt(read(bundle), int(handle["first"]), handle.get("exclude") or ())
    return differences(connect(str(handle["context"])), str(handle["namespace"]), manifest)


def of_texts(artefact: str, experiment: str) -> list[dict[str, str]]:
    """`differences` of a bundle's jobset.yaml and experiment.yaml. Raises Refused, Unanswered, Declined."""
    manifest = parse(artefact)
    client = connect(settings_in(experiment).get("context") or "")
    return differences(client, manifest.namespace or client.namespace, manifest)


def differences(client: Client, namespace: str, manifest: Manifest) -> list[dict[str, str]]:
    """[{"object", "field", "cluster", "ours"}]: what applying the manifest now would change; empty = nothing would.

    "refused": the server's words where it would not take the object; then the fields are compared as they are written.
    Raises Refused when this user may not ask.
    """
    found: list[dict[str, str]] = []
    for document, live, outcome in rehearse(client, namespace, manifest):
        if isinstance(outcome, Issue):
            if outcome.code == NO_RIGHTS:
                raise Refused(outcome)
            found.append(
                {"object": title(document), "field": "", "cluster": "", "ours": "", "refused": outcome.message}
            )
            before, after = own_fields(live, document), document
            if live is None:
                continue
        else:
            before, after = live, outcome
        if before is None:
            found.append({"object": title(document), "field": "", "cluster": ABSENT, "ours": "would be created"})
            continue
        found += [
            {"object": title(document), "field": field, "cluster": _shown(old), "ours": _shown(new)}
            for field, old, new in _fields("", _plain(before), _plain(after))
        ]
    return found


def _plain(document: Object) -> Object:
    metadata = {key: value for key, value in document["metadata"].items() if key not in _BOOKKEEPING}
    return {**{key: value for key, value in document.items() if key != "status"}, "metadata": metadata}


_NONE = object()


def _fields(path: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from _fields(_joined(path, str(key)), old.get(key, _NONE), new.get(key, _NONE))
    elif isinstance(old, list) and isinstance(new, list):
        for number in range(max(len(old), len(new))):
            label, values = _element(number, old, new)
            yield from _fields(f"{path}[{label}]", *values)
    elif old != new:
        yield path, old, new


def _joined(path: str, key: str) -> str:
    """A key with dots in it stands in brackets, as kubectl's jsonpath wants it."""
    if "." in key or "/" in key:
        return f"{path}['{key}']"
    return f"{path}.{key}" if path else key


def _element(number: int, old: list[Any], new: list[Any]) -> tuple[str, tuple[Any, Any]]:
    """An element of two lists by its place; called by its name where it has one."""
    values = (old[number] if number < len(old) else _NONE, new[number] if number < len(new) else _NONE)
    named = next((value["name"] for value in values if isinstance(value, dict) and "name" in value), number)
    return str(named), values


def _shown(value: Any) -> str:
    if value is _NONE:
        return ABSENT
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    first, _, rest = text.partition("\n")
    short = first if len(first) <= _LONG else f"{first[:_LONG]}..."
    return f"{short} ..." if rest else short


def text(found: list[dict[str, str]]) -> str:
    """The lines of `diff RUN --cluster`, an object's under its title."""
    lines = []
    for name in dict.fromkeys(one["object"] for one in found):
        lines.append(name)
        for one in found:
            if one["object"] == name:
                lines.append(f"  {_line(one)}")
    return "\n".join(lines)


def _line(one: dict[str, str]) -> str:
    if one.get("refused"):
        return f"the server would refuse it: {one['refused']}"
    if not one["field"]:
        return f"not in the cluster: it {one['ours']}"
    return f"{one['field']}: {one['cluster']} -> {one['ours']}"
