"""What the tests of the SLURM target share."""

import pytest
from bench import Bench
from slurm_harness import SlurmHarness

from launcher.runs import ending, store
from launcher.runs.attempts import judge_one


@pytest.fixture
def slurm_bench(tmp_path, on_slurm):
    """A folder of runs on a cluster; what still runs at the end of the test is killed."""
    bench = Bench(tmp_path / "runs", SlurmHarness())
    yield bench
    on_slurm.start_controller()
    for run in store.all_runs(bench.root):
        if judge_one(run).is_live:
            ending.cancel_now(run, lambda _: None)


@pytest.fixture
def full(on_slurm):
    """No node takes jobs, so that what is submitted waits; until the end of the test."""
    on_slurm.run("scontrol", "update", "partitionname=main", "state=down")
    yield
    on_slurm.run("scontrol", "update", "partitionname=main", "state=up")
