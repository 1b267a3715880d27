"""Whether the versions of a GPU stack fit together: what was seen, judged by the rules of launcher/data/gpu_stack.toml. Pure."""

from __future__ import annotations

import dataclasses
import functools
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.config.tables import users_rows
from launcher.issue import Issue, Severity
from launcher.preflight.finding import Finding

TABLE = Path(__file__).resolve().parent.parent / "data" / "gpu_stack.toml"

LEVELS = {"wrong": "WRONG", "careful": "careful", "absent": ""}
"""Level of a rule -> the mark of a finding that breaks it. Only "wrong" makes `doctor` fail."""

Range = Sequence[str]
"""[first version, first that is out]; [] = any."""


@dataclass(frozen=True)
class Thing:
    """What was seen of one part of the stack. version: None = it is not there, or (`error`) does not work. where: its file."""

    version: str | None = None
    where: str = ""
    error: str = ""


@dataclass(frozen=True)
class Kind:
    """A part of the stack as the table describes it (see there)."""

    says: str
    package: tuple[str, ...] = ()
    quiet: bool = False


@dataclass(frozen=True)
class Rule:
    """One row of the table; what the fields mean stands at its head."""

    what: str
    level: str
    needed_for: str
    why: str
    cure: str
    source: str
    when: Mapping[str, Range] = field(default_factory=dict)
    minimum: str = ""
    below: str = ""
    excluded: tuple[tuple[str, str], ...] = ()
    equal_to: str = ""
    at_most: str = ""
    parts: int = 0
    present: bool = False


CONDITIONS = ("minimum", "below", "excluded", "equal_to", "at_most", "present")
"""Of these a rule has exactly one."""


def numbers(version: str) -> tuple[int, ...]:
    """The numbers at the head of a version.

    >>> numbers("13.8.2.12"), numbers("2.20.0.dev0"), numbers("580.159.03")
    ((13, 8, 2, 12), (2, 20, 0), (580, 159, 3))
    """
    head = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in head[0].split(".")) if head else ()


def _before(left: str, right: str) -> bool:
    """Whether `left` is lower; numbers that one of them lacks are 0."""
    one, other = numbers(left), numbers(right)
    size = max(len(one), len(other))
    return one + (0,) * (size - len(one)) < other + (0,) * (size - len(other))


def _inside(version: str, first: str, last: str) -> bool:
    """Both ends included; a bound says as much as it has numbers: 13.8.0.5 is 13.8.0."""
    return not _before(version, first) and numbers(version)[: len(numbers(last))] <= numbers(last)


def _in_range(version: str, bounds: Range) -> bool:
    return not bounds or (not _before(version, bounds[0]) and _before(version, bounds[1]))


# ---- the table


def _rule(row: Mapping[str, Any], where: str, known: Mapping[str, Kind]) -> tuple[Rule | None, list[Issue]]:
    said = f"rule {row.get('what', '?')!r}: "
    fields = {f.name for f in dataclasses.fields(Rule)} - {"needed_for"} | {"for"}
    wrong = [f"{said}no field {key!r}" for key in row if key not in fields]
    wrong += [
        f"{said}{key!r} is missing" for key in ("what", "level", "for", "why", "cure", "source") if not row.get(key)
    ]
    if not wrong:
        if len([name for name in CONDITIONS if row.get(name)]) != 1:
            wrong.append(f"{said}exactly one of {', '.join(CONDITIONS)} is wanted")
        if row["level"] not in LEVELS:
            wrong.append(f"{said}level {row['level']!r} is none of {', '.join(LEVELS)}")
        named = [row["what"], row.get("equal_to"), row.get("at_most"), *row.get("when", {})]
        named += re.findall(r"\{(\w+)\}", row["why"] + row["cure"])
        wrong += [f"{said}there is no thing {name!r}" for name in named if name and name not in known]
    if wrong:
        hint = f"the head of {TABLE.name} says what a rule has"
        return None, [Issue("GPU_STACK_RULE", Severity.ERROR, where, line, hint) for line in wrong]
    values = {key: value for key, value in row.items() if key not in ("for", "excluded")}
    excluded = tuple((first, last) for first, last in row.get("excluded", ()))
    return Rule(**values, needed_for=row["for"], excluded=excluded), []


