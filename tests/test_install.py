"""The built package alone, on the oldest Python it is for: what a login node gets, and that the configs travel with it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
OLDEST = "3.11"
MOST_PACKAGES = 12
ALONE = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
"""An environment in which the source tree is not importable: pip would take it for the installed package."""


def oldest_python() -> str:
    """The oldest Python that the package is for, where it is installed; else the one that runs the tests."""
    managed = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [shutil.which(f"python{OLDEST}"), *map(str, managed.glob(f"{OLDEST}.*/bin/python"))]
    for candidate in filter(None, candidates):
        asked = [candidate, "-c", f"import sys, venv; assert sys.version.startswith('{OLDEST}.')"]
        if subprocess.run(asked, capture_output=True).returncode == 0:
            return candidate
    return sys.executable


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        pytest.skip(f"no wheel can be built here (no package index?): {done.stderr.strip()[-200:]}")
    subprocess.run([oldest_python(), "-m", "venv", str(folder / "venv")], check=True, env=ALONE)
    python = folder / "venv" / "bin" / "python"
    pip = [python, "-m", "pip", "install", "--quiet", *folder.glob("*.whl")]
    done = subprocess.run(pip, capture_output=True, text=True, timeout=300, env=ALONE)
    assert done.returncode == 0, done.stderr
    return python


def run(python: Path, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [python, "-m", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=ALONE, timeout=120)


def test_the_base_install_is_small(installed: Path, tmp_path: Path) -> None:
    listed = json.loads(run(installed, "pip", "list", "--format", "json", cwd=tmp_path).stdout)
    names = {package["name"] for package in listed} - {"pip", "setuptools"}
    assert "launcher" in names
    assert len(names) <= MOST_PACKAGES, sorted(names)


def test_a_bundle_is_made_from_the_wheel_alone(installed: Path, tmp_path: Path) -> None:
    done = run(installed, "launcher", "render", "+exp=dsv3_128gpu", "--out", "bundle", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "bundle" / "node" / "worker.py").is_file()
    assert "model_name: deepseek3-671b" in (tmp_path / "bundle" / "maxtext.yml").read_text()


def test_the_wheel_and_the_tree_make_the_same_bytes(installed: Path, tmp_path: Path) -> None:
    for python, folder in ((installed, "wheel"), (Path(sys.executable), "tree")):
        done = run(python, "launcher", "render", "+exp=moe_tiny_cpu", "--out", folder, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    compared = subprocess.run(["diff", "-r", "wheel", "tree"], cwd=tmp_path, capture_output=True, text=True)
    assert compared.returncode == 0, compared.stdout


def test_what_looks_at_runs_works_there_too(installed: Path, tmp_path: Path) -> None:
    assert run(installed, "launcher", "runs", cwd=tmp_path).returncode == 0
    done = run(installed, "launcher", "doctor", cwd=tmp_path)
    assert done.returncode == 1, "MaxText is not in the base install"
    assert "launcher[local]" in done.stdout
