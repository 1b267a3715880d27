"""Steps measured on real GPUs by this project, beside what `plan` says of them: launcher/data/prediction/measured.csv."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.compiled import case_of
from launcher.config.compose import Composer
from launcher.plan import memory, throughput


@dataclass(frozen=True)
class Measured:
    """One measured step. `used`: the constant that was set by it; empty where none was."""

    date: str
    machine: str
    words: tuple[str, ...]
    seconds: float
    used: str
    source: str
    predicted: throughput.Throughput

    @property
    def ratio(self) -> float:
        """Measured / predicted time."""
        return self.seconds / self.predicted.expected


def rows() -> Iterator[Measured]:
    """Every row of measured.csv beside what `plan` says of it today.

    Runs of 2026-11-29 asked for cudnn_flash_te but got TE's unfused attention (two cuDNNs: docs/gpu.md), so they are written as
    dot_product, which computes the same.
    """
    composer = Composer()
    with (memory.DATA / "measured.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            words = tuple(row["words"].split())
            predicted = throughput.estimate(case_of(composer, words))
            assert predicted is not None, words
            yield Measured(
                row["date"], row["machine"], words, float(row["seconds"]), row["used"], row["source"], predicted
            )


def line(row: Measured) -> str:
    """One row of measured.csv: seconds a step, expected and band."""
    found = row.predicted
    used = f", set {row.used}" if row.used else ""
    return (
        f"  {row.seconds:.4g} s, expected {found.expected:.3g} ({found.low:.3g} to {found.high:.3g}), measured / expected {row.ratio:.2f}: "
        f"{' '.join(row.words)} ({row.machine}, {row.date}{used})"
    )
