"""What a bundle file says of all its jobs together: pool, policy, estimator, period."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from lightning_core.bundle.job_spec import exact_duration, positive_int
from lightning_core.bundle.problems import BundleError, Problems
from lightning_core.core.durations import parse_duration
from lightning_core.core.names import did_you_mean
from lightning_core.node.cpu_quota import QUANTUM
from lightning_core.scheduler.market_terms import MarketTerms
from lightning_core.scheduler.settings import Settings

BUNDLE_KEYS = ("pool", "policy", "estimator", "period", "market", "on_verdict", "allow_import", "jobs")
MARKET_KEYS = tuple(field.name for field in fields(MarketTerms))
POOL_KEYS = ("devices", "kind", "cores", "resident")
MAX_DEVICES = 64
MAX_JOBS = 1000
# What Ray takes as the value of a label.
LABEL_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
LABEL_RULE = "1 to 63 letters, digits, dots, dashes or underscores, the first and the last a letter or digit"

Kind = Literal["cpu", "gpu"]


class ExistingPool(NamedTuple):
    """A pool that is there already, and stays as it is whatever a file says."""

    devices: int
    kind: Kind | None = None
    """Of its devices; None if nobody asks: then a file may want more of them, or others."""
    name: str = "the pool"
    """How people call it."""


class BundleContent(NamedTuple):
    """What a bundle file says: of the pool, and which jobs there are, not yet read."""

    content: Mapping[str, Any]
    """Of a file of one job nothing: all that it says is the job's."""
    jobs: list[tuple[Any, Any, Problems]]
    """Name, what is said of it, and where problems with it go."""
    kind: Kind
    devices: int
    """The most there can be where the number is wrong."""
    settings: Settings | None
    """None, with its problems noted, if anything is wrong with them."""


def read_bundle_content(
    content: Any, folder: Path, found: Problems, there: ExistingPool | None = None
) -> BundleContent:
    """Parts a bundle file, or a file of one job, and reads how the jobs share.

    Args:
        content: of the file.
        folder: what the paths in it are relative to.
        found: takes what is wrong.
        there: the pool that is there already, if one is.

    Raises:
        BundleError: if it is no mapping.
    """
    if not isinstance(content, Mapping):
        found.add(f"expected a mapping with 'jobs', got {type(content).__name__}")
        raise BundleError(found.messages)
    if "jobs" not in content and content.keys() & {"deadline", "target"}:
        job = {key: value for key, value in content.items() if key != "name"}
        named = [(content.get("name", Path(found.position.name).stem), job, found)]
        content = {}
    else:
        found.check_keys(content, BUNDLE_KEYS)
        jobs = content.get("jobs")
        if not isinstance(jobs, Mapping) or not jobs:
            found.at("jobs").add(f"expected a mapping of at least one job, got {jobs!r}")
            jobs = {}
        if len(jobs) > MAX_JOBS:
            found.at("jobs").add(f"must be at most {MAX_JOBS} jobs, got {len(jobs)}")
            jobs = {}
        named = [(name, value, found.at("jobs", str(name))) for name, value in jobs.items()]
    pool = read_pool(content.get("pool"), found.at("pool"), there)
    return BundleContent(content, named, pool.kind, pool.devices, read_settings(content, pool, folder, found))


def parse_policy(text: str) -> dict[str, Any]:
    """A policy as it is written on a command line.

    Raises:
        ValueError: if it is not of that form.

    Example::

        >>> parse_policy("lara:order=edf,explore=5")
        {'name': 'lara', 'order': 'edf', 'explore': 5}
        >>> parse_policy("laira:look_ahead=false,gamma=0.95")
        {'name': 'laira', 'look_ahead': False, 'gamma': 0.95}
    """
    name, _, rest = text.partition(":")
    policy: dict[str, Any] = {"name": name}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not (key and equals and value):
            raise ValueError(f"policy must be NAME or NAME:KEY=VALUE,..., got {text!r}")
        policy[key] = _value(value)
    return policy


