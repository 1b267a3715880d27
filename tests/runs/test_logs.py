"""Logs of all ranks as one, of one rank as it is, and as they grow."""

import io
import json
import os
import subprocess
import sys
import threading
import time

import pytest
from handmade import add_attempt, gone, make_run, me

from launcher.runs import store
from launcher.runs.follow import GrowingFile
from launcher.runs.logs import print_all_logs, print_logs


def stamped(second, text):
    return f"I1129 16:03:{second:02}.000000 140264848128896 train.py:1] {text}\n"


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path)


def printed(run, **selection):
    out = io.StringIO()
    assert print_logs(run, out, **selection) == 0
    return out.getvalue().splitlines()


def said(lines):
    return [(line.split("] ")[0].strip("["), line.split("] ")[-1]) for line in lines]


def test_merged_by_time_and_lines_without_one_stay_behind_their_own(run):
    zero = "before any stamp\n" + stamped(1, "a") + "traceback of a\n" + stamped(5, "d")
    one = stamped(2, "b") + "  more of b\n" + "still b\n" + stamped(3, "c")
    add_attempt(run, handle=gone(), rank_logs={0: zero, 1: one})
    assert said(printed(run)) == [
        ("0", "before any stamp"),
        ("0", "a"),
        ("0", "traceback of a"),
        ("1", "b"),
        ("1", "  more of b"),
        ("1", "still b"),
        ("1", "c"),
        ("0", "d"),
    ]


def test_equal_times_keep_every_ranks_own_order(run):
    logs = {rank: "".join(stamped(1, f"{rank}.{line}") for line in range(3)) for rank in range(12)}
    add_attempt(run, handle=gone(), rank_logs=logs)
    lines = said(printed(run))
    assert [rank for rank, _ in lines] == sorted((str(r) for r in range(12) for _ in range(3)), key=int)
    assert [text for rank, text in lines if rank == "11"] == ["11.0", "11.1", "11.2"]


def test_the_new_year_comes_after_the_old_one(run):
    old, new = "I1231 23:59:59.900000 1 a.py:1] old\n", "I0101 00:00:00.100000 1 a.py:1] new\n"
    add_attempt(run, handle=gone(), rank_logs={0: old + new, 1: old + new})
    assert [text for _, text in said(printed(run))] == ["old", "old", "new", "new"]


def test_the_worker_speaks_too(run):
    attempt = add_attempt(run, handle=gone())
    attempt.worker_log(0).write_text("2026-11-29T16:03:02Z config_refused (78): no such key\n")
    attempt.worker_log(1).write_text("2026-11-29T16:03:02Z other node\n")
    assert printed(run) == [
        "[worker] 2026-11-29T16:03:02Z config_refused (78): no such key",
        "[worker 1] 2026-11-29T16:03:02Z other node",
    ]


def test_the_workers_clock_is_utc_and_the_trainers_local(run, monkeypatch):
    monkeypatch.setenv("TZ", "Europe/Zurich")  # UTC + 1 in winter
    time.tzset()
    try:
        attempt = add_attempt(run, handle=gone(), rank_logs={0: stamped(1, "first") + stamped(3, "third")})
        attempt.worker_log(0).write_text("2026-11-29T15:03:02Z second\n")
        assert [line.rsplit(" ", 1)[1] for line in printed(run)] == ["first", "second", "third"]
    finally:
        monkeypatch.undo()
        time.tzset()


def test_one_rank_is_printed_as_it_is(run):
    text = "plain\r\n" + stamped(1, "a") + "no newline at the end"
    add_attempt(run, handle=gone(), rank_logs={0: "other\n", 1: text})
    assert printed(run, rank=1) == ["plain", *stamped(1, "a").splitlines(), "no newline at the end"]


def test_bytes_that_are_no_text(run):
    attempt = add_attempt(run, handle=gone())
    attempt.rank_log(0).write_bytes(b"caf\xe9 \x00\n")
    assert printed(run, rank=0) == ["caf\ufffd \x00"]


def test_the_newest_attempt_unless_one_is_named(run):
    add_attempt(run, handle=gone(), log="first\n")
    add_attempt(run, handle=gone(), log="second\n")
    assert printed(run) == ["[0] second"]
    assert printed(run, attempt=1) == ["[0] first"]
    with pytest.raises(store.RunsError, match="no attempt 3, it has 1, 2"):
        printed(run, attempt=3)


