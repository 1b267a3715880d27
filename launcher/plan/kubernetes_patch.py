"""A patch of a pod template, merged as kubectl's strategic merge does it: lists of named things by name, others one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

KEYS: Mapping[str, str] = {
    **dict.fromkeys(("containers", "initContainers", "volumes", "env", "claims", "resourceClaims", "imagePullSecrets"), "name"),
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "hostAliases": "ip",
}  # fmt: skip
"""List -> the field by which its elements are told apart (Kubernetes' patchMergeKey)."""


def merged(base: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `patch` laid over it; neither is changed. null takes a key away.

    >>> merged({"volumes": [{"name": "a"}], "x": 1}, {"volumes": [{"name": "a", "emptyDir": {}}, {"name": "b"}], "x": None})
    {'volumes': [{'name': 'a', 'emptyDir': {}}, {'name': 'b'}]}
    """
    found = dict(base)
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(found.get(key), Mapping):
            found[key] = merged(found[key], value)
        elif isinstance(value, list | tuple) and isinstance(found.get(key), list):
            found[key] = _list(found[key], value, KEYS.get(str(key)))
        elif isinstance(value, Mapping):
            found[key] = merged({}, value)
        else:
            found[key] = list(value) if isinstance(value, tuple) else value
    return found


def _list(base: Sequence[Any], patch: Sequence[Any], key: str | None) -> list[Any]:
    found = list(base)
    for value in patch:
        place = None
        if key is not None and isinstance(value, Mapping) and key in value:
            same = (i for i, old in enumerate(found) if isinstance(old, Mapping) and old.get(key) == value[key])
            place = next(same, None)
        if place is not None:
            found[place] = merged(found[place], value)
        elif value not in found:
            found.append(value)
    return found
