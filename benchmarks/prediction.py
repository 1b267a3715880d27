"""How far the predicted step times are off: `python -m benchmarks.prediction`.

Four answers: the article's steps (never fitted; the launcher's own experiments, from the config on), the steps measured by
this project, every other recent row predicted by constants that were fitted without any row of its model on its GPU, and whether
a floor was ever broken. Needs scipy.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmarks import measured
from benchmarks.published import Point, newest, points
from launcher.plan import throughput
from tools.fit_prediction import band, left_out, ratios


def off(ratio: float) -> float:
    """Predicted / measured throughput - 1, from measured / predicted time."""
    return ratio - 1


def mape(found: Sequence[float]) -> float:
    """Mean absolute error of the throughput, in percent."""
    return 100 * statistics.mean(abs(off(ratio)) for ratio in found)


def covered(unseen: Sequence[tuple[Point, float]], never: Sequence[float]) -> float:
    """Share of rows inside the band of the rows of other models and GPUs, in percent.

    Args:
        never: measured / predicted of rows that no fit saw; the band of all others is theirs.
    """
    inside = 0
    for point, ratio in unseen:
        others = [r for p, r in unseen if (p.row["model"], p.row["gpu"]) != (point.row["model"], point.row["gpu"])]
        low, high = band(others)
        inside += low <= ratio <= high
    low, high = band([ratio for _, ratio in unseen])
    inside += sum(low <= ratio <= high for ratio in never)
    return 100 * inside / (len(unseen) + len(never))


def broken(every: Sequence[Point]) -> list[Point]:
    """Rows that are faster than their floor."""
    return [p for p in every if throughput.floor(p.work, p.hardware) > p.seconds]


def line(point: Point, ratio: float) -> str:
    """One row: measured and predicted TFLOPS a GPU."""
    return f"  {point.name:<68} measured {point.tflops:6.0f}  predicted {point.tflops * ratio:6.0f}  {100 * off(ratio):+4.0f} %"


def main() -> None:
    every = list(points())
    told = throughput.constants()
    recent = newest(every)
    article = [p for p in recent if p.article]
    print("The article, never fitted (its two configurations, mesh of 1,024 GPUs ours):")
    for point, ratio in zip(article, ratios(article, told["fitted"]), strict=True):
        print(line(point, ratio))
    print("Measured by this project on H200s, seconds a step (launcher/data/prediction/measured.csv):")
    for row in measured.rows():
        print(measured.line(row))
    unseen = left_out([p for p in recent if not p.article])
    print(f"{len(unseen)} configurations, each without its model on its GPU in the fit:")
    for point, ratio in unseen:
        print(line(point, ratio))
    never = ratios(article, told["fitted"])
    everyone = [ratio for _, ratio in unseen] + never
    print(f"mean absolute error {mape(everyone):.1f} %, median {100 * statistics.median(abs(off(r)) for r in everyone):.1f} %, "
          f"bias {100 * statistics.mean(map(off, everyone)):+.1f} %")  # fmt: skip
    print(
        f"band of the others covers {covered(unseen, never):.0f} %; shipped band {told['band']['low']} to {told['band']['high']}"
    )
    worst = [p.name for p in broken(every)]
    print(f"floor: {len(worst)} of {len(every)} rows are faster" + (f": {', '.join(worst)}" if worst else ""))


if __name__ == "__main__":
    main()
