"""The part of KubeRay's schemas that the manifests of ``examples/kubernetes`` use, in ``kuberay_schema.json``.

    python -m tests.kuberay_schema FOLDER

writes it anew from the CustomResourceDefinitions in FOLDER, ``ray.io_rayclusters.yaml`` and ``ray.io_rayjobs.yaml``, as
they are in ``helm-chart/kuberay-operator/crds`` of ray-project/kuberay (Apache-2.0). Of each object it keeps the fields
that a manifest has and those that are required, with their types; a field that KubeRay does not know is an error.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.conftest import ROOT

MANIFESTS = sorted((ROOT / "examples/kubernetes").glob("ray*.yaml"))
FILE = Path(__file__).with_suffix(".json")
CRDS = {"RayCluster": "ray.io_rayclusters.yaml", "RayJob": "ray.io_rayjobs.yaml"}
NOTICE = (
    "Parts of the CustomResourceDefinitions of KubeRay (https://github.com/ray-project/kuberay), Copyright the KubeRay "
    "Authors, Apache License 2.0; changed: descriptions and the fields that no manifest here has are left out."
)
# What says which values are valid; the rest describes.
RULES = ("type", "enum", "minimum", "maximum", "pattern", "anyOf", "minItems", "maxLength", "format")


def part_of(schema: dict[str, Any], values: list[Any]) -> dict[str, Any]:
    """Return the part of a schema of Kubernetes that values have, as a JSON schema.

    Args:
        schema: Schema of one field.
        values: All values that manifests have there.
    """
    part = {rule: schema[rule] for rule in RULES if rule in schema}
    if schema.get("x-kubernetes-int-or-string"):
        part.pop("type", None)
    if "items" in schema:
        part["items"] = part_of(schema["items"], [one for value in values for one in value])
    every = schema.get("additionalProperties")
    if isinstance(every, dict):
        part["additionalProperties"] = part_of(every, [one for value in values for one in value.values()])
    if "properties" in schema:
        fields = schema["properties"]
        # A required field with a default may be left out: the default is filled in before the check.
        part["required"] = [name for name in schema.get("required", ()) if "default" not in fields[name]]
        names = {name for value in values for name in value if name in fields} | set(part["required"])
        part["properties"] = {
            name: part_of(fields[name], [value[name] for value in values if name in value]) for name in sorted(names)
        }
        part["additionalProperties"] = bool(schema.get("x-kubernetes-preserve-unknown-fields"))
    return part


def main(folder: Path) -> None:
    """Write the schemas of all kinds of manifests."""
    schemas: dict[str, Any] = {"notice": NOTICE}
    manifests = [yaml.safe_load(path.read_text()) for path in MANIFESTS]
    for kind, name in CRDS.items():
        definition = yaml.safe_load((folder / name).read_text())
        [version] = [one for one in definition["spec"]["versions"] if one["name"] == "v1"]
        whole = version["schema"]["openAPIV3Schema"]
        schemas[kind] = part_of(whole, [manifest for manifest in manifests if manifest["kind"] == kind])
        # The server checks these three of any object; the definition leaves them open.
        schemas[kind]["required"] = ["apiVersion", "kind", "metadata", "spec"]
    FILE.write_text(json.dumps(schemas, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