def _value(text: str) -> int | float | bool | str:
    """As YAML would read it."""
    if text in ("true", "false"):
        return text == "true"
    for read_number in (int, float):
        try:
            return read_number(text)
        except ValueError:
            pass
    return text


def with_policy(settings: Settings, policy: Any) -> Settings:
    """The same under another policy, and with its estimator unless one was named.

    Raises:
        ValueError: if the policy is unknown or an argument out of its range.
    """
    name, args = _named(policy, settings.policy)
    return replace(settings, policy=name, policy_args=args)


def read_allow_import(value: Any) -> tuple[str, ...]:
    """Modules, packages and classes that class paths may name, as in ``[mine, lightning, torch.optim]``.

    Raises:
        ValueError: if it is no list of dotted names.
    """
    names = value if isinstance(value, list | tuple) else [value]
    for name in names:
        if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(f"must be a list of modules, such as [mine, lightning, torch.optim], got {name!r}")
        if name.split(".")[0] == "jsonargparse":  # which decides what may be imported
            raise ValueError(f"{name} cannot be allowed: it reads the configs")
    return tuple(names)


class PoolSection(NamedTuple):
    """What a bundle file says of its devices."""

    kind: Kind
    devices: int
    """The most there can be where the number is wrong."""
    cores: int
    resident: int | None
    locations: tuple[str, ...] = ()
    """Of each device; empty if that makes no difference."""


def with_quantum(settings: Settings, kind: Kind) -> Settings:
    """The same for devices of this kind: a part of a CPU can be had, in steps of so much of a core."""
    return replace(settings, quantum=QUANTUM / settings.cores if kind == "cpu" else 1.0)


def with_pool(settings: Settings, pool: PoolSection) -> Settings:
    """The same for a pool of these devices."""
    return with_quantum(replace(settings, devices=pool.devices, resident=pool.resident, cores=pool.cores,
                           locations=pool.locations), pool.kind)  # fmt: skip


def read_settings(content: Mapping[str, Any], pool: PoolSection, folder: Path, found: Problems) -> Settings | None:
    default = Settings()
    period = found.at("period").read(parse_duration, content["period"]) if "period" in content else default.period
    under = found.at("policy").read(lambda value: with_policy(default, value), content.get("policy", {}))
    settings = found.at("estimator").read(
        lambda value: _with_estimator(under or default, value), content.get("estimator", {})
    )
    market = None
    if content.get("market") is not None:
        market = found.at("market").read(lambda value: read_market(value, folder), content["market"])
    if under is None or settings is None or period is None:
        return None
    return with_pool(replace(settings, period=period, market=market), pool)


def read_market(value: Any, folder: Path) -> dict[str, Any]:
    """A recording, or a mapping with the terms of a market; as arguments of :class:`MarketTerms`.

    Raises:
        ValueError: if it is neither, or the market cannot be read.
    """
    if isinstance(value, str):
        value = {"trace": value}
    if not isinstance(value, Mapping):
        raise ValueError(f"expected a recording or a mapping of {', '.join(MARKET_KEYS)}, got {value!r}")
    if strangers := [key for key in value if key not in MARKET_KEYS]:
        raise ValueError(f"unknown key {strangers[0]!r}{did_you_mean(str(strangers[0]), MARKET_KEYS)}")
    terms: dict[str, Any] = dict(value)
    if terms.get("trace"):
        terms["trace"] = str((folder / str(terms["trace"])).resolve())
    if terms.get("interval") is not None:
        terms["interval"] = parse_duration(terms["interval"])
    try:
        MarketTerms(**terms).market()
    except OSError as error:
        raise ValueError(f"trace {terms['trace']}: {error.strerror}") from None
    return terms


def market_to_dict(market: Mapping[str, Any]) -> dict[str, Any]:
    """The terms of a market as a bundle file has them."""
    body = dict(market)
    if "policies" in body:
        body["policies"] = list(body["policies"])
    if body.get("interval") is not None:
        body["interval"] = exact_duration(body["interval"])
    return body


def _with_estimator(settings: Settings, value: Any) -> Settings:
    name, args = _named(value, "")
    return replace(settings, estimator=name, estimator_args=args)


