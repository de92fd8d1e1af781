"""The Ray cluster that a pool joins, instead of a head of its own: nothing of it is started or ended here."""

from __future__ import annotations

import hashlib
import logging
import secrets
from pathlib import Path
from typing import Any

from lightning_core.cluster.ray_head import MARK_FILE, HeadError, new_temp_folder
from lightning_core.node.processes import started
from lightning_core.storage.atomic_files import write_whole
from lightning_core.storage.private_files import owner_only

log = logging.getLogger(__name__)

# Seconds that a node may take to say whether it sees the pool's folder.
LOOK_TIMEOUT = 30.0


def pool_name(folder: Path) -> str:
    """Return the name of the pool of a folder in a cluster that it shares with others.

    Example::

        >>> pool_name(Path("/shared/pool"))
        'pool-222bd7a1'
    """
    return f"pool-{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}"


def join_cluster(folder: Path, address: str, devices: int, kind: str) -> dict[str, Any]:
    """Return the content of ``head.json`` of a pool in an existing cluster, after checking that it is possible.

    Args:
        folder: Folder of the pool.
        address: Address of the cluster, or ``"auto"`` for the one on this machine.
        devices: Number of devices.
        kind: Kind of the devices.

    Raises:
        HeadError: If there is no such cluster, this machine is none of its nodes, or one does not see the folder.
    """
    import ray

    from lightning_core.cluster.ray_cluster import has_token, join_ray

    try:
        join_ray(address)
    except ValueError as error:
        raise HeadError(str(error)) from None
    try:
        if not has_token():
            log.warning(
                "this Ray requires no token: anyone who can reach its ports can run code (set RAY_AUTH_MODE=token)"
            )
        check_folder_is_shared(folder, "GPU" if kind == "gpu" else "device")
        return new_joined_head(folder, address, devices, kind)
    finally:
        ray.shutdown()


def new_joined_head(folder: Path, address: str, devices: int, kind: str) -> dict[str, Any]:
    """Return the content of ``head.json`` of a pool in a cluster that this process has joined.

    Its process is Ray's on this node: the pool lives as long as that process.

    Args:
        folder: Folder of the pool.
        address: Address of the cluster.
        devices: Number of devices.
        kind: Kind of the devices.

    Raises:
        HeadError: If this machine is no node of the cluster.
    """
    import ray

    raylet = _raylet(ray.get_runtime_context().get_node_id())
    if raylet is None:
        message = f"this machine is no node of the Ray cluster at {address}: run `ray start --address={address}` first"
        raise HeadError(message)
    temp, mark = new_temp_folder(), secrets.token_hex(16)
    with owner_only():
        write_whole(temp / MARK_FILE, mark)
    return {
        "pid": raylet, "started": started(raylet) or 0, "temp": str(temp), "socket": str(temp / "socket"), "token": "",
        "devices": devices, "kind": kind, "mark": mark, "address": ray.get_runtime_context().gcs_address,
        "name": pool_name(folder), "joined": True,
    }  # fmt: skip


def check_folder_is_shared(folder: Path, resource: str) -> None:
    """Check that each node with a device sees the pool's folder.

    Args:
        folder: Folder of the pool.
        resource: Ray's resource that counts devices.

    Raises:
        HeadError: If a node does not see it, or does not say so in time.
    """
    import ray
    from ray.exceptions import GetTimeoutError, RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    mark = secrets.token_hex(16)
    with owner_only():
        write_whole(folder / "shared", mark)
    listed: Any = ray.nodes  # it has no types
    nodes = [node for node in listed() if node["Alive"] and node["Resources"].get(resource, 0) >= 1]
    look: Any = ray.remote(num_cpus=0)(_read)
    try:
        for node in nodes:
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            where = f"node {node['NodeID'][:8]} ({node['NodeManagerAddress']})"
            try:
                seen = ray.get(
                    look.options(scheduling_strategy=there).remote(str(folder / "shared")), timeout=LOOK_TIMEOUT
                )
            except (RayError, GetTimeoutError) as error:
                raise HeadError(f"{where} did not say whether it sees {folder}: {type(error).__name__}") from None
            if seen != mark:
                raise HeadError(f"{folder}: is not seen by {where}: a pool's folder must be on a file system of all")
    finally:
        (folder / "shared").unlink(missing_ok=True)


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _raylet(node: str) -> int | None:
    """Return the process of Ray on this machine that is a node; None if there is none."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"/raylet") and any(node.encode() in word for word in words):
            return int(folder.name)
    return None
