"""The file of ``up --config``: the sections of a bundle about the pool, and the users of the pool."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from lightning_core.bundle.bundle_content import read_supply, supply_keys
from lightning_core.bundle.bundle_file import NO_GPUS
from lightning_core.bundle.on_verdict import read_on_verdict
from lightning_core.bundle.pool_section import Kind, PoolSection, read_pool
from lightning_core.bundle.preflight import gpus_here
from lightning_core.bundle.problems import BundleError, Position, Problems
from lightning_core.bundle.settings_section import read_settings
from lightning_core.bundle.yaml_loader import load_yaml
from lightning_core.core.limits import MAX_DEVICES
from lightning_core.core.supplies import Supply
from lightning_core.node.core_claims import free_cores
from lightning_core.node.device_cores import CORES
from lightning_core.scheduler.settings import Settings
from lightning_core.server.access.groups import GroupSocket, group_socket
from lightning_core.server.access.people import Right, rights_of

KEYS = ("pool", "policy", "estimator", "period", "on_verdict", "group")
DEFAULT_RIGHTS = (str(Right.SEE),)


class PoolFile(NamedTuple):
    """The pool that ``up`` is asked for."""

    settings: Settings
    kind: Kind
    devices: int
    """Devices, or nodes held at once where they come and go, for which the settings have twice as many."""
    resident: int
    """Jobs in memory at once."""
    on_verdict: dict[str, Any]
    group: GroupSocket | None
    supply: Supply | None
    """Where its nodes come from; None for devices that stay."""
    is_all: bool
    """Whether it has all devices of this machine, since neither file nor option says how many."""


def read_pool_file(path: Path | None, devices: int | None, ray: str | None) -> PoolFile:
    """Read the file.

    What neither it nor ``devices`` says is what this machine has: its GPUs if there are any, else the cores that no
    other pool has. In a Ray cluster, and where nodes come and go, it is one CPU device.

    Args:
        path: The file; None for a pool as the defaults have it.
        devices: Number of devices in place of the file's; None if not given.
        ray: Address of the Ray cluster; None for this machine alone.

    Raises:
        BundleError: With every problem found.
    """
    content, found = ({}, Problems(Position("up"))) if path is None else load_yaml(path, "file is empty")
    keys = (*KEYS, *supply_keys())
    if not isinstance(content, Mapping):
        found.add(f"expected a mapping of {', '.join(keys)}, got {type(content).__name__}")
        raise BundleError(found.messages)
    if "jobs" in content:
        found.at("jobs").add("leave them out, and `submit` them once the pool is up")
    found.check_keys({key: value for key, value in content.items() if key != "jobs"}, keys)
    folder = Path() if path is None else path.parent
    section, is_all = content.get("pool") or {}, False
    rents = any(content.get(key) is not None for key in supply_keys())
    if isinstance(section, Mapping):
        section = section if devices is None else {**section, "devices": devices}
        if ray is None and not rents:
            is_all, section = "devices" not in section, _devices_here(section)
    pool = read_pool(section, found.at("pool"))
    if pool.locations and (rents or ray is None):
        why = "nodes that come and go have no locations" if rents else "locations are labels of nodes of a Ray cluster"
        found.at("pool", "devices").add(f"{why}: {'give a number' if rents else 'it needs --ray ADDRESS'}")
        pool = pool._replace(locations=())
    resident = pool.resident or 2 * pool.devices
    settings = read_settings(content, pool._replace(resident=resident), found) or Settings()
    supply = read_supply(content, folder, found)
    if rents:
        settings = _supplied(settings, pool, supply, ray, found)
    on_verdict = read_on_verdict(content.get("on_verdict"), folder, found.at("on_verdict"))
    group = None
    if not found.messages:  # it makes a folder
        group = found.at("group").read(lambda value: _group(value, folder), content.get("group"))
    if found.messages:
        raise BundleError(found.messages)
    return PoolFile(settings, pool.kind, pool.devices, resident, on_verdict, group, supply, is_all)


def _devices_here(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return the section ``pool`` with what this machine has, where it says nothing of kind or number."""
    gpus = gpus_here()
    kind = section.get("kind", "gpu" if gpus and "cores" not in section else "cpu")
    if kind == "gpu":
        number = gpus
    else:
        cores = section.get("cores")
        number = (free_cores(CORES) or len(CORES)) // (cores if isinstance(cores, int) and cores > 0 else 1)
    if isinstance(resident := section.get("resident"), int):
        number = min(number, resident)
    return {"kind": kind, "devices": min(max(number, 1), MAX_DEVICES), **section}


def _supplied(
    settings: Settings, pool: PoolSection, supply: Supply | None, ray: str | None, found: Problems
) -> Settings:
    """Return the settings of a pool whose nodes come and go; problems are added to those found."""
    if pool.kind == "gpu" and ray is None:
        found.at("pool", "kind").add(NO_GPUS)
    both = 2 * pool.devices  # new nodes are warm before old ones go
    if both > MAX_DEVICES:
        message = f"must be at most {MAX_DEVICES // 2} where nodes come and go, got {pool.devices}"
        found.at("pool", "devices").add(message)
    if supply is None or both > MAX_DEVICES:
        return settings
    try:
        supply.check(local=ray is None)
        settings = supply.settings(replace(settings, devices=both, resident=both))
    except ValueError as error:
        found.add(str(error))
    return settings


def _group(section: Any, folder: Path) -> GroupSocket | None:
    """Return the socket of the group of this machine whose members may use the pool."""
    if section is None:
        return None
    if not isinstance(section, Mapping) or not {"name", "folder"} <= section.keys() <= {"name", "folder", "may"}:
        raise ValueError(f"expected name, folder (of the socket) and may (their rights), got {section!r}")
    may = section.get("may", DEFAULT_RIGHTS)
    rights = rights_of([may] if isinstance(may, str) else may)
    if Right.SUBMIT in rights:
        print("note: a bundle is code that runs as this account; members who may submit can do the same",
              file=sys.stderr)  # fmt: skip
    return group_socket(str(section["name"]), folder / Path(str(section["folder"])).expanduser(), rights)
