"""What the API server would refuse of a pod's selectors, tolerations, affinities and spreads (pkg/apis/core/validation)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from launcher.plan.kubernetes_schema import Fault
from launcher.plan.kubernetes_syntax import KEY_WORDS, VALUE_WORDS, is_label_value, is_qualified
from launcher.suggest import suggest

Found = Iterator[Fault]

EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
NODE_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
LABEL_OPERATORS = NODE_OPERATORS[:4]
UNSATISFIABLE = ("DoNotSchedule", "ScheduleAnyway")

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def dicts(value: object) -> list[Mapping[str, Any]]:
    """The mappings of a list; what is none the schema has reported."""
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list | tuple) else []


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def word(path: str, seen: object, legal: Sequence[str]) -> Found:
    """A fault unless `seen` is one of the legal words."""
    if seen not in legal:
        near = suggest(str(seen), legal)
        hint = f"did you mean {near[0]}?" if near else f"write one of {', '.join(legal)}"
        yield Fault(path, f"{seen!r}, wanted {', '.join(legal)}", hint)


def scheduling_faults(spec: Mapping[str, Any]) -> Found:
    """Every fault of where a pod may be placed."""
    for key, value in _mapping(spec.get("nodeSelector")).items():
        path = f"spec.nodeSelector.{key}"
        if not is_qualified(str(key)):
            yield Fault(path, f"{key} cannot be a label", f"wanted {KEY_WORDS}")
        if isinstance(value, str) and not is_label_value(value):
            yield Fault(path, f"{value!r} cannot be a label's value", f"wanted {VALUE_WORDS}")
    for number, one in enumerate(dicts(spec.get("tolerations"))):
        why = _toleration(one)
        if why:
            yield Fault(f"spec.tolerations.{number}", *why)
    affinity = _mapping(spec.get("affinity"))
    yield from _node_affinity(_mapping(affinity.get("nodeAffinity")), "spec.affinity.nodeAffinity")
    for kind in ("podAffinity", "podAntiAffinity"):
        yield from _pod_affinity(_mapping(affinity.get(kind)), f"spec.affinity.{kind}")
    for number, one in enumerate(dicts(spec.get("topologySpreadConstraints"))):
        path = f"spec.topologySpreadConstraints.{number}"
        skew = one.get("maxSkew")
        if isinstance(skew, int) and skew < 1:
            yield Fault(f"{path}.maxSkew", f"{skew}, wanted 1 or more", "write maxSkew: 1")
        yield from word(f"{path}.whenUnsatisfiable", one.get("whenUnsatisfiable"), UNSATISFIABLE)
        yield from _key(one.get("topologyKey"), path)
        yield from _labels(one.get("labelSelector"), f"{path}.labelSelector")


def _toleration(one: Mapping[str, Any]) -> tuple[str, str] | None:
    """What is wrong with a toleration and what is right; None when nothing is."""
    operator, key, effect = one.get("operator") or "Equal", one.get("key"), one.get("effect")
    if operator not in ("Equal", "Exists"):
        return f"operator {operator!r}, wanted Equal or Exists", "write operator: Exists"
    if key and not is_qualified(str(key)):
        return f"{key!r} cannot be a taint's key", f"wanted {KEY_WORDS}"
    if not key and operator != "Exists":
        return "a toleration of any taint has operator Exists", "add a key, or write operator: Exists"
    if operator == "Exists" and one.get("value"):
        return f"operator Exists with the value {one['value']!r}", "leave value out, or write operator: Equal"
    if operator == "Equal" and not is_label_value(str(one.get("value") or "")):
        return f"{one['value']!r} cannot be a taint's value", f"wanted {VALUE_WORDS}"
    if effect and effect not in EFFECTS:
        near: Sequence[str] = suggest(str(effect), EFFECTS) or EFFECTS
        return f"effect {effect!r}, wanted {', '.join(EFFECTS)}", f"write effect: {near[0]}"
    if one.get("tolerationSeconds") is not None and effect != "NoExecute":
        return "tolerationSeconds is for effect NoExecute alone", "leave tolerationSeconds out"
    return None


def _key(seen: object, path: str) -> Found:
    if not isinstance(seen, str) or not is_qualified(seen):
        yield Fault(f"{path}.topologyKey", f"{seen!r} is no label of a node", f"wanted {KEY_WORDS}")


def _weight(one: Mapping[str, Any], path: str) -> Found:
    seen = one.get("weight")
    if not isinstance(seen, int) or not 1 <= seen <= 100:
        yield Fault(f"{path}.weight", f"{seen!r}, wanted 1 to 100", "write weight: 1")


def _expression(one: Mapping[str, Any], path: str, operators: Sequence[str]) -> Found:
    """One expression over labels, of nodes (which may be compared) or of pods."""
    operator, values = one.get("operator"), one.get("values") or []
    if not is_qualified(str(one.get("key") or "")):
        yield Fault(f"{path}.key", f"{one.get('key')!r} cannot be a label", f"wanted {KEY_WORDS}")
    if operator not in operators:
        yield from word(f"{path}.operator", operator, operators)
        return
    if operator in ("In", "NotIn") and not values:
        yield Fault(f"{path}.values", f"{operator} without values", "write values: [VALUE]")
    elif operator in ("Exists", "DoesNotExist") and values:
        yield Fault(f"{path}.values", f"{operator} takes no values", "leave values out")
    elif operator in ("Gt", "Lt") and (len(values) != 1 or not str(values[0]).lstrip("-").isdigit()):
        yield Fault(f"{path}.values", f"{operator} compares with one whole number", 'write values: ["16"]')
    elif not all(is_label_value(str(value)) for value in values):
        yield Fault(f"{path}.values", f"{values} are no values of a label", f"wanted {VALUE_WORDS}")


def _labels(selector: object, path: str) -> Found:
    found = _mapping(selector)
    for key, value in _mapping(found.get("matchLabels")).items():
        if not is_qualified(str(key)) or not is_label_value(str(value)):
            yield Fault(f"{path}.matchLabels.{key}", f"{key}: {value!r} is no label of a pod", f"wanted {VALUE_WORDS}")
    for number, one in enumerate(dicts(found.get("matchExpressions"))):
        yield from _expression(one, f"{path}.matchExpressions.{number}", LABEL_OPERATORS)


def _term(term: Mapping[str, Any], path: str) -> Found:
    for number, one in enumerate(dicts(term.get("matchExpressions"))):
        yield from _expression(one, f"{path}.matchExpressions.{number}", NODE_OPERATORS)


def _node_affinity(found: Mapping[str, Any], path: str) -> Found:
    required = found.get(_REQUIRED)
    if isinstance(required, Mapping):
        terms = dicts(required.get("nodeSelectorTerms"))
        if not terms:
            yield Fault(f"{path}.{_REQUIRED}.nodeSelectorTerms", "there is no term", "add one, with matchExpressions")
        for number, term in enumerate(terms):
            yield from _term(term, f"{path}.{_REQUIRED}.nodeSelectorTerms.{number}")
    for number, one in enumerate(dicts(found.get(_PREFERRED))):
        inner = f"{path}.{_PREFERRED}.{number}"
        yield from _weight(one, inner)
        yield from _term(_mapping(one.get("preference")), f"{inner}.preference")


def _pod_affinity(found: Mapping[str, Any], path: str) -> Found:
    terms = [(f"{path}.{_REQUIRED}.{n}", one) for n, one in enumerate(dicts(found.get(_REQUIRED)))]
    for number, one in enumerate(dicts(found.get(_PREFERRED))):
        inner = f"{path}.{_PREFERRED}.{number}"
        yield from _weight(one, inner)
        terms.append((f"{inner}.podAffinityTerm", _mapping(one.get("podAffinityTerm"))))
    for inner, term in terms:
        yield from _key(term.get("topologyKey"), inner)
        yield from _labels(term.get("labelSelector"), f"{inner}.labelSelector")
