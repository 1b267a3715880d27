"""Runs a module as `python -u -m MODULE ARGUMENT...` does, and adds what the launcher has to know of or do in that process.

    python -u trainer.py [--workaround NAME=allowed|refused]... MODULE [ARGUMENT...]

Before: a pair of versions that is known to crash ends it, or is worked around where that is allowed. After: one line a
device with the peak of the allocator's memory. Exit codes, exceptions, signals and sys.argv are the module's own. Runs alone,
with no other file beside it: the folder that it lies in is taken off the path, where `numbers.py` would hide Python's own.
"""

import sys

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    del sys.path[0]  # this file's folder; -m has the working folder there instead
    import os

    sys.path.insert(0, os.getcwd())

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import inspect
import math
import os
import runpy
import textwrap
import threading
from pathlib import Path
from typing import Any, Callable, Dict, List, NoReturn, Optional, Sequence, Tuple

CONFIG_REFUSED = 78
"""codes.CONFIG_REFUSED; this file runs alone."""

REFUSES = "trainer.py refuses: "
"""What a refusal begins with; observe.py and data/failures.toml know it."""

MEMORY = "launcher-memory: "
"""What a line about a device's memory begins with; launcher/report/measured.py reads it."""

MEMORY_SECONDS = 10.0
"""At the end, for the allocators' answer: they give it in microseconds, or a driver is stuck and it never comes."""

ALLOWED, REFUSED = "allowed", "refused"

TE_SCAN_CONSTANTS = "te_scan_constants"
BAD_JAXLIB = "0.11.2"
"""Its Shardy crashes (SIGSEGV, sdy::ManualComputationUnusedInputsPattern) on a shard_map that receives a constant without
elements, as TE's grouped GEMM has them once jax.lax.scan has hoisted them out of its body. 0.12.0.1 compiles the same."""

KNOWN_ENGINE = "2.20"
"""The Transformer Engine whose private functions the workaround replaces."""

GEMM = "transformer_engine.jax.cpp_extensions.gemm"
OPERANDS = 13
"""Of TE 2.20's GroupedGemmPrimitive: lhs and rhs with their scales, bias (4), six arrays of group sizes (5 to 10), then alpha and
beta (11, 12) or what stands for them."""


def refuse(message: str) -> NoReturn:
    """Ends the process with 78: no start of the same experiment will do better."""
    print(REFUSES + message, file=sys.stderr, flush=True)
    raise SystemExit(CONFIG_REFUSED)


def installed(package: str) -> Optional[str]:
    """The version of a package on this path, without importing it; None = not known."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


class AfterImport:
    """A finder (sys.meta_path) that calls `then` with one module when whoever wants it has imported it."""

    def __init__(self, name: str, then: Callable[[Any], None]) -> None:
        self._name = name
        self._then = then
        self._asks_others = False

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> Any:
        """None for every module but that one."""
        if name != self._name or self._asks_others:
            return None
        self._asks_others = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._asks_others = False
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                self._then(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


class VaryingConstants:
    """TE's grouped GEMM (the primitive `inner`) with its constant operands made from the group sizes.

    Same values; but what depends on an argument of the scan's body is not hoisted out of it, and stays out of the shard_map's
    inputs. Empty operands become 0 x sizes without elements, alpha 0 x sizes + 1, beta and an absent bias 0 x sizes.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def bind(self, *operands: Any, **settings: Any) -> Any:
        """As TE 2.20 calls it; refuses any other form."""
        values = list(operands)
        sizes = next((value for value in values[5:11] if value.size), None)
        if len(values) != OPERANDS or sizes is None or not {"has_bias", "use_v2_ffi"} <= set(settings):
            refuse(unknown_engine(f"its grouped GEMM has {len(values)} operands and settings {', '.join(settings)}"))
        zero = sizes * 0
        for index, value in enumerate(values):
            if value.shape == (0,):
                values[index] = zero[:0].astype(value.dtype)
        if not settings["has_bias"]:
            values[4] = zero[0].astype(values[4].dtype)
        if settings["use_v2_ffi"]:
            values[11] = (zero[: values[11].size] + 1).astype(values[11].dtype)
            values[12] = zero[: values[12].size].astype(values[12].dtype)
        return self._inner.bind(*values, **settings)


