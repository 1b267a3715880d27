"""The legal names nearest to a mistyped one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import SequenceMatcher

NEAR = 0.6
"""Least share of equal characters (difflib's ratio, its own default cutoff) for a name to be called near."""

ALL_WORDS = 0.8
"""Likeness of a name that has every word of the mistyped one: batch_size -> per_device_batch_size."""

WORST_BEHIND = 0.15
"""How far behind the best score a further suggestion may lie: one clear answer is better than three."""


def _tokens(name: str) -> frozenset[str]:
    return frozenset(re.split(r"[^a-z0-9]+", name)) - {""}


def _common_prefix(a: str, b: str) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _score(name: str, tokens: frozenset[str], matcher: SequenceMatcher[str], candidate: str) -> float:
    """Likeness, 0 = not near. Equal characters count, and as tie-break the words and the beginning that both share."""
    other = _tokens(candidate)
    shared = len(tokens & other) / len(tokens | other) if tokens | other else 0.0
    matcher.set_seq1(candidate)
    near = matcher.real_quick_ratio() >= NEAR and matcher.quick_ratio() >= NEAR
    ratio = matcher.ratio() if near else 0.0
    if tokens and tokens <= other:
        ratio = max(ratio, ALL_WORDS)
    if ratio < NEAR:
        return 0.0
    return ratio + 0.2 * shared + 0.1 * _common_prefix(name, candidate) / max(len(name), len(candidate))


def suggest(name: str, candidates: Iterable[str], n: int = 3) -> list[str]:
    """At most `n` of `candidates`, the likeliest first; empty when none is near.

    Case is ignored. Equal scores are ordered by name, so the answer does not depend on the order of `candidates`.

    >>> suggest("ici_fsdp_paralelism", ["dcn_fsdp_parallelism", "ici_data_parallelism", "ici_fsdp_parallelism"], n=1)
    ['ici_fsdp_parallelism']
    >>> suggest("steps", ["mesh"])
    []
    """
    wanted = name.lower()
    tokens = _tokens(wanted)
    matcher = SequenceMatcher(None, "", wanted, autojunk=False)
    scored = sorted((-_score(wanted, tokens, matcher, c.lower()), c) for c in set(candidates))
    best = -scored[0][0] if scored else 0.0
    return [c for score, c in scored[:n] if -score > 0 and -score >= best - WORST_BEHIND]
