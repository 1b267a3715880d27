import os
import shutil
import subprocess
from pathlib import Path

import pytest

from launcher.render.local import script

SHELLS = [shell for shell in ("sh", "bash", "dash") if shutil.which(shell)]


def place(folder: Path, nodes: int) -> Path:
    folder.mkdir(parents=True)
    file = folder / "run.sh"
    file.write_text(script(nodes, 4, 300))
    return file


def run(file: Path, *words: str, shell: str = "sh", **variables: str) -> subprocess.CompletedProcess[str]:
    """The script with `echo` for Python: what it prints is what it would have started."""
    environ = {"PATH": os.environ["PATH"], "PYTHON": "echo", **variables}
    return subprocess.run([shell, str(file), *words], capture_output=True, text=True, env=environ, cwd="/")


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("nodes", [1, 32])
def test_every_shell_can_read_it(shell: str, nodes: int, tmp_path: Path) -> None:
    done = subprocess.run([shell, "-n", str(place(tmp_path / "b", nodes))], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("shell", SHELLS)
def test_one_node_needs_nothing_said(shell: str, tmp_path: Path) -> None:
    here = tmp_path / "a bundle"
    file = place(here, 1)
    assert (
        run(file, "--quiet", shell=shell).stdout
        == f"-B {here}/node/worker.py --bundle {here} --run {here}.run --attempt 1 --quiet\n"
    )
    (tmp_path / "a bundle.run" / "attempts" / "1").mkdir(parents=True)
    assert run(file, shell=shell).stdout.endswith("--attempt 2\n")
    assert run(file, shell=shell, ATTEMPT="7", RUN="/r").stdout.endswith("--run /r --attempt 7\n")


def test_inside_a_run_the_run_is_that_folder(tmp_path: Path) -> None:
    file = place(tmp_path / "x-0123" / "bundle", 1)
    (tmp_path / "x-0123" / "run.json").write_text("{}")
    assert f"--run {tmp_path}/x-0123 --attempt 1" in run(file).stdout


def test_each_of_many_nodes_says_who_it_is(tmp_path: Path) -> None:
    file = place(tmp_path / "b", 32)
    said = {"NODE_RANK": "3", "COORDINATOR": "node0", "ATTEMPT": "2", "RUN": "/shared/run"}
    words = f"-B {tmp_path}/b/node/worker.py --bundle {tmp_path}/b --run /shared/run --attempt 2 --nodes 32 --node-rank 3 --coordinator node0\n"
    assert run(file, **said).stdout == words
    for name in ("NODE_RANK", "COORDINATOR", "ATTEMPT"):
        done = run(file, **{key: value for key, value in said.items() if key != name})
        assert done.returncode != 0
        assert name in done.stderr
        assert done.stdout == ""


def test_no_path_is_absolute_but_the_shells_own() -> None:
    for nodes in (1, 32):
        body = [line for line in script(nodes, 4, 300).splitlines() if not line.startswith("#")]
        assert not [line for line in body if " /" in line or '"/' in line or "=/" in line]