def unknown_engine(seen: str) -> str:
    """Why the workaround cannot be applied, and what helps."""
    return (
        f"trainer.workarounds={TE_SCAN_CONSTANTS} replaces a private function of Transformer Engine {KNOWN_ENGINE} that is not "
        f"as it knows it here: {seen}. Wanted: Transformer Engine {KNOWN_ENGINE}, another jaxlib than {BAD_JAXLIB} "
        "(0.12.0.1 is not affected), or trainer.scan_layers=false"
    )


def vary_constants(gemm: Any) -> None:
    """The workaround, on TE's module `gemm`; says so in one line. Refuses a module that is not as TE 2.20 has it."""
    grouped = getattr(gemm, "GroupedGemmPrimitive", None)
    inner = getattr(grouped, "outer_primitive", None)
    if not callable(getattr(inner, "bind", None)):
        refuse(unknown_engine(f"{gemm.__name__} has no GroupedGemmPrimitive.outer_primitive"))
    setattr(grouped, "outer_primitive", VaryingConstants(inner))  # noqa: B010  to mypy it is an object
    print(f"trainer.py: workaround {TE_SCAN_CONSTANTS}: TE's grouped GEMM is given no constants", flush=True)


def te_scan_constants(allowed: bool, _module: str) -> None:
    """For an experiment with TE's MoE block and scan_layers=true: nothing unless jaxlib is the one that crashes."""
    if installed("jaxlib") != BAD_JAXLIB:
        return
    if not allowed:
        refuse(
            f"jaxlib {BAD_JAXLIB} crashes while it compiles te_moe_block=true with scan_layers=true. Wanted: another jaxlib "
            f"(0.12.0.1 is not affected), or type trainer.scan_layers=false, or trainer.workarounds=[{TE_SCAN_CONSTANTS}], "
            f"which replaces a private function of Transformer Engine {KNOWN_ENGINE} in the trainer"
        )
    engine = installed("transformer_engine")
    if engine is not None and engine.split(".")[:2] != KNOWN_ENGINE.split("."):
        refuse(unknown_engine(f"it is {engine}"))
    # Not imported here: what TE brings with it shall come when MaxText wants it, after JAX has found the other processes.
    sys.meta_path.insert(0, AfterImport(GEMM, vary_constants))


TE_COMPILE_CACHE = "te_compile_cache"

KEY_SWITCH = "JAX_REMOVE_CUSTOM_PARTITIONING_PTR_FROM_CACHE_KEY"
"""JAX names a compiled program by its text, in which each custom partitioned function of TE's is the address of a Python
object, another one in each process. With this variable the address is left out, and with it all that tells two such
functions apart, their static arguments too (jax/_src/custom_partitioning.py, cache_key.py): hence a folder of its own."""

CACHE_FOLDER = "jax_cache_dir"
NOT_COMPILED = (CACHE_FOLDER, "run_name", "base_output_directory")
"""MaxText's keys that differ from run to run of one experiment and are in no program."""


def sources(packages: Sequence[str]) -> bytes:
    """A digest of the Python files of packages on this path, without importing them; of a name that is none, nothing."""
    seen = hashlib.sha256()
    for package in sorted(set(packages)):
        spec = importlib.util.find_spec(package)
        places = [] if spec is None else spec.submodule_search_locations or [str(spec.origin)]
        for place in map(Path, places):
            for file in sorted(file for file in (place, *place.rglob("*.py")) if file.is_file()):
                content = hashlib.sha256(file.read_bytes()).hexdigest()
                seen.update(f"{package} {file.relative_to(place)} {content}\n".encode())
    return seen.digest()


def te_compile_cache(allowed: bool, module: str) -> None:
    """Lets JAX's compile cache know a step with TE again, in a folder for this experiment, these sources, these NVTE_ variables.

    Nothing where TE is not installed or the command line (sys.argv) names no cache.
    """
    places = [index for index, word in enumerate(sys.argv) if word.startswith(f"{CACHE_FOLDER}=")]
    if not allowed or not places or importlib.util.find_spec("transformer_engine") is None:
        return
    seen = hashlib.sha256(sources([module.partition(".")[0], "maxtext", "transformer_engine"]))
    for word in sys.argv[1:]:
        if word.partition("=")[0] not in NOT_COMPILED:
            seen.update(word.encode() if "=" in word else Path(word).read_bytes())
    for name in sorted(name for name in os.environ if name.startswith("NVTE_")):
        seen.update(f"{name}={os.environ[name]}\n".encode())
    word = sys.argv[places[-1]]
    quote = '"' if word.endswith('"') else ""
    sys.argv[places[-1]] = f"{word[: len(word) - len(quote)]}/te-{seen.hexdigest()[:16]}{quote}"
    os.environ[KEY_SWITCH] = "true"
    print(f"trainer.py: workaround {TE_COMPILE_CACHE}: {sys.argv[places[-1]]}", flush=True)


