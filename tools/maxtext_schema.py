"""Write a snapshot of every configuration key and model that the installed MaxText knows, as JSON.

    python tools/maxtext_schema.py > launcher/data/maxtext/0.2.5.json
    python tools/maxtext_schema.py --out launcher/data/maxtext/0.2.5.json

Run it with a Python that has MaxText. The same MaxText gives the same bytes on every machine: one key a line, sorted.

    {"version": "0.2.5",
     "keys":   {NAME: {"type": ..., "default": ..., "in_base_yml": bool, + what applies of:
                       "choices": [...], "choices_from": FILE, "minimum"/"above"/"maximum": number,
                       "fields": [...], "derived": true}},
     "models": {NAME: {KEY: VALUE, ...}}}

type          words joined by "|": int float bool str list dict any null, lists as list[int]; an enum: its values' type.
default       what a run gets that says nothing: base.yml's value if it has the key, else the one of configs/types.py.
choices       from the Literal or Enum type; for the keys of COMPARED, whose type is a free string, from the comparisons
              in MaxText's code ("choices_from" then names where).
minimum, above, maximum   bounds of the type: >=, >, <=.
fields        the keys inside a nested key (lora, dpo).
derived       MaxText computes it and overwrites what is given.
models        configs/models/*.yml as MaxText loads them: flat, a `base_config` inside one is not followed
              (configs/pyconfig.py, _initialize_pydantic, step 3.2).
"""

from __future__ import annotations

import argparse
import ast
import enum
import json
import os
import sys
import types
import typing
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

# Keys of type str that MaxText's code compares with fixed strings: key -> names that hold it in the code, files read.
COMPARED = {
    "remat_policy": ({"remat_policy"}, ["layers/nnx_decoders.py"]),
    "attention": ({"attention", "attention_kernel"}, ["layers/attention_op.py"]),
}
# What configs/pyconfig.py (_prepare_for_pydantic) and a validator of types.py take beyond the declared type.
ALSO_TAKES = {
    "train_data_columns": "str", "eval_data_columns": "str", "trainable_parameters_mask": "str", "adamw_mask": "str",
    "constant_bound_config": "str", "run_name": "null", "dump_hlo_local_module_name": "null",
    "dump_hlo_module_name": "null",
}  # fmt: skip
WORDS = {int: "int", float: "float", bool: "bool", str: "str", list: "list", dict: "dict", type(None): "null"}
BOUNDS = {"Ge": ("ge", "minimum"), "Gt": ("gt", "above"), "Le": ("le", "maximum")}


