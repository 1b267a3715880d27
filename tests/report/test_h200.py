"""The runs that two H200s left: what is read from them, what `plan` and `aot` say of the same, and that the page tells it."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.h200 import __main__ as queue
from benchmarks.h200 import tables
from launcher.config.compose import Composer
from launcher.node.failures import Tail, recognise
from launcher.plan.plan import make
from launcher.render.failure_table import own_signatures
from launcher.report.kinds import Kind
from launcher.report.measured import report
from launcher.report.text import as_json, text
from launcher.runs import store

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests/data"
SITTINGS = [DATA / "h200" / f"sitting{number}.tar.xz" for number in (1, 2)]
MATMUL = 819.1  # TFLOPS: preflight node, in the first sitting
COMMAND = "python -m benchmarks.h200.tables tests/data/h200/sitting2.tar.xz tests/data/h200/sitting1.tar.xz"
TRACES = {row: DATA / "traces" / f"h200x2_{row}.xplane.pb.xz" for row in ("dropless", "te_flash", "wide_fp8")}
needs_jax = pytest.mark.skipif(
    importlib.util.find_spec("jax") is None, reason="a profile is read with JAX: pip install jax"
)

BY_HAND = (
    {"capacity": 0.2916, "te": 0.2122, "te_flash": 0.1505, "wide_te": 1.1089},
    {"te_flash": 0.1506, "capacity": 0.2909, "wide_fp8": 0.8603, "wide_minimal": 1.0019, "dropless": 4.6260},
)
"""Seconds a step, from two lines of each first run's rank0.log. First sitting: of steps 5 and 38 (wide_te: 5 and 12); second: 5 and
33, 5 and 38, 4 and 13, 4 and 14, 2 and 6."""


@pytest.fixture(scope="module")
def runs() -> Iterator[list[Path]]:
    """The sittings' folders of runs."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(tables.unpacked(archive)) for archive in SITTINGS]


@pytest.fixture(scope="module")
def found(runs: list[Path]) -> list[dict[str, Any]]:
    return [tables.read(folder, MATMUL) for folder in runs]


def test_speeds_are_those_between_the_lines(found: list[dict[str, Any]]) -> None:
    for sitting, by_hand in zip(found, BY_HAND, strict=True):
        assert tables.measured(sitting) == list(by_hand)
        for row, seconds in by_hand.items():
            assert sitting["rows"][row]["rounds"][0]["seconds"] == pytest.approx(seconds, rel=0.003), row


def test_two_sittings_agree(found: list[dict[str, Any]]) -> None:
    first, second = (sitting["rows"] for sitting in found)
    for row in ("te_flash", "capacity"):
        assert first[row]["seconds"] == pytest.approx(second[row]["seconds"], rel=0.002), row


def test_transformer_engine_against_both_paths_of_maxtext(found: list[dict[str, Any]]) -> None:
    """In one sitting, three rounds each: at least 20 times the dropless path, 1.5 times the one that drops tokens."""
    rows = found[1]["rows"]
    engine, dropless, capacity = (rows[name] for name in ("te_flash", "dropless", "capacity"))
    assert [sum(1 for one in row["rounds"] if one["seconds"]) for row in (engine, dropless, capacity)] == [3, 3, 3]
    assert engine["tflops"] > 20 * dropless["tflops"]
    assert engine["tflops"] > 1.5 * capacity["tflops"]


def test_a_run_that_hung_in_its_first_step_is_told_as_one(runs: list[Path], found: list[dict[str, Any]]) -> None:
    for sitting, row in ((0, "dropless"), (1, "dropless_buffers_alone")):
        hung = found[sitting]["rows"][row]
        assert "seconds" not in hung
        assert [one["state"] for one in hung["rounds"]] == ["cancelled"]
    names = [run.name for run in store.all_runs(runs[0]) if run.record["experiment"] == "dropless_1"]
    assert len(names) == 2, "the first and the last of three tries"
    (cured,) = found[1]["rows"]["dropless_hiding_alone"]["rounds"]
    assert cured["state"] == "finished"


