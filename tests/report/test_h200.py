"""The runs that two H200s left: what is read from them, what `plan` and `aot` say of the same, and that the page tells it."""

from __future__ import annotations

import contextlib
import csv
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.h200 import __main__ as queue
from benchmarks.h200 import tables
from launcher.config.compose import Composer
from launcher.node.failures import Tail, recognise
from launcher.node.observe import Observed
from launcher.plan.plan import make
from launcher.render.failure_table import own_signatures
from launcher.report.kinds import Kind
from launcher.report.measured import report
from launcher.report.text import as_json, text
from launcher.runs import store

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests/data"
SITTINGS = [DATA / "h200" / f"sitting{number}.tar.xz" for number in (1, 2, 3)]
MATMUL = 819.1  # TFLOPS: preflight node, in the first sitting
COMMAND = "python -m benchmarks.h200.tables tests/data/h200/sitting2.tar.xz tests/data/h200/sitting1.tar.xz"
TRACES = {row: DATA / "traces" / f"h200x2_{row}.xplane.pb.xz" for row in ("dropless", "te_flash", "wide_fp8")}
needs_jax = pytest.mark.skipif(
    importlib.util.find_spec("jax") is None, reason="a profile is read with JAX: pip install jax"
)

BY_HAND = (
    {"capacity": 0.2916, "te": 0.2122, "te_flash": 0.1505, "wide_te": 1.1089},
    {"te_flash": 0.1506, "capacity": 0.2909, "wide_fp8": 0.8603, "wide_minimal": 1.0019, "dropless": 4.6260},
    {"one_gpu": 1.3926, "one_minimal": 1.2122, "one_offload": 1.2200, "one_no_hiding": 1.3908}
    | {"one_scan": 1.3641, "one_dropless": 1.6276, "one_dropped": 1.3988},
)
"""Seconds a step, from two lines of each first run's rank0.log. First sitting: of steps 5 and 38 (wide_te: 5 and 12); second: 5 and
33, 5 and 38, 4 and 13, 4 and 14, 2 and 6; third: 5 and 14 (one_minimal, one_offload: 4 and 10)."""


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
    first, second = (sitting["rows"] for sitting in found[:2])
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
    for sitting in found[:2]:
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


def test_what_dropped_tokens_is_counted(runs: list[Path]) -> None:
    (log,) = runs[2].glob("one_dropped_1-*/attempts/1/rank0.log")
    counted = tables.DROPPED.findall(log.read_text(encoding="utf-8"))
    assert len(counted) == 16 * 3 * 2, "steps, MoE layers, forward pass and replay"
    first, last = tables.dropped(log) or (0.0, 0.0)
    worst = max(int(lost) / int(of) for lost, of in counted)
    told = " ".join(PAGE.split())
    assert f"{first:.2%} in the first tenth of the run's counts and {last:.2%} in the last".replace("%", " %") in told
    assert f"{worst:.2%} in the worst layer and step".replace("%", " %") in told


def test_what_stopped_in_the_trace_is_refused_and_known(runs: list[Path], found: list[dict[str, Any]]) -> None:
    """FP8 of Transformer Engine's over MaxText's einsums: three attempts then, none now."""
    (stopped,) = found[2]["rows"]["one_fp8"]["rounds"]
    composed = Composer().compose(stopped["words"])
    assert composed.experiment is not None
    assert [issue.code for issue in make(composed.experiment).errors] == ["TE_NO_EINSUM"]
    logs = sorted(runs[2].glob("one_fp8_1-*/attempts/*/rank0.log"))
    assert len(logs) == 3
    for log in logs:
        seen = Observed()
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
            seen.feed(line)
        assert seen.refusal is not None
        assert "Einsum is not yet supported" in seen.refusal


def test_one_gpu_needs_no_scheduler(found: list[dict[str, Any]]) -> None:
    left_out, off = (found[2]["rows"][row] for row in ("one_gpu", "one_no_hiding"))
    assert left_out["memory"]["peak"] == off["memory"]["peak"]
    assert left_out["fastest"] * 0.998 < off["seconds"] < left_out["slowest"]


