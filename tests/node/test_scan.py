"""Logs read in pieces: whatever the pieces, the ranks and the cuts, the table is the one of the whole logs."""

import json
import math
import random

import pytest
import recorded
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.node import marks
from launcher.node.clock import Clock
from launcher.node.scan import BLOCK, pieces, read_piece, step_times
from launcher.node.steps import parse_step
from launcher.node.table import Row, Source, Spread, Table

ANCHOR = 1795973700.0  # 2026-11-29 17:35:00 UTC
CLEAN = "h200x2_te_bf16_flash_rank0.log"


def number_line(step, second=0.0, loss=10.0):
    minute, second = divmod(second, 60)
    return (
        f"I1129 17:{35 + int(minute):02d}:{second:09.6f} 140675135284544 metric_logger.py:265] completed step: {step}, seconds: "
        f"0.195, TFLOP/s/device: 237.157, Tokens/s/device: 84164.239, total_weights: 32768, loss: {loss:.3f}, lm_loss: 10.8"
    )


def read_file(table, path, attempt=1):
    """One look at rank 0's growing log, as a watcher takes it."""
    source = table.source(attempt, path.name)
    clock = Clock(ANCHOR, source.zone)
    for data, offset in pieces(path, source.offset):
        steps, found = read_piece(data, clock)
        table.add_steps(attempt, steps)
        table.add_marks(attempt, found)
        source = Source(offset, clock.zone)
    table.note_source(attempt, path.name, source)


@pytest.mark.parametrize("name", recorded.CLEAN)
def test_every_step_of_a_recorded_log_is_a_row(name, tmp_path):
    with Table(None) as table:
        read_file(table, recorded.FOLDER / name)
        rows = table.rows()
    wanted = [parse_step(line) for line in recorded.lines(name)]
    wanted = [step for step in wanted if step is not None]
    assert [(row.step, row.loss, row.tokens) for row in rows] == [(s.step, s.loss, s.tokens) for s in wanted]
    times = [row.at for row in rows]
    assert times == sorted(times)
    assert len(rows) >= 8


@settings(max_examples=60, deadline=None)
@given(cuts=st.lists(st.integers(0, 9300), max_size=12), tail=st.integers(0, 200))
def test_a_log_that_grows_in_any_pieces_gives_the_same_table(tmp_path_factory, cuts, tail):
    whole = (recorded.FOLDER / CLEAN).read_bytes()
    path = tmp_path_factory.mktemp("log") / "rank0.log"
    with Table(None) as table:
        for cut in [*sorted(cuts), len(whole)]:
            path.write_bytes(whole[:cut])
            read_file(table, path)
        grown = table.rows(), table.marks(1)
    path.write_bytes(whole + whole[:tail].rstrip(b"\n"))  # and a half line that never ends
    with Table(None) as table:
        read_file(table, path)
        assert (table.rows(), table.marks(1)) == grown


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), ranks=st.integers(1, 6), steps=st.integers(1, 12))
def test_interleaved_ranks_are_counted_whatever_their_order(seed, ranks, steps):
    chance = random.Random(seed)
    late = [chance.random() for _ in range(ranks)]
    queue = [(rank, 0) for rank in range(ranks)]
    spread, clock = Spread(), Clock(ANCHOR)
    while queue:
        rank, step = queue.pop(chance.randrange(len(queue)))
        piece = (number_line(step, 10 * step + late[rank]) + "\n").encode()
        spread.add(rank, step_times(piece, clock))
        if step + 1 < steps:
            queue.append((rank, step + 1))
    with Table(None) as table:
        table.add_spread(spread.take(1))
        rows = table.rows()
    assert [row.step for row in rows] == list(range(steps))
    for row in rows:
        assert row.ranks == ranks
        assert row.last_rank == late.index(max(late))
        assert row.last_at - row.first_at == pytest.approx(max(late) - min(late), abs=1e-4)


def test_the_fast_reading_of_other_ranks_agrees_with_the_parser():
    for name in (*recorded.CLEAN, *recorded.FAILED):
        data = (recorded.FOLDER / name).read_bytes()
        steps, _ = read_piece(data, Clock(ANCHOR))
        assert step_times(data, Clock(ANCHOR)) == [(step.step, pytest.approx(at)) for step, at in steps]


def test_a_line_longer_than_a_block_does_not_stop_the_reading(tmp_path):
    path = tmp_path / "rank0.log"
    path.write_bytes(b"x" * (2 * BLOCK + 17) + b"\n" + number_line(4).encode() + b"\n")
    with Table(None) as table:
        read_file(table, path)
        assert [row.step for row in table.rows()] == [4]