def test_what_hung_is_warned_of_and_what_trained_is_not(found: list[dict[str, Any]]) -> None:
    for sitting, row, warned in (
        (0, "dropless", True),
        (1, "dropless_buffers_alone", True),
        (1, "dropless", False),
        (1, "dropless_hiding_alone", False),
        (1, "te_flash", False),
    ):
        composed = Composer().compose(found[sitting]["rows"][row]["rounds"][0]["words"])
        assert composed.experiment is not None
        assert ("MOE_DROPLESS_HANGS" in [issue.code for issue in make(composed.experiment).issues]) is warned, row


def test_xlas_refusal_of_nccl_is_known(runs: list[Path]) -> None:
    (refused,) = runs[1].glob("dropless_1-*")
    lines = (refused / "attempts/1/rank0.log").read_text(encoding="utf-8", errors="replace").splitlines()
    known = recognise([Tail("rank 0", "rank", lines)], own_signatures())
    assert known is not None
    assert known.signature is not None
    assert (known.signature.name, known.signature.action) == ("ragged_all_to_all", "stop")


def test_the_allocators_peak_is_read_and_is_what_the_compiler_said(found: list[dict[str, Any]]) -> None:
    for sitting in found:
        for row in tables.measured(sitting):
            memory = sitting["rows"][row]["memory"]
            assert memory["peak"] == pytest.approx(memory["compiled"], rel=0.005), row


@pytest.mark.parametrize(("told", "within"), [("aot", 0.10), ("planned", 0.12)])
def test_what_was_foreseen_is_near_the_allocators_peak(found: list[dict[str, Any]], told: str, within: float) -> None:
    for sitting in found:
        for row in tables.measured(sitting):
            memory = sitting["rows"][row]["memory"]
            assert memory[told] == pytest.approx(memory["peak"], rel=within), row


def test_the_launcher_costs_a_run_nothing_but_its_start(found: list[dict[str, Any]]) -> None:
    """A step within 0.5 %; until the trainer's processes less than 2 s in every round; and in the mean of the rounds in which both
    found the compiled step, to the first step's line."""
    for sitting in found:
        told = sitting["overhead"]["te_flash"]
        assert abs(told["step_share"]) < 0.005
        assert max(before for before, _, _ in told["starts"].values()) < 2.0
    warm = [(own, hand) for number, (_, own, hand) in found[1]["overhead"]["te_flash"]["starts"].items() if number > 1]
    assert len(warm) == 2
    assert sum(own - hand for own, hand in warm) / len(warm) < 2.0


def test_the_pieces_of_a_start_are_all_of_it_and_vary_as_much_by_hand(found: list[dict[str, Any]]) -> None:
    """What the one pair of the first sitting, both compiling, is apart is the trainer's, and no more than its starts differ anyway."""
    for sitting in found:
        for row in sitting["rows"].values():
            for one in row["rounds"]:
                if one.get("pieces"):
                    told, first = sum(one["pieces"].values()), one["first_line"] - (one["before_trainer"] or 0)
                    assert told < first < told + 2 * max(5.0, one["seconds"] or 0), one["name"]

    def of(sitting: int, row: str) -> list[dict[str, float]]:
        return [one["pieces"] for one in found[sitting]["rows"][row]["rounds"]]

    (hand,), (te,) = of(0, "te_flash_hand"), of(0, "te")
    by_hand = [*of(1, "te_flash_hand"), hand]
    pair = {name: of(0, "te_flash")[0][name] - value for name, value in hand.items()}
    assert sum(pair.values()) == pytest.approx(12.4, abs=0.1)
    assert pair["Python and JAX"] + pair["first step"] > 0.85 * sum(pair.values())
    for name in ("Python and JAX", "first step"):
        spread = max(one[name] for one in by_hand) - min(one[name] for one in by_hand)
        assert spread > 0.6 * pair[name], name
        assert te[name] < hand[name] + 2.0, "through the launcher, just before"


def test_report_tells_where_a_start_went(runs: list[Path]) -> None:
    """Started 13:12:59.39; the log's lines: JAX 13:13:27.05, no checkpoint 31.98, compiled 13:14:24.50, first 55.78 (0.15 s a step)."""
    (run,) = (run for run in store.all_runs(runs[1]) if run.record["experiment"] == "te_flash_1")
    line = (
        "start        1 min 56 s to the first step: Python and JAX 27.7 s, set-up 4.9 s, XLA 52.5 s, first step 31.0 s"
    )
    assert line in text(report(run)).splitlines()
    with tables.unpacked(ROOT / "tests/data/h200/overflow.tar.xz") as folder:
        told = report(store.open_run(folder, "overflow"))
    assert [bool(ended.start) for ended in told.attempts] == [True, True]
    assert "to the first step of attempt 2: Python and JAX " in text(told), "the newest that trained"


