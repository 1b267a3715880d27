"""The table of failures and a user's own rows in it."""

import json

import pytest
import recorded
from handmade import add_attempt, gone, make_run

from launcher.issue import Refused
from launcher.node.causes import tails
from launcher.render import failure_table
from launcher.runs import causes
from launcher.runs.attempts import judge_one
from launcher.runs.progress import Figures, report_line
from launcher.runs.status import status_json, status_of, status_text

OWN = """
[[failure]]
name = "our_filer"
where = ["rank"]
patterns = ['filer-7 .* is read-only']
cause = "filer-7 went read-only"
action = "stop"
help = "call 4711"
"""
FAILED = {"outcome": "trainer", "code": 1, "reason": "rank 0 ended with return code 1: OSError"}


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "runs")


@pytest.fixture
def conf(tmp_path, monkeypatch):
    folder = tmp_path / "conf"
    folder.mkdir()
    monkeypatch.setenv("LAUNCHER_CONF", str(folder))
    return folder


def failed(run, *lines):
    return add_attempt(run, handle=gone(), log="\n".join(lines) + "\n", result=FAILED)


def test_a_users_row_wins_and_the_launchers_stay(run, conf):
    (conf / "failures.toml").write_text(OWN)
    first = failed(run, "OSError: [Errno 28] No space left on device: filer-7 /x is read-only")
    found = causes.cause_of(first)
    assert (found.signature.name, found.advice) == (
        "our_filer",
        "do not start again before it is changed; call 4711",
    )
    second = failed(run, "OSError: [Errno 28] No space left on device")
    assert causes.cause_of(second).signature.name == "disk_full"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("'filer-7 .* is read-only'", "'filer-7 ( is'", "the pattern 'filer-7 ( is' is no regular expression"),
        ("'filer-7 .* is read-only'", "'(a|)'", "fits every line"),
        ("'filer-7 .* is read-only'", "7", "the pattern 7 is no regular expression"),
        ('"stop"', '"reboot"', "action 'reboot' is not known"),
        ('["rank"]', '["dmesg"]', "where 'dmesg' is not known"),
        ('["rank"]', '"rank"', "`where` must be a list"),
        ('cause = "filer-7 went read-only"', "", "has no `cause`"),
        ("help =", "hlep =", "has hlep"),
        ("[[failure]]", "[[failure]", "is no TOML"),
        ("[[failure]]", "[failure]", "`failure` must be a list of tables"),
    ],
)
def test_a_wrong_row_is_an_issue(conf, old, new, said):
    (conf / "failures.toml").write_text(OWN.replace(old, new))
    with pytest.raises(Refused) as refused:
        failure_table.signatures()
    issues = refused.value.issues
    assert any(said in issue.message and str(conf) in issue.message and issue.hint for issue in issues), issues


def test_all_that_is_wrong_is_told_at_once(conf):
    (conf / "failures.toml").write_text(OWN.replace('"stop"', '"x"') + OWN.replace("cause =", "reason ="))
    with pytest.raises(Refused) as refused:
        failure_table.signatures()
    assert len(refused.value.issues) == 3


@pytest.mark.parametrize(("name", "cause"), recorded.FAILED.items())
def test_status_tells_cause_and_advice_of_a_recorded_failure(run, name, cause):
    failed(run, *recorded.lines(name))
    status = status_of(run)
    row = next(row for row in failure_table.own_signatures() if row.name == cause)
    assert status.cause.startswith(f"{row.cause} (rank 0: ")
    assert status.advice.endswith(row.help)
    assert f"cause       {status.cause}" in status_text(status)
    assert status_json(status)["advice"] == status.advice


def test_status_stays_readable_with_a_wrong_table(run, conf):
    (conf / "failures.toml").write_text("[[failure")
    failed(run, "boom")
    assert "the table of failures is wrong" in status_of(run).cause


def test_an_unknown_failure_adds_nothing_to_the_reason(run):
    failed(run, "Traceback (most recent call last):", "ZeroDivisionError: division by zero")
    assert status_of(run).cause == ""
    assert causes.cause_of(run.layout.attempt(1)).line == "ZeroDivisionError: division by zero"


def test_only_the_end_of_a_huge_log_is_read(run):
    attempt = failed(
        run, "OSError: [Errno 28] No space left on device", *["x" * 999] * 100, "OSError: Stale file handle"
    )
    assert causes.cause_of(attempt).signature.name == "stale_storage"
    (tail,) = tails(attempt)
    assert sum(map(len, tail.lines)) < 1 << 15


def test_srun_and_the_cluster_have_their_say(run):
    attempt = add_attempt(run, handle=gone(), result={**FAILED, "by": "supervisor"})
    (attempt.path / "srun.log").write_text("srun: error: n2: task 2: Killed\n")
    assert causes.cause_of(attempt).signature.name == "task_killed"
    assert causes.cause_of(attempt, "pod demo-w-0-1: OOMKilled").signature.name in ("task_killed", "host_memory")
    (attempt.path / "srun.log").unlink()
    assert causes.cause_of(attempt, "pod demo-w-0-1: OOMKilled").signature.name == "host_memory"
    assert causes.cause_of(attempt, "nobody knows").signature is None


def test_srun_is_not_asked_where_a_worker_knows_better(run):
    """srun killed task 3 because rank 2 had failed: seen on a real Slurm, 4 nodes, after SIGKILL to one rank."""
    result = {**FAILED, "code": 137, "reason": "node 2 (n2): rank 2 was killed by SIGKILL after step 7"}
    attempt = add_attempt(run, handle=gone(), log="nothing of note\n", result=result)
    (attempt.path / "srun.log").write_text("srun: error: n3: task 3: Killed\n")
    assert causes.cause_of(attempt).signature is None
    assert status_of(run).cause == ""
    attempt.result().write_text(json.dumps({**result, "started": 1.0, "ended": 2.0, "by": "supervisor"}))
    assert causes.cause_of(attempt).signature.name == "task_killed"
    attempt.failure.write_text(json.dumps({"node": 2, "code": 137, "reason": result["reason"]}))
    assert causes.cause_of(attempt).signature is None


def test_the_foreground_tells_the_cause_at_the_end(run):
    failed(run, *recorded.lines("h200x2_te_ncclep_jit_poisoned_rank0.log"))
    lines = report_line(judge_one(run), Figures(20)).splitlines()
    (cause,) = [line for line in lines if line.startswith("cause:  NCCL EP could not compile a kernel")]
    assert lines[lines.index(cause) + 1].startswith(
        "next:   start again on the same nodes; with all kernels compiled anew, in a fresh NCCL_EP_JIT_CACHE_DIR"
    )
