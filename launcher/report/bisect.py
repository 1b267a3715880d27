"""Which of the settings that differ between two runs makes the difference: delta debugging over the runs that there are.

A probe is run A with some of B's settings. Halves of what is suspected are tried, then quarters and what is left without each
(ddmin; Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002). What is found is the least set of which
no part can be left out: one setting, or several that only act together. Nothing is kept but the runs themselves.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from launcher.report.compare import Told
from launcher.report.gains import Gain, gain

NAMES = ("name", "description")
"""Of an experiment: what differs and makes no difference."""


class _Absent:
    """A setting that one of the two does not have."""


ABSENT = _Absent()


@dataclass(frozen=True)
class Setting:
    """One that differs. path: where it stands in experiment.yaml."""

    path: tuple[str, ...]
    a: object
    b: object

    @property
    def key(self) -> str:
        """As it is typed."""
        return ".".join(self.path)


def settings(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Setting]:
    """What differs between two experiments, as nested mappings.

    >>> [s.key for s in settings({"x": {"y": 1, "z": 2}, "name": "a"}, {"x": {"y": 1, "z": 3, "w": 4}, "name": "b"})]
    ['x.w', 'x.z']
    """
    one, two = _leaves(a), _leaves(b)
    return [
        Setting(path, one.get(path, ABSENT), two.get(path, ABSENT))
        for path in sorted(one.keys() | two.keys())
        if path[0] not in NAMES and one.get(path, ABSENT) != two.get(path, ABSENT)
    ]


def _leaves(node: Mapping[str, Any], path: tuple[str, ...] = ()) -> dict[tuple[str, ...], object]:
    found: dict[tuple[str, ...], object] = {}
    for name, value in node.items():
        if isinstance(value, Mapping):
            found |= _leaves(value, (*path, str(name)))  # an empty one has no leaves
        else:
            found[*path, str(name)] = value
    return found


def mixed(a: Mapping[str, Any], chosen: Sequence[Setting]) -> dict[str, Any]:
    """A with these settings of B.

    >>> mixed({"x": {"y": 1}}, [Setting(("x", "y"), 1, ABSENT), Setting(("z", "w"), ABSENT, 2)])
    {'x': {}, 'z': {'w': 2}}
    """
    found: dict[str, Any] = copy.deepcopy(dict(a))
    for setting in chosen:
        node = found
        for name in setting.path[:-1]:
            inner = node.get(name)
            node[name] = node = inner if isinstance(inner, dict) else {}
        if setting.b is ABSENT:
            node.pop(setting.path[-1], None)
        else:
            node[setting.path[-1]] = setting.b
    return found


class Side(StrEnum):
    """What a probe is like."""

    A = "like A"
    B = "like B"
    UNCLEAR = "unclear"


Probe = frozenset[int]
"""Places of the settings that a probe has from B."""

Sides = Callable[[Probe], Side | None]
"""What a probe is like; None = it has not run yet."""


@dataclass(frozen=True)
class Found:
    """suspected: what is left of the settings; done when wanted is empty. wanted: probes to run next, all at once."""

    suspected: tuple[int, ...]
    wanted: tuple[Probe, ...] = ()


def search(count: int, sides: Sides) -> Found:
    """How far the probes lead among `count` settings, all of which together are like B and none of them like A."""
    left, parts = tuple(range(count)), 2
    while len(left) > 1:
        pieces = _cut(left, parts)
        tried = [pieces]
        if parts > 2:  # of two pieces each is what is left without the other
            tried.append([tuple(place for place in left if place not in piece) for piece in pieces])
        smaller = None
        for level, group in enumerate(tried):
            smaller, wanted = _first_like_b(group, sides)
            if wanted:
                return Found(left, wanted)
            if smaller is not None:
                parts = 2 if level == 0 else max(parts - 1, 2)
                break
        if smaller is not None:
            left = smaller
        elif parts >= len(left):
            break
        else:
            parts = min(2 * parts, len(left))
    return Found(left)


def _cut(places: Sequence[int], parts: int) -> list[tuple[int, ...]]:
    bounds = [len(places) * part // parts for part in range(parts + 1)]
    return [tuple(places[a:b]) for a, b in itertools.pairwise(bounds)]


def _first_like_b(group: Sequence[tuple[int, ...]], sides: Sides) -> tuple[tuple[int, ...] | None, tuple[Probe, ...]]:
    """The first of them that is like B, if all before it are known; else those that have not run yet."""
    unknown: list[Probe] = []
    for piece in group:
        side = sides(frozenset(piece))
        if side is None:
            unknown.append(frozenset(piece))
        elif side is Side.B and not unknown:
            return piece, ()
    return None, tuple(unknown)


@dataclass(frozen=True)
class Judged:
    """A probe. side: None = it has not run, or not to its end. share: of the difference in speed, on a logarithmic scale."""

    side: Side | None
    why: str
    share: float | None = None


ENDED = frozenset({"finished", "failed", "died", "overflow", "stalled"})
"""States of which a probe says something; a cancelled or preempted one is continued."""


def by_end(a: Told, b: Told) -> bool:
    """Whether one of the two finished and the other ended by itself before: then that is the difference."""
    return {a["state"], b["state"]} <= ENDED and bool(a["state"] == "finished") is not bool(b["state"] == "finished")


def difference(a: Told, b: Told) -> Gain | None:
    """Speed of B over A's, if it differs beyond the noise."""
    found = gain(a, b)
    return None if found is None or found.low is None or found.high is None or found.low <= 1 <= found.high else found


