"""How the jobs of a bundle share: pool, policy, estimator, period."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from lightning_core.launch.jobs import duration, whole
from lightning_core.launch.problems import Findings
from lightning_core.settings import Settings

POOL_KEYS = ("devices", "kind", "resident")
MOST_DEVICES = 64

Kind = Literal["cpu", "gpu"]


def parse_policy(text: str) -> dict[str, Any]:
    """``lara:order=edf,explore=5`` as ``{"name": "lara", "order": "edf", "explore": 5}``.

    Raises:
        ValueError: if it is not of that form.
    """
    name, _, rest = text.partition(":")
    policy: dict[str, Any] = {"name": name}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not (key and equals and value):
            raise ValueError(f"policy must be NAME or NAME:KEY=VALUE,..., got {text!r}")
        policy[key] = int(value) if value.isdigit() else value
    return policy


def with_policy(settings: Settings, policy: Mapping[str, Any]) -> Settings:
    name, args = _named(policy, settings.policy)
    return replace(settings, policy=name, policy_args=args)


def read_settings(content: Mapping[str, Any], devices: int, resident: int | None, found: Findings) -> Settings | None:
    default = Settings()
    before = len(found.problems)
    period = found.at("period").read(duration, content["period"]) if "period" in content else default.period
    estimator = found.at("estimator").read(_estimator, content.get("estimator", {}))
    settings = found.at("policy").read(lambda value: with_policy(default, value), content.get("policy", {}))
    if len(found.problems) > before or settings is None or estimator is None or period is None:
        return None
    name, args = estimator.estimator, estimator.estimator_args
    return replace(settings, estimator=name, estimator_args=args, period=period, devices=devices, resident=resident)


def _estimator(value: Any) -> Settings:
    name, args = _named(value, Settings().estimator)
    return Settings(estimator=name, estimator_args=args)


def _named(value: Any, default: str) -> tuple[str, dict[str, Any]]:
    """``lara`` or ``{name: lara, order: edf}`` as a name and arguments."""
    if isinstance(value, str):
        return value, {}
    if not isinstance(value, Mapping):
        raise ValueError(f"expected a name or a mapping with 'name', got {value!r}")
    args = {str(key): inner for key, inner in value.items()}
    return str(args.pop("name", default)), args


def read_pool(value: Any, found: Findings, there: int | None = None) -> tuple[Kind, int, int | None]:
    """Kind, devices and how many jobs stay warm; the most devices there can be where the number is wrong.

    Args:
        value: what the file says.
        found: takes what is wrong.
        there: devices of a pool that is there already, and stays as it is whatever the file says.
    """
    if value is None:
        value = {}
    if not isinstance(value, Mapping):
        found.add(f"expected a mapping of {', '.join(POOL_KEYS)}, got {value!r}")
        value = {}
    found.keys(value, POOL_KEYS)
    kind: Kind = "cpu"
    if (given := value.get("kind", "cpu")) in ("cpu", "gpu"):
        kind = given
    else:
        found.at("kind").add(f"must be cpu or gpu, got {given!r}")
    devices = there or found.at("devices").read(lambda given: whole(given, MOST_DEVICES), value.get("devices", 1))
    resident = None
    if there is None and value.get("resident") is not None:
        resident = found.at("resident").read(whole, value["resident"])
    if devices is not None and resident is not None and resident < devices:
        found.at("resident").add(f"must be at least one job a device ({devices}), got {resident}")
        resident = None
    return kind, devices or MOST_DEVICES, resident
