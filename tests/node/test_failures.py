"""Recognition: the first failure of all ranks, by made-up tables, and by the real one over recorded logs."""

import re
from pathlib import Path

import pytest
import recorded
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.node.failures import ACTIONS, Signature, Tail, recognise
from launcher.render.failure_table import own_signatures

ANCHOR = 1795973700.0  # 2026-11-29 17:35:00 UTC
TABLE = own_signatures()


def signature(name, pattern, where="rank", consequence=False):
    return Signature(name, (re.compile(pattern),), frozenset({where}), name, "", "retry", consequence=consequence)


def line(second, text):
    return f"I1129 17:35:{second:09.6f} 77 a.py:1] {text}"


def rank(number, *lines):
    return Tail(f"rank {number}", "rank", lines, ANCHOR)


@pytest.mark.parametrize(("name", "cause"), recorded.FAILED.items())
def test_recorded_failures(name, cause):
    found = recognise([rank(0, *recorded.lines(name))], TABLE)
    assert found.signature.name == cause
    assert found.who == "rank 0"
    assert found.line


@pytest.mark.parametrize("name", recorded.CLEAN)
def test_no_row_fits_a_line_of_a_clean_log(name):
    fitting = [
        (row.name, text) for text in recorded.lines(name) for row in TABLE for one in row.patterns if one.search(text)
    ]
    assert fitting == []


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_each_row_is_found_by_its_own_example(row):
    for place in row.where:
        found = recognise([Tail("it", place, ["", row.example], ANCHOR)], TABLE)
        assert found.signature is row, f"{found.signature} is before it"
    assert row.source
    assert row.kind
    assert row.action in ACTIONS


TWO = (signature("fault", "boom"), signature("effect", "heartbeat", consequence=True))


@settings(max_examples=100, deadline=None)
@given(
    order=st.permutations(range(5)),
    first=st.integers(0, 4),
    noise=st.lists(st.sampled_from(["completed step: 3, loss: 1.0 boom", "nothing", ""]), max_size=5),
)
def test_the_first_failure_is_found_in_any_order_of_ranks(order, first, noise):
    tails = []
    for number in range(5):
        texts = [line(1, text) if text else "" for text in noise]
        if number == first:
            texts += [line(10, "boom of the first")]
        else:
            texts += [line(5, "heartbeat of an early one"), line(11 + number, "boom of a later one")]
        tails.append(rank(number, *texts))
    found = recognise([tails[index] for index in order], TWO)
    assert (found.signature.name, found.who) == ("fault", f"rank {first}")
    assert found.at == pytest.approx(ANCHOR + 10)


def test_what_other_ranks_died_of_counts_only_alone():
    assert recognise([rank(0, line(1, "heartbeat"))], TWO).signature.name == "effect"


TRACEBACK = ("Traceback (most recent call last):", '  File "x.py", line 1', "ZeroDivisionError: division by zero")


@pytest.mark.parametrize("after", [(), (line(12, "heartbeat at the exit"),)])
@pytest.mark.parametrize("place", ["rank", "srun"])
def test_an_unknown_failure_counts_before_what_others_died_of(after, place):
    others = Tail("another", place, [line(11, "heartbeat")])
    table = (*TWO, signature("there", "heartbeat", where="srun", consequence=True))
    for tails in ([others, rank(1, *TRACEBACK, *after)], [rank(1, *TRACEBACK, *after), others]):
        found = recognise(tails, table)
        assert (found.signature, found.who, found.line) == (None, "rank 1", TRACEBACK[-1])


def test_an_exception_over_a_consequence_is_one():
    lines = [*TRACEBACK[:-1], "RuntimeError: heartbeat of rank 3 is missing", *TRACEBACK]
    assert recognise([rank(0, *lines), rank(1, "fine")], TWO).signature.name == "effect"


def test_a_line_without_a_stamp_takes_the_time_before_it():
    tails = [rank(0, line(9, "fine"), "boom"), rank(1, line(3, "fine"), "boom")]
    assert recognise(tails, TWO).who == "rank 1"


def test_places_are_kept_apart():
    table = (signature("there", "boom", where="srun"),)
    assert recognise([rank(0, "boom")], table).signature is None
    assert recognise([rank(0, "fine"), Tail("srun", "srun", ["boom"])], table).signature.name == "there"


def test_patterns_that_cannot_be_joined_still_work():
    table = (signature("one", "(?i)BOOM"), signature("two", "(?P<a>x)y"), signature("three", "(?P<a>p)q"))
    assert recognise([rank(0, "boom")], table).signature.name == "one"
    assert recognise([rank(0, "pq")], table).signature.name == "three"


def test_an_unknown_failure_says_so_and_shows_the_most_telling_line():
    lines = [
        "Traceback (most recent call last):",
        '  File "x.py", line 1',
        "ZeroDivisionError: division by zero",
        "bye",
    ]
    found = recognise([rank(0, line(5, "waiting")), rank(3, *lines)], TABLE)
    assert found.signature is None
    assert (found.who, found.line) == ("rank 3", "ZeroDivisionError: division by zero")
    assert found.cause == "unknown failure; the most telling line is of rank 3: ZeroDivisionError: division by zero"
    assert found.advice == ""


def test_no_words_no_finding():
    assert recognise([], TABLE) is None
    assert recognise([rank(0)], TABLE) is None


@pytest.mark.parametrize(
    ("name", "place", "cause"),
    [
        ("cpu_unknown_key.log", "rank", "config_refused"),
        ("cpu_wrong_type.log", "rank", "config_refused"),
        ("cpu_unknown_flag.log", "rank", "xla_flag"),
        ("cpu_mesh.log", "rank", "mesh"),
        ("cpu_peer_killed.log", "rank", "gloo"),
        ("srun_bad_image.log", "srun", "image"),
        ("srun_no_command.log", "srun", "no_command"),
        ("srun_killed.log", "srun", "task_killed"),
    ],
)
def test_failures_recorded_on_cpus_and_on_slurm(name, place, cause):
    lines = (Path(__file__).parent / "data" / name).read_text().splitlines()
    assert recognise([Tail("it", place, lines, ANCHOR)], TABLE).signature.name == cause


@pytest.mark.parametrize("name", ["cpu_preempted.log", "h200_finished.log"])
def test_a_log_that_ended_well_fits_no_row(name):
    text = (Path(__file__).parent / "data" / name).read_text()
    assert [row.name for row in TABLE for one in row.patterns if one.search(text)] == []
