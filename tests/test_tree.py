"""What holds for every file of the project: sizes that a reader can take in, and nothing of the machine it was written on."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MAX_LINES, MAX_FUNCTION_LINES = 400, 60


def tracked() -> list[Path]:
    done = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip("not a git checkout: the list of the project's files is git's")
    return [ROOT / name for name in done.stdout.splitlines() if (ROOT / name).is_file()]


def test_files_and_functions_stay_small() -> None:
    for path in (p for p in tracked() if p.suffix == ".py" and "tests" not in p.relative_to(ROOT).parts):
        text = path.read_text(encoding="utf-8")
        assert text.count("\n") <= MAX_LINES, f"{path.relative_to(ROOT)} has {text.count(chr(10))} lines"
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or 0) - node.lineno + 1
                assert length <= MAX_FUNCTION_LINES, f"{path.relative_to(ROOT)}: {node.name} has {length} lines"


def test_no_stand_in_prints_a_time_that_is_not_now() -> None:
    """Its lines are sorted among events that the launcher times itself: a fixed time is one day before them."""
    stamp = re.compile(r"[IWEF][01]\d[0-3]\d [0-2]\d:[0-5]\d")
    run_by_tests = [path for path in tracked() if path.name.endswith("_trainer.py") or path.name.startswith("fault_")]
    assert len(run_by_tests) > 5
    for path in run_by_tests:
        assert not stamp.search(path.read_text(encoding="utf-8")), path.relative_to(ROOT)


def test_no_module_is_named_for_nothing() -> None:
    for path in tracked():
        assert path.name not in ("utils.py", "helpers.py", "common.py", "misc.py"), path


def test_nothing_points_to_one_machine() -> None:
    home_or_build = re.compile(r"(?<![\w.])/(?:root|work|farm|home/(?!kubernetes/)\w+)/|/tmp/(?:o|v312)/")
    index_page = re.compile(r"https?://[^ \"']*/(?:simple|debian|packages|-/)(?:/|$| )")
    for path in (p for p in tracked() if p.name != Path(__file__).name):
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), start=1):
            assert not home_or_build.search(line), f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}"
            assert not index_page.search(line), f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}"
