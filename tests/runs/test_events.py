"""The story of a run: two attempts with an overflow between them, told in order, as lines and as JSON."""

import io
import json
import threading
import time

import pytest
import recorded
from handmade import add_attempt, gone, make_run, me, step_line

from launcher.cli.main import main
from launcher.runs import events as told
from launcher.runs import store
from launcher.runs.attempts import mark_cancelled

BEGIN = 1795973717.0  # 2026-11-29 17:35:17 UTC: the recorded overflow's start
OVERFLOW = "h200x2_te_overflow_rank0.log"


def line_at(step, seconds, loss=None):
    stamp = time.strftime("I%m%d %H:%M:%S", time.gmtime(seconds)) + f".{round(seconds % 1 * 1e6):06d}"
    return step_line(step, loss=loss, stamp=stamp)


def begin(run, number, at, **more):
    attempt = add_attempt(run, handle=gone(), **more)
    assert attempt.number == number
    attempt.started().write_text(json.dumps({"started": at, "host": f"node{number}", "attempt": number}))
    return attempt


@pytest.fixture
def run(tmp_path):
    """An overflow, healed: the second attempt finishes, and jumps once."""
    run = make_run(tmp_path, steps=60)
    record = json.loads(run.layout.run.read_text())
    run.layout.run.write_text(json.dumps({**record, "created": "2026-11-29T17:35:00Z"}))
    reason = "MoE receive buffer overflow at step 0"
    result = {"outcome": "overflow", "code": 76, "reason": reason, "started": BEGIN, "ended": BEGIN + 40}
    first = begin(run, 1, BEGIN, log="\n".join(recorded.lines(OVERFLOW)) + "\n", result=result)
    (first.path / "decision.json").write_text(
        json.dumps({"action": "restart", "reason": "once more", "at": BEGIN + 41})
    )
    entry = {"attempt": 1, "key": "ragged_buffer_factor", "old": 1.0, "new": 1.29, "why": reason, "at": BEGIN + 39.5}
    run.layout.adjust.write_text(json.dumps({"maxtext": {}, "history": [entry]}))
    losses = [9 - step / 20 + (8 if step == 40 else 0) for step in range(60)]
    log = "".join(line_at(step, BEGIN + 60 + step, loss) for step, loss in enumerate(losses))
    result = {"outcome": "finished", "code": 0, "reason": "all steps", "started": BEGIN + 50, "ended": BEGIN + 121}
    begin(run, 2, BEGIN + 50, log=log, result=result)
    return store.load(run.folder)


def kinds(run, **how):
    return [event.kind for event in told.events(told.read(run, **how)[1], run)]


def test_the_story_in_order(run):
    found = told.events(told.read(run)[1], run)
    assert [(event.attempt, event.kind) for event in found] == [
        (None, "submitted"),
        (1, "attempt_started"),
        (1, "started"),
        (1, "compiled"),
        (1, "first_step"),
        (1, "overflow"),
        (1, "last_step"),
        (1, "adjusted"),
        (1, "attempt_ended"),
        (1, "moe_overflow"),
        (1, "decided_restart"),
        (2, "attempt_started"),
        (2, "first_step"),
        (2, "loss_spike"),
        (2, "last_step"),
        (2, "attempt_ended"),
    ]
    times = [event.at for event in found]
    assert times == sorted(times)
    assert "ragged_buffer_factor 1.0 -> 1.29" in found[7].text
    assert "start again with a larger ragged_buffer_factor" in found[9].text
    assert found[13].step == 40


def test_a_rollback_is_told_by_where_it_went_and_with_which_data(run):
    data = {"key": "data_shuffle_seed", "old": 0, "new": 1}
    entry = {"attempt": 1, "key": "rollback", "old": 25, "new": 20, "kind": "nan", "why": "the loss is nan at step 25"}
    run.layout.adjust.write_text(json.dumps({"history": [{**entry, "data": data, "at": BEGIN + 39.5}]}))
    (event,) = [event for event in told.events(told.read(run)[1], run) if event.kind == "rollback"]
    assert (event.attempt, event.text) == (
        1,
        "back to the checkpoint of step 20, with other data (data_shuffle_seed 0 -> 1): the loss is nan at step 25",
    )


