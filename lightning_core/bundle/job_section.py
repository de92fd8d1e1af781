"""Job sections of bundle files, read and checked."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from lightning_core.bundle.config_section import CONFIG_KEYS, read_config
from lightning_core.bundle.job_spec import DEFAULT_CELL, SUBMITTED, JobSpec, feasible_sizes, micro_batches_of
from lightning_core.bundle.problems import Position, Problems
from lightning_core.bundle.scripts import ONE_DEVICE, REFUSED_WITH_SCRIPT, SCRIPT, read_script
from lightning_core.bundle.strategies import check_strategy
from lightning_core.bundle.values import (
    non_negative_int,
    parse_bytes,
    positive_number,
    read_bool,
    read_choice,
    read_moment,
)
from lightning_core.core.durations import WallTime, parse_duration, parse_limit, parse_when, seconds_until
from lightning_core.core.jobs import Beside, Capability, Job, OnHold, OnMiss, OnNan, Spread, check_term
from lightning_core.core.limits import MAX_COUNT, MAX_DEVICES, check_length, shown
from lightning_core.core.names import NAME_RULE, is_name
from lightning_core.core.parts import check_job_data
from lightning_core.core.targets import as_target
from lightning_core.core.validation import positive_int
from lightning_core.storage.job_specs import HANG

TERMS = ("deadline", "target", "begin", "weight", "devices", "min_devices", "max_devices", "on_miss", "on_nan", "work",
         "cell", "restarts", "retries", "location", "kinds", "save_every", "keep_best", "hang", "like",
         "memory", "on_hold", "beside", "spread", "parts")  # fmt: skip
# The recording that stands in for the job in a simulation; a run ignores them.
RECORDING_KEYS = ("curve", "throughput", "paces")
JOB_KEYS = ("config", SCRIPT, *TERMS, SUBMITTED, *RECORDING_KEYS, *CONFIG_KEYS)
REQUIRED_TERMS = {"target": "loss<=0.35"}  # each with an example

_CAPABILITIES = frozenset({Capability.TIME_SLICE, Capability.HOLD, Capability.RELEASE})


@dataclass
class _JobTermsReader:
    """Reads the terms of a job, one by one.

    Args:
        section: Section of the job in the bundle file.
        problems: Collector at the job.
        submitted: Moment at which the job was submitted; None before that.
    """

    section: Mapping[str, Any]
    problems: Problems
    submitted: datetime | None
    clock: dict[str, WallTime] = field(default_factory=dict)
    """Terms that are given as points in wall-clock time."""

    def __post_init__(self) -> None:
        self.submitted = self.read(SUBMITTED, read_moment, self.submitted)
        self._now = datetime.now() if self.submitted is None else self.submitted

    def read(self, key: str, parse: Any, default: Any = None) -> Any:
        """Return the parsed value of a key, or the default if it is not set; None if it is wrong."""
        if self.section.get(key) is None:
            return default
        return self.problems.at(key).read(parse, self.section[key])

    def read_values(self) -> dict[str, Any]:
        """Return the arguments of :class:`Job` that each stand for themselves."""
        return {
            "target": self.read("target", as_target),
            "weight": self.read("weight", _within("weight", positive_number), 1.0),
            "on_miss": self.read("on_miss", partial(read_choice, OnMiss), OnMiss.CONTINUE),
            "on_nan": self.read("on_nan", partial(read_choice, OnNan), OnNan.CONTINUE),
            "work": self.read("work", parse_duration),
            "restarts": self.read("restarts", _within("restarts", non_negative_int)),
            "retries": self.read("retries", _within("retries", non_negative_int), 0),
            "like": self.read("like", _read_like, ""),
            "parts": self.read("parts", _read_parts, {}),
            "memory": self.read("memory", parse_bytes),
            "on_hold": self.read("on_hold", partial(read_choice, OnHold), OnHold.KEEP),
            "beside": self.read("beside", partial(read_choice, Beside), Beside.AUTO),
            "spread": self.read("spread", partial(read_choice, Spread), Spread.MACHINE),
        }

    def read_moment(self, key: str, default: float | None = None) -> Any:
        """Return the seconds from submission to a moment, which may be given as a point in wall-clock time."""

        def parse(value: Any) -> float:
            when = parse_when(value)
            if isinstance(when, WallTime):
                self.clock[key] = when
            return seconds_until(when, self._now)

        return self.read(key, parse, default)

    def read_devices(self) -> tuple[int, int]:
        """Return the minimum and maximum number of devices; if they are wrong, 1 and 1."""
        number = partial(positive_int, maximum=MAX_DEVICES)
        exact = self.read("devices", number)
        if exact is not None and (twice := [key for key in ("min_devices", "max_devices") if key in self.section]):
            both = " and ".join(twice)
            self.problems.at("devices").add(f"stands for min_devices and max_devices; remove it, or {both}")
        minimum = self.read("min_devices", number, exact or 1)
        maximum = self.read("max_devices", number, exact or minimum)
        if minimum is None or maximum is None:
            return 1, 1
        if minimum > maximum:
            self.problems.at("min_devices").add(f"must be at most max_devices {maximum}, got {minimum}")
        return minimum, maximum

    def read_location(self, locations: Sequence[str]) -> str:
        """Return the location; empty for any, and if it is wrong."""
        location = self.section.get("location") or ""
        if location and location not in locations:
            known = ", ".join(dict.fromkeys(locations)) or "none: pool.devices names no locations"
            self.problems.at("location").add(f"must be one of the pool's ({known}), got {location!r}")
            return ""
        return str(location)

    def read_kinds(self, locations: Sequence[str]) -> tuple[str, ...]:
        """Return the kinds of devices that the job may be on; empty for any, and if they are wrong."""
        given = self.section.get("kinds")
        if given is None:
            return ()
        at, kinds = self.problems.at("kinds"), [given] if isinstance(given, str) else given
        if (
            not isinstance(kinds, list | tuple)
            or not kinds
            or not all(isinstance(kind, str) and kind for kind in kinds)
        ):
            at.add(f"must be a kind of devices or a list of them, such as [a100, h100], got {shown(given)}")
            return ()
        if self.section.get("location"):
            at.add("stands for location, which names one kind; remove one of both")
        if locations and (unknown := [kind for kind in kinds if kind not in locations]):
            known = ", ".join(dict.fromkeys(locations))
            at.add(f"must be of the pool's ({known}), got {shown(unknown[0])}")
        return tuple(kinds)

    def check_required(self) -> None:
        """Add a problem for each missing term that a job cannot do without."""
        for key, example in REQUIRED_TERMS.items():
            if self.section.get(key) is None:
                at = self.problems.at(key) if key in self.section else self.problems
                at.add(f"{key} is missing; expected one such as {example}")
        if "deadline" in self.section and self.section["deadline"] is None:
            self.problems.at("deadline").add("is empty; expected one such as 1h30m, or no such key for no deadline")

    def check_begin(self, begin: float | None, deadline: float | None) -> None:
        """Add a problem if the job may not begin before its deadline."""
        if deadline is not None and begin is not None and begin >= deadline:
            given = self.section["begin"]
            self.problems.at("begin").add(f"must be before the deadline {self.section['deadline']}, got {given!r}")

    def check_fits(self, min_devices: int, kinds: Sequence[str], devices: int, locations: Sequence[str]) -> None:
        """Add a problem if the pool has fewer devices, of any kind that the job may be on, than it needs at least."""
        available, where = devices, ""
        if locations:
            counts = Counter(kind for kind in locations if not kinds or kind in kinds)
            available = max(counts.values(), default=0)
            where = f" at {kinds[0]}" if len(kinds) == 1 else f" of one kind, {', '.join(counts)}" if counts else ""
        if min_devices > available:
            self.problems.at("devices" if self.section.get("devices") else "min_devices").add(
                f"must be at most the pool's {available}{where}, or the job can never be scheduled, got {min_devices}"
            )


def _read_like(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"must be a tag or the name of a job, got {shown(value)}")
    check_length("like", value)
    return value


def _read_parts(value: Any) -> Mapping[str, Mapping[str, Any]]:
    """Read the data that parts keep with a job."""
    if not isinstance(value, Mapping) or not all(isinstance(one, Mapping) for one in value.values()):
        raise ValueError(f"must be a mapping of values for each part, got {shown(value)}")
    check_job_data(value)
    return value


def _within(term: str, parse: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a parser that also checks the bounds of a job's term."""

    def read(value: Any) -> Any:
        number = parse(value)
        check_term(term, number)
        return number

    return read


