"""Ask MaxText itself about one configuration: runs as a program of its own, in a Python that has MaxText.

    python maxtext_probe.py REQUEST.json ANSWER.json

REQUEST: {"config": path of a yml, "arguments": ["key=value", ...], "domains": int}. The caller sets JAX_PLATFORMS and
the number of fake devices. ANSWER: {"version", "resolved": {...}}, or {"version", "refused": {"kind", "text", "keys"}},
or {"missing": text} when MaxText cannot be imported. Nothing of the launcher is imported.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

LONGEST = 600
"""Characters of MaxText's words that are passed on: a wrong model_name alone is answered with 2,500."""


def refusal(error: BaseException) -> dict[str, Any]:
    """What MaxText said, without the list of all its keys and without pydantic's links."""
    text, keys = str(error), []
    if hasattr(error, "errors"):
        found = error.errors()
        keys = [".".join(str(part) for part in each["loc"]) for each in found if each["loc"]]
        text = "; ".join(
            (".".join(str(part) for part in each["loc"]) + f"={each['input']!r}: " if each["loc"] else "")
            + each["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
            for each in found
        )
    elif " not in 'emb_dim'" in text:
        keys = [text.split("'")[1]]
        text = f"'{keys[0]}' is not one of its keys"
    text = " ".join(text.split())
    text = text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."
    return {"kind": type(error).__name__, "text": text, "keys": keys}


def axes(names: list[str], sizes: list[int]) -> dict[str, int]:
    """Axis name -> size, axes of size 1 left out."""
    return {name: int(size) for name, size in zip(names, sizes, strict=True) if size != 1}


def resolve(request: dict[str, Any]) -> dict[str, Any]:
    """The values that MaxText derives; raises what MaxText raises.

    The products of the axes are checked with the function that the trainer's create_device_mesh calls: building that
    mesh needs devices with a slice_index, which CPU devices do not have.
    """
    pyconfig: Any = importlib.import_module("maxtext.configs.pyconfig")
    max_utils = importlib.import_module("maxtext.utils.max_utils")
    # It would write /dev/termination-log and exit; without it pyconfig.initialize raises the error itself.
    pyconfig._handle_config_exception = lambda _error: None
    config = pyconfig.initialize(["maxtext.trainers.pre_train.train", request["config"], *request["arguments"]])
    devices, domains = config.num_target_devices, request["domains"]
    ici = max_utils.fill_unspecified_mesh_axes(list(config.ici_parallelism), devices // domains, "ICI")
    dcn = max_utils.fill_unspecified_mesh_axes(list(config.dcn_parallelism), domains, "DCN")
    return {
        "ici": axes(config.mesh_axes, ici),
        "dcn": axes(config.mesh_axes, dcn),
        "devices": devices,
        "domains": config.num_slices,
        "global_batch": config.global_batch_size_to_train_on,
        "tensors_on_device": list(config.tensors_on_device or []),
        "tensors_to_offload": list(config.tensors_to_offload or []),
    }


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """The whole answer to one request."""
    try:
        version = importlib.import_module("maxtext.version").__version__
        importlib.import_module("maxtext.configs.pyconfig")
    except (ImportError, SyntaxError) as error:
        return {"missing": f"{type(error).__name__}: {error}"}
    try:
        return {"version": version, "resolved": resolve(request)}
    except (Exception, SystemExit) as error:  # whatever MaxText raises is its refusal
        return {"version": version, "refused": refusal(error)}


if __name__ == "__main__":
    request_file, answer_file = sys.argv[1:]
    result = answer(json.loads(Path(request_file).read_text(encoding="utf-8")))
    Path(answer_file).write_text(json.dumps(result, default=str), encoding="utf-8")
