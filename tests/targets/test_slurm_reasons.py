"""SLURM's reasons for a pending job, in plain words: the table alone (test_slurm.py gets real ones from a real scheduler)."""

import time
import tomllib

import pytest

from launcher.targets.base import Presence
from launcher.targets.slurm import absent
from launcher.targets.slurm_queue import Site
from launcher.targets.slurm_reasons import TABLE, JobState, Phase, sentence, state, table


@pytest.mark.parametrize("row", table(), ids=lambda row: row["word"])
def test_every_row_is_a_sentence_with_what_would_help(row):
    said = sentence("12", row["word"].replace("*", "X"), "afterany:3(unfulfilled)", None)
    why, _, helps = said.partition("; ")
    assert why
    assert helps
    assert "{" not in said
    assert "SLURM says" not in said


@pytest.mark.parametrize(
    ("reason", "parts"),
    [
        ("Priority", ["other jobs are before it", "target.slurm.qos"]),
        (
            "ReqNodeNotAvail, UnavailableNodes:n[1-2]",
            ["down, drained or reserved", "UnavailableNodes:n[1-2]", "sinfo -R"],
        ),
        ("ReqNodeNotAvail,_Reserved_for_maintenance", ["maintenance", "scontrol show reservation"]),
        ("(Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions)", ["sinfo -R"]),
        ("launch failed requeued held", ["prolog", "scontrol release 12"]),
        ("launch_failed_requeued_held", ["prolog", "scontrol release 12"]),
        ("AssocGrpGRES", ["account", "AssocGrpGRES"]),
        ("AssocMaxJobsLimit", ["as many jobs as one user"]),
        ("QOSMaxJobsPerUserLimit", ["you have reached", "QOSMaxJobsPerUserLimit"]),
        ("QOSMaxNodePerJobLimit", ["fewer nodes or less time"]),
        ("QOSGrpNodeLimit", ["together"]),
        ("DependencyNeverSatisfied", ["never start"]),
        ("Dependency", ["afterok:7(unfulfilled)"]),
        ("ReservationDeleted", ["is gone"]),
        ("SomethingOfSlurm29", ["SLURM says SomethingOfSlurm29", "scontrol show job 12"]),
        ("", ["SLURM says nothing"]),
    ],
)
def test_the_words_of_slurm_in_plain_words(reason, parts):
    said = sentence("12", reason, "afterok:7(unfulfilled)")
    for part in parts:
        assert part in said
    assert "\n" not in said


def test_the_expected_start_is_told_where_it_means_something():
    soon = time.time() + 3600
    assert time.strftime("%Y-%m-%d %H:%M", time.localtime(soon)) in sentence("12", "Resources", start=soon)
    assert "expects" not in sentence("12", "Resources", start=time.time() + 365 * 86400), "no job has a time limit"
    assert "expects" not in sentence("12", "JobHeldUser", start=soon)
    assert "expects" not in sentence("12", "Resources", start=None)


HANDLE = {"kind": "slurm", "job": "12", "cluster": "alps", "user": "ada", "folder": "/runs/demo-0a1b2c3d/bundle"}


@pytest.mark.parametrize(
    ("handle", "site", "user", "presence", "part"),
    [
        (HANDLE, Site("alps", False), "ada", Presence.GONE, "job 12 is over"),
        (HANDLE, Site("alps", False), "bob", Presence.GONE, "job 12 is over"),
        (HANDLE, Site("alps", True), "ada", Presence.GONE, "job 12 is over"),
        (HANDLE, Site("alps", True), "root", Presence.GONE, "job 12 is over"),
        (HANDLE, Site("alps", True), "bob", Presence.UNKNOWN, "hides jobs of others"),
        (HANDLE, Site("eiger", False), "ada", Presence.UNKNOWN, "cluster alps, this shell talks to eiger"),
        ({**HANDLE, "cluster": ""}, Site("eiger", False), "ada", Presence.GONE, "job 12 is over"),
        ({"kind": "slurm"}, Site("alps", False), "ada", Presence.UNKNOWN, "damaged"),
    ],
)
def test_a_job_that_is_not_seen_is_over_unless_it_could_be_hidden(handle, site, user, presence, part):
    sight = absent(handle, site, user)
    assert sight.presence is presence
    assert part in sight.why


def test_a_states_phase():
    assert state("REQUEUE_HOLD").phase is Phase.WAITS
    assert state("SUSPENDED") == JobState(Phase.LIVES, "SLURM has suspended it: another job uses its nodes")
    assert state("NODE_FAIL").phase is Phase.OVER
    assert state("A_NEW_ONE") == JobState(Phase.LIVES)
    words = [word for row in tomllib.loads(TABLE.read_text())["state"] for word in row["words"]]
    assert len(words) == len(set(words))
