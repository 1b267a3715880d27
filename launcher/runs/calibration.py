"""What runs measured against what their plans expected, by cluster, container and class of models; a file of the user's.

It lies in $LAUNCHER_CALIBRATION, else in $XDG_CONFIG_HOME/launcher/calibration.json (default ~/.config). Runs that were learned from
stay in it when their folders are gone. `plan` multiplies its expected time by the median; bundles hold no such number.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.plan.numbers import Kind

VARIABLE = "LAUNCHER_CALIBRATION"


@dataclass(frozen=True)
class Measured:
    """One run: seconds of a step, as measured and as its plan expected."""

    run: str
    kind: Kind
    measured: float
    expected: float

    @property
    def factor(self) -> float:
        """Measured / expected."""
        return self.measured / self.expected


@dataclass(frozen=True)
class Calibration:
    """Kind -> run -> measured / expected."""

    runs: Mapping[Kind, Mapping[str, float]]

    def of(self, kind: Kind) -> tuple[float, int] | None:
        """The median factor and the number of runs behind it; None when nothing of this kind was measured."""
        known = self.runs.get(kind)
        return (statistics.median(known.values()), len(known)) if known else None


def file() -> Path:
    """Where the calibration is kept."""
    asked = os.environ.get(VARIABLE)
    if asked:
        return Path(asked).expanduser()
    home = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(home).expanduser() / "launcher" / "calibration.json"


def load(path: Path) -> Calibration:
    """The calibration of a file; empty when there is none. RunsError for a file that is not one."""
    if not path.exists():
        return Calibration({})
    # Here and not above: `plan` asks every time, and mostly there is no file.
    from launcher.runs.store import Damaged, RunsError, read_object_if_there

    try:
        found = read_object_if_there(path)
        runs: dict[Kind, dict[str, float]] = {}
        for entry in (found or {}).get("kinds", []):
            kind = Kind(entry["cluster"], entry["container"], entry["model"])
            runs[kind] = {str(name): float(factor) for name, factor in entry["runs"].items()}
    except (Damaged, KeyError, TypeError, ValueError, AttributeError) as error:
        why = str(error) if isinstance(error, Damaged) else f"{path} is no calibration: {error!r}"
        hint = f"{'remove it and calibrate again, or ' if path.is_file() else ''}name another file with {VARIABLE}"
        raise RunsError(why, hint, "CALIBRATION") from error
    return Calibration(runs)


def save(path: Path, calibration: Calibration) -> None:
    """Write the file in one step."""
    kinds = [
        {"cluster": kind.cluster, "container": kind.container, "model": kind.model, "runs": dict(sorted(runs.items()))}
        for kind, runs in sorted(
            calibration.runs.items(), key=lambda item: (item[0].cluster, item[0].container, item[0].model)
        )
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    fresh.write_text(
        json.dumps({"measured_over_expected_step_time": True, "kinds": kinds}, indent=2) + "\n", encoding="utf-8"
    )
    fresh.replace(path)


def learned(known: Calibration, found: Iterable[Measured]) -> Calibration:
    """The calibration with these runs in it."""
    runs = {kind: dict(inside) for kind, inside in known.runs.items()}
    for one in found:
        runs.setdefault(one.kind, {})[one.run] = float(f"{one.factor:.4g}")
    return Calibration(runs)
