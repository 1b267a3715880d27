"""The workaround te_data_axis: which lines of MaxText it changes, what it refuses, and how TE's operations then see a mesh."""

from __future__ import annotations

import ast
import importlib.util
import itertools
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from trainer_folder import Folder

from launcher.node import trainer
from launcher.node.codes import Code

ALLOWED = ("--workaround", "te_data_axis=allowed")
FUNCTIONS = {"maxtext.utils.max_utils": "maybe_bootstrap_te_moe", "maxtext.layers.moe": "_te_moe_block"}
BOOTSTRAP = """
    def maybe_bootstrap_te_moe(mesh):
        fsdp_axis = "fsdp"
        {line}
        return fsdp_size
"""
BLOCK = """
    def moe(**words):
        return words
    class RoutedMoE:
        def __init__(self, mesh):
            self.mesh = mesh
        def _te_moe_block(self):
            fsdp_size = self.mesh.shape.get("fsdp", 1)
            return moe(
                groups=fsdp_size,
                data_parallelism_axes=("fsdp",),
            )
"""
WORK = """
    from types import SimpleNamespace
    from maxtext.layers import moe
    from maxtext.utils import max_utils
    mesh = SimpleNamespace(shape={"data": 8, "fsdp": 16, "expert": 8})
    print(max_utils.maybe_bootstrap_te_moe(mesh), moe.RoutedMoE(mesh)._te_moe_block())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    made = Folder(tmp_path)
    for name in ("maxtext", "maxtext.layers", "maxtext.utils"):
        made.module(f"{name}.__init__", "")
    made.module("maxtext.layers.moe", BLOCK)
    made.module("work", WORK)
    return made


def test_the_lines_are_changed_in_the_trainers_process_alone(folder: Folder) -> None:
    folder.module("maxtext.utils.max_utils", BOOTSTRAP.format(line="fsdp_size = mesh.shape.get(fsdp_axis, 1)"))
    files = {path: path.read_text() for path in folder.path.rglob("*.py")}
    done = folder.trainer(*ALLOWED, "work")
    assert done.returncode == 0, done.stderr
    said, answer = done.stdout.splitlines()
    assert said == "trainer.py: workaround te_data_axis: TE's MoE block shares the batch over data and fsdp"
    assert answer == "128 {'groups': 128, 'data_parallelism_axes': ('data', 'fsdp')}"
    assert folder.trainer("work").stdout == "16 {'groups': 16, 'data_parallelism_axes': ('fsdp',)}\n"
    assert {path: path.read_text() for path in files} == files


@pytest.mark.parametrize(
    "line",
    [
        "fsdp_size = mesh.shape['fsdp']",
        "fsdp_size = mesh.shape.get(fsdp_axis, 1) * 1; fsdp_size = mesh.shape.get(fsdp_axis, 1)",
    ],
)
def test_a_maxtext_that_is_not_as_known_is_refused(folder: Folder, line: str) -> None:
    folder.module("maxtext.utils.max_utils", BOOTSTRAP.format(line=line))
    done = folder.trainer(*ALLOWED, "work")
    assert done.returncode == Code.CONFIG_REFUSED
    assert (
        "maybe_bootstrap_te_moe has not the line `fsdp_size = mesh.shape.get(fsdp_axis, 1)`. Wanted: these"
        in done.stderr
    )


def test_another_engine_and_a_permission_that_is_not_given_are_refused(folder: Folder) -> None:
    done = folder.trainer("--workaround", "te_data_axis=refused", "work")
    assert (done.returncode, done.stdout) == (Code.CONFIG_REFUSED, "")
    assert "Type trainer.workarounds=[te_data_axis]" in done.stderr
    folder.package("transformer_engine", "2.21.0")
    done = folder.trainer(*ALLOWED, "work")
    assert (done.returncode, done.stdout) == (Code.CONFIG_REFUSED, "")
    assert "and here it is 2.21.0. Wanted: these versions" in done.stderr


@pytest.mark.parametrize("module", trainer.DATA_AXIS_LINES)
def test_maxtext_has_each_of_the_lines_once(module: str) -> None:
    """Read, not imported: that would take a quarter of a minute."""
    if importlib.util.find_spec("maxtext") is None:
        pytest.skip("no maxtext in this Python: pip install 'launcher[local]'")
    spec = importlib.util.find_spec("maxtext")
    assert spec is not None
    (place,) = spec.submodule_search_locations or []
    text = (Path(place).parent / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
    (source,) = (
        ast.get_source_segment(text, node)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef) and node.name == FUNCTIONS[module]
    )
    assert source is not None
    assert [source.count(line) for line in trainer.DATA_AXIS_LINES[module]] == [1] * len(
        trainer.DATA_AXIS_LINES[module]
    )


def engine(**sizes: int) -> Any:
    """What share_batch_over_both uses of TE's module, on a mesh of these sizes; its own answer is a single axis."""
    resource = SimpleNamespace(dp_resource="data", fsdp_resource="fsdp", ep_resource="expert")
    ep = SimpleNamespace(
        __name__="ep",
        PartitionSpec=lambda *axes: axes,
        global_mesh_resource=lambda: resource,
        get_mesh_axis_size=lambda axis: sizes.get(axis, 1),
        _ep_outer_axis=lambda: "fsdp" if sizes.get("data", 1) == 1 else "data",
        _ep_output_spec=None,
        _ep_spec_ok=None,
    )
    ep._ep_output_spec = ep._ep_spec_ok = lambda *_: None
    trainer.share_batch_over_both(ep)
    return ep


def specs() -> Iterator[tuple[Any, ...]]:
    for leading in (None, "expert", ("fsdp", "expert"), ("data", "fsdp", "expert"), ("data", "tensor")):
        for trailing in itertools.product((None, "expert"), repeat=2):
            yield (leading, *trailing)


def test_both_axes_lie_outside_of_the_experts_where_both_are_there() -> None:
    both, one = engine(data=8, fsdp=16), engine(fsdp=16)
    assert (both._ep_outer_axis(), one._ep_outer_axis()) == (("data", "fsdp"), "fsdp")
    assert both._ep_output_spec(None, None) == (("data", "fsdp", "expert"), None, None)
    assert one._ep_output_spec() == (("fsdp", "expert"),)
    assert [spec for spec in specs() if both._ep_spec_ok(spec, trailing_count=2)] == [
        (leading, None, None) for leading in (None, "expert", ("fsdp", "expert"), ("data", "fsdp", "expert"))
    ]
    assert not one._ep_spec_ok((("data", "fsdp", "expert"), None, None), trailing_count=2)
    assert not both._ep_spec_ok(("expert", None), trailing_count=2)


def test_groups_are_counted_over_both() -> None:
    ep = SimpleNamespace(get_mesh_axis_size=lambda axis, _mesh=None: {"data": 8, "fsdp": 16}[axis])
    trainer.count_both(ep)
    assert (ep.get_mesh_axis_size(("data", "fsdp")), ep.get_mesh_axis_size("fsdp")) == (128, 16)


def test_an_engine_without_these_functions_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        trainer.share_batch_over_both(SimpleNamespace(__name__="ep", _ep_outer_axis=lambda: None))
    assert ended.value.code == Code.CONFIG_REFUSED
    assert "ep has no _ep_outer_axis, _ep_output_spec, _ep_spec_ok" in capsys.readouterr().err
