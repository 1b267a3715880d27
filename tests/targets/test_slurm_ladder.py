"""`ladder` and `ladder bisect` on a real scheduler: what is wanted is queued, and typed again they go on from the runs."""

import json
from pathlib import Path

import pytest

from launcher.cli.main import main
from launcher.runs import store
from launcher.runs.attempts import State

TRAINER = Path(__file__).resolve().parent.parent / "report"
WORDS = [
    "+exp=moe_tiny_cpu",
    "target=slurm",
    "trainer.module=ladder_trainer",
    "trainer.steps=60",
    "checkpoint=none",
    "monitor.max_failures=0",
    f"env.vars.PYTHONPATH={TRAINER}",
]
LADDER = """
[[rung]]
name = "plain"
words = ["trainer.learning_rate=1.0e-2"]
adds = "as it comes"
source = "this test"

[[rung]]
name = "fast"
words = ["trainer.learning_rate=1.0e-4"]
adds = "steps of three quarters"
source = "this test"
"""


@pytest.mark.slow
def test_a_ladder_and_a_bisection_on_a_cluster(slurm_bench, tmp_path, monkeypatch, capsys):
    def typed(*words):
        capsys.readouterr()
        code = main([*words, "--runs", str(slurm_bench.root)])
        out, err = capsys.readouterr()
        assert code == 0, err
        return out

    def until_all_ended():
        for run in store.all_runs(slurm_bench.root):
            slurm_bench.wait(run, State.FINISHED)

    conf = tmp_path / "conf"
    conf.mkdir()
    (conf / "ladder.toml").write_text(LADDER)
    monkeypatch.setenv("LAUNCHER_CONF", str(conf))
    typed("ladder", *WORDS, "--submit")
    until_all_ended()
    plain, fast = json.loads(typed("ladder", *WORDS, "--json"))["rungs"]
    assert (plain["state"], fast["state"]) == ("finished", "finished")
    assert fast["gain"]["value"] == pytest.approx(4 / 3, rel=0.02)

    for value in "ab":
        settings = [f"env.vars.S_{place}={value}" for place in range(1, 5)]
        typed("submit", *WORDS, f"name={value}", "env.vars.TOGETHER=S_2", *settings)
    until_all_ended()
    there = len(store.all_runs(slurm_bench.root))
    asked = ("ladder", "bisect", "a-", "b-", "--submit")
    assert "probe(s) wanted next, or running" in typed(*asked)
    assert len(store.all_runs(slurm_bench.root)) == there + 2  # both halves at once
    until_all_ended()
    typed(*asked)
    until_all_ended()
    assert "this setting makes the difference:\n  env.vars.S_2: a -> b" in typed(*asked)