def test_what_is_not_there_is_told(run):
    with pytest.raises(store.RunsError, match="never started"):
        printed(run)
    add_attempt(run, handle=gone())
    with pytest.raises(store.RunsError, match="printed nothing yet"):
        printed(run)
    with pytest.raises(store.RunsError, match="printed nothing yet"):
        printed(run, follow=True)
    add_attempt(run, handle=gone(), rank_logs=dict.fromkeys(range(16), "x\n"))
    with pytest.raises(store.RunsError, match="no rank 16, it has 0 to 15"):
        printed(run, rank=16)
    with pytest.raises(store.RunsError, match="no rank 16"):
        printed(run, rank=16, follow=True)


class Screen(io.StringIO):
    """Output that a test can wait on."""

    def wait_for(self, text, seconds=20):
        deadline = time.monotonic() + seconds
        while text not in self.getvalue():
            assert time.monotonic() < deadline, f"{text!r} never came: {self.getvalue()!r}"
            time.sleep(0.01)


def following(run, **selection):
    screen = Screen()
    words = {"follow": True, **selection}
    reader = threading.Thread(target=print_logs, args=(run, screen), kwargs=words, daemon=True)
    reader.start()
    return screen, reader


def test_following_new_lines_ranks_and_attempts_until_the_end(run):
    attempt = add_attempt(run, handle=me(), log="one\n")
    screen, reader = following(run)
    screen.wait_for("[0] one\n")
    with open(attempt.rank_log(0), "a") as log:
        log.write("two\nhal")
        log.flush()
        screen.wait_for("[0] two\n")
        assert "hal" not in screen.getvalue(), "half a line is not a line"
        log.write("f\n")
    screen.wait_for("[0] half\n")
    attempt.rank_log(7).write_text("late\n")
    screen.wait_for("[7] late\n")
    with open(attempt.rank_log(7), "a") as log:
        log.write("cut off")
    second = add_attempt(run, handle=me(), log="again\n")
    screen.wait_for("==> attempt 2 <==\n[0] again\n")
    assert "[7] cut off\n==> attempt 2" in screen.getvalue()
    second.result().write_text(json.dumps({"outcome": "finished", "started": 1, "ended": 2}))
    reader.join(20)
    assert not reader.is_alive()


def test_following_one_attempt_ends_with_it(run):
    add_attempt(run, handle=me(), log="one\n")
    screen, reader = following(run, attempt=1, rank=0)
    screen.wait_for("one\n")
    add_attempt(run, handle=me(), log="two\n")
    reader.join(20)
    assert not reader.is_alive()
    assert screen.getvalue() == "one\n"


def test_a_reader_that_leaves_is_no_error(run):
    add_attempt(run, handle=gone(), log="line\n" * 200_000)
    program = (
        "import sys; from pathlib import Path; from launcher.runs import store, logs\n"
        "sys.exit(logs.print_logs(store.load(Path(sys.argv[1])), sys.stdout))"
    )
    reading, writing = os.pipe()
    done = subprocess.Popen(
        [sys.executable, "-c", program, str(run.folder)], stdout=writing, stderr=subprocess.PIPE, text=True
    )
    os.close(writing)
    assert os.read(reading, 9) == b"[0] line\n"
    os.close(reading)
    _, errors = done.communicate(timeout=60)
    assert (done.returncode, errors) == (0, "")


def test_a_growing_file_gives_every_line_once(tmp_path):
    path = tmp_path / "log"
    file = GrowingFile(path)
    assert file.lines() == []
    path.write_bytes(b"a\nb")
    assert file.lines() == ["a"]
    with open(path, "ab") as more:
        more.write(b"c\r\n\nd")
    assert file.lines() == ["bc", ""]
    assert file.close() == ["d"]
    assert file.close() == []


def test_all_attempts_one_after_the_other(run):
    add_attempt(run, handle=gone(), rank_logs={0: stamped(1, "a")})
    add_attempt(run, handle=gone())
    add_attempt(run, handle=gone(), rank_logs={0: stamped(2, "b"), 1: stamped(3, "c")})
    out = io.StringIO()
    assert print_all_logs(run, out) == 0
    lines = out.getvalue().splitlines()
    assert [line for line in lines if line.startswith("==>")] == [f"==> attempt {n} <==" for n in (1, 2, 3)]
    assert "attempt 2 has printed nothing yet" in lines[3]
    assert said([lines[1], *lines[5:]]) == [("0", "a"), ("0", "b"), ("1", "c")]


def test_what_srun_said_is_part_of_it(run):
    attempt = add_attempt(run, handle=gone(), rank_logs={0: stamped(1, "a")})
    (attempt.path / "srun.log").write_text("")
    assert said(printed(run)) == [("0", "a")]
    (attempt.path / "srun.log").write_text("srun: error: n3: task 3: Killed\n")
    assert "[srun] srun: error: n3: task 3: Killed" in printed(run)
    assert printed(run, rank=0) == stamped(1, "a").splitlines()
