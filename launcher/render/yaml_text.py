"""YAML that PyYAML (1.1) and OmegaConf (MaxText's and Hydra's reader) read alike, the same bytes from every Python.

PyYAML's own dumper is slow in Python, and its C twin folds lines elsewhere; bundles are hashed, so the text is made here.
Text is plain only where no reader can take it for anything else; the rest is double-quoted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal

PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./+@-]*")
"""No digit first (numbers, dates), no `:`, `#`, `,` or bracket, so it also stands inside [ ] and { }."""

YAML_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"})
"""Plain words that a YAML 1.1 reader takes for a bool or for nothing."""

_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r", "\0": "\\0"}
_UNPRINTABLE = re.compile(r'["\\\x00-\x1f\x7f-\xa0\u2028\u2029\ufeff\ufffe\uffff]')
_INTERPOLATION = re.compile(r"(\\*)\$\{")


def _escape(match: re.Match[str]) -> str:
    char = match.group()
    return _ESCAPES.get(char) or f"\\u{ord(char):04x}"


def literal(text: str) -> str:
    r"""`text` so that OmegaConf gives it back unchanged: `${` starts an interpolation there, `\${` does not.

    >>> print(literal("${HOME}/x $HOME"))
    \${HOME}/x $HOME
    """
    if "${" not in text:
        return text
    return _INTERPOLATION.sub(lambda m: m.group(1) * 2 + "\\${", text)


def scalar(value: object) -> str:
    """One value on one line: null, true, 12, 1.0e-08, plain or quoted text, [a, b], {a: 1}.

    Raises:
        TypeError: a value that no configuration can hold (bytes, objects).
        ValueError: text that is no Unicode (half a surrogate pair, from a command line that is not UTF-8).
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(scalar(v) for v in value)}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{scalar(k)}: {scalar(v)}' for k, v in value.items())}}}"
    raise TypeError(
        f"{value!r} is a {type(value).__name__}: a configuration holds text, numbers, true/false, null, lists and mappings"
    )


def _number(value: float) -> str:
    """Large ones with an exponent. YAML 1.1 reads 1e-08 as text: a mantissa needs its point."""
    text = repr(value)
    if text in ("inf", "-inf", "nan"):
        return text.replace("inf", ".inf").replace("nan", ".nan")
    if abs(value) >= 1e6:
        text = f"{Decimal(text).normalize():e}"
    mantissa, e, exponent = text.partition("e")
    return text if not e or "." in mantissa else f"{mantissa}.0e{exponent}"


def _text(value: str) -> str:
    if PLAIN.fullmatch(value) and value.lower() not in YAML_WORDS:
        return value
    if not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
        raise ValueError(f"{value!r} is not valid Unicode, wanted UTF-8 text")
    return f'"{_UNPRINTABLE.sub(_escape, literal(value))}"'


def block(values: Mapping[str, object], indent: int = 0, comments: Mapping[str, str] | None = None) -> list[str]:
    """Lines `key: value`, one a key, in the given order; a value that needs a reason has it in a comment line above."""
    pad, lines = " " * indent, []
    for key, value in values.items():
        if comments and key in comments:
            lines += [f"{pad}# {line}" for line in comments[key].splitlines()]
        lines.append(f"{pad}{scalar(key)}: {scalar(value)}")
    return lines
