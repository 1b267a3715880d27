"""XLA flags as the final text of XLA_FLAGS, quoted for XLA's own parser (no shell reads them).

That parser (xla/parse_flags_from_env.cc) splits at white space. A value that begins with ' or " runs to the same quote
and loses both; inside double quotes a backslash escapes, inside single quotes nothing does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_BARE = re.compile(r"[A-Za-z0-9_.,:/+=@%-]*")
_NAME = re.compile(r"xla_[a-z0-9_]+")


def _is_quoted(text: str) -> bool:
    return len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"" and text[0] not in text[1:-1]


def value_text(value: object) -> str:
    """A flag's value as it stands after the `=`: true/false for bools, quoted where XLA's parser needs it.

    >>> value_text(True), value_text(8), value_text("FUSION, CUBLAS"), value_text("'FUSION,CUBLAS'")
    ('true', '8', "'FUSION, CUBLAS'", "'FUSION,CUBLAS'")

    Raises:
        ValueError: both kinds of quotes, a line break, or a value that is no text, number or bool.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is a {type(value).__name__}, wanted text, a number or true/false")
    if value.splitlines() not in ([], [value]) or "\0" in value:
        raise ValueError(f"{value!r} has a line break, wanted one line")
    if "'" in value and '"' in value:
        raise ValueError(f"{value!r} has both kinds of quotes, wanted one kind at most")
    if _BARE.fullmatch(value) or _is_quoted(value):
        return value
    if "'" not in value:
        return f"'{value}'"
    return '"{}"'.format(value.replace("\\", "\\\\"))


def flags(chosen: Mapping[str, object]) -> list[str]:
    """`--name=value` for each flag, sorted by name.

    Raises:
        ValueError: a name that is no XLA flag's, or a value that cannot be written (value_text).
    """
    lines = []
    for name, value in sorted(chosen.items()):
        if not _NAME.fullmatch(name):
            raise ValueError(f"xla.flags.{name}: XLA's flags are named xla_..., without dashes before it")
        try:
            lines.append(f"--{name}={value_text(value)}")
        except ValueError as error:
            raise ValueError(f"xla.flags.{name}: {error}") from error
    return lines


def text(chosen: Mapping[str, object]) -> str:
    """The file xla_flags: one flag a line, empty when there is none."""
    return "".join(f"{line}\n" for line in flags(chosen))