def _is_named_mapping(name: Any, section: Any, problems: Problems) -> bool:
    """Return whether a job has a valid name and is a mapping; add a problem otherwise."""
    if not is_name(name):
        quote = "" if isinstance(name, str) else "; quote it"
        problems.add(f"a name is {NAME_RULE}, got {name!a}{quote}")  # !a shows letters that only look alike by code
    elif not isinstance(section, Mapping):
        given = "empty" if section is None else f"got {section!r}"
        problems.add(f"{given}; expected a mapping with target, deadline and a config")
    else:
        return True
    return False


def _read_script(section: Mapping[str, Any], problems: Problems) -> tuple[dict[str, Any], Position]:
    """Return the config of a job that is a script, and its position."""
    for key, words in REFUSED_WITH_SCRIPT.items():
        if key in section:
            problems.at(key).add(words)
    script = problems.at(SCRIPT).read(read_script, section[SCRIPT])
    return ({} if script is None else {SCRIPT: script}), problems.position


def read_job(
    name: Any,
    section: Any,
    folder: Path,
    problems: Problems,
    devices: int,
    allow: Sequence[str] | None = None,
    locations: Sequence[str] = (),
    submitted: datetime | None = None,
) -> JobSpec | None:
    """Read one job of a bundle file.

    Args:
        name: Its key in the file.
        section: Its value in the file.
        folder: Folder to which paths are relative.
        problems: Collector at the job.
        devices: Number of devices of the pool.
        allow: Names that its config may import; None for all that are not refused.
        locations: Location of each device of the pool.
        submitted: Moment at which it was submitted, if it was and the file does not say so.

    Returns:
        The job; None, with the problems added, if anything is wrong.
    """
    before = len(problems.messages)
    if not _is_named_mapping(name, section, problems):
        return None
    problems.check_keys(section, JOB_KEYS)
    read = _read_script if SCRIPT in section else partial(read_config, folder=folder, allow=allow)
    config, position = read(section, problems=problems)

    terms = _JobTermsReader(section, problems, submitted)
    terms.check_required()
    deadline, begin = terms.read_moment("deadline", math.inf), terms.read_moment("begin", 0.0)
    terms.check_begin(begin, deadline)
    min_devices, max_devices = terms.read_devices()
    location = terms.read_location(locations)
    kinds = terms.read_kinds(locations)
    terms.check_fits(min_devices, (location,) if location else kinds, devices, locations)
    values = terms.read_values()
    if SCRIPT in section and max_devices > 1:
        key = next(key for key in ("devices", "max_devices", "min_devices") if section.get(key) is not None)
        problems.at(key).add(ONE_DEVICE.format(devices=max_devices))
    if (on_hold := values["on_hold"]) is not OnHold.KEEP and max_devices > 1:
        problems.at("on_hold").add(f"{on_hold} is for a job of one device, got {max_devices}; use keep")
    cell = terms.read("cell", partial(positive_int, maximum=MAX_COUNT), DEFAULT_CELL)
    save_every = terms.read("save_every", parse_duration)
    keep_best = terms.read("keep_best", read_bool, False)
    hang = terms.read("hang", parse_limit, HANG)
    check_strategy(
        config, problems, min_devices=min_devices, max_devices=max_devices, keep_best=bool(keep_best),
        on_hold=on_hold or OnHold.KEEP,
    )  # fmt: skip
    if len(problems.messages) > before:
        return None
    sizes = feasible_sizes(micro_batches_of(config, max_devices), min_devices, max_devices)
    job = Job(
        name,
        deadline,
        begin=begin,
        min_devices=min_devices,
        max_devices=max_devices,
        can=_CAPABILITIES | {Capability.RESIZE} if sizes else _CAPABILITIES,
        sizes=sizes,
        location=location,
        kinds=kinds,
        **values,
    )
    return JobSpec(
        job, config, cell, save_every, position, terms.clock, terms.submitted, keep_best=keep_best, hang=hang
    )
