"""The rungs of the ladder: the article's optimisations as words, and what each means over an experiment. Pure but for the table."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.config.groups import CONF_DIR
from launcher.issue import Issue, Refused, Severity
from launcher.plan.plan import Plan
from launcher.suggest import suggest

TABLE = Path(__file__).resolve().parent.parent / "data" / "ladder.toml"
OWN = "ladder.toml"
"""The name of a user's own ladder in a folder of $LAUNCHER_CONF."""

OVER = "MEMORY_OVER"
"""plan's word for an experiment whose step needs more memory than there is, by more than the estimate's error."""

Planned = Callable[[Sequence[str]], Plan]
"""Words -> plan. Raises Refused: they compose none."""


@dataclass(frozen=True)
class Rung:
    """A row of ladder.toml, which says what the fields are."""

    name: str
    words: tuple[str, ...]
    adds: str
    source: str
    predicted: bool = True
    platform: str = ""
    absent: str = ""


@dataclass(frozen=True)
class Stage:
    """A rung over an experiment. words: all that is typed. plan: None where there is none. left_out: why; "" = it can run."""

    rung: Rung
    words: tuple[str, ...]
    plan: Plan | None
    left_out: str = ""


def read(path: Sequence[Path]) -> tuple[Rung, ...]:
    """The ladder: the first ladder.toml on the path of configs, else the launcher's. Raises Refused: it is not right."""
    own = [folder / OWN for folder in path if folder != CONF_DIR and (folder / OWN).is_file()]
    file = own[0] if own else TABLE
    try:
        rows = tomllib.loads(file.read_text(encoding="utf-8")).get("rung", [])
        issues = [issue for number, row in enumerate(rows, 1) for issue in _wrong(row, f"{file}, rung {number}")]
        names = [row.get("name") for row in rows if isinstance(row, dict)]
    except (OSError, ValueError, TypeError) as error:
        raise Refused(_issue(f"{file} cannot be read: {error}", f"see {TABLE} for its form")) from error
    issues += [
        _issue(f"{file} has the rung {name} {names.count(name)} times", "give each another name")
        for name in dict.fromkeys(names)
        if names.count(name) > 1
    ]
    if issues or not rows:
        raise Refused(*(issues or [_issue(f"{file} holds no [[rung]]", f"see {TABLE} for its form")]))
    return tuple(Rung(**{**row, "words": tuple(row["words"])}) for row in rows)


def _wrong(row: Any, where: str) -> Iterator[Issue]:
    fields = {field.name: field for field in dataclasses.fields(Rung)}
    if not isinstance(row, dict):
        yield _issue(f"{where} is no table", "write it below a line [[rung]]")
        return
    for key in fields.keys() - row.keys():
        if fields[key].default is dataclasses.MISSING:
            yield _issue(f"{where} has no `{key}`", f"every rung has {', '.join(fields)}")
    for key in row.keys() - fields.keys():
        yield _issue(f"{where} has `{key}`", f"there are: {', '.join(fields)}")
    words = row.get("words", [])
    if not isinstance(words, list) or not all(isinstance(word, str) and "=" in word for word in words):
        yield _issue(f"{where}: words = {words!r}, wanted a list of overrides", 'as in words = ["moe=te"]')


def _issue(message: str, hint: str) -> Issue:
    return Issue("LADDER", Severity.ERROR, "", message, hint)


def between(rungs: Sequence[Rung], first: str | None, last: str | None) -> tuple[int, int]:
    """Places [first, last] of the named rungs. Raises Refused: there is no such rung, or the last lies below the first."""
    names = [rung.name for rung in rungs]
    for option, name in (("--from", first), ("--to", last)):
        if name is not None and name not in names:
            near = suggest(name, names)
            hint = f"did you mean {' or '.join(near)}? " if near else ""
            raise Refused(_issue(f"{option} {name}: there is no such rung", f"{hint}There are: {', '.join(names)}"))
    low, high = names.index(first) if first else 0, names.index(last) if last else len(names) - 1
    if low > high:
        raise Refused(_issue(f"--to {last} lies below --from {first}", f"the order is: {', '.join(names)}"))
    return low, high


def key_of(word: str) -> str:
    """What an override sets: `+exp=a` -> exp."""
    return word.lstrip("+~").partition("=")[0]


def stages(rungs: Sequence[Rung], words: Sequence[str], planned: Planned) -> list[Stage]:
    """Each rung over the experiment of these words, which win over the rungs' own.

    A rung that is left out because it cannot be composed, or is not sound, leaves no words to those above it. Raises Refused:
    the words alone compose no experiment.
    """
    own = {key_of(word) for word in words}
    name = planned(words).experiment.name
    kept: dict[str, str] = {}
    found: list[Stage] = []
    before: Plan | None = None
    for rung in rungs:
        tried = {**kept, **{key_of(word): word for word in rung.words if key_of(word) not in own}}
        typed = (*words, *tried.values())
        if "name" not in own:
            typed = (*typed, f"name={name}_{rung.name}")
        plan, why = _judged(rung, typed, planned, before)
        found.append(Stage(rung, typed, plan, why))
        if plan is not None and not plan.errors:
            kept, before = tried, plan
    return found


def _judged(rung: Rung, words: Sequence[str], planned: Planned, before: Plan | None) -> tuple[Plan | None, str]:
    """The plan of a rung, and why it is left out."""
    if rung.absent:
        return None, rung.absent
    try:
        plan = planned(words)
    except Refused as refused:
        return None, _told(refused.issues)
    if plan.errors:
        return plan, _told(plan.errors)
    here = plan.experiment.hardware.platform
    if rung.platform and rung.platform != here:
        return None, f"it is for {rung.platform}, and this is {here}"
    if before is not None and _asked(plan) == _asked(before):
        return plan, "it changes nothing here"
    return plan, _told([issue for issue in plan.issues if issue.code == OVER])


def _told(issues: Sequence[Issue]) -> str:
    more = f" (and {len(issues) - 1} more)" if len(issues) > 1 else ""
    return f"{issues[0].message}{more}" if issues else ""


def _asked(plan: Plan) -> Mapping[str, Any]:
    asked = dataclasses.asdict(plan.experiment)
    return {key: value for key, value in asked.items() if key not in ("name", "description")}
