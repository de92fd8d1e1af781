"""A node of a pool as a SkyPilot task: the user's file, and the command by which its machine joins the pool's Ray."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightning_core.bundle.problems import BundleError
from lightning_core.bundle.yaml_loader import load_yaml
from lightning_core.cluster.ray_nodes import MARKET_LABEL, POOL_LABEL
from lightning_core.parts.market.cloud.provisioner import NODE_LABEL, SPOT, place_labels

# Name of this provisioner in `provision: NAME FILE`.
NAME = "skypilot"
# Prefix of the variables that tell a machine how to join; of these, a file may set the path of Ray's command.
PREFIX, RAY_COMMAND = "LIGHTNING_CORE_NODE_", "LIGHTNING_CORE_NODE_RAY"
# Keys that a file may not have, with the reason, at its top and in its resources.
REFUSED = {
    "run": "the pool runs Ray on a node: put what prepares it into setup",
    "service": "a node serves nothing",
    "pool": "a node belongs to the pool of lightning-core",
}
REFUSED_RESOURCES = {
    "use_spot": "the market says which nodes are spot",
    "autostop": "a node ends with the pool",
    "job_recovery": "the pool replaces nodes itself",
}
# SkyPilot's own Ray on a machine has the default port of the dashboard's agent.
AGENT_PORT = 52366
# A machine leaves when Ray on it ends: because it was given back, or because the pool's head is gone. What differs
# from node to node is in variables, and the token is a secret, so this text has neither.
JOIN = f"""\
ray="${{{RAY_COMMAND}:-ray}}"
exec "${{ray/#\\~/$HOME}}" start --block --disable-usage-stats --address="${PREFIX}ADDRESS" \\
  --labels="${PREFIX}LABELS" --resources="${PREFIX}RESOURCES" --num-gpus="${PREFIX}GPUS" \\
  --dashboard-agent-listen-port={AGENT_PORT}
"""


@dataclass(frozen=True, slots=True)
class Joining:
    """How a machine joins the Ray of a pool.

    Args:
        address: Address of its head, ``host:port``.
        token: Token of the Ray; empty if it requires none.
        pool: Name of the pool, the label of its nodes.
        resource: Resource of a device, ``"GPU"`` or ``"device"``.
    """

    address: str
    token: str = field(repr=False)
    pool: str
    resource: str


def read_task(words: Sequence[str]) -> dict[str, Any]:
    """Read the file of a node, ``provision: skypilot FILE``; its relative paths become absolute.

    Args:
        words: Words after the provisioner's name: the path of a SkyPilot task in YAML.

    Raises:
        ValueError: If there is not one word, or the file cannot be read or asks for what the pool decides.
    """
    if len(words) != 1:
        raise ValueError(f"provision: {NAME} takes the file of a SkyPilot task, got {' '.join(words) or 'none'}")
    path = Path(words[0]).absolute()
    content, problems = load_yaml(path, quoting=False)  # it may hold secrets
    if problems.messages:
        raise BundleError(problems.messages)
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected the keys of a SkyPilot task, such as resources and setup")
    try:
        check_task(content)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return _anchored(content, path.parent)


def check_task(task: Mapping[str, Any]) -> None:
    """Check that a task asks for nothing that the pool decides; the rest is for SkyPilot to check.

    Raises:
        ValueError: If it does.

    Example::

        >>> check_task({"resources": {"accelerators": "A100:1"}, "run": "train"})
        Traceback (most recent call last):
        ValueError: run: the pool runs Ray on a node: put what prepares it into setup
    """
    for key, reason in REFUSED.items():
        if key in task:
            raise ValueError(f"{key}: {reason}")
    if task.get("num_nodes", 1) != 1:
        raise ValueError(f"num_nodes must be 1, as the pool asks for each node, got {task['num_nodes']}")
    resources: Any = task.get("resources") or {}
    if not isinstance(resources, Mapping):
        raise ValueError(f"resources must be a mapping, got {resources!r}")
    offers = [one for key in ("any_of", "ordered") for one in resources.get(key) or ()]
    for offer in (resources, *(one for one in offers if isinstance(one, Mapping))):
        for key, reason in REFUSED_RESOURCES.items():
            if key in offer:
                raise ValueError(f"resources.{key}: {reason}")
    for several in ("envs", "secrets"):
        for key in task.get(several) or ():
            if str(key).startswith(PREFIX) and key != RAY_COMMAND:
                raise ValueError(f"{several}.{key}: names that begin with {PREFIX} are set by the pool")


def joined_task(
    task: Mapping[str, Any], joining: Joining, name: str, kind: str, zone: str, its_type: str
) -> dict[str, Any]:
    """Return the task of a node: it prepares the machine as the user's file says, then joins the pool's Ray.

    Args:
        task: The user's file.
        joining: How it joins.
        name: Name of the node, its label :data:`NODE_LABEL`.
        kind: Its market type.
        zone: Its zone, the value of its label; empty for any.
        its_type: Its instance type; empty for any.
    """
    labels = {MARKET_LABEL: kind, POOL_LABEL: joining.pool, NODE_LABEL: name, **place_labels(zone, its_type)}
    is_gpu = joining.resource == "GPU"
    told = {
        "ADDRESS": joining.address,
        "LABELS": ",".join(f"{key}={value}" for key, value in labels.items()),
        "RESOURCES": json.dumps({} if is_gpu else {joining.resource: 1}),
        "GPUS": str(int(is_gpu)),
    }
    made = copy.deepcopy(dict(task))
    made["run"] = JOIN
    made["envs"] = {**(made.get("envs") or {}), **{PREFIX + key: value for key, value in told.items()}}
    if joining.token:
        made["envs"]["RAY_AUTH_MODE"] = "token"
        made["secrets"] = {**(made.get("secrets") or {}), "RAY_AUTH_TOKEN": joining.token}
    return made


def overrides(kind: str, zone: str, its_type: str) -> dict[str, Any]:
    """Return what a node's resources have besides the user's: its market type, and its place if that is said."""
    place = {key: value for key, value in (("zone", zone), ("instance_type", its_type)) if value}
    return {"use_spot": kind == SPOT, **place}


def _anchored(task: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Make the local paths of a task absolute: the pool does not run in the folder of its file."""
    if isinstance(task.get("workdir"), str):
        task["workdir"] = str(folder / Path(task["workdir"]).expanduser())
    mounts = task.get("file_mounts")
    if isinstance(mounts, dict):
        task["file_mounts"] = {
            to: str(folder / Path(source).expanduser()) if isinstance(source, str) and "://" not in source else source
            for to, source in mounts.items()
        }
    return task
