"""The section ``pool`` of a bundle file: kind and number of devices, locations, warm workers, what is kept."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from lightning_core.bundle.problems import Problems
from lightning_core.bundle.values import exact_duration, parse_bytes, read_bool, read_choice
from lightning_core.controllers import CONTROLLERS, Calendar, Controller
from lightning_core.core.control import RIGHTS, Asker
from lightning_core.core.durations import format_duration, parse_duration
from lightning_core.core.jobs import Beside
from lightning_core.core.limits import MAX_CORES, MAX_DEVICES, MAX_RESIDENT, shown
from lightning_core.core.parts import allow_classes, guarded, names_of
from lightning_core.core.validation import checked, positive_int, read_number
from lightning_core.node.cpu_quota import QUANTUM
from lightning_core.scheduler.divider import divider_class
from lightning_core.scheduler.settings import KEEP_ENDED, MIN_KEEP_ENDED, Settings

POOL_KEYS = ("devices", "kind", "cores", "resident", "keep", "keep_ended", "share_history", "calendar",
             "best_effort", "beside", "device_memory", "controllers")  # fmt: skip
# The only value of `keep`; without it the journal is thinned. Value of `keep_ended` besides durations.
KEEP_ALL, FOREVER = "all", "forever"
# What Ray accepts as the value of a label.
LABEL_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
LABEL_RULE = "1 to 63 letters, digits, dots, dashes or underscores, the first and the last a letter or digit"

Kind = Literal["cpu", "gpu"]


class ExistingPool(NamedTuple):
    """A running pool that takes the jobs of a bundle; it stays as it is, whatever the file asks for."""

    devices: int
    kind: Kind | None = None
    """Kind of its devices; None if the file may ask for more devices, or others, than it has."""
    name: str = "the pool"
    """Its name in messages."""
    locations: tuple[str, ...] = ()
    """Location of each of its devices; empty if it makes no difference."""


class PoolSection(NamedTuple):
    """The pool that a bundle file asks for."""

    kind: Kind
    devices: int
    """Number of devices; the maximum if the file's number is wrong."""
    cores: int
    resident: int | None
    locations: tuple[str, ...] = ()
    """Location of each device; empty if it makes no difference."""
    keep_all: bool = False
    """Whether the journal keeps all events."""
    keep_ended: float | None = KEEP_ENDED
    """Seconds for which files of a job are kept after its end; None for ever."""
    share_history: bool = False
    """Whether jobs are given the earlier runs of other users too."""
    calendar: tuple[str, ...] = ()
    """Hours at which nothing trains; see :class:`~lightning_core.controllers.calendar.Calendar`."""
    best_effort: float = 0.0
    """Part of the devices' time that is kept for jobs without a deadline."""
    beside: Beside = Beside.AUTO
    """Whether jobs may train at the same time as others on their device."""
    device_memory: int | None = None
    """Bytes of each device's memory that jobs may have; None if unknown."""
    divider: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
    """Terms of what divides the pool among groups of jobs, under its name."""
    controllers: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
    """Arguments of controllers of other packages, by name or class path."""


def with_quantum(settings: Settings, kind: Kind) -> Settings:
    """Return settings for a kind of device: a CPU can be shared in steps of a quantum of a core, a GPU not at all."""
    return replace(settings, quantum=QUANTUM / settings.cores if kind == "cpu" else 1.0)


def with_pool(settings: Settings, pool: PoolSection) -> Settings:
    """Return settings for a pool."""
    return with_quantum(replace(settings, devices=pool.devices, resident=pool.resident, cores=pool.cores,
                                locations=pool.locations, keep_all=pool.keep_all,
                                keep_ended=pool.keep_ended, share_history=pool.share_history,
                                best_effort=pool.best_effort, beside=pool.beside, device_memory=pool.device_memory,
                                divider=pool.divider,
                                controllers={**controllers_of(pool.calendar),
                                             **pool.controllers}),
                        pool.kind)  # fmt: skip


