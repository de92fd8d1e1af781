"""The file of ``up --config``: the sections of a bundle about the pool, and the users of the pool."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from lightning_core.bundle.on_verdict import read_on_verdict
from lightning_core.bundle.pool_section import Kind, read_pool
from lightning_core.bundle.problems import BundleError, Position, Problems
from lightning_core.bundle.settings_section import read_market, read_settings
from lightning_core.bundle.yaml_loader import load_yaml
from lightning_core.cli.on_market.market_options import MarketOptions
from lightning_core.core.limits import MAX_DEVICES
from lightning_core.scheduler.settings import Settings
from lightning_core.server.access.groups import GroupSocket, group_socket
from lightning_core.server.access.people import Right, rights_of

KEYS = ("pool", "policy", "estimator", "period", "market", "on_verdict", "group")
DEFAULT_RIGHTS = (str(Right.SEE),)


class PoolFile(NamedTuple):
    """The pool that ``up`` is asked for."""

    settings: Settings
    kind: Kind
    devices: int
    """Devices, or nodes held at once on a market, whose settings have twice as many."""
    resident: int
    """Jobs in memory at once."""
    on_verdict: dict[str, Any]
    group: GroupSocket | None
    market: MarketOptions | None


def read_pool_file(path: Path | None, given: Mapping[str, Any], ray: str | None) -> PoolFile:
    """Read the file.

    Args:
        path: The file; None for a pool as the options and the defaults have it.
        given: Options that stand in place of keys of the file: ``devices``, ``kind`` and ``policy``; None if not given.
        ray: Address of the Ray cluster; None for this machine alone.

    Raises:
        BundleError: With every problem found.
    """
    content, found = ({}, Problems(Position("up"))) if path is None else load_yaml(path, "file is empty")
    if not isinstance(content, Mapping):
        found.add(f"expected a mapping of {', '.join(KEYS)}, got {type(content).__name__}")
        raise BundleError(found.messages)
    if "jobs" in content:
        found.at("jobs").add("leave them out, and `submit` them once the pool is up")
    found.check_keys({key: value for key, value in content.items() if key != "jobs"}, KEYS)
    folder = Path() if path is None else path.parent
    section = content.get("pool") or {}
    if isinstance(section, Mapping):
        section = {**section, **{key: given[key] for key in ("devices", "kind") if given[key] is not None}}
    pool = read_pool(section, found.at("pool"))
    rents = content.get("market") is not None
    if pool.locations and (rents or ray is None):
        why = "nodes of a market have no locations" if rents else "locations are labels of nodes of a Ray cluster"
        found.at("pool", "devices").add(f"{why}: {'give a number' if rents else 'it needs --ray ADDRESS'}")
        pool = pool._replace(locations=())
    resident = pool.resident or 2 * pool.devices
    body = {key: value for key, value in content.items() if key != "market"}
    if given["policy"] is not None:
        body["policy"] = given["policy"]
    settings = read_settings(body, pool._replace(resident=resident), folder, found) or Settings()
    market = None
    if pool.budget is not None and not rents:
        found.at("pool", "budget").add("needs a pool on a market: add the section `market`")
    if rents:
        market, settings = _on_market(content["market"], folder, ray, settings, found)
        if pool.kind == "gpu" and ray is None:
            found.at("pool", "kind").add("simulated nodes have no GPUs: name a Ray cluster that has with --ray")
    on_verdict = read_on_verdict(content.get("on_verdict"), folder, found.at("on_verdict"))
    group = None
    if not found.messages:  # it makes a folder
        group = found.at("group").read(lambda value: _group(value, folder), content.get("group"))
    if found.messages:
        raise BundleError(found.messages)
    return PoolFile(settings, pool.kind, pool.devices, resident, on_verdict, group, market)


def _on_market(
    section: Any, folder: Path, ray: str | None, settings: Settings, found: Problems
) -> tuple[MarketOptions | None, Settings]:
    """Return the market of a pool, and its settings there; problems are added to those found."""
    both = 2 * settings.devices  # new nodes are warm before old ones go
    if both > MAX_DEVICES:
        found.at("pool", "devices").add(f"must be at most {MAX_DEVICES // 2} on a market, got {settings.devices}")
        return None, settings
    read = found.at("market").read(lambda value: _read_market(value, folder, ray), section)
    if read is None:
        return None, settings
    market, terms = read
    return market, market.rented(replace(settings, market=terms, devices=both, resident=both))


def _read_market(section: Any, folder: Path, ray: str | None) -> tuple[MarketOptions, dict[str, Any] | None]:
    """Read the market of a bundle, with ``quotes`` and ``provision`` beside its keys."""
    if not isinstance(section, Mapping):
        terms = read_market(section, folder)
        return MarketOptions(Path(terms["trace"]), ray=ray), terms
    rest = dict(section)
    quotes, provision = rest.pop("quotes", None), rest.pop("provision", None)
    if quotes is None:
        terms = read_market(rest, folder)
        return MarketOptions(Path(terms.get("trace") or ""), ray=ray, provision=provision), terms
    if recorded := rest.keys() & {"trace", "price", "start", "pool"}:
        raise ValueError(f"{min(recorded)} is of a recorded market, and quotes names a command that quotes it")
    own: dict[str, Any] = {name: folder / str(rest.pop(name)) for name in ("history", "feedback") if name in rest}
    own |= {name: str(rest.pop(name)) for name in ("interval", "minimum_charge", "forecaster") if name in rest}
    policies = rest.get("policies")
    if isinstance(policies, list) and len(policies) == 1 and isinstance(policies[0], str):
        own["policy"] = rest.pop("policies")[0]
    market = MarketOptions(quotes=str(quotes), ray=ray, provision=provision, **own)
    return market, market.terms(rest)


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
