"""Commands in the documents run: every `launcher` line of a shell block is typed here as it stands."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NEEDS_A_RUN = {"status", "logs", "events", "watch", "cancel", "resume", "report", "compare", "verify", "scaling"}
HYDRAS = {"--cfg", "--info", "--hydra-help"}


class Command(NamedTuple):
    document: str
    words: list[str]
    shown: str
    """What the document shows below the command, in a `console` block."""
    files: dict[str, str]
    """The reader's own files, as the document has them: `yaml` blocks that begin with `# $LAUNCHER_CONF/PATH`."""


def commands() -> Iterator[Command]:
    """Each launcher command: every line of a `sh` block, in a `console` block those behind a prompt."""
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        files = dict(re.findall(r"```yaml\n# \$LAUNCHER_CONF/(\S+)\n(.*?)```", text, re.S))
        for kind, block in re.findall(r"```(sh|console)\n(.*?)```", text, re.S):
            for line in block.splitlines() if kind == "sh" else re.findall(r"^\$ (.*)", block, re.M):
                if line.startswith("python -m launcher"):
                    shown = block.partition(line)[2] if kind == "console" else ""
                    yield Command(document.name, shlex.split(line, comments=True)[3:], shown, files)


def verb(words: list[str]) -> str:
    return words[0] if words and "=" not in words[0] and not words[0].startswith("-") else "submit"


def needs_a_run(words: list[str]) -> bool:
    """A ladder does where it names runs and no experiment."""
    return verb(words) in NEEDS_A_RUN or (verb(words) == "ladder" and not any("=" in word for word in words))


def tried(words: list[str]) -> list[str]:
    """The words to type here: what would train goes through `plan`, which composes and passes the same checks."""
    if verb(words) == "ladder":
        return [word for word in words if word != "--submit"]
    if verb(words) == "correctness":
        return [*words, "--plan"]
    if verb(words) not in ("submit", "preflight") or HYDRAS & set(words) or "--help" in words:
        return words
    overrides = [word for word in words if "=" in word and not word.startswith("-")]
    return ["plan", *(word.split(",")[0] if "'" not in word else word for word in overrides)]


def test_there_are_commands_to_try() -> None:
    assert {verb(c.words) for c in commands()} >= {"submit", "plan", "render", "status", "logs", "resume"}


@pytest.mark.parametrize("command", list(commands()), ids=lambda c: f"{c.document}: {' '.join(c.words)}")
def test_a_documented_command_works(command: Command, tmp_path: Path) -> None:
    words = tried(command.words)
    environ = dict(os.environ)
    for name, text in command.files.items():
        file = tmp_path / "conf" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        environ["LAUNCHER_CONF"] = str(tmp_path / "conf")
    done = subprocess.run(
        [sys.executable, "-m", "launcher", *words],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
    )
    if needs_a_run(command.words):
        # There is no run here: the command is understood as far as its name.
        assert (done.returncode, "no run" in done.stderr) == (1, True), done.stderr
        return
    told = done.stdout + done.stderr
    assert done.returncode == (1 if "  error  " in command.shown else 0), told
    for line in command.shown.splitlines():
        assert line.strip() in ("", "...") or line in done.stdout, f"the document shows another output: {line}"
