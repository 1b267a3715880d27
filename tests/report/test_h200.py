"""The runs that two H200s left: what is read from them, what `plan` and `aot` say of the same, and that the page tells it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.h200 import tables
from launcher.report.measured import report
from launcher.report.text import as_json
from launcher.runs import store

ROOT = Path(__file__).resolve().parents[2]
ARCHIVE = ROOT / "tests/data/h200/runs.tar.xz"
MATMUL = 819.1  # TFLOPS: preflight node, in the same sitting
COMMAND = "python -m benchmarks.h200.tables tests/data/h200/runs.tar.xz"

BY_HAND = {"capacity": 0.2916, "te": 0.2122, "te_flash": 0.1505, "wide_te": 1.1089}
"""Seconds a step, from two lines of each first run's rank0.log: those of steps 5 and 38 (wide_te: 5 and 12)."""


@pytest.fixture(scope="module")
def runs() -> Iterator[Path]:
    with tables.unpacked(ARCHIVE) as folder:
        yield folder


@pytest.fixture(scope="module")
def found(runs: Path) -> dict[str, Any]:
    return tables.read(runs, MATMUL)


def test_speeds_are_those_between_the_lines(found: dict[str, Any]) -> None:
    assert tables.measured(found) == list(BY_HAND)
    for row, seconds in BY_HAND.items():
        assert found["rows"][row]["rounds"][0]["seconds"] == pytest.approx(seconds, rel=0.003), row


def test_transformer_engine_is_half_again_as_fast_as_the_path_that_drops(found: dict[str, Any]) -> None:
    rows = found["rows"]
    assert rows["te_flash"]["tflops"] > 1.5 * rows["capacity"]["tflops"]


def test_a_run_that_hung_in_its_first_step_is_told_as_one(runs: Path, found: dict[str, Any]) -> None:
    hung = found["rows"]["dropless"]
    assert "seconds" not in hung
    assert [one["state"] for one in hung["rounds"]] == ["cancelled"]
    names = [run.name for run in store.all_runs(runs) if run.record["experiment"] == "dropless_1"]
    assert len(names) == 2, "the first and the last of three tries"


def test_the_allocators_peak_is_read_and_is_what_the_compiler_said(found: dict[str, Any]) -> None:
    for row in BY_HAND:
        memory = found["rows"][row]["memory"]
        assert memory["peak"] == pytest.approx(memory["compiled"], rel=0.005), row


def test_aot_is_within_a_tenth_of_the_allocators_peak(found: dict[str, Any]) -> None:
    for row in BY_HAND:
        memory = found["rows"][row]["memory"]
        assert memory["aot"] == pytest.approx(memory["peak"], rel=0.10), row


def test_the_formula_is_within_an_eighth_of_the_allocators_peak(found: dict[str, Any]) -> None:
    for row in BY_HAND:
        memory = found["rows"][row]["memory"]
        assert memory["planned"] == pytest.approx(memory["peak"], rel=0.12), row


def test_a_step_takes_as_long_through_the_launcher_as_by_hand(found: dict[str, Any]) -> None:
    assert abs(found["overhead"]["te_flash"]["step_share"]) < 0.005


def test_the_page_has_these_tables(found: dict[str, Any]) -> None:
    page = (ROOT / "docs/h200.md").read_text(encoding="utf-8")
    for table in (tables.speed_table(found), tables.memory_table(found)):
        assert table in page, f"put what this prints into docs/h200.md: {COMMAND}\n{table}"


def test_the_readme_quotes_what_was_measured(found: dict[str, Any]) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = found["rows"]
    wide, memory = rows["wide_te"], rows["wide_te"]["memory"]
    assert f"at {wide['tflops']:.0f} TFLOPS/GPU in bf16: {wide['mfu']:.0%} of" in " ".join(readme.split()).replace(
        " %", "%"
    )
    assert f"{wide['of_matmul']:.0%} of what a plain" in " ".join(readme.split()).replace(" %", "%")
    assert f"{rows['te_flash']['tflops'] / rows['capacity']['tflops']:.1f} times the work" in readme
    assert abs(memory["aot"] / memory["peak"] - 1) < 0.003


def test_an_overflow_of_real_receive_buffers_was_healed() -> None:
    with tables.unpacked(ROOT / "tests/data/h200/overflow.tar.xz") as folder:
        told = as_json(report(store.open_run(folder, "overflow")))
    (change,) = told["adjusted"]
    assert (told["state"], told["last_step"]) == ("finished", 23)
    assert [(ended["first"], ended["last"], ended["outcome"]) for ended in told["attempts"]] == [
        (0, 3, "overflow"),
        (0, 23, "finished"),
    ]
    assert (change["demand"], change["capacity"], change["old"], change["new"]) == (101120, 98304, 1.0, 1.29)
    assert max(share for _, share in told["headroom"]) == pytest.approx(0.799, abs=0.001), (
        "0.799 x 1.29 = 1.031 was needed"
    )
