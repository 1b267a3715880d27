"""The house has one way through: each room imports only what lies before it, and the front door stays light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "launcher"
ROOMS = ("config", "plan", "render", "preflight", "targets", "runs", "report", "cli")
LEAVES = ("issue", "suggest", "__init__")
PURE = ("config", "plan", "render")
NODE_PYTHON = "3.9"


def room_of(module: Path) -> str:
    parts = module.relative_to(PACKAGE).with_suffix("").parts
    return parts[0]


def imports(module: Path) -> list[tuple[str, int]]:
    found = []
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level:
            # The worker's folder is copied into a bundle and runs there under another name: only it may say "beside me".
            assert node.level == 1, f"{module}:{node.lineno}"
            assert room_of(module) == "node", f"{module}:{node.lineno}: relative import"
        elif isinstance(node, ast.ImportFrom):
            found += [(f"{node.module}.{alias.name}", node.lineno) for alias in node.names]
    return found


def modules() -> list[Path]:
    return sorted(p for p in PACKAGE.rglob("*.py") if "conf" not in p.relative_to(PACKAGE).parts[:1])


def may_import(room: str, other: str) -> bool:
    if other in LEAVES or other.startswith("__"):
        return True
    if room in LEAVES or room == "node":
        return False
    if room == "__main__":
        return other == "cli"
    return other == "node" or ROOMS.index(other) < ROOMS.index(room)


@pytest.mark.parametrize("module", modules(), ids=lambda m: str(m.relative_to(PACKAGE)))
def test_a_room_imports_only_what_lies_before_it(module: Path) -> None:
    room = room_of(module)
    for name, line in imports(module):
        parts = name.split(".")
        if parts[0] != "launcher" or len(parts) < 2 or parts[1] == room:
            continue
        assert may_import(room, parts[1]), f"{module.name}:{line}: {room} imports {name}"


@pytest.mark.parametrize("module", sorted((PACKAGE / "node").glob("*.py")), ids=lambda m: m.name)
def test_the_node_room_needs_only_an_old_standard_library(module: Path) -> None:
    ast.parse(module.read_text(encoding="utf-8"), feature_version=tuple(map(int, NODE_PYTHON.split("."))))
    for name, line in imports(module):
        top = name.split(".")[0]
        assert top in sys.stdlib_module_names, f"{module.name}:{line}: {name}"


@pytest.mark.parametrize("room", PURE)
def test_pure_rooms_know_no_clock_network_or_chance(room: str) -> None:
    forbidden = {"time", "datetime", "random", "secrets", "uuid", "socket", "subprocess", "urllib", "http", "getpass"}
    for module in (PACKAGE / room).rglob("*.py"):
        used = {name.split(".")[0] for name, _ in imports(module)}
        assert not used & forbidden, f"{module.name} uses {used & forbidden}"


def loaded_after(*words: str) -> set[str]:
    program = (
        "import sys, io, contextlib\n"
        "from launcher.cli.main import main\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):\n"
        f"    main({list(words)!r})\n"
        "print(' '.join(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=PACKAGE.parent
    )
    return {name.split(".")[0] for name in done.stdout.split()}


@pytest.mark.parametrize(
    "words",
    [
        ("--help",),
        ("runs",),
        ("status", "none"),
        ("logs", "none"),
        ("events", "none"),
        ("watch", "none"),
        ("cancel", "none"),
    ],
)
def test_the_front_door_loads_nothing_heavy(words: tuple[str, ...]) -> None:
    assert not loaded_after(*words) & {
        "hydra",
        "omegaconf",
        "yaml",
        "submitit",
        "kubernetes",
        "jax",
        "maxtext",
        "numpy",
    }
