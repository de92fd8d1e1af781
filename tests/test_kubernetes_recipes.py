"""The manifests for KubeRay are valid against the schemas of its kinds, and fit each other and this package."""

from __future__ import annotations

import copy
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import ray
import yaml

from lightning_core.cli.main import make_parser
from lightning_core.cluster.ray_nodes import MARKET_LABEL
from lightning_core.parts.market.cloud.provisioner import MARKET_TYPES
from lightning_core.variables import KNOWN, PREFIX
from tests.conftest import ROOT
from tests.kuberay_schema import FILE, MANIFESTS

FOLDER = ROOT / "examples/kubernetes"
SCHEMAS = json.loads(FILE.read_text())


def read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(path.read_text())
    return content


def cluster_of(manifest: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = manifest["spec"]
    return spec if manifest["kind"] == "RayCluster" else spec["rayClusterSpec"]


def pods(manifest: dict[str, Any]) -> Iterator[dict[str, Any]]:
    cluster = cluster_of(manifest)
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        yield group["template"]["spec"]


manifests = pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)


@manifests
def test_the_manifest_is_valid_against_the_schema_of_its_kind(path: Path) -> None:
    manifest = read(path)
    jsonschema.validate(manifest, SCHEMAS[manifest["kind"]], jsonschema.Draft202012Validator)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda cluster: cluster.update(rayVersoin="2"), "rayVersoin"),
        (lambda cluster: cluster["authOptions"].update(mode="secret"), "'secret' is not one of"),
        (lambda cluster: cluster["workerGroupSpecs"][0].update(minReplicas="2"), "is not of type 'integer'"),
        (lambda cluster: cluster["workerGroupSpecs"][0].pop("template"), "'template' is a required property"),
        (lambda cluster: cluster["headGroupSpec"]["template"]["spec"].pop("containers"), "'containers' is a required"),
        (lambda cluster: cluster["headGroupSpec"]["rayStartParams"].update({"num-gpus": 0}), "is not of type 'string'"),
    ],
)
@manifests
def test_the_schema_refuses_what_kuberay_would_refuse(path: Path, change: Any, words: str) -> None:
    manifest = copy.deepcopy(read(path))
    change(cluster_of(manifest))
    with pytest.raises(jsonschema.ValidationError, match=words):
        jsonschema.validate(manifest, SCHEMAS[manifest["kind"]], jsonschema.Draft202012Validator)


@manifests
def test_every_pod_has_the_folder_the_image_and_variables_that_exist(path: Path) -> None:
    claim = read(FOLDER / "folder.yaml")
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    images = set()
    for pod in pods(read(path)):
        [container] = pod["containers"]
        images.add(container["image"])
        [volume], [mount] = pod["volumes"], container["volumeMounts"]
        assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
        assert (mount["name"], mount["mountPath"]) == (volume["name"], "/shared")
        for variable in container["env"]:
            assert variable["name"].removeprefix(PREFIX) in KNOWN
    assert len(images) == 1


@manifests
def test_ray_s_version_is_the_one_that_is_tested_and_that_of_the_image(path: Path) -> None:
    pinned = re.search(r"^ray(?:\[\S+\])?==(\S+)$", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)
    assert pinned is not None
    assert cluster_of(read(path))["rayVersion"] == pinned[1] == ray.__version__
    assert f"rayproject/ray:{pinned[1]}-" in (FOLDER / "Containerfile").read_text()


def test_the_groups_of_the_autoscaler_carry_the_labels_by_which_it_is_asked_for_nodes() -> None:
    cluster = cluster_of(read(FOLDER / "raycluster.yaml"))
    assert cluster["enableInTreeAutoscaling"]
    assert cluster["autoscalerOptions"]["version"] == "v2"
    assert {group["labels"][MARKET_LABEL] for group in cluster["workerGroupSpecs"]} == set(MARKET_TYPES)
    for group in cluster["workerGroupSpecs"]:  # a node of a market has one device
        [container] = group["template"]["spec"]["containers"]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"


def test_the_commands_of_the_job_are_commands_of_this_package() -> None:
    [_, _, script] = shlex.split(read(FOLDER / "rayjob.yaml")["spec"]["entrypoint"])
    commands = re.findall(r"exec lightning-core ([^;]+);", script)
    first, second = (make_parser().parse_args(command.split()) for command in commands)
    assert first.resume == second.run_dir == Path("/shared/runs/monday")
    assert first.ray == second.ray == "auto"


def test_the_container_file_copies_what_the_package_is_built_from_and_installs_extras_that_exist() -> None:
    text = (FOLDER / "Containerfile").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    copied = {
        name for line in re.findall(r"^COPY --chown=1000:100 (.+) \S+$", text, re.MULTILINE) for name in line.split()
    }
    assert all((ROOT / name).exists() for name in copied)
    assert copied >= {"pyproject.toml", project["readme"], "lightning_core", "callbacks"}
    [extras] = re.findall(r"\.\[(.+)\]", text)
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