def test_a_log_that_was_begun_anew_is_read_from_its_start(tmp_path):
    path = tmp_path / "rank0.log"
    path.write_text("\n".join([number_line(step, step, 9.0) for step in range(5)]) + "\n")
    with Table(None) as table:
        read_file(table, path)
        path.write_text("\n".join([number_line(step, 60 + step, 8.0) for step in range(3)]) + "\n")
        read_file(table, path)
        assert [row.at - ANCHOR for row in table.rows()] == [60, 61, 62, 3, 4]


def test_half_a_line_before_a_requeue_is_no_step():
    cut = number_line(12)[:-60] + number_line(7, 1.0)
    (step, _), *more = read_piece((cut + "\n").encode(), Clock(ANCHOR))[0]
    assert (step.step, more) == (7, [])
    assert parse_step("completed step: 1I1129 17:35:53.415048 1 a.py:1] Starting") is None
    assert parse_step(number_line(12)[:-30] + "I1129 17:35:53.415048 1 a.py:1] next").loss is None


def test_the_metrics_file_adds_what_no_line_has(tmp_path):
    entry = {
        "learning/loss": 10.00012,
        "learning/grad_norm": math.inf,
        "learning/te_moe_max_total_recv_tokens": 101120.0,
        "learning/te_moe_recv_capacity_per_rank": 98304.0,
        "step": 3.0,
    }
    with Table(None) as table:
        table.add_metrics(1, [entry, {"step": 4.0, "learning/loss": math.nan}])
        table.add_steps(1, [(parse_step(number_line(3)), 5.0)])
        first, second = table.rows()
    assert (first.loss, first.demand, first.capacity, first.tokens) == (10.00012, 101120, 98304, 84164.239)
    assert first.grad_norm == math.inf
    assert math.isnan(second.loss)
    assert json.loads(first.others) == {"lm_loss": 10.8}


def test_several_attempts_keep_their_own_replayed_steps():
    with Table(None) as table:
        for attempt, steps in ((1, range(6)), (2, range(4, 8))):
            table.add_steps(attempt, [(parse_step(number_line(step)), None) for step in steps])
        assert [(row.attempt, row.step) for row in table.rows()] == [
            *((1, step) for step in range(6)),
            *((2, step) for step in range(4, 8)),
        ]
        assert table.rows(2)[0] == Row(2, 4, None, 0.195, 237.157, 84164.239, 32768, 10.0, others='{"lm_loss": 10.8}')


def test_a_table_that_failed_half_way_is_as_before(tmp_path):
    path = tmp_path / "table.sqlite"

    def fail():
        with Table(path) as table:
            table.note_source(1, "rank0.log", Source(100, 0))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    with Table(path) as table:
        assert table.source(1, "rank0.log") == Source()


@pytest.mark.parametrize(
    ("line", "kind", "step"),
    [
        ("I x] Num_devices: 2, shape (1, 1)", marks.STARTED, None),
        ("restoring from this run's directory step 9", marks.RESTORING, 9),
        ("No existing checkpoints found, not restoring checkpoint.", marks.FRESH, None),
        (
            "I1130 14:18:29.064632 1 event_tracking.py:184] [process=0] [sync] Finished load in 0.55 seconds @ RUNS/checkpoints/5",
            marks.RESTORED,
            None,
        ),
        ("[train] Total estimated memory size: 17.9 GB, estimated output size: 7.0 GB", marks.COMPILED, None),
        (
            "Finished saving checkpoint (finalized tmp dir) to `RUNS/demo/output/demo/checkpoints/19`.",
            marks.SAVED,
            19,
        ),
        ("Started an asynchronous checkpoint save for step 40", marks.SAVING, 40),
        ("Saved a checkpoint at step 40.", marks.SAVED, 40),
        ("Completed eval after train step 3, loss=6.5, perplexity=1.0", marks.EVALUATED, 3),
        ("Aborting training due to NaN loss.", marks.ABORTED, None),
        ("Training stopped: Job received termination signal (SIGTERM).", marks.STOPPED, None),
        ("Step 3: MoE ragged buffer overflow detected in 2 layer(s); in-layer", marks.FALLBACK, 3),
        ("TE MoE receive capacity overflow at training step 0 (detected at the 4-step", marks.OVERFLOW, 0),
    ],
)
def test_marks(line, kind, step):
    found = marks.parse_mark(line, None)
    assert (found.kind, found.step) == (kind, step)
    assert marks.PREFILTER.search(line.encode()), "or it would never be decoded"
    assert marks.parse_mark("I1129 17:35:53.415048 1 a.py:1] nothing of note", None) is None
    blocking = "[process=0] [sync] Finished blocking load in 0.20 seconds. Continuing load @ RUNS/checkpoints/5"
    assert marks.parse_mark(blocking, None) is None, "the rest of it is still being read"