def read_pool(section: Any, problems: Problems, existing: ExistingPool | None = None) -> PoolSection:
    """Read the section.

    Args:
        section: Value in the file; None if it has none.
        problems: Collector at the section.
        existing: Pool that is to take the jobs, if it is running already. A file that asks for devices which that
            pool does not have is refused.
    """
    if section is None:
        section = {}
    if not isinstance(section, Mapping):
        problems.add(f"expected a mapping of {', '.join(POOL_KEYS)}, got {section!r}")
        section = {}
    problems.check_keys(section, (*POOL_KEYS, *names_of("dividers")))
    kind: Kind = "cpu"
    if (given := section.get("kind", "cpu")) in ("cpu", "gpu"):
        kind = given
    else:
        problems.at("kind").add(f"must be cpu or gpu, got {given!r}")
    devices, locations = _read_devices(section, problems, existing)
    if existing is not None and existing.kind:
        _check_existing(section, existing, devices or 1, problems)
        kind, devices, locations = existing.kind, existing.devices, existing.locations
    resident = None
    if existing is None and section.get("resident") is not None:
        resident = problems.at("resident").read(partial(positive_int, maximum=MAX_RESIDENT), section["resident"])
    if devices is not None and resident is not None and resident < devices:
        problems.at("resident").add(f"must be at least one job per device ({devices}), got {resident}")
        resident = None
    cores = problems.at("cores").read(partial(positive_int, maximum=MAX_CORES), section.get("cores", 1))
    if kind == "gpu" and "cores" in section:
        problems.at("cores").add("applies to CPUs only; remove it")
    keep_all = bool("keep" in section and problems.at("keep").read(_read_keep, section["keep"]))
    keep_ended = problems.at("keep_ended").read(read_keep_ended, section.get("keep_ended", KEEP_ENDED))
    shared = bool("share_history" in section and problems.at("share_history").read(read_bool, section["share_history"]))
    calendar = problems.at("calendar").read(read_calendar, section.get("calendar", ())) or ()
    best_effort = problems.at("best_effort").read(read_part, section.get("best_effort", 0.0)) or 0.0
    beside = problems.at("beside").read(partial(read_choice, Beside), section.get("beside", Beside.AUTO)) or Beside.AUTO
    memory = None
    if "device_memory" in section:
        memory = problems.at("device_memory").read(parse_bytes, section["device_memory"])
    divider = _read_divider(section, problems, devices)
    controllers = {}
    if section.get("controllers") is not None and existing is None:
        controllers = read_controllers(section["controllers"], problems.at("controllers"))
    return PoolSection(
        kind, devices or MAX_DEVICES, cores or 1, resident, locations, keep_all, keep_ended, shared, calendar,
        best_effort, beside, memory, divider, controllers,
    )  # fmt: skip


def _read_divider(section: Mapping[str, Any], problems: Problems, devices: int | None) -> dict[str, dict[str, Any]]:
    """Read the terms of what divides the pool among groups of jobs, if the section has the key of one."""
    found = [name for name in names_of("dividers") if name in section]
    if len(found) > 1:
        problems.add(f"must have at most one of {', '.join(found)}: a pool is divided once")
        return {}
    if not found:
        return {}
    at = problems.at(found[0])
    try:
        terms = checked(divider_class(found[0]).read(section[found[0]], at, devices), dict)
    except Exception as error:  # code from outside may raise anything
        at.add(str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}")
        return {}
    return {found[0]: terms} if terms else {}


def _controller(name: str, arguments: Mapping[str, Any]) -> Controller:
    if "." in name:
        allow_classes([name])
    return CONTROLLERS.build(name, arguments)


def read_controllers(section: Any, problems: Problems) -> dict[str, dict[str, Any]]:
    """Read which controllers of other packages the pool has: ``{quiet: {until: 8}, mine.Quiet: {}}``.

    Args:
        section: Value in the file.
        problems: Collector at the section.

    Returns:
        Arguments by name or class path.
    """
    if not isinstance(section, Mapping):
        problems.add(f"expected a mapping of controllers to their arguments, got {shown(section)}")
        return {}
    found = {}
    for name, given in section.items():
        at, arguments = problems.at(str(name)), {} if given is None else given
        if name in RIGHTS:
            at.add("has a key of its own in this section or beside it")
        elif name in names_of("supplies"):
            at.add(
                f"would decide about nodes that nothing brings: leave it out, and give the file a section {name!r} "
                "beside 'pool', which says where its nodes come from"
            )
        elif not isinstance(arguments, Mapping):
            at.add(f"expected a mapping of arguments, got {shown(given)}")
        elif at.read(partial(_controller, str(name)), arguments) is not None:
            found[str(name)] = {str(key): value for key, value in arguments.items()}
    return found


def read_part(value: Any) -> float:
    """Read a part of a whole.

    Raises:
        ValueError: If it is not at least 0 and below 1.
    """
    part = read_number(value)
    if not 0 <= part < 1:
        raise ValueError(f"must be at least 0 and below 1, got {shown(value)}")
    return part


