"""launcher/node/trainer.py in real processes: against `python -m` where they must agree, and what it adds."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from pathlib import Path

import pytest
from launches import oldest_python
from trainer_folder import Folder

from launcher.node import trainer
from launcher.node.codes import Code
from launcher.node.environment import PROGRAM
from launcher.node.observe import Observed

CRASHES, FINE = "0.11.2", "0.12.0.1"
ALLOWED = ("--workaround", "te_scan_constants=allowed")
REFUSED = ("--workaround", "te_scan_constants=refused")


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


ENDS = {
    "falls off its end": "print('ready')",
    "exits with 0": "import sys; sys.exit(0)",
    "exits with 3": "import sys; sys.exit(3)",
    "exits with words": "import sys; sys.exit('no data')",
    "raises": "def inner():\n    raise ValueError('bad batch')\ninner()",
    "raises while it is imported": "import nothing_of_that_name",
    "is interrupted": "raise KeyboardInterrupt",
    "leaves at once": "import os; os._exit(5)",
    "is killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "is asked to end": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "crashes": "import faulthandler; faulthandler.enable(); faulthandler._sigsegv()",
}


@pytest.mark.parametrize("text", ENDS.values(), ids=ENDS)
def test_it_ends_as_with_m(folder: Folder, text: str) -> None:
    folder.module("work", text)
    plain, wrapped = folder.run("-m", "work"), folder.trainer("work")
    assert wrapped.returncode == plain.returncode
    assert wrapped.stdout == plain.stdout
    assert told(wrapped.stderr) == told(plain.stderr)


def told(text: str) -> list[str]:
    """All but the frames above the module's own: where Python's runpy was called from."""
    lines = [re.sub(r"0x[0-9a-f]+", "0x", line) for line in text.splitlines()]
    return [line for line in lines if not line.startswith(" ") or "work.py" in line]


SEES = """
    import json, os, signal, sys
    import numbers, statistics  # those of Python, which has no `signals`
    try:
        import signals
    except ImportError:
        signals = None
    print(json.dumps({
        "argv": sys.argv, "path": sys.path, "name": __name__, "file": __file__, "package": __package__, "spec": __spec__.name,
        "main": sys.modules["__main__"].__dict__ is globals(), "numbers": numbers.__file__, "signals": str(signals),
        "handlers": [str(signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)],
    }))
"""


@pytest.mark.parametrize("environ", [{}, {"PYTHONSAFEPATH": "1", "PYTHONPATH": "."}], ids=["usual", "safe path"])
def test_the_module_sees_what_it_sees_with_m(folder: Folder, environ: dict[str, str]) -> None:
    folder.module("pkg.__init__", "")
    folder.module("pkg.work", SEES)
    words = ("pkg.work", "maxtext.yml", "steps=3", "--workaround")
    plain, wrapped = folder.run("-m", *words, **environ), folder.trainer(*words, **environ)
    assert plain.returncode == 0, plain.stderr
    assert wrapped.stdout == plain.stdout
    assert str(PROGRAM.parent) not in wrapped.stdout


def test_processes_that_the_module_spawns_find_its_functions(folder: Folder) -> None:
    folder.module(
        "work",
        """
        import multiprocessing
        def double(x):
            return 2 * x
        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(double, [1, 2]))
        """,
    )
    done = folder.trainer("work")
    assert (done.returncode, done.stdout) == (0, "[2, 4]\n"), done.stderr


def test_a_module_that_is_not_there_is_a_refusal_to_the_worker(folder: Folder) -> None:
    done = folder.trainer("maxtext.no_such")
    observed = Observed()
    for line in done.stderr.splitlines():
        observed.feed(line)
    assert done.returncode == 1
    assert "No module named" in str(observed.refusal)


@pytest.mark.parametrize(
    "words", [(), ("-m", "work"), ("--workaround",), ("--workaround", "te_scan=allowed", "work"), (*ALLOWED,)]
)
def test_a_wrong_command_line_is_refused(folder: Folder, words: tuple[str, ...]) -> None:
    folder.module("work", "print('ran')")
    done = folder.trainer(*words)
    assert (done.returncode, done.stdout) == (Code.CONFIG_REFUSED, "")
    assert done.stderr.startswith(trainer.REFUSES)


def test_it_runs_alone_on_an_old_python(folder: Folder) -> None:
    shutil.copy(PROGRAM, folder.path / "elsewhere.py")
    folder.module("work", "import sys; print(sys.argv[1:]); sys.exit(4)")
    done = folder.run(str(folder.path / "elsewhere.py"), "work", "a=1", python=oldest_python())
    assert (done.returncode, done.stdout) == (4, "['a=1']\n"), done.stderr


# ---- memory ----

JAX = """
    class Device:
        def __init__(self, id, stats):
            self.id, self._stats = id, stats
        def memory_stats(self):
            if isinstance(self._stats, Exception):
                raise self._stats
            return self._stats
    DEVICES = [Device(4, {"peak_bytes_in_use": 2727, "bytes_limit": 3000, "num_allocs": 5}), Device(5, None)]
    def local_devices():
        return DEVICES
