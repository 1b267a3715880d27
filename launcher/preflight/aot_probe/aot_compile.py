"""Compile MaxText's train step for GPUs that are not here: a program of its own, in a Python that has MaxText.

    python aot_compile.py REQUEST.json ANSWER.json

REQUEST: {"config": path of a yml, "arguments": ["key=value", ...], "domains": int, "devices": int, "gpu": path of a
GpuTargetConfigProto in text form, "compute_capability": major x 10 + minor, "hlo": path to write the compiled module to,
"workarounds": [those of the file "trainer" that may be applied]}.
ANSWER: {"versions"} and either {"memory", "mesh", "names", "on_device", "to_host", "exchange", "seconds"} or {"refused":
{"stage", "kind", "text", "keys"}} or {"missing": text}. Lines `stage NAME` on stdout say how far it is. The caller sets
XLA_FLAGS and JAX_PLATFORMS=cpu. A compiler that crashes leaves no answer. Nothing of the launcher is imported.
"""

from __future__ import annotations

import collections
import contextlib
import faulthandler
import importlib
import importlib.metadata
import importlib.util
import json
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LONGEST = 900
"""Characters of an error's words that are passed on."""

PACKAGES = ("maxtext", "jax", "jaxlib", "jax-cuda13-pjrt", "transformer_engine", "flax")


def module(name: str) -> Any:
    """Import late: what is missing shall be an answer, and nothing here is needed to read this file."""
    return importlib.import_module(name)


class Stages:
    """How far it is, on stdout and for the answer; `now` is the stage that an error belongs to."""

    def __init__(self) -> None:
        self.now = ""
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def of(self, name: str) -> Iterator[None]:
        """One stage; its seconds are kept when it ends well."""
        self.now = name
        print(f"stage {name}", flush=True)
        began = time.monotonic()
        yield
        self.seconds[name] = round(time.monotonic() - began, 1)


def versions() -> dict[str, str]:
    """Of the packages that decide what comes out."""
    found = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def without_frames(text: str) -> str:
    """An error's text without the frames of a traceback in it, as XLA gives those of a partitioner that is written in Python."""
    head, traceback, rest = text.partition("Traceback (most recent call last):")
    if not traceback:
        return text
    lines = rest.splitlines()
    frames = [number for number, line in enumerate(lines) if line.lstrip().startswith('File "')]
    said = [line for line in lines[frames[-1] + 1 if frames else 0 :] if line[:1].strip()]
    return " ".join([head, *said])


def refusal(stage: str, error: BaseException) -> dict[str, Any]:
    """An error in a few lines: pydantic's as its messages, XLA's and MaxText's as they are."""
    text, keys = str(error), []
    if hasattr(error, "errors") and callable(error.errors):
        keys = [".".join(str(part) for part in each["loc"]) for each in error.errors() if each["loc"]]
        text = "; ".join(each["msg"].removeprefix("Value error, ") for each in error.errors())
    elif " not in 'emb_dim'" in text:
        keys = [text.split("'")[1]]
        text = f"'{keys[0]}' is not one of its keys"
    text = " ".join(without_frames(text).split())
    text = text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."
    return {"stage": stage, "kind": type(error).__name__, "text": text, "keys": keys}


def pretend(capability: int) -> None:
    """JAX's own cuDNN attention asks the local GPU what it can do: answer for the one that is compiled for."""
    attention = module("jax._src.cudnn.fused_attention_stablehlo")
    attention.check_cudnn_version = lambda: 91500
    attention.check_compute_capability = lambda wanted: (
        divmod(capability, 10) >= tuple(int(part) for part in wanted.split("."))
    )
    attention.is_cuda_compute_capability_equal = lambda wanted: (
        divmod(capability, 10) == tuple(map(int, wanted.split(".")))
    )


def work_around(request: dict[str, Any]) -> None:
    """What the trainer of this experiment would do about versions that are known to crash; ends with 78 where it would."""
    if request.get("workarounds"):
        spec = importlib.util.spec_from_file_location("launcher_trainer", request["trainer"])
        assert spec is not None
        assert spec.loader is not None
        trainer = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(trainer)
        for name in request["workarounds"]:
            trainer.WORKAROUNDS[name](True, "maxtext")


def configure(request: dict[str, Any]) -> Any:
    """MaxText's configuration for a topology of its own, since the ones that it knows need a GPU here."""
    known = module("maxtext.utils.accelerator_to_spec_map")
    each = request["devices"] // request["domains"]
    known.UserFacingNameToSystemCharacteristics["aot"] = known.SystemCharacteristics(
        "gpu", None, None, None, each, None
    )
    pyconfig = module("maxtext.configs.pyconfig")
    pyconfig._handle_config_exception = lambda _error: None  # it would exit; without it the error itself comes
    topology = ["compile_topology=aot", f"compile_topology_num_slices={request['domains']}"]
    return pyconfig.initialize(
        ["maxtext.trainers.pre_train.train", request["config"], *request["arguments"], *topology]
    )


