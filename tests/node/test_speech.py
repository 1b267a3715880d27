"""What a worker says and what is understood of it."""

import json
import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.node import speech
from launcher.node.layout import RunFolder
from launcher.node.output import BACKLOG_LIMIT, Console
from launcher.node.said import LOOK_SECONDS, Said
from launcher.node.speech import Record, Speaker, label, line, parse

FILES = [
    "attempt.json",
    "attempt-node17.json",
    "result.json",
    "node3.json",
    "failure.json",
    "decision.json",
    "health-node12.json",
    "checkpoints.json",
]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)
CONTENT = st.dictionaries(st.text(), VALUES, max_size=4)
RECORDS = st.builds(Record, st.integers(1, 10**6), st.sampled_from(FILES), CONTENT) | st.builds(
    Record, st.none(), st.just("adjust.json"), CONTENT
)


@given(RECORDS)
def test_what_is_said_is_understood(record):
    said = line(record)
    assert said.isascii()
    assert len(said.splitlines()) == 1
    assert parse(said) == record


@given(RECORDS, st.data())
def test_a_cut_line_is_none(record, data):
    said = line(record)
    assert parse(said[: data.draw(st.integers(0, len(said) - 1))]) is None


@given(RECORDS, st.integers(0, 9999))
def test_a_ranks_words_are_not_the_workers(record, rank):
    assert parse(f"[{rank}] {line(record)}") is None
    assert parse(f" {line(record)}") is None
    assert label(f"[{rank}] {line(record)}") == (str(rank), line(record))


@pytest.mark.parametrize(
    "data",
    [
        {"attempt": 1, "file": "../run.json", "content": {}},
        {"attempt": 1, "file": "/etc/passwd", "content": {}},
        {"attempt": 1, "file": "result.json\n", "content": {}},
        {"attempt": 1, "file": "rank0.log", "content": {}},
        {"attempt": 0, "file": "result.json", "content": {}},
        {"attempt": True, "file": "result.json", "content": {}},
        {"attempt": "1", "file": "result.json", "content": {}},
        {"attempt": None, "file": "result.json", "content": {}},
        {"attempt": 1, "file": "adjust.json", "content": {}},
        {"attempt": 1, "file": "result.json", "content": []},
        {"attempt": 1, "file": "result.json", "content": {}, "more": 1},
        {"attempt": 1, "file": "result.json"},
        [1],
        None,
    ],
)
def test_what_no_worker_says_is_not_understood(data):
    assert parse(speech.MARK + json.dumps(data)) is None


def test_deep_nesting_is_not_understood():
    assert parse(speech.MARK + "[" * 100_000) is None


def test_where_a_record_belongs(tmp_path):
    run = RunFolder(tmp_path)
    assert Record(3, "node2.json", {}).path(run) == tmp_path / "attempts" / "3" / "node2.json"
    assert Record(None, "adjust.json", {}).path(run) == tmp_path / "adjust.json"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("[3] completed step: 1", ("3", "completed step: 1")),
        ("[3] ", ("3", "")),
        ("[3] a\rb\x0bc", ("3", "a\rb\x0bc")),
        ("[worker] finished", ("worker", "finished")),
        ("worker: cannot", None),
        ("[3]x", None),
        ("", None),
    ],
)
def test_who_speaks(text, wanted):
    assert label(text) == wanted


def test_records_are_never_dropped_and_stay_whole_before_a_reader_that_sleeps():
    reading, writing = os.pipe()
    console = Console(writing, quiet=False)
    speaker = Speaker(console)
    for number in range(1, 301):
        for _ in range(40):
            console.say("[0] " + "x" * 200)
        speaker.say(number, "result.json", {"code": number})
    taken = []

    def read():
        with open(reading, "rb") as pipe:
            taken.append(pipe.read())

    reader = threading.Thread(target=read)
    reader.start()
    console.flush(10)
    os.close(writing)
    reader.join(20)
    lines = taken[0].decode().split("\n")
    assert len(taken[0]) < 300 * 40 * 205, "the trainers' lines were to be too many"
    assert len(taken[0]) > BACKLOG_LIMIT
    assert [record.attempt for record in map(parse, lines) if record] == list(range(1, 301))


def checkpoint(folder, step):
    (folder / str(step)).mkdir(parents=True)
    (folder / str(step) / "commit_success.txt").touch()


class Heard:
    """A console that keeps what it is told."""

    def __init__(self):
        self.lines = []

    def keep(self, text):
        self.lines.append(parse(text))


def test_checkpoints_are_told_when_they_change_and_looked_for_rarely(tmp_path):
    heard = Heard()
    folder = tmp_path / "checkpoints"
    said = Said(Speaker(heard), RunFolder(tmp_path).attempt(2), 0, folder)
    said.look(1000.0)
    assert [record.content for record in heard.lines] == [{"steps": [], "at": None}]
    checkpoint(folder, 4)
    said.look(1000.0 + LOOK_SECONDS / 2)
    assert len(heard.lines) == 1
    said.look(1000.0 + LOOK_SECONDS)
    said.look(1000.0 + 2 * LOOK_SECONDS)
    assert len(heard.lines) == 2
    assert heard.lines[1].content["steps"] == [4]
    assert heard.lines[1].content["at"] == (folder / "4").stat().st_mtime


def test_many_checkpoints_stay_one_line_that_no_container_runtime_cuts(tmp_path):
    heard = Heard()
    for step in range(600):
        checkpoint(tmp_path / "checkpoints", 10**6 + step)
    Said(Speaker(heard), RunFolder(tmp_path).attempt(1), 0, tmp_path / "checkpoints").look(0.0)
    assert heard.lines[0].content["steps"][-1] == 10**6 + 599
    assert len(line(heard.lines[0])) < 8192


def test_other_nodes_do_not_tell_of_checkpoints(tmp_path):
    heard = Heard()
    checkpoint(tmp_path / "checkpoints", 4)
    said = Said(Speaker(heard), RunFolder(tmp_path).attempt(1), 1, tmp_path / "checkpoints")
    said.look(0.0)
    said.last_words(RunFolder(tmp_path), tmp_path / "node1.json", {"code": 0})
    assert heard.lines == [Record(1, "node1.json", {"code": 0})]
