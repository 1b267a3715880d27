"""Whole bundles, byte by byte, as files in tests/golden/: a change of what will run is seen in review.

To accept a change: LAUNCHER_UPDATE_GOLDEN=1 python -m pytest tests/render/test_golden.py
The worker's sources and what hashes them are left out: they are not rendered.
"""

import os
import re
from pathlib import Path

import pytest

from launcher.render.bundle import render

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
EXPERIMENTS = {
    "dsv3_128gpu": ("+exp=dsv3_128gpu",),
    "dsv3_1024gpu": ("+exp=dsv3_1024gpu",),
    "moe_tiny_cpu": ("+exp=moe_tiny_cpu",),
    "dsv3_128gpu_kubernetes": ("+exp=dsv3_128gpu", "target=kubernetes"),
}
UPDATE = os.environ.get("LAUNCHER_UPDATE_GOLDEN") == "1"


def without_worker(text: str) -> str:
    """jobset.yaml without the worker's sources, and with names that do not depend on them."""
    text = re.sub(r"^  node\.\S+: \|.*\n(?:(?:    .*)?\n)*", "", text, flags=re.M)
    text = re.sub(r"^ *- \{key: node\..*\n", "", text, flags=re.M)
    return re.sub(r"(?<=-)[0-9a-f]{8}\b", "00000000", text)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_bundle_is_the_golden_one(name: str, plan_of) -> None:
    files = {
        file: without_worker(data.decode()).encode() if file == "jobset.yaml" else data
        for file, data in render(plan_of(*EXPERIMENTS[name])).files.items()
        if not file.startswith("node/") and file != "manifest.json"
    }
    folder = GOLDEN / name
    if UPDATE:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
        for file, data in files.items():
            (folder / file).write_bytes(data)
    assert sorted(path.name for path in folder.iterdir()) == sorted(files)
    for file, data in files.items():
        assert data.decode() == (folder / file).read_text(encoding="utf-8"), (
            f"{name}/{file} has changed: see the top of this file"
        )