TE_DATA_AXIS = "te_data_axis"

DATA_AXIS_LINES = {
    "maxtext.utils.max_utils": {
        "fsdp_size = mesh.shape.get(fsdp_axis, 1)": 'fsdp_size = mesh.shape.get(fsdp_axis, 1) * mesh.shape.get("data", 1)',
    },
    "maxtext.layers.moe": {
        'fsdp_size = self.mesh.shape.get("fsdp", 1)': 'fsdp_size = self.mesh.shape.get("fsdp", 1) * self.mesh.shape.get("data", 1)',
        'data_parallelism_axes=("fsdp",),': 'data_parallelism_axes=("data", "fsdp"),',
    },
}
"""Lines of MaxText 0.2.5's maybe_bootstrap_te_moe and RoutedMoE._te_moe_block that leave the mesh's data axis out -> with it: tokens of
a rank, groups of the quantizers, and the axes over which TE shares the batch and sums the experts' gradients."""


def not_as_known(what: str) -> NoReturn:
    """te_data_axis cannot be applied."""
    refuse(
        f"trainer.workarounds={TE_DATA_AXIS} changes MaxText 0.2.5 and Transformer Engine {KNOWN_ENGINE}, and {what}. Wanted: these "
        "versions, or a mesh with data 1: mesh.ici.data=1 mesh.dcn.data=1, and the ranks to fsdp"
    )


def edited(function: Any, lines: Dict[str, str]) -> Any:
    """The function with other lines; refuses one that does not have each of them once."""
    source = textwrap.dedent(inspect.getsource(function))
    for old, new in lines.items():
        if source.count(old) != 1:
            not_as_known(f"{function.__qualname__} has not the line `{old}`")
        source = source.replace(old, new)
    made: Dict[str, Any] = {}
    exec(compile(source, inspect.getsourcefile(function) or "", "exec"), function.__globals__, made)
    return made[function.__name__]


def share_batch_over_both(ep: Any) -> None:
    """TE's expert-parallel operations (its module cpp_extensions.ep) know one axis outside of the experts', data or fsdp: both."""
    if not all(callable(getattr(ep, name, None)) for name in ("_ep_outer_axis", "_ep_output_spec", "_ep_spec_ok")):
        not_as_known(f"{ep.__name__} has no _ep_outer_axis, _ep_output_spec, _ep_spec_ok")
    single = ep._ep_outer_axis

    def outer() -> Any:
        resource = ep.global_mesh_resource()
        axes = (resource.dp_resource, resource.fsdp_resource)
        several = tuple(axis for axis in axes if axis is not None and ep.get_mesh_axis_size(axis) > 1)
        return several if len(several) > 1 else single()

    def axes_of_outputs() -> Tuple[str, ...]:
        found = outer()
        return (
            *(found if isinstance(found, tuple) else [found] if found else []),
            ep.global_mesh_resource().ep_resource,
        )

    def spec_ok(spec: Any, trailing_count: int) -> bool:
        leading = spec[0] if len(spec) == 1 + trailing_count else None
        named = leading if isinstance(leading, tuple) else (leading,)
        inside = {axis for axis in named if axis is not None} <= set(axes_of_outputs())
        return len(spec) == 1 + trailing_count and inside and all(axis is None for axis in spec[1:])

    ep._ep_outer_axis = outer
    ep._ep_output_spec = lambda *trailing: ep.PartitionSpec(axes_of_outputs(), *trailing)
    ep._ep_spec_ok = spec_ok


def count_both(ep: Any) -> None:
    """TE's bootstrap (its module ep) counts the groups of experts over what `outer` gives: one axis or both."""
    single = ep.get_mesh_axis_size
    ep.get_mesh_axis_size = lambda axis, mesh=None: (
        math.prod(single(each, mesh) for each in axis) if isinstance(axis, tuple) else single(axis, mesh)
    )