def type_words(annotation: Any) -> list[str]:
    """Words of the type vocabulary for one annotation, `null` last."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        words = type_words(arguments[0])
    elif origin in (typing.Union, types.UnionType):
        words = [word for argument in arguments for word in type_words(argument)]
    elif origin is typing.Literal:
        words = [WORDS[type(value)] for value in arguments]
    elif origin is list:
        items = type_words(arguments[0])
        words = [f"list[{items[0]}]"] if len(items) == 1 and items[0] in ("int", "float", "str", "bool") else ["list"]
    elif origin is dict:
        words = ["dict"]
    elif isinstance(annotation, typing.NewType):
        words = type_words(annotation.__supertype__)
    elif isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        words = [WORDS[type(member.value)] for member in annotation]
    elif isinstance(annotation, type) and hasattr(annotation, "model_fields"):
        words = ["dict"]
    else:
        words = [WORDS.get(annotation, "any")]
    return sorted(dict.fromkeys(words), key=lambda word: word == "null")


def choices_of(annotation: Any) -> list[Any] | None:
    """Legal values of a Literal or Enum, also inside Optional and Annotated; None where the type is open."""
    if typing.get_origin(annotation) is typing.Literal:
        return list(typing.get_args(annotation))
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return [member.value for member in annotation]
    if typing.get_origin(annotation) in (typing.Union, types.UnionType, typing.Annotated):
        parts = [argument for argument in typing.get_args(annotation) if argument is not type(None)]
        found = [choices_of(part) for part in parts]
        if len(found) == 1 or typing.get_origin(annotation) is typing.Annotated:
            return found[0]
    return None


def bounds_of(field: Any) -> dict[str, float]:
    """minimum / above / maximum of a pydantic field, from its own metadata or from Annotated inside Optional."""
    marks = list(field.metadata)
    for argument in typing.get_args(field.annotation):
        marks += getattr(argument, "__metadata__", ())
    return {
        word: getattr(mark, attribute)
        for mark in marks
        for name, (attribute, word) in BOUNDS.items()
        if type(mark).__name__ == name
    }


def compared_strings(package: Path, names: set[str], places: list[str]) -> list[str]:
    """Strings that the code of `places` compares (==, !=, in) with a variable or attribute called one of `names`."""
    found: set[str] = set()
    for place in places:
        path = package / place
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Compare) and getattr(node.left, "attr", getattr(node.left, "id", "")) in names:
                    found |= {
                        leaf.value
                        for side in node.comparators
                        for leaf in ast.walk(side)
                        if isinstance(leaf, ast.Constant) and isinstance(leaf.value, str)
                    }
    return sorted(found - {""})


def default_of(field: Any) -> Any:
    """The default of a pydantic field as plain JSON data."""
    value = field.default_factory() if field.default_factory else field.default
    if hasattr(value, "model_dump"):
        value = value.model_dump(mode="json")
    return json.loads(json.dumps(value, default=lambda odd: odd.value))


def load_yaml(file: Path) -> dict[str, Any]:
    """A yml as MaxText reads it: by OmegaConf (1e-6 is a float there), and "none" in any case is null."""
    data = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
    assert isinstance(data, dict), file
    return {str(k): None if isinstance(v, str) and v.lower() == "none" else v for k, v in data.items()}


def describe(name: str, field: Any, base: dict[str, Any], derived: bool, package: Path) -> dict[str, Any]:
    """One entry of "keys"."""
    words = type_words(field.annotation)
    words += [ALSO_TAKES[name]] if ALSO_TAKES.get(name, words[0]) not in words else []
    entry: dict[str, Any] = {
        "type": "|".join(words),
        "default": base[name] if name in base else default_of(field),
        "in_base_yml": name in base,
    }
    choices = choices_of(field.annotation)
    if choices is not None:
        entry["choices"] = choices
    elif name in COMPARED:
        names, places = COMPARED[name]
        entry |= {"choices": compared_strings(package, names, places), "choices_from": places[0]}
    entry |= bounds_of(field)
    if hasattr(field.annotation, "model_fields"):
        entry["fields"] = sorted(field.annotation.model_fields)
    if derived:
        entry["derived"] = True
    return entry


def snapshot() -> dict[str, Any]:
    """The whole snapshot of the MaxText that this Python imports."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import maxtext.configs.types as config_types
    from maxtext.version import __version__ as version

    package = Path(config_types.__file__).parent.parent
    base = load_yaml(package / "configs" / "base.yml")
    fields = config_types.MaxTextConfig.model_fields
    derived = config_types.DerivedValues.model_fields
    models = {}
    for file in sorted((package / "configs" / "models").glob("*.yml")):
        models[file.stem] = load_yaml(file)
        models[file.stem].pop("base_config", None)
    return {
        "version": version,
        "keys": {name: describe(name, fields[name], base, name in derived, package) for name in sorted(fields)},
        "models": models,
    }


def dump(data: dict[str, Any]) -> str:
    """JSON with one key, or one model, a line."""
    blocks = [f'"version": {json.dumps(data["version"])}']
    for part in ("keys", "models"):
        lines = [f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in sorted(data[part].items())]
        blocks.append(f'"{part}": {{\n' + ",\n".join(lines) + "\n}")
    return "{\n" + ",\n".join(blocks) + "\n}\n"


def main() -> None:
    """Print the snapshot, or write it to --out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, help="file to write (default: stdout)")
    out = parser.parse_args().out
    text = dump(snapshot())
    if out is None:
        sys.stdout.write(text)
    else:
        out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