def test_lines_and_json_tell_the_same(run, tmp_path, capsys):
    assert main(["events", run.name, "--runs", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert main(["events", run.name, "--runs", str(tmp_path), "--json"]) == 0
    objects = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[-1].startswith("goodput: ")
    assert len(lines) == len(objects) + 1
    for line, entry in zip(lines, objects, strict=False):
        assert entry["kind"] in line
        assert line.endswith(entry["text"])
    assert set(objects[0]) == {"at", "attempt", "kind", "text", "step"}


def test_goodput_of_the_run(run, tmp_path, capsys):
    assert main(["events", run.name, "--runs", str(tmp_path), "--goodput", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sum(found["microseconds"].values()) == round(found["wall_seconds"] * 1e6) == (17 + 121) * 10**6
    assert found["seconds"]["replayed"] == pytest.approx(2 + 3)
    assert found["seconds"]["queue"] == 17
    assert main(["events", run.name, "--runs", str(tmp_path), "--goodput"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split() == ["wall", "138.000", "s"]


def test_goodput_and_follow_do_not_go_together(run, tmp_path, capsys):
    assert main(["events", run.name, "--runs", str(tmp_path), "--goodput", "-f"]) == 1
    assert "--goodput" in capsys.readouterr().err


def test_a_rank_that_is_always_late_and_one_that_stopped_early(tmp_path):
    run = make_run(tmp_path)
    logs = {rank: "".join(line_at(s, BEGIN + s + (0.5 if rank == 2 else 0)) for s in range(19)) for rank in range(4)}
    logs[0] += line_at(19, BEGIN + 19)
    result = {"outcome": "finished", "code": 0, "started": BEGIN, "ended": BEGIN + 30}
    begin(run, 1, BEGIN, rank_logs=logs, result=result)
    assert not {"late_rank", "ranks_missing"} & set(kinds(run))
    found = {event.kind: event.text for event in told.events(told.read(run, all_ranks=True)[1], run)}
    assert found["ranks_missing"] == "1 of 4 ranks report step 19, the last"
    assert found["late_rank"].startswith("rank 2 was the last to complete 19 of 20 steps; first to last: 0.500 s")


def test_following_tells_each_event_once_until_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(told, "FOLLOW_SECONDS", 0.02)
    run = make_run(tmp_path, steps=30)
    attempt = add_attempt(run, handle=me(), log=line_at(0, BEGIN + 1))
    attempt.started().write_text(json.dumps({**me(), "started": BEGIN, "host": "here"}))
    out = io.StringIO()
    follower = threading.Thread(target=lambda: told.print_events(run, out, as_json=True, follow=True, all_ranks=False))
    follower.start()
    with attempt.rank_log(0).open("a") as log:
        for step in range(1, 30):
            log.write(line_at(step, BEGIN + 1 + step, loss=float("nan") if step == 20 else None))
            log.flush()
            time.sleep(0.005)
    result = {"outcome": "finished", "code": 0, "reason": "", "started": BEGIN, "ended": BEGIN + 40}
    attempt.result().write_text(json.dumps(result))
    follower.join(20)
    assert not follower.is_alive()
    found = [json.loads(line)["kind"] for line in out.getvalue().splitlines()]
    assert sorted(found) == sorted({"submitted", "attempt_started", "first_step", "nan", "last_step", "attempt_ended"})


def test_a_run_that_never_began(tmp_path):
    assert kinds(make_run(tmp_path)) == ["submitted"]


def test_an_end_that_was_asked_for_has_no_cause(tmp_path):
    run = make_run(tmp_path)
    attempt = begin(run, 1, BEGIN, log=line_at(0, BEGIN + 1) + "its last words\n")
    assert "unknown_failure" in kinds(run)
    mark_cancelled(attempt)
    assert "unknown_failure" not in kinds(run)
    assert "attempt_ended" in kinds(run)


@pytest.mark.parametrize(("outcome", "code", "is_looked_up"), [("trainer", 1, True), ("diverged", 74, False)])
def test_the_table_does_not_speak_against_a_rollback(tmp_path, outcome, code, is_looked_up):
    run = make_run(tmp_path)
    result = {"outcome": outcome, "code": code, "reason": "NaN", "started": BEGIN, "ended": BEGIN + 9}
    line = "I1129 17:35:21.969282 140264848128896 metric_logger.py:349] Aborting training due to NaN loss.\n"
    begin(run, 1, BEGIN, log=line, result=result)
    assert ("nan_loss" in kinds(run)) is is_looked_up
    assert "aborted" in kinds(run)
