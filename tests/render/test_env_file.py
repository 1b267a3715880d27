import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.config.schema import Env, Experiment, Fabric, Xla
from launcher.node.environment import read_env
from launcher.render import env

NASTY = {
    "SINGLE": "'FUSION,CUBLAS'",
    "SPACES": "  a  b ",
    "DOLLAR": "$HOME ${HOME} $(id) `id`",
    "DOUBLE": 'say "no"',
    "BACKSLASH": "C:\\new\\",
    "HASH": "a #b",
    "LEADING_HASH": "#b",
    "COMMAS": "a,b,,c",
    "NEWLINES": "one\ntwo\n\nthree\n",
    "TAB": "a\tb",
    "UNICODE": "äöü 日本 😀",
    "EMPTY": "",
    "EQUALS": "a=b",
    "STAR": "*",
    "TILDE": "~/x",
    "BANG": "!!",
    "SEMICOLON": "a; exit 3",
    "BOTH": 'it\'s "both"',
    "EXPORT": "export",
}
SHELLS = [shell for shell in ("sh", "bash", "dash", "busybox") if shutil.which(shell)]
ASK = "import json, os, sys; print(json.dumps({k: os.environ[k] for k in sys.argv[1:]}))"


def experiment(vars: dict[str, object], fabric: dict[str, object] | None = None, pgle: bool = False) -> Experiment:
    return Experiment(name="x", env=Env(vars=vars), fabric=Fabric(vars=fabric or {}), xla=Xla(pgle=pgle))


@pytest.mark.parametrize("shell", SHELLS)
def test_a_real_shell_sources_the_file_unchanged(shell: str, tmp_path: Path) -> None:
    file = tmp_path / "env"
    file.write_bytes(env.text(NASTY).encode())
    command = [
        shell,
        *(["sh"] if shell == "busybox" else []),
        "-euc",
        '. "$0"; exec "$@"',
        str(file),
        sys.executable,
        "-c",
        ASK,
    ]
    bare = {"PATH": os.environ["PATH"], "PYTHONUTF8": "1", "HOME": "/wrong"}
    done = subprocess.run([*command, *NASTY], capture_output=True, text=True, env=bare, check=True)
    assert json.loads(done.stdout) == NASTY


def test_shlex_and_the_worker_read_the_file_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "env"
    file.write_bytes(env.text(NASTY).encode())
    words = shlex.split(file.read_text(encoding="utf-8"), comments=True)
    assert dict(word.split("=", 1) for word in words[1::2]) == NASTY
    assert set(words[0::2]) == {"export"}
    assert read_env(file) == NASTY


@given(
    st.dictionaries(
        st.from_regex(r"[A-Z_][A-Z0-9_]{0,8}", fullmatch=True),
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    )
)
def test_any_text_survives_quoting(chosen: dict[str, str]) -> None:
    words = shlex.split(env.text(chosen), comments=True)
    assert dict(word.split("=", 1) for word in words[1::2]) == chosen


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40))
def test_any_text_survives_a_shell(value: str) -> None:
    script = env.text({"V": value}) + 'printf %s "$V"'
    done = subprocess.run(["sh", "-euc", script], capture_output=True, env={"PATH": os.environ["PATH"]}, check=True)
    assert done.stdout.decode() == value


def test_values_become_text() -> None:
    asked = experiment({"A": True, "B": False, "C": 0.88, "D": 16, "E": "0.880"})
    assert env.variables(asked) == {"A": "true", "B": "false", "C": "0.88", "D": "16", "E": "0.880"}


def test_the_experiment_wins_over_the_fabric() -> None:
    assert env.variables(experiment({"A": 1}, fabric={"A": 2, "B": 2})) == {"A": "1", "B": "2"}


def test_pgle_is_a_variable() -> None:
    assert env.variables(experiment({"A": 1}, pgle=True)) == {"A": "1", "JAX_ENABLE_PGLE": "true"}


@pytest.mark.parametrize(
    ("vars", "told"),
    [
        ({"A-B": 1}, "A-B"),
        ({"1A": 1}, "1A"),
        ({"": 1}, "no variable"),
        ({"A": [1]}, "A: .*list"),
        ({"A": None}, "A: .*NoneType"),
        ({"A": "\0"}, "NUL"),
    ],
)
def test_what_no_shell_can_export_is_refused(vars: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        env.variables(experiment(vars))