def mesh_of(config: Any, request: dict[str, Any]) -> Any:
    """The mesh as JAX lays it out on GPUs: each axis = DCN part x ICI part, ranks row by row, domain after domain.

    Built here because devices that can only be compiled for say nothing of the domain they are in.
    """
    jax, np, max_utils = module("jax"), module("numpy"), module("maxtext.utils.max_utils")
    domains, devices = request["domains"], request["devices"]
    each = devices // domains
    described = module("jax.experimental.topologies").get_topology_desc(
        platform="cuda",
        target_config=Path(request["gpu"]).read_text(encoding="utf-8"),
        topology=f"{domains}x{each}x1",  # domains x hosts of each x devices of each: one process a GPU
    )
    ici = max_utils.fill_unspecified_mesh_axes(list(config.ici_parallelism), each, "ICI")
    dcn = [1] * len(ici)
    if domains > 1:
        dcn = max_utils.fill_unspecified_mesh_axes(list(config.dcn_parallelism), domains, "DCN")
    n = len(ici)
    ranks = np.array(described.devices).reshape(dcn + ici).transpose([x for i in range(n) for x in (i, n + i)])
    kinds = (jax.sharding.AxisType.Auto,) * n
    return jax.sharding.Mesh(
        ranks.reshape([d * i for d, i in zip(dcn, ici, strict=True)]), config.mesh_axes, axis_types=kinds
    )


def names(jaxpr: Any, found: collections.Counter[str]) -> collections.Counter[str]:
    """How often each name that a remat policy can speak of stands in a program and in all that it calls."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "name":
            found[equation.params["name"]] += 1
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                program = getattr(inner, "jaxpr", inner)
                if hasattr(program, "eqns"):
                    names(program, found)
    return found


def step_of(config: Any, mesh: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """MaxText's jitted train step, and the shapes that it is called with."""
    jax = module("jax")
    sharding, maxtext_utils = module("maxtext.utils.sharding"), module("maxtext.utils.maxtext_utils")
    shaped = module("maxtext.trainers.pre_train.train_compile").get_shaped_inputs(mesh, config)
    arguments, keywords, state, _, model = shaped
    parameters, state = sharding.maybe_update_params_sharding_with_opt(config, state)
    state = sharding.build_zero1_input_state_mesh_shardings(config, state, parameters)
    data = sharding.get_input_data_sharding(config, mesh)
    train = module("maxtext.trainers.pre_train.train")
    function, inputs, outputs, static, donated = maxtext_utils.get_functional_train_with_signature(
        train.train_step, data, state, model, config, parameters
    )
    step = jax.jit(function, in_shardings=inputs, out_shardings=outputs, static_argnums=static, donate_argnums=donated)
    return step, arguments, keywords


def memory(compiled: Any) -> dict[str, int]:
    """Bytes a GPU, and on its host, by XLA's buffer assignment."""
    analysis = compiled.memory_analysis()
    kinds = ("argument", "output", "alias", "temp", "generated_code", "host_argument", "host_output", "host_temp")
    return {kind: int(getattr(analysis, f"{kind}_size_in_bytes")) for kind in kinds}


def compile_step(request: dict[str, Any], stages: Stages) -> dict[str, Any]:
    """The whole way; raises what MaxText, JAX or XLA raise."""
    jax, partitioning = module("jax"), module("flax.linen.partitioning")
    max_utils, maxtext_utils = module("maxtext.utils.max_utils"), module("maxtext.utils.maxtext_utils")
    jax.config.update("jax_default_prng_impl", "unsafe_rbg")  # as MaxText's own main does
    with stages.of("configure"):
        config = configure(request)
    engine = module("aot_engine")
    exchange = engine.Exchange()
    # Entered and never left: an error that passes through MaxText's context managers comes out as another one.
    held = max_utils.maybe_get_transformer_engine_context(config)
    held.__enter__()
    with stages.of("shapes"):
        mesh = mesh_of(config, request)
        if getattr(config, "te_moe_block", False):
            exchange.install(mesh)
            max_utils.maybe_bootstrap_te_moe(config, mesh, maxtext_utils.get_shaped_batch(config))
        step, arguments, keywords = step_of(config, mesh)
    with jax.set_mesh(mesh), mesh, partitioning.axis_rules(config.logical_axis_rules):
        with stages.of("trace"):
            traced = step.trace(*arguments, **keywords)
            seen = names(traced.jaxpr.jaxpr, collections.Counter())
        with stages.of("lower"):
            lowered = traced.lower()
        with stages.of("compile"):
            compiled = lowered.compile()
    with stages.of("read"):
        Path(request["hlo"]).write_text(compiled.as_text(), encoding="utf-8")
    return {
        "memory": memory(compiled),
        "mesh": dict(mesh.shape),
        "names": dict(seen),
        "on_device": list(config.tensors_on_device or []),
        "to_host": list(config.tensors_to_offload or []),
        "exchange": exchange.sizes and {**exchange.sizes, "top_k": max(exchange.top_k, default=0)},
        "peak_rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """The whole answer to one request."""
    stages, found = Stages(), versions()
    try:
        with stages.of("import"):
            engine = module("aot_engine")
            work_around(request)
            if engine.installed():
                engine.load(request["compute_capability"])
            pretend(request["compute_capability"])
            module("maxtext.trainers.pre_train.train_compile")
    except (ImportError, SyntaxError, AttributeError) as error:
        return {"versions": found, "missing": f"{type(error).__name__}: {error}"}
    try:
        return {"versions": found, **compile_step(request, stages), "seconds": stages.seconds}
    except (Exception, SystemExit) as error:  # whatever the three raise is their refusal
        return {"versions": found, "refused": refusal(stages.now, error)}


if __name__ == "__main__":
    faulthandler.enable()
    request_file, answer_file = sys.argv[1:]
    result = answer(json.loads(Path(request_file).read_text(encoding="utf-8")))
    Path(answer_file).write_text(json.dumps(result, default=str), encoding="utf-8")