def controllers_of(calendar: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the controllers of settings: for the hours at which nothing trains."""
    return {str(Asker.CALENDAR): {"closed": list(calendar)}} if calendar else {}


def read_calendar(value: Any) -> tuple[str, ...]:
    """Read one rule, or a list of rules, that say at which hours nothing trains.

    Raises:
        ValueError: If one cannot be read.
    """
    rules = [value] if isinstance(value, str) else value
    if not isinstance(rules, list | tuple):
        raise ValueError(f"must be a rule or a list of rules, got {shown(value)}")
    if rules:
        Calendar(rules)
    return tuple(rules)


def _read_keep(value: Any) -> bool:
    """Return whether the journal keeps all events."""
    if value != KEEP_ALL:
        raise ValueError(f"must be {KEEP_ALL}; without the key old events are thinned, got {shown(value)}")
    return True


def read_keep_ended(value: Any) -> float | None:
    """Read for how long the files of ended jobs are kept: a duration of at least an hour, or ``forever``.

    Returns:
        Seconds; None for ever.

    Raises:
        ValueError: If it is neither.
    """
    if value == FOREVER:
        return None
    try:
        seconds = parse_duration(value)
    except ValueError as error:
        raise ValueError(f"{error}; or {FOREVER}") from None
    if seconds < MIN_KEEP_ENDED:
        raise ValueError(f"must be at least {format_duration(MIN_KEEP_ENDED)}, or {FOREVER}, got {shown(value)}")
    return seconds


def pool_to_dict(settings: Settings, kind: Kind) -> dict[str, Any]:
    """Return the section as in a file; :func:`read_pool` reads it."""
    pool: dict[str, Any] = {"devices": dict(Counter(settings.locations)) or settings.devices, "kind": kind}
    if settings.cores > 1:
        pool["cores"] = settings.cores
    if settings.resident is not None:
        pool["resident"] = settings.resident
    if settings.keep_all:
        pool["keep"] = KEEP_ALL
    if settings.keep_ended != KEEP_ENDED:
        pool["keep_ended"] = FOREVER if settings.keep_ended is None else exact_duration(settings.keep_ended)
    if settings.best_effort:
        pool["best_effort"] = settings.best_effort
    if settings.beside is not Beside.AUTO:
        pool["beside"] = str(settings.beside)
    if settings.device_memory is not None:
        pool["device_memory"] = settings.device_memory
    for name, terms in settings.divider.items():
        section = guarded(f"divider {name}", partial(divider_class(name).section, terms), lambda _: None)
        pool[name] = terms if section is None else section
    if settings.share_history:
        pool["share_history"] = True
    if outside := {
        name: dict(given) for name, given in settings.controllers.items() if name not in (*RIGHTS, settings.supply)
    }:
        pool["controllers"] = outside
    if (calendar := settings.controllers.get(Asker.CALENDAR)) is not None:
        pool["calendar"] = list(calendar["closed"])
    return pool


def _read_devices(
    section: Mapping[str, Any], problems: Problems, existing: ExistingPool | None
) -> tuple[int | None, tuple[str, ...]]:
    """Read the number of devices, None if it is wrong, and their locations."""
    if isinstance(section.get("devices"), Mapping) and (existing is None or existing.kind):
        locations = _read_locations(section["devices"], problems.at("devices"))
        return len(locations) or None, locations
    if existing is not None and existing.kind is None:
        return existing.devices, ()
    given = section.get("devices", 1)
    return problems.at("devices").read(lambda value: positive_int(value, MAX_DEVICES), given), ()


def _check_existing(section: Mapping[str, Any], existing: ExistingPool, devices: int, problems: Problems) -> None:
    """Add a problem for each thing that a file asks for and the running pool does not have."""
    advice = "`lightning-core run --own` gives it a pool of its own"
    if section.get("kind", existing.kind) in {"cpu", "gpu"} - {existing.kind}:
        wanted = f"the bundle wants devices of kind {section['kind']}"
        problems.at("kind").add(f"{wanted}, {existing.name} has {existing.kind}; {advice}")
    if isinstance(section.get("devices"), Mapping):
        there = Counter(existing.locations)
        asked = {str(name): count for name, count in section["devices"].items()}
        if any(there[name] < count for name, count in asked.items() if isinstance(count, int)):
            has = ", ".join(f"{name} ({count})" for name, count in there.items()) or "no locations"
            shares = ", ".join(f"{name} ({count})" if there else name for name, count in asked.items())
            problems.at("devices").add(f"the bundle shares {shares}, {existing.name} has {has}; {advice}")
    elif devices > existing.devices:
        problems.at("devices").add(
            f"the bundle shares {devices} devices, {existing.name} has {existing.devices}; {advice}"
        )


def _read_locations(counts: Mapping[Any, Any], problems: Problems) -> tuple[str, ...]:
    """Read ``{harbour: 2, cloud: 4}`` as the location of each device; empty, with problems added, if it is wrong."""
    before = len(problems.messages)
    locations: list[str] = []
    for name, count in counts.items():
        at = problems.at(str(name))
        if not isinstance(name, str) or not LABEL_VALUE.fullmatch(name):
            at.add(f"a location is {LABEL_RULE}, because Ray's nodes carry it as a label, got {name!a}")
        locations += [str(name)] * (at.read(lambda given: positive_int(given, MAX_DEVICES), count) or 0)
    if not counts:
        problems.add("expected a number, or a number by location, got none")
    if len(locations) > MAX_DEVICES:
        problems.add(f"must be at most {MAX_DEVICES} devices, got {len(locations)}")
    return tuple(locations) if len(problems.messages) == before else ()