def read(text: str, where: str, known: Mapping[str, Kind] | None = None) -> tuple[tuple[Rule, ...], list[Issue]]:
    """The rules of a file, and what is wrong in it. known: the things; None = those of the launcher's own table."""
    try:
        rows = tomllib.loads(text).get("rule", [])
    except tomllib.TOMLDecodeError as error:
        return (), [Issue("GPU_STACK_RULE", Severity.ERROR, where, f"not TOML: {error}", "see toml.io")]
    found = [_rule(row, where, kinds() if known is None else known) for row in rows]
    return tuple(rule for rule, _ in found if rule is not None), [issue for _, wrong in found for issue in wrong]


@functools.cache
def kinds() -> Mapping[str, Kind]:
    """Every thing that a rule may speak of."""
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))["thing"]
    return {
        name: Kind(row["says"], tuple(row.get("package", ())), bool(row.get("quiet", False)))
        for name, row in table.items()
    }


@functools.cache
def own_rules() -> tuple[Rule, ...]:
    """The launcher's rules. Raises ValueError: its table is broken."""
    rules, issues = read(TABLE.read_text(encoding="utf-8"), TABLE.name)
    if issues:
        raise ValueError("; ".join(issue.message for issue in issues))
    return rules


def all_rules() -> tuple[Rule, ...]:
    """The launcher's and the user's. Raises Refused: one of the user's is wrong."""
    return (*own_rules(), *users_rows(TABLE.name, read))


# ---- what was seen


def from_packages(packages: Mapping[str, str], compute_capability: str = "") -> dict[str, Thing]:
    """A stack as a list of distributions (name -> version) describes it. compute_capability: "9.0" for Hopper, "" = not known.

    Only what has a version is in it, so whether a thing is missing is not judged.
    """
    plain = {name.lower().replace("_", "-"): version for name, version in packages.items()}
    found = {}
    for name, kind in kinds().items():
        version = next((plain[p.replace("_", "-")] for p in kind.package if p.replace("_", "-") in plain), None)
        if version is not None:
            found[name] = Thing(version)
    if compute_capability:
        found["compute_capability"] = Thing(compute_capability)
    return found


def _binding(packages: Mapping[str, str], seen: Mapping[str, Any]) -> dict[str, Thing]:
    """Transformer Engine as it was imported; nothing of it where it has no JAX binding. Built from source, it is one distribution."""
    told = seen.get("binding") or {}
    version = packages.get("transformer_engine_jax") or (packages.get("transformer_engine") if told else None)
    if version is None:
        return {}
    if "path" not in told:
        return {"te_jax": Thing(version), "binding": Thing(None, "", told.get("error", ""))}
    files = seen.get("nccl_ep") or {}
    return {
        "te_jax": Thing(version),
        "binding": Thing(version, told["path"]),
        "borrows": Thing(version if told.get("borrows") else None, "", told.get("borrows_error", "")),
        "nccl_ep": Thing(version if files.get("path") else None, files.get("path", "")),
    }


def from_probe(seen: Mapping[str, Any], died: Mapping[str, str] | None = None) -> dict[str, Thing]:
    """A stack as gpu_probe.py saw it. died: part -> how it killed the probe."""
    packages: Mapping[str, str] = (seen.get("python") or {}).get("packages", {})
    found = {**{name: Thing() for name in kinds()}, **from_packages(packages)}
    for name in ("nccl", "cublaslt", "cudnn", "cudnn_unversioned", "cuda_driver", "nvcc", "nccl_headers"):
        told = seen.get(name) or {}
        found[name] = Thing(told.get("version"), told.get("path", ""), told.get("error", ""))
    gpus = seen.get("gpus")
    if isinstance(gpus, list) and gpus:
        found["gpu"] = Thing(str(len(gpus)))
        found["compute_capability"] = Thing(min((gpu["compute_capability"] for gpu in gpus), key=numbers))
    found |= _binding(packages, seen)
    for name, files in (seen.get("copies") or {}).items():
        thing = name if name == "cudnn_folders" else f"{name}_copies"
        if thing in found and isinstance(files, list) and files:
            found[thing] = Thing(str(len(files)), " and ".join(files))
    for part, how in (died or {}).items():
        if part in found:
            found[part] = Thing(None, "", f"looking at it killed the process: {how}")
    return found


