"""Commands in the documents run: every `launcher` line of a shell block is typed here as it stands."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NEEDS_A_RUN = {"status", "logs", "cancel", "resume", "report"}
TRAINS = {"submit", "preflight"}


def commands() -> Iterator[tuple[str, list[str]]]:
    for document in DOCUMENTS:
        for block in re.findall(r"```(?:sh|console)\n(.*?)```", document.read_text(encoding="utf-8"), re.S):
            for line in block.splitlines():
                words = shlex.split(line.removeprefix("$ "), comments=True)
                if words[:3] == ["python", "-m", "launcher"]:
                    yield document.name, words[3:]


def verb(words: list[str]) -> str:
    return words[0] if words and "=" not in words[0] and not words[0].startswith("-") else "submit"


def test_there_are_commands_to_try() -> None:
    assert {verb(words) for _, words in commands()} >= {"submit", "plan", "render", "status", "logs", "resume"}


@pytest.mark.parametrize(("document", "words"), [pytest.param(d, w, id=f"{d}: {' '.join(w)}"[:120]) for d, w in commands()])
def test_a_documented_command_is_understood(document: str, words: list[str], tmp_path: Path) -> None:
    name = verb(words)
    if name in NEEDS_A_RUN:
        # Without the run that the text speaks of: the command is understood as far as the run's name.
        expected, told = 1, "no run"
    elif name in TRAINS:
        # The same words through `plan`: whether they compose and pass every check (training itself is another test).
        words, expected, told = ["plan", *(w for w in words if w not in ("submit", "preflight", "maxtext", "-m", "--detach"))], 0, ""
        words = [w.split(",")[0] if "+exp" not in w and "'" not in w else w for w in words]
    else:
        expected, told = 0, ""
    done = subprocess.run([sys.executable, "-m", "launcher", *words], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == expected, f"{document}: {' '.join(words)}\n{done.stdout}{done.stderr}"
    assert told in done.stderr
