"""How Kubernetes spells names, labels and quantities (k8s.io/apimachinery, util/validation and api/resource)."""

from __future__ import annotations

import re
from fractions import Fraction

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DNS_LABEL = re.compile(_LABEL)
_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_VARIABLE = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
_QUANTITY = re.compile(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+))(Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E|[eE][+-]?\d{1,2})?")
_BINARY = {f"{letter}i": 1 << (10 * (power + 1)) for power, letter in enumerate("KMGTPE")}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}

LABEL_WORDS = "small letters, digits and -, not at the ends, 63 characters at most"
SUBDOMAIN_WORDS = "small letters, digits, - and ., a letter or digit at both ends, 253 characters at most"
KEY_WORDS = "[PREFIX/]NAME: a name of at most 63 letters, digits, - _ . with a letter or digit at both ends, the prefix a DNS name"
VALUE_WORDS = "at most 63 letters, digits, - _ . with a letter or digit at both ends"


def is_label(text: str) -> bool:
    """A DNS label: the name of a namespace, container or volume."""
    return len(text) <= 63 and _DNS_LABEL.fullmatch(text) is not None


def is_subdomain(text: str) -> bool:
    """A DNS subdomain: the name of most objects."""
    return len(text) <= 253 and _SUBDOMAIN.fullmatch(text) is not None


def is_qualified(text: str) -> bool:
    """The key of a label or annotation, or the name of a resource.

    >>> is_qualified("nvidia.com/gpu.clique"), is_qualified("a/b/c"), is_qualified("rack label")
    (True, False, False)
    """
    prefix, slash, name = text.rpartition("/")
    return len(name) <= 63 and _NAME.fullmatch(name) is not None and (not slash or is_subdomain(prefix))


def is_label_value(text: str) -> bool:
    """The value of a label; it may be empty."""
    return not text or (len(text) <= 63 and _NAME.fullmatch(text) is not None)


def is_key(text: str) -> bool:
    """The key of a Secret or a ConfigMap."""
    return len(text) <= 253 and _KEY.fullmatch(text) is not None and not text.startswith("..") and text != "."


def is_variable(text: str) -> bool:
    """A variable's name, as all versions of Kubernetes take it (newer ones take more)."""
    return _VARIABLE.fullmatch(text) is not None and not text.startswith("..") and text != "."


def quantity(value: object) -> Fraction | None:
    """The amount that a quantity stands for; None when it is none.

    >>> quantity("500m"), quantity(4), quantity("2Gi"), quantity("1.5e3"), quantity("850 Gi")
    (Fraction(1, 2), Fraction(4, 1), Fraction(2147483648, 1), Fraction(1500, 1), None)
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    found = _QUANTITY.fullmatch(str(value))
    if found is None:
        return None
    number, unit = Fraction(found[1]), found[2] or ""
    if unit in _BINARY:
        return number * _BINARY[unit]
    power = _DECIMAL[unit] if unit in _DECIMAL else int(unit[1:])
    return number * Fraction(10) ** power
