"""Runs made by hand and recorded logs are shared with the tests of the folder of runs."""

import sys
from pathlib import Path

import pytest

from launcher.cli.main import main

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "runs")]


@pytest.fixture
def command(tmp_path, capsys):
    """A command as a person types it: exit code, stdout, stderr."""

    def run(*words):
        capsys.readouterr()
        code = main([*words, "--runs", str(tmp_path)])
        out, err = capsys.readouterr()
        return code, out, err

    return run
