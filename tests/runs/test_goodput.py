"""Every microsecond of a run has one kind; which one, for a run whose times are known."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.node import marks as m
from launcher.node.marks import Mark
from launcher.node.table import Row
from launcher.runs import first_step
from launcher.runs.decisions import REQUEUE, RESTART, STOP, Decision
from launcher.runs.goodput import Kind, goodput
from launcher.runs.history import History, Life


def rows(first, last, at, took=2.0, attempt=1):
    """Steps first..last, the first done at `at`."""
    return [Row(attempt, step, at + took * (step - first)) for step in range(first, last + 1)]


def told(lives, created=0.0, now=1000.0, is_live=False):
    return goodput(History(created, now, is_live, 1000, lives))


def seconds(found):
    return {kind.value: found.spent[kind] / 1e6 for kind in Kind if found.spent[kind]}


def start(at):
    """JAX up after 10 s, the checkpoint looked for after 5 more, 30 s of compile."""
    return [
        Mark(m.STARTED, at + 10, None, "2"),
        Mark(m.FRESH, at + 15, None, ""),
        Mark(m.COMPILED, at + 45, None, "1 GB"),
    ]


def test_a_run_in_one_piece():
    life = Life(1, started=100.0, ended=300.0, code=0, rows=rows(0, 99, 155.0, 1.0), marks=start(100.0))
    assert seconds(told([life], now=300.0)) == {
        "queue": 100,
        "start": 15 + 8,
        "compile": 30,
        "productive": 2 + 99,
        "down": 46,
    }


def test_an_older_build_compiles_within_its_first_step():
    life = Life(1, started=0.0, ended=254.0, code=0, rows=rows(0, 99, 155.0, 1.0), marks=start(0.0)[:2])
    assert seconds(told([life], now=254.0)) == {"start": 15, "compile": 138, "productive": 101}


RESTORED = [
    Mark(m.STARTED, 10.0, None, "2"),
    Mark(m.RESTORING, 15.0, 40, ""),
    Mark(m.RESTORED, 75.0, None, "60.00"),
    Mark(m.COMPILED, 105.0, None, "1 GB"),
]


def test_reading_a_checkpoint_is_start_and_no_compile():
    life = Life(1, started=0.0, ended=221.0, code=0, rows=rows(41, 140, 120.0, 1.0), marks=RESTORED)
    assert seconds(told([life], now=221.0)) == {"start": 75 + 13, "compile": 30, "productive": 101, "down": 2}


@pytest.mark.parametrize(("marks", "kind"), [(0, "start"), (1, "start"), (2, "start"), (3, "compile"), (4, "start")])
def test_what_lasts_now_is_told_by_what_is_over(marks, kind):
    """Before JAX runs, before the checkpoint, while it is read, while XLA compiles, in the first step."""
    past = RESTORED[:marks]
    found = seconds(told([Life(1, started=0.0, marks=past)], now=200.0, is_live=True))
    before = seconds(told([Life(1, started=0.0, marks=past)], now=past[-1].at if past else 0.0, is_live=True))
    assert found[kind] - before.get(kind, 0) == 200 - (past[-1].at if past else 0)


ALL = {"Python and JAX": 10, "set-up": 5, "restore": 60, "XLA": 30, "first step": 13}


@pytest.mark.parametrize(
    ("missing", "pieces"),
    [
        ((), ALL),
        ((m.STARTED,), {"Python and JAX, set-up": 15, "restore": 60, "XLA": 30, "first step": 13}),
        ((m.RESTORED,), {"Python and JAX": 10, "set-up": 5, "restore, XLA": 90, "first step": 13}),
        ((m.COMPILED,), {"Python and JAX": 10, "set-up": 5, "restore": 60, "XLA, first step": 43}),
        ((m.RESTORING, m.RESTORED), {"Python and JAX": 10, "set-up, XLA": 95, "first step": 13}),
    ],
)
def test_the_pieces_of_a_start_are_its_whole(missing, pieces):
    """What nobody told apart is told together."""
    marks = [mark for mark in RESTORED if mark.kind not in missing]
    assert first_step.seconds(Life(1, started=0.0, rows=rows(41, 140, 120.0, 1.0), marks=marks)) == pieces
    assert sum(pieces.values()) == 118


def test_a_start_that_lasts_has_the_pieces_that_are_over():
    assert first_step.seconds(Life(1, started=0.0, marks=RESTORED[:3])) == dict(list(ALL.items())[:3])
    assert first_step.seconds(Life(1, marks=RESTORED)) == {}


def test_a_checkpoint_costs_what_its_step_took_longer():
    steps = [row._replace(at=row.at + (7 if row.step >= 50 else 0)) for row in rows(0, 99, 60.0, 1.0)]
    marks = [*start(0.0), Mark(m.SAVING, 116.5, 50, ""), Mark(m.SAVED, 130.2, 50, "")]
    found = seconds(told([Life(1, started=0.0, ended=166.0, code=0, rows=steps, marks=marks)], now=166.0))
    assert found["checkpoint"] == 7
    assert found["productive"] == 101


def test_saving_at_the_end_is_a_checkpoint_too():
    marks = [*start(0.0), Mark(m.SAVED, 170.0, 99, "")]
    found = seconds(
        told([Life(1, started=0.0, ended=171.0, code=75, rows=rows(0, 99, 60.0, 1.0), marks=marks)], now=171.0)
    )
    assert (found["checkpoint"], found["down"]) == (11, 1)


def test_a_stall_is_what_the_trainer_lived_without_a_step():
    steps = [row._replace(at=row.at + (600 if row.step >= 50 else 0)) for row in rows(0, 99, 60.0, 1.0)]
    life = Life(1, started=0.0, ended=1000.0, code=77, rows=steps, marks=start(0.0))
    assert seconds(told([life]))["stalled"] == 600 + (1000 - 759)


@pytest.mark.parametrize(("action", "kind"), [(RESTART, "down"), (REQUEUE, "queue")])
def test_replayed_steps_and_the_gap_before_them(action, kind):
    first = Life(1, started=0.0, ended=160.0, code=1, rows=rows(0, 99, 60.0, 1.0), marks=start(0.0))
    first = Life(**{**vars(first), "decision": Decision(action, "again", at=160.0)})
    second = Life(2, started=260.0, ended=419.0, code=0, rows=rows(80, 179, 320.0, 1.0, 2), marks=start(260.0))
    found = seconds(told([first, second], now=419.0))
    assert found["replayed"] == 2 + 19
    assert found["productive"] == 101 + 80
    assert found[kind] == 100 + (1 if kind == "down" else 0)
    assert sum(found.values()) == 419


def test_after_a_stop_a_person_decides_and_then_the_queue():
    first = Life(1, started=10.0, ended=110.0, code=1, decision=Decision(STOP, "no", at=110.0))
    second = Life(2, asked=500.0, started=560.0, ended=600.0, code=1)
    assert seconds(told([first, second], now=600.0)) == {"queue": 10 + 60, "start": 100 + 40, "down": 390}


@pytest.mark.parametrize(
    ("now", "wanted"),
    [(50.0, {"start": 15.0, "compile": 30.0 + 0}), (160.0, {"productive": 102.0}), (460.0, {"stalled": 240.0})],
)
def test_a_run_that_lives(now, wanted):
    steps = rows(0, 99, 60.0, 1.0) if now > 100 else []
    found = seconds(told([Life(1, started=0.0, rows=steps, marks=start(0.0))], now=now, is_live=True))
    assert sum(found.values()) == now
    for kind, value in wanted.items():
        assert found[kind] == pytest.approx(value, abs=5.1)


def test_a_run_that_waits_only_waits():
    assert seconds(told([], now=70.0, is_live=True)) == {"queue": 70}
    assert seconds(told([Life(1, asked=1.0)], now=70.0, is_live=True)) == {"queue": 70}


TIMES = st.one_of(st.none(), st.floats(-1e4, 1e4, allow_nan=False))
MARKS = st.builds(
    Mark,
    st.sampled_from([m.STARTED, m.FRESH, m.RESTORING, m.RESTORED, m.COMPILED, m.SAVED, m.SAVING]),
    TIMES,
    st.none(),
    st.just(""),
)
LIVES = st.builds(
    Life,
    number=st.just(1),
    asked=TIMES,
    started=TIMES,
    ended=TIMES,
    code=st.sampled_from([None, 0, 1, 75, 77]),
    decision=st.sampled_from([None, Decision(STOP, ""), Decision(RESTART, ""), Decision(REQUEUE, "")]),
    rows=st.lists(st.builds(Row, st.just(1), st.integers(0, 50), TIMES), max_size=5),
    marks=st.lists(MARKS, max_size=6),
)


@settings(max_examples=80, deadline=None)
@given(st.lists(LIVES, max_size=3), st.floats(-1e4, 1e4), st.floats(0, 1e4), st.booleans())
def test_the_kinds_add_up_to_the_wall_time_whatever_the_files_say(lives, created, lasted, is_live):
    found = told(lives, created, created + lasted, is_live)
    assert sum(found.spent.values()) == found.wall == found.end - found.begin
    assert all(value >= 0 for value in found.spent.values())
    data = found.as_json()
    assert sum(data["microseconds"].values()) == round(data["wall_seconds"] * 1e6)
    assert sum(data["share"].values()) == pytest.approx(1 if found.wall else 0)
    assert all(value >= 0 for life in lives for value in first_step.seconds(life).values())


def test_words():
    found = told(
        [Life(1, started=100.0, ended=300.0, code=0, rows=rows(0, 99, 155.0, 1.0), marks=start(100.0))], now=300.0
    )
    assert found.line() == "33.7% of 5 min 0 s, queue 33.3%, down 15.3%, compile 10.0%, start 7.7%"
    assert found.text().splitlines()[3].split() == ["productive", "101.000", "s", "33.7%"]
    assert found.text().splitlines()[-1].split() == ["wall", "300.000", "s"]
