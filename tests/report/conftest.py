"""Runs made by hand and recorded logs are shared with the tests of the folder of runs."""

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "runs")]
