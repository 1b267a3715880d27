"""The versions that gpu/ carries: one place, a reason each, and doctor's rules kept."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

from gpu.unpack import release
from gpu.versions import read

ROOT = Path(__file__).resolve().parents[2]


def test_the_versions_keep_the_rules_that_doctor_checks() -> None:
    gpu_stack = pytest.importorskip("launcher.preflight.gpu_stack", reason="doctor's rules are not there yet")
    versions = read()
    te = versions.transformer_engine
    stack = {
        **versions.image,
        **versions.libraries,
        "maxtext": versions.maxtext,
        "transformer_engine": te,
        "transformer_engine_cu13": te,
        "transformer_engine_jax": te,
        "jax-cuda13-plugin": versions.image["jax"],
        "jax-cuda13-pjrt": versions.image["jax"],
    }

    def wrong(packages: dict[str, str]) -> set[str]:
        seen = gpu_stack.from_packages(packages, compute_capability=f"{versions.sm // 10}.{versions.sm % 10}")
        findings = gpu_stack.judge(seen)
        assert {"NCCL", "cuBLAS"} <= {found.name for found in findings}
        return {found.name for found in findings if found.mark == "WRONG"}

    assert wrong(stack) == set()
    # The image as it is breaks them: this is why the bundle exists.
    assert wrong(stack | versions.image) >= {"NCCL", "cuBLAS"}


def test_no_version_stands_twice() -> None:
    """In versions.toml each package has one line to carry it; the programs hold none of its numbers."""
    versions = read()
    numbers = {
        v for group in (versions.libraries, versions.carried, versions.build, versions.headers) for v in group.values()
    }
    numbers = {number for number in numbers if number.count(".") > 1}
    assert len(numbers) > 20
    for path in sorted((ROOT / "gpu").glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        told = {
            ast.get_docstring(node, clean=False)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.FunctionDef)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value not in told:
                assert not any(number in node.value for number in numbers), f"{path.name}: {node.value!r}"
    assert not any(number in (ROOT / "gpu/binding.mk").read_text(encoding="utf-8") for number in numbers)


def test_every_table_says_why_and_whence() -> None:
    data = tomllib.loads((ROOT / "gpu/versions.toml").read_text(encoding="utf-8"))
    for name, table in data.items():
        assert name == "gpu" or table["source"], name
        assert name == "image" or table["why"], name


def test_a_package_that_is_carried_twice_is_refused(tmp_path: Path) -> None:
    text = (ROOT / "gpu/versions.toml").read_text(encoding="utf-8")
    text = text.replace('hydra-core = "', 'Annotated_Types = "0.7.0"\nhydra-core = "')
    (tmp_path / "versions.toml").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match="annotated-types twice"):
        read(tmp_path / "versions.toml")


def test_the_launcher_can_be_imported_from_what_is_carried() -> None:
    """What pyproject.toml asks for at least is carried, or stays in use where the image's is new enough."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    versions = read()
    carried = {name.lower(): version for name, version in (versions.carried | versions.unless_there).items()}
    for line in project:
        name, least = re.fullmatch(r"([A-Za-z-]+)>=([\d.]+).*", line).groups()
        assert release(carried[name.lower()]) >= release(least), line
        if (limit := re.search(r"<([\d.]+)", line)) is not None:
            assert release(carried[name.lower()]) < release(limit.group(1)), line
        if name.lower() in versions.at_least:
            assert versions.at_least[name.lower()] == least, line
