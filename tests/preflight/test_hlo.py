"""Reading XLA's text: the compiled step of DeepSeek-V3 on 128 GB200, cut to what moves bytes, and each way to write groups."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from launcher.preflight import hlo

STEP = (Path(__file__).parent / "data" / "dsv3_128gpu_step.hlo.txt").read_text()
FSDP = tuple(range(0, 128, 8))


def test_the_articles_step_gathers_what_was_measured() -> None:
    # Issue 5, facts/te_aot.md section 3: 348 calls, 982.8 GB a GPU and step; 15 of the instructions are XLA's own repetitions.
    collectives, custom = hlo.read(STEP)
    over_fsdp = [c for c in collectives if c.kind == "all-gather" and FSDP in c.groups]
    assert sum(c.calls for c in over_fsdp) == 348
    assert sum(c.calls * c.result_bytes for c in over_fsdp) == pytest.approx(982.8e9, rel=1e-3)
    assert sum(c.repeated for c in collectives if c.kind == "all-gather") == 15
    scattered = [c for c in collectives if c.kind == "reduce-scatter" and FSDP in c.groups]
    assert sum(c.calls * c.result_bytes for c in scattered) == pytest.approx(10.2e9, rel=1e-2)
    # 58 MoE layers: dispatch forward and replayed, its gradient, combine and its gradient.
    passes = {name: n for name, n in custom.items() if "prepare" not in name}
    assert passes == {
        "te_ep_dispatch_ffi": 116, "te_ep_combine_ffi": 58, "te_ep_combine_bwd_ffi": 58, "te_ep_dispatch_bwd_ffi": 58,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("replica_groups={{0,1},{2,3}}", ((0, 1), (2, 3))),
        ("replica_groups=[2,2]<=[4]", ((0, 1), (2, 3))),
        ("replica_groups=[2,2]<=[2,2]T(1,0)", ((0, 2), (1, 3))),
        ("replica_groups=[1,8]<=[8]", (tuple(range(8)),)),
        ("replica_groups=mesh['a'=2,'b'=2] {'b'}", ((0, 1), (2, 3))),
        ("replica_groups=mesh['a'=2,'b'=2] {'a','b'}", ((0, 1, 2, 3),)),
        ("replica_groups=mesh['a'=2,'b'=4] {'b':(1)2}", ((0, 2), (1, 3), (4, 6), (5, 7))),
        ("source_target_pairs={{0,1},{1,0}}", ((0, 1), (1, 0))),
        ("channel_id=3, dimensions={0}", ()),
    ],
)
def test_groups_in_every_notation(text: str, groups: hlo.Groups) -> None:
    assert sorted(hlo.groups(f"  %x = f32[2]{{0}} all-gather(%y), {text}, dimensions={{0}}")) == sorted(groups)


@pytest.mark.parametrize(
    ("instruction", "size"),
    [
        ("bf16[4,2]{1,0} all-gather(%a)", 16),
        ("(bf16[4]{0}, f8e4m3fn[3]{0}) all-gather(%a, %b)", 11),
        ("(f32[2]{0}, f32[8]{0}) all-gather-start(%a)", 32),
        ("((f32[2]{0}, f32[1]{0}), (f32[8]{0}, f32[4]{0})) all-gather-start(%a, %b)", 48),
        ("f32[8]{0} all-reduce-start(%a)", 32),
        ("((f32[8]{0}), f32[8]{0}) all-reduce-start(%a)", 32),
        ("(f32[8]{0}, f32[2]{0}) all-reduce-start(%a, %b)", 40),
        ("((bf16[16]{0}), bf16[4]{0}) reduce-scatter-start(%a)", 8),
    ],
)
def test_sizes_are_of_the_result(instruction: str, size: int) -> None:
    text = f"ENTRY %main () -> () {{\n  %x.1 = {instruction}, replica_groups={{{{0,1}}}}\n}}\n"
    (found,), _ = hlo.read(text)
    assert (found.result_bytes, found.calls) == (size, 1)


PROGRAM = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("a", "b"))
def body(c, w):
    g = jax.lax.all_gather(w, "b", axis=0, tiled=True)
    return c + jax.lax.psum(g.sum(), "a"), None
def f(ws):
    return jax.lax.scan(body, jnp.float32(0), ws)[0]
s = jax.shard_map(f, mesh=mesh, in_specs=P(None, "b"), out_specs=P(), check_vma=False)
print(jax.jit(s).lower(jax.ShapeDtypeStruct((5, 16), jnp.float32, sharding=NamedSharding(mesh, P(None, "b")))).compile().as_text())
"""


def test_what_todays_xla_writes_is_read() -> None:
    pytest.importorskip("jax", reason="jax is not installed in this Python")
    environment = {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "PATH": "/usr/bin:/bin",
    }
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=120)
    collectives, _ = hlo.read(done.stdout)
    gathers = [c for c in collectives if c.kind == "all-gather"]
    assert [(c.calls, c.result_bytes, sorted(c.groups)) for c in gathers] == [(5, 64, [(0, 1, 2, 3), (4, 5, 6, 7)])], (
        done.stderr
    )
    (reduced,) = [c for c in collectives if c.kind == "all-reduce"]
    assert (reduced.calls, sorted(reduced.groups)) == (5, [(0, 4), (1, 5), (2, 6), (3, 7)])
