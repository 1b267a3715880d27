"""Fit the constants of `plan`'s numbers: `python -m tools.fit_prediction [--write]`.

Throughput: six numbers, to the newest published step of each configuration but the article's (benchmarks/published.py). Memory:
what is alive at the peak, to XLA's buffer assignments (data/prediction/xla_memory.csv). Without --write the result is only
printed. Needs scipy (it comes with jax).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy
from scipy.optimize import least_squares

from benchmarks.compiled import Compiled, rows
from benchmarks.published import Point, newest, points
from launcher.plan import memory, throughput

START = {
    "dense_fp8": 0.55,
    "dense_bf16": 0.65,
    "dense_fp4": 0.4,
    "grouped": 0.6,
    "hbm_passes": 6.0,
    "moe_launch": 400e-6,
}
LOWEST = {
    "dense_fp8": 0.35,
    "dense_bf16": 0.5,
    "dense_fp4": 0.2,
    "grouped": 0.3,
    "hbm_passes": 2.0,
    "moe_launch": 20e-6,
}
HIGHEST = {
    "dense_fp8": 0.75,
    "dense_bf16": 0.8,
    "dense_fp4": 0.6,
    "grouped": 1.0,
    "hbm_passes": 30.0,
    "moe_launch": 600e-6,
}
"""Where the search starts and what is physically sensible: shares of a peak, passes over HBM, seconds."""

PULL = 0.1
"""Weight of staying near the start, in logarithms: rows of one kind would else decide a number that they hardly see."""

FACTORS = {"gradients": (1.0, 2.5), "layer": (4.0, 10.0), "rows": (2.0, 8.0), "inner": (2.0, 8.0), "logits": (4.0, 20.0),
           "masks": (3.0, 20.0), "tokens": (2.0, 20.0), "ragged": (3.0, 10.0)}  # fmt: skip
"""Start and upper bound of each factor of the memory."""

QUANTILES = (0.05, 0.95)


def fit_throughput(points: Sequence[Point]) -> dict[str, float]:
    """The six numbers, by robust least squares on log(predicted / measured)."""
    names, fixed = list(START), throughput.constants()["fixed"]
    start = numpy.log([START[n] for n in names])

    def errors(p: Any) -> list[float]:
        given = {**fixed, **dict(zip(names, numpy.exp(p), strict=True))}
        off = [math.log(sum(throughput.terms(r.work, r.hardware, given).values()) / r.seconds) for r in points]
        return off + list(PULL * (p - start))

    bounds = (numpy.log([LOWEST[n] for n in names]), numpy.log([HIGHEST[n] for n in names]))
    found = least_squares(errors, start, bounds=bounds, loss="soft_l1", f_scale=0.1)
    return {name: float(f"{value:.3g}") for name, value in zip(names, numpy.exp(found.x), strict=True)}


def ratios(points: Sequence[Point], fitted: Mapping[str, float]) -> list[float]:
    """Measured / predicted time of each row."""
    given = {**throughput.constants()["fixed"], **fitted}
    return [r.seconds / sum(throughput.terms(r.work, r.hardware, given).values()) for r in points]


def left_out(points: Sequence[Point]) -> list[tuple[Point, float]]:
    """Measured / predicted of each row, by constants fitted without any row of its model on its GPU."""
    found = []
    for cell in sorted({(p.row["model"], p.row["gpu"]) for p in points}):
        inside = [p for p in points if (p.row["model"], p.row["gpu"]) == cell]
        fitted = fit_throughput([p for p in points if p not in inside])
        found += list(zip(inside, ratios(inside, fitted), strict=True))
    return found


def band(values: Sequence[float]) -> tuple[float, float]:
    """5 % and 95 % of measured / predicted, each taken outwards to the next row, as few rows ask for."""
    low = numpy.quantile(values, QUANTILES[0], method="lower")
    high = numpy.quantile(values, QUANTILES[1], method="higher")
    return math.floor(100 * low) / 100, math.ceil(100 * high) / 100


def _peak(row: Compiled, factors: Sequence[float]) -> float:
    estimate, fitted = row.estimate, dict(zip(FACTORS, factors, strict=True))
    held = memory.held(row.case, {**memory.constants()["factors"], **fitted})
    return estimate.state_bytes + estimate.kept_bytes + sum(held.values())


def fit_memory(compiled: Sequence[Compiled]) -> dict[str, float]:
    """The factors, by least fourth powers of the relative error: the worst row counts most."""
    start = numpy.array([s for s, _ in FACTORS.values()])

    def errors(p: Any) -> list[float]:
        off = [_peak(row, p) / row.device - 1 for row in compiled if row.device]
        return [30 * e * abs(e) for e in off] + list(0.0005 * (p - start))

    found = least_squares(errors, start, bounds=([0.0] * len(start), [most for _, most in FACTORS.values()]))
    return {name: round(float(value), 2) for name, value in zip(FACTORS, found.x, strict=True)}


def without(compiled: Sequence[Compiled], chosen: Callable[[Compiled], bool]) -> list[tuple[str, float]]:
    """Relative error of the chosen rows when the factors are fitted to the others."""
    factors = list(fit_memory([row for row in compiled if not chosen(row)]).values())
    return [(row.name, _peak(row, factors) / row.device - 1) for row in compiled if chosen(row) and row.device]


def _write(name: str, section: str, values: Mapping[str, float]) -> None:
    """Replace the values of one section of a data file; its comments stay."""
    file, inside, lines = memory.DATA / name, "", []
    for line in file.read_text(encoding="utf-8").splitlines():
        inside = line.strip("[]") if line.startswith("[") else inside
        key = line.partition(" =")[0]
        lines.append(f"{key} = {values[key]}" if inside == section and key in values else line)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    """Fit, print, and with --write put the constants into their data files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the constants into launcher/data/prediction/*.toml")
    options = parser.parse_args()
    fitted_to = [p for p in newest(points()) if not p.article]
    constants, unseen = fit_throughput(fitted_to), left_out(fitted_to)
    low, high = band([ratio for _, ratio in unseen])
    compiled = list(rows())
    factors = fit_memory(compiled)
    print(f"throughput, {len(fitted_to)} rows: {constants}, band {low} to {high}")
    print(f"memory, {len(compiled)} compilations: {factors}")
    for model in sorted({row.model for row in compiled}):
        told = ", ".join(
            f"{name} {100 * off:+.1f} %" for name, off in without(compiled, lambda row, m=model: row.model == m)
        )
        print(f"  without {model}: {told}")
    if options.write:
        _write("throughput.toml", "fitted", constants)
        _write("throughput.toml", "band", {"low": low, "high": high})
        _write("memory.toml", "factors", factors)


if __name__ == "__main__":
    main()
