"""The runs of a bisection: what differs between two, which probes there are, and what they say."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from omegaconf.errors import OmegaConfBaseException

from launcher.issue import Issue, Refused, Severity
from launcher.plan.plan import Plan, make
from launcher.render.bundle import Bundle, render
from launcher.render.experiment import load
from launcher.report import bisect
from launcher.report.bisect import ENDED, Found, Judged, Probe, Side, Tried
from launcher.report.gains import Gain, gain
from launcher.report.measured import report
from launcher.report.text import as_json
from launcher.runs import store
from launcher.runs.diff import diff

Point = tuple[Plan, Bundle]

SMALL = 0.03
"""A difference in speed that two runs of the same settings may show as well (our choice; the interval knows one run's noise only)."""


class Bisection:
    """Two runs, what differs between them, and what the probes that exist say."""

    def __init__(self, root: Path, a: str, b: str) -> None:
        self.root = root
        self.a, self.b = store.open_run(root, a), store.open_run(root, b)
        self._told_a, told_b = _told(self.a), _told(self.b)
        self._whole: Gain | None = None
        if bisect.by_end(self._told_a, told_b):
            self.verdict = f"{told_b['state']}, where a is {self._told_a['state']}"
        else:
            self._whole = bisect.difference(self._told_a, told_b)
            self.verdict = _difference_told(self._whole, self._told_a, told_b)
        self._base = _experiment(self.a)
        self.differing: list[bisect.Setting] = bisect.settings(self._base, _experiment(self.b))
        told = diff(self.a.folder, self.b.folder)["differences"]
        self.shown = {each["key"]: (each["a"], each["b"]) for each in told if each["section"] == "experiment"}
        self.beside = [
            f"differs too, and is no setting: {each['key']}: {each['a']} -> {each['b']}"
            for each in told
            if each["section"] in ("versions", "files")
        ]
        if not self.differing:
            raise Refused(_issue(f"no setting differs between {self.a.name} and {self.b.name}", "see `compare A B`"))
        self._points: dict[Probe, Point | str] = {}
        self._known: dict[Probe, Tried] = {}

    def found(self) -> Found:
        """How far the runs that there are lead."""
        self._known.clear()
        return bisect.search(len(self.differing), lambda probe: self._try(probe).judged.side)

    def tried(self) -> list[Tried]:
        """What the last search asked for."""
        return list(self._known.values())

    def names(self, probe: Probe) -> str:
        """The settings of a probe that are B's."""
        return ", ".join(self.differing[place].key for place in sorted(probe))

    def point(self, probe: Probe) -> Point | str:
        """What would run, or why nothing can."""
        if probe not in self._points:
            self._points[probe] = self._made(probe)
        return self._points[probe]

    def _made(self, probe: Probe) -> Point | str:
        asked = bisect.mixed(self._base, [self.differing[place] for place in sorted(probe)])
        asked["name"] = f"{self._base.get('name')}_bisect"
        try:
            plan = make(load(yaml.safe_dump(asked)))
        except OmegaConfBaseException as error:
            return f"it is no experiment: {error}"
        return f"it cannot run: {plan.errors[0].message}" if plan.errors else (plan, render(plan))

    def _try(self, probe: Probe) -> Tried:
        if probe not in self._known:
            run, judged = self.judged(probe)
            self._known[probe] = Tried(probe, run, judged)
        return self._known[probe]

    def judged(self, probe: Probe) -> tuple[str, Judged]:
        """The name of its run, if there is one, and what it says."""
        point = self.point(probe)
        if isinstance(point, str):
            return "", Judged(Side.UNCLEAR, point)
        name = point[1].name
        if not (self.root / name).exists():
            return "", Judged(None, "not run yet")
        told = _told(store.load(self.root / name))
        if told["state"] not in ENDED:
            return name, Judged(None, told["state"])
        if self._whole is None:
            return name, bisect.judge_end(told, self._told_a)
        if told["state"] != "finished":
            return name, Judged(Side.UNCLEAR, told["state"])
        return name, bisect.judge(told, self._told_a, self._whole)


def _told(run: store.Run) -> dict[str, Any]:
    return as_json(report(run))


def _difference_told(whole: Gain | None, a: Mapping[str, Any], b: Mapping[str, Any]) -> str:
    """B's speed in words. Raises Refused: it is that of A, within the noise."""
    if whole is not None:
        doubt = (
            "; so little may be noise between two runs: repeat one with name=NAME"
            if abs(whole.value - 1) < SMALL
            else ""
        )
        return f"{whole.value:.3g} times as fast ({whole.low:.3g} to {whole.high:.3g}){doubt}"
    seen = gain(a, b)
    message = (
        "one of them measured nothing" if seen is None else f"{seen.verdict} (b is {seen.value:.3g} times as fast)"
    )
    raise Refused(
        _issue(f"{a['run']}, {b['run']}: {message}", "there is nothing to find; longer runs (trainer.steps) see more")
    )


def _experiment(run: store.Run) -> dict[str, Any]:
    path = run.layout.bundle.experiment
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise store.Damaged(path, f"cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise store.Damaged(path, "holds no experiment")
    return found


def _issue(message: str, hint: str) -> Issue:
    return Issue("BISECT", Severity.ERROR, "", message, hint)