def _named(value: Any, default: str) -> tuple[str, dict[str, Any]]:
    """``lara`` or ``{name: lara, order: edf}`` as a name and arguments."""
    if isinstance(value, str):
        return value, {}
    if not isinstance(value, Mapping):
        raise ValueError(f"expected a name or a mapping with 'name', got {value!r}")
    args = {str(key): inner for key, inner in value.items()}
    return str(args.pop("name", default)), args


def read_pool(value: Any, found: Problems, there: ExistingPool | None = None) -> PoolSection:
    """Kind, devices and how many jobs stay warm.

    Args:
        value: what the file says.
        found: takes what is wrong.
        there: the pool that is there already, if one is: a file that wants what it has not is refused.
    """
    if value is None:
        value = {}
    if not isinstance(value, Mapping):
        found.add(f"expected a mapping of {', '.join(POOL_KEYS)}, got {value!r}")
        value = {}
    found.check_keys(value, POOL_KEYS)
    kind: Kind = "cpu"
    if (given := value.get("kind", "cpu")) in ("cpu", "gpu"):
        kind = given
    else:
        found.at("kind").add(f"must be cpu or gpu, got {given!r}")
    locations: tuple[str, ...] = ()
    if isinstance(value.get("devices"), Mapping) and (there is None or there.kind):
        locations = _read_locations(value["devices"], found.at("devices"))
        devices: int | None = len(locations) or None
    elif there is not None and there.kind is None:
        devices = there.devices
    else:
        devices = found.at("devices").read(lambda given: positive_int(given, MAX_DEVICES), value.get("devices", 1))
    if there is not None and there.kind:
        _check_there(value, there, devices or 1, found)
        kind, devices, locations = there.kind, there.devices, ()
    resident = None
    if there is None and value.get("resident") is not None:
        resident = found.at("resident").read(positive_int, value["resident"])
    if devices is not None and resident is not None and resident < devices:
        found.at("resident").add(f"must be at least one job a device ({devices}), got {resident}")
        resident = None
    cores = found.at("cores").read(positive_int, value["cores"]) if value.get("cores") is not None else 1
    if kind == "gpu" and "cores" in value:
        found.at("cores").add("is of a pool of CPUs; remove it")
    return PoolSection(kind, devices or MAX_DEVICES, cores or 1, resident, locations)


def _check_there(value: Mapping[str, Any], there: ExistingPool, devices: int, found: Problems) -> None:
    """Adds a problem for what a file wants of its pool and the one that is there has not."""
    way = "`lightning-core run --own` gives it a pool of its own"
    if value.get("kind", there.kind) in {"cpu", "gpu"} - {there.kind}:
        words = f"the bundle wants devices of kind {value['kind']}, {there.name} has {there.kind}; {way}"
        found.at("kind").add(words)
    if isinstance(value.get("devices"), Mapping):
        found.at("devices").add(f"the bundle shares {', '.join(map(str, value['devices']))}, {there.name} has no "
                                f"locations; {way}")  # fmt: skip
    elif devices > there.devices:
        found.at("devices").add(f"the bundle shares {devices} devices, {there.name} has {there.devices}; {way}")


def _read_locations(value: Mapping[Any, Any], found: Problems) -> tuple[str, ...]:
    """``{harbour: 2, cloud: 4}`` as where each device is; empty, with its problems noted, if anything is wrong."""
    before = len(found.messages)
    locations: list[str] = []
    for name, count in value.items():
        at = found.at(str(name))
        if not isinstance(name, str) or not LABEL_VALUE.fullmatch(name):
            at.add(f"a location is {LABEL_RULE}, for Ray's nodes carry it as a label, got {name!a}")
        locations += [str(name)] * (at.read(lambda given: positive_int(given, MAX_DEVICES), count) or 0)
    if not value:
        found.add("expected a number, or a number by location, got none")
    if len(locations) > MAX_DEVICES:
        found.add(f"must be at most {MAX_DEVICES} devices, got {len(locations)}")
    return tuple(locations) if len(found.messages) == before else ()