@needs_jax
def test_the_offloads_copies_are_told_apart_from_what_hides_them() -> None:
    """3 GiB over PCIe 5.0 x16 (63 GB/s at most): hidden on the way out, half of it waited for on the way back."""
    ((device, steps),) = tables.profiled({"one_offload": DATA / "traces" / "h200x1_one_offload.xplane.pb.xz"}).values()
    composed = Composer().compose(["+exp=h200_moe_1gpu", "remat=dsv3_offload_context"])
    assert composed.experiment is not None
    numbers = make(composed.experiment).numbers
    assert numbers is not None
    for kind, waited in ((Kind.COPY_TO_HOST, 0.0), (Kind.COPY_TO_DEVICE, 0.56)):
        seconds = device.kernels([kind]) / steps
        assert 45e9 < numbers.memory.host / seconds < 63e9
        assert device.active([kind]) / steps / seconds == pytest.approx(waited, abs=0.02)


def test_the_page_tells_what_each_xla_compiled() -> None:
    """The table by hand, against the recorded answers."""
    with (ROOT / "tests/plan/memory_seen.csv").open(encoding="utf-8", newline="") as file:
        seen = [row for row in csv.DictReader(file) if "h200_moe_1gpu" in row["words"]]
    kept = json.loads(tables.AOT.read_text(encoding="utf-8"))
    lines = re.findall(r"^\| (one_\w+)[^|]*\| ([\d.-]+) \| ([\d.]+) \| ([\d.]+) \|$", PAGE, re.M)
    assert len(lines) == 7
    words = {job.row: " ".join(job.words) for job in queue.jobs(queue.QUEUE, ["alone", "full"])}
    for row, peak, same, newer in lines:
        told = {
            (one["seen"].split()[0], one["seen"].split()[-1]): float(one["gib"])
            for one in seen
            if _same(one["words"], words[row])
        }
        assert f"{kept[row]['device'] / 2**30:.1f}" == same, row
        assert told["preflight", "0.12.0.1"] == pytest.approx(float(newer), abs=0.06), row
        assert peak == "-" or told["allocator's", "0.11.2"] == pytest.approx(float(peak), abs=0.06), row


def _same(words: str, typed: str) -> bool:
    """Whether a row of the table is a run's words, its name, steps and profile left out."""
    left = {word for word in typed.split() if not word.startswith(("name=", "trainer.steps=", "monitor."))}
    return left == set(words.split())


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


def test_a_second_call_keeps_the_archives_of_the_first(tmp_path: Path) -> None:
    """Two blocks into one folder, one after the other."""
    out = tmp_path / "out"
    out.mkdir()
    for name in ("one", "two"):
        run = tmp_path / "runs" / f"{name}_1" / "output"
        run.mkdir(parents=True)
        (run / "t.xplane.pb").write_bytes(name.encode())
        (run.parent / "run.json").write_text("{}")
        since = run.parent.stat().st_mtime
        queue.kept(tmp_path / "runs", since, out)
    told = {}
    for path in sorted(out.iterdir()):
        with tarfile.open(path) as archive:
            told[path.name] = archive.getnames()
    assert list(told) == ["profiles.tar.gz", "profiles2.tar.gz", "runs.tar.xz", "runs2.tar.xz"]
    assert "one_1/run.json" in told["runs.tar.xz"]
    assert "two_1/run.json" in told["runs2.tar.xz"]
    assert told["profiles2.tar.gz"][-1] == "two_1/output/t.xplane.pb"


@pytest.mark.parametrize(
    ("module", "words", "told"),
    [
        (
            "benchmarks.h200",
            ["--runs", "r", "--out", "o", "--seconds", "9", "--block", "aloen"],
            "there are: paths, widths",
        ),
        ("benchmarks.h200.tables", ["tests/data/h200/siting3.tar.xz"], "recorded sittings are in tests/data/h200"),
    ],
)
def test_a_slip_is_told_before_anything_runs(module: str, words: list[str], told: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", module, *words]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, list(tmp_path.iterdir())) == (2, [])
    assert told in done.stderr


def test_the_machine_is_examined_once(tmp_path: Path) -> None:
    """By the launcher's own check, whose product of matrices the tables take for what a GPU can do."""
    first = queue.examined(tmp_path, ["+exp=moe_tiny_cpu"])
    assert "of 1 nodes" in first
    (tmp_path / queue.NODE).write_text("passed  vm  matmul_tflops 893.1\n")
    assert queue.examined(tmp_path, ["+exp=moe_tiny_cpu"]) == "passed  vm  matmul_tflops 893.1\n"
    (tmp_path / "times.jsonl").write_text("")
    assert tables.read(tmp_path, MATMUL)["matmul_tflops"] == 893.1


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
    alone = [abs(row["memory"]["aot"] / row["memory"]["peak"] - 1) for row in _shown(found[2])]
    assert "on one GPU within 5 %, by the jaxlib that ran" in readme
    assert max(alone) < 0.05


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
