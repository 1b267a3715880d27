"""Several experiments at once: new runs of one shape in one submission where the target has such, all others one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.issue import Refused
from launcher.node.record import write_json
from launcher.render.folder import Bundle, verify
from launcher.runs import chains, starting, store
from launcher.runs.attempts import State, handle_file
from launcher.runs.starting import Submitted, as_what
from launcher.runs.store import Run
from launcher.targets import base
from launcher.targets.base import NOW, Batch, Conditions

if TYPE_CHECKING:
    from launcher.plan.plan import Plan

Point = tuple["Plan", Bundle]


@dataclass
class Sweep:
    """What is the same for all points. root: the folder of runs. environ, provenance, conditions: as for starting.submit.

    at_once: how many runs of one submission may run at the same time, None = any number. say: for a line about each
    submission of several.
    """

    root: Path
    environ: Mapping[str, str]
    provenance: Mapping[str, Any]
    conditions: Conditions = NOW
    at_once: int | None = None
    say: Callable[[str], None] = field(default=print)

    def submit(self, points: Sequence[Point]) -> Iterator[tuple[int, Submitted]]:
        """Start each point's run, or find it: its place among the points and what came of it, as soon as it is known.

        Raises as starting.submit does; what was submitted before stays.
        """
        left = set(range(len(points)))
        for batch, places in self._groups(points):
            for place, submitted in self._start_together(batch, [(place, points[place]) for place in places]):
                left.discard(place)
                yield place, submitted
        for place in sorted(left):
            plan, bundle = points[place]
            yield (
                place,
                starting.submit(self.root, bundle, plan, self.environ, self.provenance, conditions=self.conditions),
            )

    def _groups(self, points: Sequence[Point]) -> Iterator[tuple[Batch, list[int]]]:
        """Places of new runs of one shape, two or more. `--singleton` runs wait for each other: each is a job of its own."""
        found: dict[object, tuple[Batch, list[int]]] = {}
        seen: set[str] = set()
        for place, (plan, bundle) in enumerate(points):
            kind = plan.experiment.target.kind
            batch = None if self.conditions.singleton or bundle.name in seen else base.batch(kind)
            seen.add(bundle.name)
            if batch is not None and self._is_new(bundle):
                found.setdefault((kind, batch.shape(bundle)), (batch, []))[1].append(place)
        for batch, places in found.values():
            most = batch.most() if len(places) > 1 else 0
            groups = [places[first : first + most] for first in range(0, len(places), most)] if most > 1 else []
            yield from ((batch, group) for group in groups if len(group) > 1)

    def _is_new(self, bundle: Bundle) -> bool:
        folder = self.root / bundle.name
        return not folder.exists() or not store.load(folder).layout.attempt_numbers()

    def _start_together(self, batch: Batch, points: Sequence[tuple[int, Point]]) -> Iterator[tuple[int, Submitted]]:
        runs: dict[int, Run] = {}
        for place, (plan, bundle) in points:
            run, _ = starting.made(
                self.root,
                bundle,
                plan,
                environ=self.environ,
                provenance=self.provenance,
                conditions=self.conditions,
            )
            issues = verify(run.layout.bundle.path)
            if issues:
                raise Refused(*issues)
            runs[place] = run
        with ExitStack() as locks:
            for run in sorted(
                runs.values(), key=lambda run: run.name
            ):  # in one order, so that no two sweeps wait crosswise
                locks.enter_context(store.locked(run))
            new = {place: run for place, run in runs.items() if not run.layout.attempt_numbers()}
            if len(new) < 2:  # somebody else was faster
                return
            script, handles = self._submitted(batch, list(new.values()))
        self.say(f"{len(new)} runs of one shape as one job array: {script}")
        for (place, run), handle in zip(new.items(), handles, strict=True):
            yield place, Submitted(run, State.STARTING, 1, f"{run.name}: {as_what(handle, self.conditions)}", 0)

    def _submitted(self, batch: Batch, runs: Sequence[Run]) -> tuple[Path, list[base.Handle]]:
        """Their first attempts, started and noted; without a trace when that is refused."""
        attempts = [run.layout.attempt(1) for run in runs]
        for attempt in attempts:
            attempt.path.mkdir(parents=True)
        try:
            script, handles = batch.start(self.root, [run.layout for run in runs], self.conditions, self.at_once)
        except BaseException:
            for attempt in attempts:
                attempt.path.rmdir()
            raise
        for attempt, handle in zip(attempts, handles, strict=True):
            write_json(handle_file(attempt), chains.noted(handle, self.conditions))
        return script, handles
