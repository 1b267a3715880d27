"""Asks the real MaxText, on 8 fake CPU devices, what a training step is made of. Run as a script: cases in, answers out.

stdin: one JSON line a case, {"title", "keys"}; stdout: `ANSWER {"title", "cut", "names", "error"}`.
`cut`: every (size, shards) of a sharded dimension of a weight; `names`: every checkpoint_name in the step's jaxpr.
Nothing is compiled: a case takes two seconds.
"""

from __future__ import annotations

import json
import math
import os
import sys
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["DECOUPLE_GCLOUD"] = "TRUE"


def names(jaxpr: Any) -> set[str]:
    found: set[str] = set()
    for equation in jaxpr.eqns:
        if equation.primitive.name == "name":
            found.add(equation.params["name"])
        for value in equation.params.values():
            for part in value if isinstance(value, list | tuple) else [value]:
                inner = getattr(part, "jaxpr", part)
                if hasattr(inner, "eqns"):
                    found |= names(inner)
    return found


def cut(state: Any, shardings: Any, mesh: Any) -> set[tuple[int, int]]:
    import jax

    found = set()
    weights = jax.tree_util.tree_flatten_with_path(state)[0]
    specs = jax.tree_util.tree_leaves(shardings, is_leaf=lambda leaf: hasattr(leaf, "spec"))
    for (path, weight), sharding in zip(weights, specs, strict=True):
        if not jax.tree_util.keystr(path).startswith("['model']"):
            continue
        for size, axes in zip(getattr(weight, "shape", ()), sharding.spec, strict=False):
            shards = math.prod(mesh.shape[a] for a in ((axes,) if isinstance(axes, str) else axes or ()))
            if shards > 1:
                found.add((size, shards))
    return found


def ask(keys: dict[str, Any], answer: dict[str, Any]) -> None:
    import jax
    import maxtext
    from flax.core.spmd import logical_axis_rules
    from jax.sharding import Mesh
    from maxtext.configs import pyconfig
    from maxtext.trainers.pre_train import train, train_compile
    from maxtext.utils import maxtext_utils, sharding

    base = os.path.join(os.path.dirname(maxtext.__file__), "configs", "base.yml")
    config = pyconfig.initialize(["train", base, *(f"{key}={json.dumps(value)}" for key, value in keys.items())])
    mesh = Mesh(maxtext_utils.create_device_mesh(config), config.mesh_axes)
    with logical_axis_rules(config.logical_axis_rules), jax.set_mesh(mesh):
        arguments, _, state, _, model = train_compile.get_shaped_inputs(mesh, config)
        answer["cut"] = sorted(cut(arguments[0], state, mesh))
        data = sharding.get_input_data_sharding(config, mesh)
        weights, state = sharding.maybe_update_params_sharding_with_opt(config, state)
        step = maxtext_utils.get_functional_train_with_signature(train.train_step, data, state, model, config, weights)
        traced = jax.jit(step[0], in_shardings=step[1], out_shardings=step[2]).trace(*arguments)
        answer["names"] = sorted(names(traced.jaxpr.jaxpr))


def main() -> None:
    for line in sys.stdin:
        case = json.loads(line)
        answer: dict[str, Any] = {"title": case["title"], "error": None}
        try:
            ask(case["keys"], answer)
        except (Exception, SystemExit) as error:
            answer["error"] = f"{type(error).__name__}: {error}"
        print("ANSWER " + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
