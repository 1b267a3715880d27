"""Would MaxText take these keys: name, type, bounds and choices of each, against the snapshot of its version.

It accepts what MaxText 0.2.5 accepts (pydantic's lax mode: "12" and 12.0 are an int, "yes" is a bool), with three
exceptions that MaxText takes silently and that are always mistakes: a bool for a number, a key that MaxText computes
itself and overwrites, and a model name that has no yml (MaxText then trains its small default model).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

from launcher.config.maxtext_schema import SNAPSHOTS, Key, Schema
from launcher.issue import Issue, Severity
from launcher.suggest import suggest

BOOL_WORDS = frozenset({"0", "off", "f", "false", "n", "no", "1", "on", "t", "true", "y", "yes"})
"""Strings that pydantic's lax mode takes for a bool (docs: Conversion Table)."""

WORDS = {
    "int": "a whole number", "float": "a number", "bool": "true or false", "str": "a string", "list": "a list",
    "dict": "a mapping", "null": "null", "any": "anything",
}  # fmt: skip


@functools.cache
def _article_words() -> Mapping[str, Mapping[str, str]]:
    words: dict[str, dict[str, str]] = json.loads((SNAPSHOTS.parent / "article_words.json").read_text("utf-8"))["words"]
    return words


def _shown(value: object) -> str:
    """A value as a user would type it."""
    return json.dumps(value, default=str, ensure_ascii=False)