def te_data_axis(allowed: bool, _module: str) -> None:
    """For TE's MoE block on a mesh with copies (data above 1), which neither MaxText 0.2.5 nor TE 2.20 can trace."""
    if not allowed:
        refuse(
            f"MaxText 0.2.5 cannot trace TE's MoE block with a data axis above 1. Type trainer.workarounds=[{TE_DATA_AXIS}]"
        )
    engine = installed("transformer_engine")
    if engine is not None and engine.split(".")[:2] != KNOWN_ENGINE.split("."):
        not_as_known(f"here it is {engine}")

    def bootstrap(max_utils: Any) -> None:
        lines = DATA_AXIS_LINES[max_utils.__name__]
        max_utils.maybe_bootstrap_te_moe = edited(max_utils.maybe_bootstrap_te_moe, lines)

    def block(moe: Any) -> None:
        moe.RoutedMoE._te_moe_block = edited(moe.RoutedMoE._te_moe_block, DATA_AXIS_LINES[moe.__name__])
        print(f"trainer.py: workaround {TE_DATA_AXIS}: TE's MoE block shares the batch over data and fsdp", flush=True)

    for name, then in (
        ("maxtext.utils.max_utils", bootstrap),
        ("maxtext.layers.moe", block),
        ("transformer_engine.jax.cpp_extensions.ep", share_batch_over_both),
        ("transformer_engine.jax.ep", count_both),
    ):
        sys.meta_path.insert(0, AfterImport(name, then))


WORKAROUNDS: Dict[str, Callable[[bool, str], None]] = {
    TE_SCAN_CONSTANTS: te_scan_constants,
    TE_COMPILE_CACHE: te_compile_cache,
    TE_DATA_AXIS: te_data_axis,
}
"""What trainer.workarounds may name -> what looks at the versions, given whether it may be applied and the trainer's module."""


def read_words(words: Sequence[str]) -> Tuple[Dict[str, bool], str, List[str]]:
    """The workarounds that concern this experiment and whether each may be applied; the module; its arguments.

    >>> read_words(["--workaround", "te_scan_constants=refused", "train", "steps=3"])
    ({'te_scan_constants': False}, 'train', ['steps=3'])
    """
    rest, found = list(words), {}
    while rest[:1] == ["--workaround"]:
        name, _, word = "".join(rest[1:2]).partition("=")
        if name not in WORKAROUNDS or word not in (ALLOWED, REFUSED):
            refuse(f"--workaround {' '.join(rest[1:2])}: wanted one of {', '.join(WORKAROUNDS)} =allowed or =refused")
        found[name] = word == ALLOWED
        del rest[:2]
    if not rest or rest[0].startswith("-"):
        refuse(f"{' '.join(rest[:1]) or 'nothing'} where a module's name was wanted; render the bundle again")
    return found, rest[0], rest[1:]


def memory_lines() -> List[str]:
    """One line for each local device that counts its memory; none where JAX has not started. Bytes, as its allocator has them.

    A device without such numbers (a CPU) has no line.
    """
    jax, bridge = sys.modules.get("jax"), sys.modules.get("jax._src.xla_bridge")
    if jax is None or bridge is None or not bridge.backends_are_initialized():
        return []  # asking for the devices would start it
    lines = []
    for device in jax.local_devices():
        told = device.memory_stats() or {}
        if "peak_bytes_in_use" in told and "bytes_limit" in told:
            peak, limit = int(told["peak_bytes_in_use"]), int(told["bytes_limit"])
            lines.append(f"{MEMORY}device {device.id} peak_bytes_in_use {peak} bytes_limit {limit}")
    return lines


def tell_memory() -> None:
    """Prints memory_lines. Whatever happens in it changes nothing of how the process ends, and it waits for nobody for long."""

    def tell() -> None:
        with contextlib.suppress(BaseException):
            text = "".join(f"{line}\n" for line in memory_lines())
            if text:
                os.write(1, text.encode())  # one write: other threads may be printing

    with contextlib.suppress(Exception):
        thread = threading.Thread(target=tell, name="launcher-memory", daemon=True)
        thread.start()
        thread.join(MEMORY_SECONDS)


def main(words: Sequence[str]) -> None:
    """Runs the module. Returns when it does; what it raises goes on to Python, as with -m."""
    workarounds, module, arguments = read_words(words)
    sys.argv[:] = [sys.argv[0], *arguments]
    for name, allowed in workarounds.items():
        WORKAROUNDS[name](allowed, module)
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        tell_memory()


if __name__ == "__main__":
    main(sys.argv[1:])
