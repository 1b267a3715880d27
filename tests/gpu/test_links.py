"""One cuDNN in a process, whatever else the machine has: real libraries, the real loader, the env.sh that is written."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpu import links

LOADED = """
import ctypes
both = []
for name in ("libcudnn.so.9", "libcudnn.so"):
    library = ctypes.CDLL(name)
    library.cudnnGetVersion.restype = ctypes.c_size_t
    both.append(library.cudnnGetVersion())
files = {line.split()[-1] for line in open("/proc/self/maps") if "libcudnn" in line}
print(*both, len(files))
"""


def build(path: Path, version: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = f"unsigned long cudnnGetVersion(void) {{ return {version}; }}"
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path), f"-Wl,-soname,{path.name}"]
    subprocess.run(command, input=text, text=True, check=True)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_a_process_gets_pips_cudnn_alone_under_both_names(tmp_path: Path) -> None:
    site, dest, system = tmp_path / "site-packages", tmp_path / "a stack", tmp_path / "system"
    (dest / "lib").mkdir(parents=True)
    build(site / "nvidia/cudnn/lib/libcudnn.so.9", 91900)
    build(site / "nvidia/cudnn/lib/libcudnn_graph.so.9", 91900)
    build(system / "libcudnn.so.9.14.0", 91400)
    (system / "libcudnn.so").symlink_to("libcudnn.so.9.14.0")

    def seen() -> str:
        (dest / "env.sh").write_text(links.environment(dest, site))
        script = f". '{dest}/env.sh' && LD_LIBRARY_PATH=$LD_LIBRARY_PATH:'{system}' exec \"$@\""
        command = ["sh", "-c", script, "sh", sys.executable, "-c", LOADED]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    assert seen() == "91900 91400 2", "the fault: two of them"
    assert len(list(links.one_cudnn(dest, site))) == 1
    assert seen() == "91900 91900 1"
    assert (dest / "lib/libcudnn_graph.so").resolve() == site / "nvidia/cudnn/lib/libcudnn_graph.so.9"
    assert not list(links.one_cudnn(dest, site)), "a second time there is nothing to do"


def test_a_machine_without_pips_cudnn_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    assert not list(links.one_cudnn(tmp_path, tmp_path / "site-packages"))
    assert not list((tmp_path / "lib").iterdir())
