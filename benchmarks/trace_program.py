"""A small program over all GPUs of one process with the operations of an MoE step, run under JAX's profiler.

    python benchmarks/trace_program.py FOLDER [--steps N] [--size N]

Prints where the trace is. The traces in tests/data/traces are from two H200, each with the XLA flags that its note names.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

LAYERS, EXPERTS, HEADS = 3, 4, 8
Step = Callable[[], Any]


def mapped(mesh: Mesh, into: Any, out: Any, body: Callable[..., Any]) -> Callable[..., Any]:
    """`body` on each device's part, under whichever name this JAX has for that."""
    try:
        return jax.shard_map(body, mesh=mesh, in_specs=into, out_specs=out, check_vma=False)
    except (AttributeError, TypeError):
        from jax.experimental.shard_map import shard_map

        return shard_map(body, mesh=mesh, in_specs=into, out_specs=out, check_rep=False)


def layer(x: jax.Array, weights: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
    """One layer of a device: gathered weights, attention, tokens out to the experts and back."""
    dense, experts = weights
    with jax.named_scope("fsdp"):
        whole = lax.all_gather(dense, "x", axis=0, tiled=True)
    with jax.named_scope("attention"):
        q = (x @ whole).reshape(4, -1, HEADS, whole.shape[1] // HEADS)
        try:
            mixed = jax.nn.dot_product_attention(q, q, q, is_causal=True, implementation=attention_by())
        except ValueError:
            mixed = jax.nn.dot_product_attention(q, q, q, is_causal=True)
        x = x + mixed.reshape(x.shape)
    with jax.named_scope("dispatch"):
        sent = lax.all_to_all(x, "x", split_axis=0, concat_axis=0, tiled=True)
    with jax.named_scope("grouped_gemm"):
        sizes = jnp.full((EXPERTS,), x.shape[0] // EXPERTS, jnp.int32)
        hidden = lax.ragged_dot(sent, experts, sizes)
    with jax.named_scope("combine"):
        back = lax.all_to_all(hidden, "x", split_axis=0, concat_axis=0, tiled=True)
    return x + jnp.tanh(back), None


def attention_by() -> str:
    """cuDNN's where there is a GPU."""
    return "cudnn" if jax.default_backend() == "gpu" else "xla"


def programs(mesh: Mesh, size: int) -> dict[str, Step]:
    """Name -> a call. Each is a jitted function of its own, besides the layers, which are one."""
    count = mesh.size
    rows = NamedSharding(mesh, P("x"))
    key = jax.random.PRNGKey(0)

    def array(spec: Any, *shape: int) -> jax.Array:
        made = jax.jit(
            lambda: jax.random.normal(key, shape, jnp.bfloat16) / 32, out_shardings=NamedSharding(mesh, spec)
        )
        return made()

    x = array(P("x"), count * 4 * size, size)
    dense = array(P(None, "x"), LAYERS, size, size)
    experts = array(P(), LAYERS, EXPERTS, size, size)
    specs = (P("x"), (P(None, "x"), P()))

    def layers(x: jax.Array, weights: tuple[jax.Array, jax.Array]) -> jax.Array:
        return lax.scan(layer, x, weights)[0]

    moe = jax.jit(mapped(mesh, specs, P("x"), layers))
    found: dict[str, Step] = {"layers": lambda: moe(x, (dense, experts))}

    def collective(name: str, body: Callable[[jax.Array], jax.Array]) -> None:
        body.__name__ = name
        run = jax.jit(mapped(mesh, P("x"), P("x"), body))
        found[name] = lambda: run(x)

    collective("all_reduce", lambda a: lax.psum(a, "x"))
    collective("reduce_scatter", lambda a: lax.psum_scatter(a, "x", tiled=True))
    collective("all_gather", lambda a: lax.all_gather(a, "x", tiled=True)[: a.shape[0]])
    collective("all_to_all", lambda a: lax.all_to_all(a, "x", 0, 0, tiled=True))
    collective("send_recv", lambda a: lax.ppermute(a, "x", [(i, (i + 1) % count) for i in range(count)]))

    def ragged(a: jax.Array) -> jax.Array:
        each = jnp.full((count,), a.shape[0] // count, jnp.int32)
        offsets = jnp.arange(count, dtype=jnp.int32) * each
        to = jnp.full((count,), lax.axis_index("x") * each[0], jnp.int32)
        return lax.ragged_all_to_all(a, jnp.zeros_like(a), offsets, each, to, each, axis_name="x")

    collective("ragged_all_to_all", ragged)
    on_host = rows.with_memory_kind("pinned_host")

    def offload(a: jax.Array) -> jax.Array:
        kept = jax.device_put(a @ a.T[: a.shape[1], : a.shape[1]], on_host)
        return jax.device_put(kept, rows) * 2

    offloaded = jax.jit(offload, in_shardings=rows, out_shardings=rows)
    found["offload"] = lambda: offloaded(x)
    one = jax.device_put(jnp.ones((size, size), jnp.bfloat16), SingleDeviceSharding(mesh.devices.flat[0]))
    found["copy"] = lambda: jax.device_put(one, SingleDeviceSharding(mesh.devices.flat[-1]))
    return found


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--size", type=int, default=512, help="of the matrices; tokens of a device are four times that")
    options = parser.parse_args(words)
    mesh = Mesh(jax.devices(), ("x",))
    ready = {}
    for name, run in programs(mesh, options.size).items():
        try:
            jax.block_until_ready(run())
            ready[name] = run
        except Exception as error:  # what this JAX or backend lacks is told and left out
            print(f"{name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
    with jax.profiler.trace(options.folder):
        for step in range(options.steps):
            with jax.profiler.StepTraceAnnotation("train", step_num=step):
                jax.block_until_ready([run() for run in ready.values()])
    print(jax.__version__, ", ".join(ready))
    print(*options.folder.rglob("*.xplane.pb"))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
