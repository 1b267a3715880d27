"""Rank 0's lines and the metrics_file become rows while both grow, whatever the pieces in which they come."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.node.clock import Clock
from launcher.node.layout import RunFolder
from launcher.node.rows import LiveRows, earlier
from launcher.node.scan import metrics, read_piece
from launcher.node.table import Table

START = 1795973700.0
LATER = 100.0  # seconds: longer than anything waits


def line(step, loss=9.0, more=""):
    return (
        f"I1129 17:35:{step % 60:02d}.500000 140675135284544 metric_logger.py:265] completed step: {step}, seconds: 0.142, "
        f"TFLOP/s/device: 324.179, Tokens/s/device: 115047.293, total_weights: 32768, loss: {loss:.3f}, lm_loss: 9.0{more}"
    )


def entry(step, loss=9.0001, **more):
    return json.dumps({"learning/loss": loss, "learning/grad_norm": 1.0, "step": float(step), **more}) + "\n"


class Live:
    """A file that grows, and rows that are looked for as time passes."""

    def __init__(self, path, attempt=1):
        self.path = path
        self.rows = LiveRows(attempt, path, START)
        self.now = 0.0

    def write(self, text):
        with open(self.path, "a") as file:
            file.write(text)

    def look(self, seconds=0.5):
        self.now += seconds
        return self.rows.look(self.now)


@pytest.fixture
def live(tmp_path):
    return Live(tmp_path / "metrics.jsonl")


def test_both_halves_make_a_row(live):
    assert live.rows.line(line(3)) == 3
    assert live.look() == []
    live.write(
        entry(3, **{"learning/te_moe_max_total_recv_tokens": 5.0, "learning/te_moe_recv_capacity_per_rank": 8.0})
    )
    (row,) = live.look()
    assert (row.attempt, row.step, row.loss, row.grad_norm, row.tokens) == (1, 3, 9.0001, 1.0, 115047.293)
    assert (row.demand, row.capacity, json.loads(row.others)) == (5.0, 8.0, {"lm_loss": 9.0})
    assert math.isclose(row.at % 60, 3.5)
    assert live.look(LATER) == []


@pytest.mark.parametrize("order", ["line", "file"])
def test_half_a_row_comes_when_the_other_half_never_will(live, order):
    if order == "line":
        live.rows.line(line(3))
    else:
        live.write(entry(3))
    assert live.look() == []
    (row,) = live.look(LATER)
    assert (row.step, row.at is None, row.grad_norm) == (3, order == "file", None if order == "line" else 1.0)


def test_the_next_line_says_that_no_metrics_will_come(live):
    live.rows.line(line(3))
    live.rows.line(line(4))
    assert [row.step for row in live.look()] == [3]
    assert [row.step for row in live.rows.close()] == [4]


def test_the_gradient_norm_is_the_one_before_clipping(live):
    live.rows.line(line(0))
    live.write(entry(0, **{"learning/raw_grad_norm": 77.0}))
    assert [row.grad_norm for row in live.look()] == [77.0]


def test_a_file_begun_anew_and_one_of_an_earlier_start(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(entry(0) + entry(1) + entry(2))
    live = Live(path)
    live.rows.line(line(0))
    assert live.look() == []
    path.write_text(entry(0, loss=7.5))  # MaxText truncates it at step 0
    (row,) = live.look()
    assert (row.step, row.loss) == (0, 7.5)


@pytest.mark.parametrize(
    "junk", ['{"step": NaN}\n', '{"step": 1e999}\n', "[1]\n", '{"step": "3"}\n', "\x00\xff\n", "{\n"]
)
def test_nonsense_in_the_file_is_passed_over(live, junk):
    live.rows.line(line(0))
    live.write(junk + entry(0))
    assert [row.step for row in live.look()] == [0]


def test_what_waits_is_bounded(live):
    live.write("".join(entry(step) for step in range(10, 20000)))
    live.rows.line(line(0))
    live.look()
    assert len(live.rows._waiting) <= 1024


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_live_rows_are_those_of_the_table(tmp_path_factory, data):
    """Any cut of the two streams, any order of pieces: the same rows as reading both files at the end."""
    folder = tmp_path_factory.mktemp("live")
    steps = data.draw(st.integers(1, 30))
    losses = data.draw(st.lists(st.sampled_from([9.0, 8.5, math.nan, math.inf]), min_size=steps, max_size=steps))
    has = data.draw(st.lists(st.sampled_from(["both", "line"]), min_size=steps, max_size=steps))
    live = Live(folder / "metrics.jsonl")
    live.write("")
    found = []
    for step in range(steps):
        live.rows.line(line(step, losses[step]))
        text = entry(step, losses[step]) if has[step] == "both" else ""
        cut = data.draw(st.integers(0, len(text)))
        # MaxText prints the next line only when the whole entry of this one is written.
        for piece in (text[:cut], text[cut:]):
            live.write(piece)
            found += live.look(data.draw(st.sampled_from([0.05, 0.5])))
    found += live.rows.close()
    with Table(None) as table:
        log = "".join(line(step, losses[step]) + "\n" for step in range(steps)).encode()
        table.add_steps(1, read_piece(log, Clock(START))[0])
        table.add_metrics(1, metrics(live.path.read_bytes()))
        assert repr(found) == repr(table.rows())


def test_steps_of_earlier_attempts_come_in_order_and_the_newest_attempt_counts(tmp_path):
    run = RunFolder(tmp_path)
    for number, steps in ((1, range(6)), (2, range(4, 8)), (3, ())):
        run.attempt(number).path.mkdir(parents=True)
        run.attempt(number).metrics.write_text("".join(entry(step, loss=number) for step in steps) + '{"half')
    assert [(row.attempt, row.step) for row in earlier(run, 3)] == [
        *((1, step) for step in range(4)),
        *((2, step) for step in range(4, 8)),
    ]
    assert earlier(run, 1) == []
