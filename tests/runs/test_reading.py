"""A run's table: read on where the last look ended, shared by all who look, and never in the way."""

import json
import os
import subprocess
import sys
import threading

import pytest
from handmade import add_attempt, make_run, me, step_line

from launcher.node.table import Source
from launcher.runs import status
from launcher.runs.reading import RANK_0, behind, table_of

STEPS = "".join(step_line(step, stamp=f"I1129 16:03:{step:02d}.000000") for step in range(8))
STARTED = 1795968150.0  # 2026-11-29 16:02:30 UTC


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path)


def attempt_of(run, **more):
    attempt = add_attempt(run, handle=me(), **more)
    attempt.started().write_text(json.dumps({"started": STARTED}))
    return attempt


def steps(run, ranks=None):
    with table_of(run.layout, ranks) as table:
        return [(row.attempt, row.step) for row in table.rows()]


def test_only_what_is_new_is_read(run):
    log = attempt_of(run, log=STEPS[:700]).rank_log(0)
    assert steps(run) == [(1, step) for step in range(STEPS[:700].count("\n"))]
    whole = STEPS.encode()
    log.write_bytes(b"#" * len(STEPS[:500]) + whole[500:])  # what was read is not looked at again
    assert steps(run) == [(1, step) for step in range(8)]
    with table_of(run.layout) as table:
        assert table.source(1, "rank0.log") == Source(len(whole), 0)
        assert [row.at - STARTED for row in table.rows()] == [30 + step for step in range(8)]


def test_all_ranks_are_compared_and_rank_0_is_enough_for_the_rest(run):
    late = STEPS.replace("16:03:0", "16:03:1")
    attempt_of(run, log=STEPS, rank_logs={1: STEPS, 17: late})
    with table_of(run.layout, RANK_0) as table:
        assert {row.ranks for row in table.rows()} == {1}
    with table_of(run.layout) as table:
        rows = table.rows()
    assert {(row.ranks, row.last_rank) for row in rows} == {(3, 17)}
    assert rows[3].last_at - rows[3].first_at == 10


def test_earlier_attempts_are_left_alone_until_files_come(run):
    first = attempt_of(run, log=STEPS)
    attempt_of(run, log=STEPS[:700])
    assert len(steps(run)) == 8 + STEPS[:700].count("\n")
    assert len(steps(run)) == 8 + STEPS[:700].count("\n")
    first.rank_log(3).write_text(STEPS + step_line(8))  # brought from a pod later
    assert (1, 8) in steps(run)


@pytest.mark.parametrize("at", [0, 1, -1])
def test_an_archives_times_hide_no_attempt(run, at):
    for attempt in (attempt_of(run, log=STEPS), attempt_of(run, log=STEPS)):
        os.utime(attempt.rank_log(0), (at, at))
        os.utime(attempt.path, (at, at))
    assert steps(run) == [(attempt, step) for attempt in (1, 2) for step in range(8)]


def test_a_file_that_is_no_table_is_made_anew(run):
    attempt_of(run, log=STEPS)
    run.layout.table.write_text("no database " * 100)
    assert len(steps(run)) == 8
    assert run.layout.table.read_bytes().startswith(b"SQLite format 3")


def test_a_table_of_another_version_is_made_anew(run):
    attempt_of(run, log=STEPS)
    with table_of(run.layout) as table:
        table.db.execute("PRAGMA user_version = 99")
    assert len(steps(run)) == 8


def test_where_no_file_can_be_written_it_is_read_into_memory(run):
    attempt_of(run, log=STEPS)
    run.layout.table.mkdir()
    assert len(steps(run)) == 8


def test_several_readers_at_once_lose_and_double_nothing(run):
    attempt_of(run, log=STEPS * 200, rank_logs=dict.fromkeys(range(1, 5), STEPS))
    seen = []
    readers = [threading.Thread(target=lambda: seen.append(len(steps(run)))) for _ in range(6)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert seen == [8] * 6
    with table_of(run.layout) as table:
        assert {row.ranks for row in table.rows()} == {200 + 4}


def test_status_does_not_wait_for_what_takes_long_to_read(run, monkeypatch):
    attempt_of(run, log=STEPS)
    assert behind(run.layout) == len(STEPS)
    monkeypatch.setattr(status, "QUICK_BYTES", len(STEPS) - 1)
    assert status.status_of(run).goodput is None
    steps(run, RANK_0)
    assert behind(run.layout) == 0
    assert status.status_of(run).goodput is not None


def test_a_full_disk_is_no_reason_to_see_nothing(run):
    """The program may write no file of more than 4 kB: SQLite is told what a full disk tells it."""
    attempt_of(run, log=STEPS)
    program = f"""
import resource
from pathlib import Path
from launcher.node.layout import RunFolder
from launcher.runs.reading import behind, table_of
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
layout = RunFolder(Path({str(run.folder)!r}))
assert behind(layout) == {len(STEPS)}
with table_of(layout) as table:
    print(len(table.rows()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("8\n", "")
    assert len(steps(run)) == 8
