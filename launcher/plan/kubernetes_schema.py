"""A custom object against the schema of its own definition, strictly: a field that is not there is a fault, with the nearest that is.

The definitions are launcher/data/kubernetes/*.json (tools/kubernetes_schemas.py). JobSet's holds the whole pod template.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from launcher.config.maxtext_schema import SNAPSHOTS
from launcher.plan.kubernetes_syntax import quantity
from launcher.suggest import suggest

FILES: Mapping[str, str] = {"JobSet": "jobsets", "ComputeDomain": "computedomains"}

_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "object": Mapping, "array": (list, tuple), "string": str, "boolean": bool, "integer": int, "number": (int, float),
}  # fmt: skip
_WORDS: Mapping[str, str] = {
    "object": "a mapping", "array": "a list", "string": "text (in quotes)", "boolean": "true or false",
    "integer": "a whole number", "number": "a number",
}  # fmt: skip
_BITS: Mapping[str, int] = {"int32": 31, "int64": 63}


class Fault(NamedTuple):
    """What is wrong at a path (dotted; an element of a list by its name, else its index), and what is right."""

    path: str
    message: str
    hint: str


@functools.cache
def schema(kind: str) -> Mapping[str, Any]:
    """The OpenAPI schema of the served version of a kind of `FILES`."""
    text = (SNAPSHOTS.parent / "kubernetes" / f"{FILES[kind]}.json").read_text(encoding="utf-8")
    served = next(version for version in json.loads(text)["spec"]["versions"] if version["storage"])
    found: dict[str, Any] = served["schema"]["openAPIV3Schema"]
    return found


def faults(value: Mapping[str, Any]) -> Iterator[Fault]:
    """Every fault of one object, in its own order. An object of another kind has none here."""
    kind = str(value.get("kind"))
    if kind in FILES:
        yield from _walk(value, schema(kind), "")


def below(path: str, key: object) -> str:
    """The path of one entry of a mapping."""
    return f"{path}.{key}" if path else str(key)


def element(path: str, value: object, number: int) -> str:
    """The path of one element of a list."""
    name = value.get("name") if isinstance(value, Mapping) else None
    return f"{path}.{name if isinstance(name, str) else number}"


def _walk(value: object, rule: Mapping[str, Any], path: str) -> Iterator[Fault]:
    if rule.get("x-kubernetes-int-or-string"):
        yield from _quantity(value, rule, path)
        return
    kind = str(rule.get("type"))
    if value is None:
        if not rule.get("nullable"):
            yield Fault(path, "null, wanted a value", "leave the field out, or give it a value")
        return
    if kind in _TYPES and (not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "boolean")):
        yield Fault(path, f"{_shown(value)}, wanted {_WORDS[kind]}", _of_type(value, kind))
        return
    if isinstance(value, Mapping):
        yield from _mapping(value, rule, path)
    elif isinstance(value, list | tuple):
        for number, one in enumerate(value):
            yield from _walk(one, rule.get("items", {}), element(path, one, number))
        yield from _twice(value, rule, path)
    else:
        yield from _bounds(value, rule, path)


def _shown(value: object) -> str:
    return json.dumps(value, default=str)[:80]


def _of_type(value: object, kind: str) -> str:
    if kind == "string":
        return f'write "{value}"' if not isinstance(value, Mapping | list | tuple) else "write text"
    return f"write {_WORDS[kind]}"


def _quantity(value: object, rule: Mapping[str, Any], path: str) -> Iterator[Fault]:
    pattern = rule.get("pattern")
    if isinstance(value, bool) or not isinstance(value, int | str):
        yield Fault(path, f"{_shown(value)}, wanted a whole number or text", 'write a number, or text such as "8Gi"')
    elif pattern and isinstance(value, str) and quantity(value) is None:
        yield Fault(path, f"{_shown(value)} is no quantity", "write a number with a unit of Kubernetes: 500m, 4, 850Gi")


def _mapping(value: Mapping[str, Any], rule: Mapping[str, Any], path: str) -> Iterator[Fault]:
    known, more = rule.get("properties", {}), rule.get("additionalProperties")
    closed = bool(known) and not more and not rule.get("x-kubernetes-preserve-unknown-fields")
    for key, one in value.items():
        inner = below(path, key)
        if key in known:
            yield from _walk(one, known[key], inner)
        elif isinstance(more, Mapping):
            yield from _walk(one, more, inner)
        elif closed:
            near = suggest(str(key), known)
            hint = f"did you mean {' or '.join(near)}?" if near else f"there is {', '.join(sorted(known)[:12])}"
            yield Fault(inner, f"there is no field {key}", hint)
    for key in rule.get("required", ()):
        if key not in value:
            yield Fault(path, f"{key} is missing", f"add {key}")


def _twice(value: list[Any] | tuple[Any, ...], rule: Mapping[str, Any], path: str) -> Iterator[Fault]:
    """Elements that the server would take for the same one."""
    keys = rule.get("x-kubernetes-list-map-keys")
    if not keys or rule.get("x-kubernetes-list-type") != "map":
        return
    seen = set()
    for one in value:
        if isinstance(one, Mapping):
            name = tuple(_shown(one.get(key)) for key in keys)
            if name in seen:
                yield Fault(path, f"{', '.join(keys)} {' '.join(name)} stands there twice", "keep one of them")
            seen.add(name)


def _bounds(value: object, rule: Mapping[str, Any], path: str) -> Iterator[Fault]:
    legal = rule.get("enum")
    if legal and value not in legal:
        near = suggest(str(value), map(str, legal))
        typed = f"; did you mean {' or '.join(near)}?" if near else ""
        yield Fault(path, f"{_shown(value)}, wanted {', '.join(map(str, legal))}", f"write one of them{typed}")
    if isinstance(value, str):
        pattern = rule.get("pattern")
        if pattern and not re.search(pattern, value):
            yield Fault(path, f"{_shown(value)} does not match {pattern}", "write text that matches it")
        if not rule.get("minLength", 0) <= len(value) <= rule.get("maxLength", len(value)):
            yield Fault(
                path,
                f"{_shown(value)} has {len(value)} characters",
                f"wanted {rule.get('minLength', 0)} to {rule.get('maxLength', '...')}",
            )
    elif isinstance(value, int | float) and not isinstance(value, bool):
        bits = _BITS.get(str(rule.get("format")))
        least = rule.get("minimum", -(1 << bits) if bits else value)
        most = rule.get("maximum", (1 << bits) - 1 if bits else value)
        if not least <= value <= most:
            yield Fault(path, f"{value} is out of range", f"wanted {least} to {most}")
