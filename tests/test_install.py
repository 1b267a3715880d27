"""The built package alone: what a login node gets, and that the configs travel with it."""

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MOST_PACKAGES = 12
ALONE = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
"""An environment in which the source tree is not importable: pip would take it for the installed package."""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        pytest.skip(f"no wheel can be built here (no package index?): {done.stderr.strip()[-200:]}")
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    done = subprocess.run(
        [python, "-m", "pip", "install", "--quiet", *folder.glob("*.whl")],
        capture_output=True,
        text=True,
        timeout=300,
        env=ALONE,
    )
    assert done.returncode == 0, done.stderr
    return python


def run(python: Path, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, "-m", "launcher", *words], capture_output=True, text=True, cwd=cwd, env=ALONE, timeout=120
    )


def test_the_base_install_is_small(installed: Path) -> None:
    done = subprocess.run(
        [installed, "-m", "pip", "list", "--format", "json"], capture_output=True, text=True, check=True
    )
    names = {package["name"] for package in json.loads(done.stdout)} - {"pip", "setuptools"}
    assert len(names) <= MOST_PACKAGES, sorted(names)


def test_a_bundle_is_made_from_the_wheel_alone(installed: Path, tmp_path: Path) -> None:
    done = run(installed, "render", "+exp=dsv3_128gpu", "--out", "bundle", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "bundle" / "node" / "worker.py").is_file()
    assert "model_name: deepseek3-671b" in (tmp_path / "bundle" / "maxtext.yml").read_text()


def test_the_wheel_and_the_tree_make_the_same_bytes(installed: Path, tmp_path: Path) -> None:
    assert run(installed, "render", "+exp=moe_tiny_cpu", "--out", "wheel", cwd=tmp_path).returncode == 0
    done = subprocess.run(
        [sys.executable, "-m", "launcher", "render", "+exp=moe_tiny_cpu", "--out", "tree"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert subprocess.run(["diff", "-r", "wheel", "tree"], cwd=tmp_path, capture_output=True).returncode == 0