def judge(told: Told, a: Told, whole: Gain) -> Judged:
    """A finished probe by its speed: on which side of the middle between A and B it is, beyond the noise."""
    found = gain(a, told)
    if found is None:
        return Judged(Side.UNCLEAR, "it measured nothing")
    share = math.log(found.value) / math.log(whole.value)
    if found.low is None or found.high is None:
        return Judged(Side.UNCLEAR, "too few steps to tell", share)
    middle = math.sqrt(whole.value)
    faster = Side.B if whole.value > 1 else Side.A
    slower = Side.A if faster is Side.B else Side.B
    if found.low > middle:
        return Judged(faster, f"{found.value:.3g} times A's speed", share)
    if found.high < middle:
        return Judged(slower, f"{found.value:.3g} times A's speed", share)
    return Judged(Side.UNCLEAR, f"{found.value:.3g} times A's speed, in the middle within the noise", share)


def judge_end(told: Told, a: Told) -> Judged:
    """An ended probe by whether it finished."""
    same = (told["state"] == "finished") == (a["state"] == "finished")
    return Judged(Side.A if same else Side.B, str(told["state"]))


Shown = Mapping[str, tuple[str, str]]
"""A setting's key -> its two values as text, secrets hidden."""


@dataclass(frozen=True)
class Tried:
    """A probe of a search. run: its name, "" where nothing can run."""

    places: Probe
    run: str
    judged: Judged


def bisect_json(found: Found, differing: Sequence[Setting], shown: Shown, tried: Sequence[Tried]) -> dict[str, Any]:
    """For scripts."""
    return {
        "done": not found.wanted,
        "settings": [_shown_json(differing[place], shown) for place in range(len(differing))],
        "suspected": [differing[place].key for place in found.suspected],
        "probes": [
            {
                "settings": [differing[place].key for place in sorted(one.places)],
                "run": one.run,
                "side": None if one.judged.side is None else str(one.judged.side),
                "why": one.judged.why,
                "share": one.judged.share,
            }
            for one in tried
        ],
    }


def _shown_json(setting: Setting, shown: Shown) -> dict[str, str]:
    a, b = shown.get(setting.key, ("", ""))
    return {"key": setting.key, "a": a, "b": b}


def bisect_text(found: Found, differing: Sequence[Setting], shown: Shown, tried: Sequence[Tried]) -> str:
    """The probes, and what they lead to."""
    lines = [f"{len(differing)} settings differ" if len(differing) > 1 else "one setting differs"]
    for one in tried:
        share = "" if one.judged.share is None else f" ({one.judged.share:.0%} of the difference)"
        side = "not known yet" if one.judged.side is None else str(one.judged.side)
        names = ", ".join(differing[place].key for place in sorted(one.places))
        lines.append(f"  {side}: A with B's {names}: {one.judged.why}{share}{f' [{one.run}]' if one.run else ''}")
    suspects = [differing[place].key for place in found.suspected]
    told = [f"  {key}: {' -> '.join(shown.get(key, ('', '')))}" for key in suspects]
    if found.wanted:
        return "\n".join([*lines, f"among these {len(suspects)}:", *told])
    if len(suspects) == 1:
        lines.append("this setting makes the difference:")
    else:
        lines.append(f"these {len(suspects)} make the difference together, and no tried part of them does alone:")
    lines += told
    unclear = [one for one in tried if one.judged.side is Side.UNCLEAR]
    if unclear and len(suspects) > 1:
        lines.append(
            f"{len(unclear)} probe{'s' if len(unclear) > 1 else ''} could not be judged, so there may be fewer: see above; "
            "what the noise hides, longer runs tell (trainer.steps)"
        )
    return "\n".join(lines)