"""
LINE = "launcher-memory: device 4 peak_bytes_in_use 2727 bytes_limit 3000\n"


def with_jax(folder: Folder, started: str = "True") -> None:
    folder.module("jax.__init__", JAX)
    folder.module("jax._src.__init__", "")
    folder.module("jax._src.xla_bridge", f"def backends_are_initialized():\n    return {started}\n")


@pytest.mark.parametrize("end", ["pass", "import sys; sys.exit(3)", "raise ValueError('bad')"])
def test_the_peak_is_told_however_the_module_ends(folder: Folder, end: str) -> None:
    with_jax(folder)
    folder.module("work", "import jax, jax._src.xla_bridge\nprint('trained')\n" + end)
    plain, wrapped = folder.run("-m", "work"), folder.trainer("work")
    assert wrapped.returncode == plain.returncode
    assert wrapped.stdout == "trained\n" + LINE


@pytest.mark.parametrize(
    "text",
    [
        "pass",
        "import jax",
        "import jax, jax._src.xla_bridge as b; b.backends_are_initialized = lambda: False",
        "import jax, jax._src.xla_bridge; jax.DEVICES[0]._stats = RuntimeError('lost')",
        "import jax, jax._src.xla_bridge; jax.local_devices = lambda: 1 / 0",
        "import jax, jax._src.xla_bridge; jax.DEVICES[0]._stats = {'peak_bytes_in_use': 1}",
        "import jax, jax._src.xla_bridge, os; os.close(1)",
    ],
)
def test_without_numbers_nothing_is_told_and_nothing_fails(folder: Folder, text: str) -> None:
    with_jax(folder)
    folder.module("work", text)
    done = folder.trainer("work")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_an_allocator_that_never_answers_does_not_keep_the_process(folder: Folder) -> None:
    with_jax(folder)
    folder.module(
        "work",
        "import jax, jax._src.xla_bridge, time; jax.local_devices = lambda: time.sleep(100000)\nimport sys; sys.exit(3)",
    )
    assert folder.trainer("work").returncode == 3


@pytest.mark.parametrize("use", ["", "jax.jit(lambda x: x + 1)(jax.numpy.ones(3)).block_until_ready()"])
def test_jax_on_a_cpu_tells_nothing(folder: Folder, use: str) -> None:
    pytest.importorskip("jax")
    folder.module("work", f"import jax\n{use}\nprint('trained')")
    done = folder.trainer("work", JAX_PLATFORMS="cpu")
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr


def test_a_line_about_memory_is_never_the_reason_of_an_end() -> None:
    observed = Observed()
    for line in (
        "completed step: 3, seconds: 0.1, TFLOP/s/device: 1.0, Tokens/s/device: 1.0",
        "the disk went away",
        LINE,
    ):
        observed.feed(line)
    assert observed.error == "the disk went away"


# ---- a pair of versions that crashes ----


def test_the_bad_version_is_refused_before_anything_is_imported(folder: Folder) -> None:
    folder.package("jaxlib", CRASHES)
    folder.module("pkg.__init__", "print('imported')")
    folder.module("pkg.work", "print('ran')")
    done = folder.trainer(*REFUSED, "pkg.work", "steps=3")
    assert (done.returncode, done.stdout) == (Code.CONFIG_REFUSED, "")
    (line,) = done.stderr.splitlines()
    for word in ("jaxlib 0.11.2", "0.12.0.1", "trainer.scan_layers=false", "trainer.workarounds=[te_scan_constants]"):
        assert word in line
    observed = Observed()
    observed.feed(line)
    assert observed.refusal == line


@pytest.mark.parametrize(
    ("version", "words"), [(FINE, REFUSED), (FINE, ALLOWED), ("0.11.1", REFUSED), (CRASHES, ()), (CRASHES, ALLOWED)]
)
def test_nothing_is_said_where_nothing_has_to_be_done(folder: Folder, version: str, words: tuple[str, ...]) -> None:
    folder.package("jaxlib", version)
    folder.module("work", "import sys; print(sys.argv[1:])")
    done = folder.trainer(*words, "work", "steps=3")
    assert (done.returncode, done.stdout, done.stderr) == (0, "['steps=3']\n", "")


def test_without_a_jaxlib_nothing_is_said(folder: Folder) -> None:
    folder.module("work", "print('ran')")
    # -S -I: none of this Python's packages are on the path.
    done = folder.run("-S", str(PROGRAM), *REFUSED, "work")
    assert (done.returncode, done.stdout) == (0, "ran\n"), done.stderr


def test_another_engine_than_the_one_it_is_made_for_is_refused(folder: Folder) -> None:
    folder.package("jaxlib", CRASHES)
    folder.package("transformer_engine", "2.21.0")
    folder.module("work", "print('ran')")
    done = folder.trainer(*ALLOWED, "work")
    assert (done.returncode, done.stdout) == (Code.CONFIG_REFUSED, "")
    assert "it is 2.21.0" in done.stderr


def test_an_engine_without_what_is_replaced_is_refused_although_maxtext_catches_all(folder: Folder) -> None:
    folder.package("jaxlib", CRASHES)
    folder.package("transformer_engine", "2.20.9")
    for name in ("", ".jax", ".jax.cpp_extensions"):
        folder.module(f"transformer_engine{name}.__init__", "")
    folder.module(trainer.GEMM, "class GroupedGemmPrimitive:\n    outer_primitive = None\n")
    # utils/max_utils.py, maybe_get_transformer_engine_context
    folder.module("work", f"try:\n    import {trainer.GEMM}\nexcept Exception:\n    pass\nprint('ran')")
    done = folder.trainer(*ALLOWED, "work")
    assert (done.returncode, done.stdout) == (Code.CONFIG_REFUSED, "")
    assert re.search("refuses: .* has no GroupedGemmPrimitive.outer_primitive. Wanted: ", done.stderr)


ENGINE = """
    import json, os, sys
    sys.path.insert(0, os.environ["PROBE"])
    import aot_engine
    aot_engine.load(90)
    import jax, jax.numpy as jnp, numpy as np
    gemm = sys.modules["transformer_engine.jax.cpp_extensions.gemm"]  # the package has a function of that name
    from transformer_engine.jax.quantize.tensor import GroupedNoScaleTensor

    def product(sizes, x, w):
        lhs = GroupedNoScaleTensor(x, None, sizes, None, x.shape)
        rhs = GroupedNoScaleTensor(w, None, None, None, w.shape)
        return gemm.grouped_gemm(lhs, rhs)

    arguments = np.array([3, 5], np.int32), np.ones((8, 16), jnp.bfloat16), np.ones((2, 16, 32), jnp.bfloat16)
    traced = jax.make_jaxpr(product)(*arguments).jaxpr
    varying, constant = set(traced.invars), []
    for equation in traced.eqns:
        inputs = [one for one in equation.invars if not hasattr(one, "val")]  # no literals
        if any(one in varying for one in inputs):
            varying |= set(equation.outvars)
        if len(equation.invars) == 13:
            constant.append([index for index, one in enumerate(equation.invars) if hasattr(one, "val") or one not in varying])

    given = []
    class Primitive:  # TE's own computes on a GPU alone; what it is given decides what it computes
        def bind(self, *operands, **settings):
            given.append([[str(one.dtype), list(one.shape), np.asarray(one, np.float64).tolist()] for one in operands])
            return [jnp.zeros(settings["out_shape"], settings["out_dtype"])]
    grouped = gemm.GroupedGemmPrimitive
    if hasattr(grouped.outer_primitive, "_inner"):
        grouped.outer_primitive._inner = Primitive()
    else:
        grouped.outer_primitive = Primitive()
    product(*map(jnp.asarray, arguments))
    print(json.dumps([constant, given]))
"""


def test_the_workaround_gives_the_engine_the_same_values_and_none_of_them_as_a_constant(folder: Folder) -> None:
    for name in ("jax", "transformer_engine"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"no {name} in this Python: pip install 'launcher[aot]'")
    probe = str(PROGRAM.parents[1] / "preflight" / "aot_probe")
    environ = {"PROBE": probe, "JAX_PLATFORMS": "cpu", "NVTE_PROJECT_BUILDING": "1"}
    folder.module("work", ENGINE)
    without = folder.trainer(*ALLOWED, "work", **environ)
    folder.package("jaxlib", CRASHES)  # before the real one on the path
    cured = folder.trainer(*ALLOWED, "work", **environ)
    assert (without.returncode, cured.returncode) == (0, 0), without.stderr + cured.stderr
    said, answer = cured.stdout.splitlines()[-2:]
    assert said == "trainer.py: workaround te_scan_constants: TE's grouped GEMM is given no constants"
    assert said not in without.stdout
    (before,), values = json.loads(without.stdout.splitlines()[-1])
    (after,), same = json.loads(answer)
    assert (set(before) >= {1, 3}, after) == (True, [])
    assert same == values
    assert [one for one in values[0] if one[1] == [0]], "the empty ones, which crash"