def _number(value: object) -> float | None:
    """The number that a value is, or spells; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except ValueError:
        return None


def _fits(value: object, word: str) -> bool:
    """Is `value` of the type that one word of the vocabulary names?"""
    number = _number(value)
    if word.startswith("list"):
        item = word[5:-1] or "any"
        return isinstance(value, list | tuple) and all(_fits(each, item) for each in value)
    return {
        "any": True,
        "null": value is None,
        "int": number is not None and number.is_integer(),
        "float": number is not None,
        "bool": isinstance(value, bool) or value in (0, 1) or (isinstance(value, str) and value.lower() in BOOL_WORDS),
        "str": isinstance(value, str),
        "dict": isinstance(value, Mapping),
    }[word]


def _wanted(words: list[str]) -> str:
    """The type vocabulary in words: int|null -> a whole number or null."""
    named = [f"a list of {w[5:-1]}" if w.startswith("list[") else WORDS[w] for w in words]
    return " or ".join(named)


def _explain_article_word(name: str, value: object) -> Issue:
    word = _article_words()[name]
    pairs = value.items() if "each" in word and isinstance(value, Mapping) else ()
    overrides = [word["type"].format(value=_shown(value))]
    overrides += [word["each"].format(name=k, value=v) for k, v in pairs]
    return Issue(
        "MAXTEXT_KEY_NOT_PUBLIC", Severity.ERROR, f"maxtext.{name}",
        f"{name} stands in NVIDIA's article, but no public MaxText has it: {word['because']}",
        f"remove it and type {' '.join(overrides)}",
    )  # fmt: skip


def _explain_unknown(name: str, value: object, schema: Schema) -> Issue:
    nested = [parent for parent, key in schema.keys.items() if name in key.fields]
    near = suggest(name, (key for key, entry in schema.keys.items() if not entry.derived))
    if nested:
        hint = f"it lies inside {nested[0]}: type +maxtext.{nested[0]}.{name}={_shown(value)}"
    elif near:
        hint = f"did you mean {' or '.join(near)}?"
    else:
        hint = "no key of MaxText is near it; take it out"
    return Issue(
        "MAXTEXT_KEY_UNKNOWN", Severity.ERROR, f"maxtext.{name}",
        f"MaxText {schema.version} has no key {name}, and refuses to start with one that it does not know", hint,
    )  # fmt: skip


def _check_choice(name: str, value: object, key: Key, schema: Schema) -> Issue | None:
    """Is the value one of the key's choices? A list read off MaxText's code may miss one, so that is a warning."""
    if key.choices is None or value is None or value in key.choices:
        return None
    near = suggest(str(value), (str(choice) for choice in key.choices))
    legal = "There are: " + ", ".join(str(choice) if choice != "" else '""' for choice in key.choices)
    hint = (f"did you mean {name}={' or '.join(near)}? " if near else "") + legal
    if key.choices_from:
        message = f"{name}={_shown(value)} is not among the values that MaxText {schema.version} compares it with"
        message += f" ({key.choices_from})"
        return Issue("MAXTEXT_CHOICE_UNSEEN", Severity.WARNING, f"maxtext.{name}", message, hint)
    message = f"{name}={_shown(value)} is not among the choices of MaxText {schema.version}"
    return Issue("MAXTEXT_CHOICE", Severity.ERROR, f"maxtext.{name}", message, hint)


def _check_bounds(name: str, value: object, key: Key) -> Issue | None:
    number = _number(value)
    if number is None:
        return None
    broken = [
        f"{name} {sign} {bound}"
        for sign, bound, good in (
            (">=", key.minimum, key.minimum is None or number >= key.minimum),
            (">", key.above, key.above is None or number > key.above),
            ("<=", key.maximum, key.maximum is None or number <= key.maximum),
        )
        if not good
    ]
    if not broken:
        return None
    message = f"{name}={_shown(value)}, MaxText wants {' and '.join(broken)}"
    hint = f"MaxText's default is {_shown(key.default)}"
    return Issue("MAXTEXT_VALUE_RANGE", Severity.ERROR, f"maxtext.{name}", message, hint)


def _check_model(name: str, value: object, schema: Schema) -> Issue | None:
    if name != "model_name" or value == "default" or str(value).replace("-Instruct", "") in schema.models:
        return None
    message = f"MaxText {schema.version} lists {value} but ships no yml of it: it would train its default model instead"
    hint = f"models that have one: {', '.join(suggest(str(value), schema.models) or sorted(schema.models))}"
    return Issue("MAXTEXT_MODEL_WITHOUT_YML", Severity.ERROR, f"maxtext.{name}", message, hint)


def _check_fields(name: str, value: object, key: Key) -> Issue | None:
    unknown = [str(k) for k in value if k not in key.fields] if key.fields and isinstance(value, Mapping) else []
    if not unknown:
        return None
    near = suggest(unknown[0], key.fields)
    hint = (f"did you mean {' or '.join(near)}? " if near else "") + f"There are: {', '.join(key.fields)}"
    message = f"{name} has no {', '.join(unknown)} inside"
    return Issue("MAXTEXT_KEY_UNKNOWN", Severity.ERROR, f"maxtext.{name}", message, hint)


def _check_known(name: str, value: object, schema: Schema) -> Issue | None:
    key = schema.keys[name]
    if key.derived:
        message = f"MaxText computes {name} itself and overwrites what is given"
        return Issue("MAXTEXT_KEY_DERIVED", Severity.ERROR, f"maxtext.{name}", message, "remove it")
    # MaxText turns the word "none", in any case, into null (pyconfig._prepare_for_pydantic).
    value = None if isinstance(value, str) and value.lower() == "none" else value
    words = key.type.split("|")
    if not any(_fits(value, word) for word in words):
        message = f"{name}={_shown(value)}, MaxText wants {_wanted(words)}"
        hint = f"MaxText's default is {_shown(key.default)}"
        return Issue("MAXTEXT_VALUE_TYPE", Severity.ERROR, f"maxtext.{name}", message, hint)
    return (
        _check_choice(name, value, key, schema)
        or _check_bounds(name, value, key)
        or _check_model(name, value, schema)
        or _check_fields(name, value, key)
    )


def check_keys(keys: Mapping[str, Any], schema: Schema) -> list[Issue]:
    """Every key that MaxText would refuse, or take and not mean: one Issue each, in the order of `keys`.

    Args:
        keys: MaxText's own names and their values, wherever they are going to be written.
        schema: the snapshot of the MaxText version that will run.
    """
    found: list[Issue | None] = []
    for name, value in keys.items():
        if name in schema.keys:
            found.append(_check_known(name, value, schema))
        elif name in _article_words():
            found.append(_explain_article_word(name, value))
        else:
            found.append(_explain_unknown(name, value, schema))
    return [issue for issue in found if issue is not None]