# ---- the judgement


def holds(rule: Rule, stack: Mapping[str, Thing]) -> bool:
    """Whether a rule is for this stack: every thing of `when` is there, in its range."""
    for name, bounds in rule.when.items():
        version = stack[name].version if name in stack else None
        if version is None or not _in_range(version, bounds):
            return False
    return True


def _other(rule: Rule, stack: Mapping[str, Thing]) -> str | None:
    name = rule.equal_to or rule.at_most
    return stack[name].version if name in stack else None


def fits(rule: Rule, stack: Mapping[str, Thing]) -> bool:
    """Whether what was seen of a thing is as the rule wants it; a thing that it is to be compared with may be unknown."""
    version = stack[rule.what].version
    if version is None:
        return False
    other = _other(rule, stack)
    cut = slice(rule.parts or None)
    if rule.equal_to and other is not None:
        return numbers(version)[cut] == numbers(other)[cut]
    if rule.at_most and other is not None:
        return numbers(version)[cut] <= numbers(other)[cut]
    below = not rule.below or _before(version, rule.below)
    enough = not rule.minimum or not _before(version, rule.minimum)
    return below and enough and not any(_inside(version, first, last) for first, last in rule.excluded)


def _wanted(rule: Rule, stack: Mapping[str, Thing]) -> str:
    if rule.minimum:
        return f"{rule.minimum} or newer"
    if rule.below:
        return f"below {rule.below}"
    if rule.excluded:
        return "another than " + ", ".join(
            first if first == last else f"{first} to {last}" for first, last in rule.excluded
        )
    other = _other(rule, stack)
    if rule.equal_to and other:
        return f"{other}, as {kinds()[rule.equal_to].says}"
    if rule.at_most and other:
        return f"at most that of {kinds()[rule.at_most].says}, {other}"
    return ""


def filled(text: str, stack: Mapping[str, Thing]) -> str:
    """{nccl} -> the version that was seen of it, "?" where none was."""
    return re.sub(r"\{(\w+)\}", lambda m: (stack.get(m[1]) or Thing()).version or "?", text)


def _broken(rule: Rule, stack: Mapping[str, Thing]) -> Finding:
    thing = stack[rule.what]
    wanted = _wanted(rule, stack)
    said = thing.version or thing.error or "not found"
    seen = (
        said
        + (f", wanted: {wanted}" if wanted else "")
        + (f" ({thing.where})" if thing.where and thing.version else "")
    )
    return Finding(
        kinds()[rule.what].says,
        False,
        seen,
        filled(rule.cure, stack),
        optional=rule.level != "wrong",
        what_for=rule.needed_for,
        why=filled(rule.why, stack),
        mark=LEVELS[rule.level],
    )


def judge(stack: Mapping[str, Thing], rules: Sequence[Rule] | None = None) -> list[Finding]:
    """Each thing that a rule is for: a line when all fit, a finding for each one that does not. rules: None = the launcher's own.

    A thing that is not there at all is told once, by the first rule that wants it; one that the stack does not name is not judged.
    """
    found: list[Finding] = []
    applied = [rule for rule in (own_rules() if rules is None else rules) if rule.what in stack and holds(rule, stack)]
    for name, kind in kinds().items():
        mine = [rule for rule in applied if rule.what == name]
        broken = [rule for rule in mine if not fits(rule, stack)]
        if broken and stack[name].version is None:
            broken = broken[:1]
        # the highest of several minima says it all
        highest = max((numbers(rule.minimum) for rule in broken), default=())
        broken = [rule for rule in broken if not rule.minimum or numbers(rule.minimum) == highest]
        found += [_broken(rule, stack) for rule in broken]
        if mine and not broken and not kind.quiet:
            thing = stack[name]
            found.append(Finding(kind.says, True, f"{thing.version}" + (f" ({thing.where})" if thing.where else "")))
    return found