def test_a_step_that_was_found_in_the_compile_cache_trains_as_the_compiled_one(found: list[dict[str, Any]]) -> None:
    compiled, *kept = found[1]["rows"]["te_flash"]["rounds"]
    assert len(kept) == 2
    for one in kept:
        assert one["first_line"] < compiled["first_line"] - 40
        assert one["loss"][0] == compiled["loss"][0]
        assert one["loss"][1][1] == pytest.approx(compiled["loss"][1][1], rel=1e-4)


PAGE = (ROOT / "docs/h200.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("typed", re.findall(r"^python -m benchmarks\.h200\.tables .*", PAGE, re.M))
def test_the_page_has_the_tables_that_its_commands_print(typed: str) -> None:
    if "--trace" in typed and importlib.util.find_spec("jax") is None:
        pytest.skip("a profile is read with JAX: pip install 'launcher[local]'")
    command = [sys.executable, *shlex.split(typed)[1:]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    printed = [block for block in done.stdout.split("\n\n") if block.strip()]
    assert len(printed) >= (1 if "--sizes" in typed else 4)
    for table in printed:
        assert table.strip() in PAGE, f"put what this prints into docs/h200.md: {typed}"


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="a profile is read with JAX")
@pytest.mark.parametrize(("row", "moe_layers"), [("te_flash", 4), ("wide_fp8", 3)])
def test_aot_foresaw_the_collectives_of_the_profiled_step(row: str, moe_layers: int) -> None:
    """But for two small all-gathers in each MoE layer, which NCCL EP makes by itself."""
    ((device, steps),) = tables.profiled({row: DATA / "traces" / f"h200x2_{row}.xplane.pb.xz"}).values()
    foreseen = json.loads(tables.AOT.read_text(encoding="utf-8"))[row]["flows"]
    assert set(foreseen) == set(tables.FLOWS)
    for name, kinds in tables.FLOWS.items():
        seen = sum(device.parts[kind].calls for kind in kinds) / steps
        assert seen - foreseen[name][0] == (2 * moe_layers if name == "all-gather" else 0), name


@pytest.mark.parametrize(
    "job",
    [job for job in queue.jobs(queue.QUEUE, []) if job.name.endswith("_1") and not job.hand],
    ids=lambda job: job.name,
)
def test_what_the_queue_has_can_be_started(job: queue.Job) -> None:
    composed = Composer().compose(job.words)
    assert composed.experiment is not None, composed.issues
    made = make(composed.experiment)
    assert made.errors == ()
    assert "WORKAROUND_UNUSED" not in [issue.code for issue in made.issues]
    assert job.verb in ("submit", "correctness")


def test_every_kind_of_kernel_has_one_column() -> None:
    kinds = [kind for some in tables.COLUMNS.values() for kind in some]
    assert sorted(kinds, key=lambda kind: kind.value) == sorted(Kind, key=lambda kind: kind.value)


def test_the_readme_quotes_what_was_measured(found: list[dict[str, Any]]) -> None:
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    rows = found[1]["rows"]
    wide, engine = rows["wide_fp8"], rows["te_flash"]
    assert f"ran at {wide['tflops']:.0f} TFLOPS/GPU: {100 * wide['mfu']:.0f} % of the GPU's bf16 peak" in readme
    assert f"{100 * wide['of_matmul']:.0f} % of what a plain" in readme
    times = [engine["tflops"] / rows[name]["tflops"] for name in ("dropless", "capacity")]
    assert f"did {times[0]:.0f} times the work of MaxText's own dropless path and {times[1]:.1f} times that" in readme
    off = [abs(row["memory"]["aot"] / row["memory"]["peak"] - 1) for sitting in found for row in _shown(sitting)]
    at_width = [abs(rows[name]["memory"]["aot"] / rows[name]["memory"]["peak"] - 1) for name in rows if "wide" in name]
    assert "within 8 %, at the true widths within 2 %" in readme
    assert (max(off) < 0.08, max(at_width) < 0.02) == (True, True)


def _shown(sitting: dict[str, Any]) -> list[dict[str, Any]]:
    return [sitting["rows"][name] for name in tables.measured(sitting)]


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
