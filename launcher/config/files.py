"""What is wrong inside a config file that a user wrote: every unknown key of it, with the file and the nearest legal names.

Hydra stops at the first key that the schema lacks and names neither the file's path nor what would be right.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import yaml

from launcher.config import groups
from launcher.config.overrides import is_open, nearest, schema_keys
from launcher.issue import Issue, Severity

_GLOBAL = re.compile(r"^#\s*@package\s+_global_\s*$", re.MULTILINE)
_NAMED_BY_HYDRA = re.compile(r"In '(?P<config>[^']+)'")


def _keys(node: Mapping[object, object], prefix: str) -> Iterator[str]:
    """Dotted keys of a file in the order of its lines; a key that is not known is not walked into."""
    for name, value in node.items():
        key = f"{prefix}{name}"
        yield key
        if isinstance(value, Mapping) and key in schema_keys():
            yield from _keys(value, f"{key}.")


def _unknown(file: Path, path: Sequence[Path]) -> list[Issue]:
    text = file.read_text(encoding="utf-8")
    node = yaml.safe_load(text)
    if not isinstance(node, Mapping):
        return []
    prefix = "" if _GLOBAL.search(text) else f"{file.parent.name}."
    known = {*schema_keys(), f"{prefix}defaults"}
    return [
        Issue("FILE_KEY_UNKNOWN", Severity.ERROR, key, f"{file}: there is no key {key}", nearest(key, path))
        for key in _keys(node, prefix)
        if key not in known and not is_open(key)
    ]


def explain(message: str, chosen: Mapping[str, str], path: Sequence[Path] = (groups.CONF_DIR,)) -> list[Issue]:
    """The unknown keys of the file that Hydra's message names and of all chosen files; none when it is not about keys.

    Args:
        message: Hydra's, of a composition that failed.
        chosen: group -> option, as asked for on the command line.
        path: the folders of configs, the first one wins.
    """
    named = _NAMED_BY_HYDRA.search(message)
    configs = [named["config"]] if named else []
    configs += [config for config in (f"{group}/{option}" for group, option in chosen.items()) if config not in configs]
    issues: list[Issue] = []
    for config in configs:
        file = next((f for f in (root / f"{config}.yaml" for root in path) if f.is_file()), None)
        if file is None:
            continue
        try:
            issues += _unknown(file, path)
        except yaml.YAMLError:
            return []
    return issues
