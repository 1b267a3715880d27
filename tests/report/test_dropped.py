"""The trainer that prints what its capacity drops, on real MaxText on CPUs: its capacity is MaxText's own, its share that of the table."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.h200 import tables

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_what_a_capacity_drops_is_counted(tmp_path):
    pytest.importorskip("maxtext")
    words = "+exp=moe_tiny_cpu moe=capacity trainer.module=benchmarks.h200.dropped trainer.steps=4 checkpoint=none name=drops"
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "launcher", *words.split(), "--runs", str(tmp_path)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (log,) = tmp_path.glob("drops-*/attempts/1/rank0.log")
    text = log.read_text()
    told = re.findall(r"dropped (\d+) of (\d+) by a capacity of (\d+)", text)
    assert {capacity for _, _, capacity in told} == set(re.findall(r"with a batch expert_capacity of (\d+)", text))
    assert len({pairs for _, pairs, _ in told}) == 1, "all layers and steps route as many pairs"
    first, last = tables.dropped(log)
    assert 0 < first < 0.3
    assert 0 < last < 0.3
    lost = [int(lost) for lost, _, _ in told]
    assert min(lost) / int(told[0][1]) <= min(first, last) <= max(lost) / int(told[0][1])


def test_a_log_without_such_lines_tells_nothing(tmp_path):
    log = tmp_path / "rank0.log"
    log.write_text("completed step: 0\n")
    assert tables.dropped(log) is None
    log.write_text("".join(f"dropped {lost} of 200 by a capacity of 8\n" for lost in [40, 20, *[10] * 16, 4, 2]))
    assert tables.dropped(log) == (pytest.approx(0.15), pytest.approx(0.015))
