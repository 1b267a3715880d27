"""Write what the launcher needs of Kubernetes' custom resources as JSON: their definitions without the prose.

    python tools/kubernetes_schemas.py FILE.yaml SOURCE [FILE.yaml SOURCE ...] --out launcher/data/kubernetes

FILE is a CustomResourceDefinition as its project publishes it, SOURCE says where it is from (project, path, commit). Ours are

    config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml of kubernetes-sigs/jobset
    deployments/helm/dra-driver-nvidia-gpu/crds/resource.nvidia.com_computedomains.yaml of kubernetes-sigs/dra-driver-nvidia-gpu

both under the Apache License 2.0. The result, PLURAL.json, is a definition that an API server takes: every field, type, limit, rule
(x-kubernetes-validations) and list key (x-kubernetes-list-map-keys) is there, descriptions and the builder's annotations are not;
`metadata.annotations.source` is SOURCE. The same file gives the same bytes, sorted.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import yaml

WIDTH = 120


def without_prose(schema: Any) -> Any:
    """Leave out `description` (and `example`) of a schema, but keep fields that are called so."""
    if isinstance(schema, list):
        return [without_prose(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {}
    for key, value in schema.items():
        if key == "properties":
            kept[key] = {name: without_prose(field) for name, field in value.items()}
        elif key not in ("description", "example"):
            kept[key] = value if key in ("default", "enum") else without_prose(value)
    return kept


def definition(crd: dict[str, Any], source: str) -> dict[str, Any]:
    """Give the definition without what only its reader or its builder needs."""
    spec = {**crd["spec"], "versions": [dict(version) for version in crd["spec"]["versions"]]}
    for version in spec["versions"]:
        version["schema"] = {"openAPIV3Schema": without_prose(version["schema"]["openAPIV3Schema"])}
        if "additionalPrinterColumns" in version:
            version["additionalPrinterColumns"] = without_prose(version["additionalPrinterColumns"])
    metadata = {"name": crd["metadata"]["name"], "annotations": {"source": source}}
    return {"apiVersion": crd["apiVersion"], "kind": crd["kind"], "metadata": metadata, "spec": spec}


def text_of(value: Any, depth: int = 0) -> str:
    """JSON with sorted keys; what is short is on one line."""
    flat = json.dumps(value, sort_keys=True)
    if len(flat) + depth < WIDTH or not isinstance(value, (dict, list)):
        return flat
    pad = " " * (depth + 1)
    if isinstance(value, list):
        lines = [pad + text_of(one, depth + 1) for one in value]
        return "[\n" + ",\n".join(lines) + "\n" + " " * depth + "]"
    lines = [f"{pad}{json.dumps(key)}: {text_of(value[key], depth + 1)}" for key in sorted(value)]
    return "{\n" + ",\n".join(lines) + "\n" + " " * depth + "}"


def main() -> int:
    """Write one file for each pair of the command line."""
    parser = argparse.ArgumentParser(description="Write custom resources' definitions without the prose, as JSON.")
    parser.add_argument("pairs", nargs="+", metavar="FILE SOURCE", help="a definition in YAML, and where it is from")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write PLURAL.json into")
    options = parser.parse_args()
    if len(options.pairs) % 2:
        parser.error("each FILE needs its SOURCE")
    for file, source in zip(options.pairs[::2], options.pairs[1::2], strict=True):
        found = [one for one in yaml.load_all(Path(file).read_text(encoding="utf-8"), yaml.CSafeLoader) if one]
        if len(found) != 1 or found[0].get("kind") != "CustomResourceDefinition":
            parser.error(f"{file} holds no single CustomResourceDefinition")
        written = options.out / f"{found[0]['spec']['names']['plural']}.json"
        written.write_text(text_of(definition(found[0], source)) + "\n", encoding="utf-8")
        print(f"{written}: {written.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
