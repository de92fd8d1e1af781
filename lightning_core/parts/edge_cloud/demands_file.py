"""Reads and validates the demands of a day: a YAML file of nodes, GPUs, levels and jobs."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from io import StringIO
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from lightning_core.bundle.problems import BundleError, Problems
from lightning_core.bundle.yaml_loader import load_yaml
from lightning_core.core.arrays import FloatArray
from lightning_core.core.durations import parse_duration
from lightning_core.parts.edge_cloud.day_plan import SampleNeeds
from lightning_core.parts.edge_cloud.placement import Cloud, Demands, EdgePrices, Gpu, Level, Node, PlacedJob
from lightning_core.parts.edge_cloud.placement.demands import BY_PERIOD
from lightning_core.regular_files import MAX_TABLE_BYTES, read_text

T = TypeVar("T")
KEYS = tuple(field.name for field in fields(Demands))
SWITCHES = ("whole", "cycle", "moves")


def read_demands(path: Path) -> Demands:
    """Return the demands of a file.

    Raises:
        BundleError: With every problem found, each with its line.
    """
    content, found = load_yaml(path, "file is empty; expected a mapping with 'periods', 'gpus', 'levels' and 'jobs'")
    if not isinstance(content, Mapping):
        found.add(f"expected a mapping of {', '.join(KEYS)}, got {type(content).__name__}")
        raise BundleError(found.messages)
    found.check_keys(content, KEYS)
    for key in ("periods", "gpus", "levels", "jobs"):
        if key not in content:
            found.add(f"{key} is missing")
    several: dict[str, Any] = {
        "gpus": _named(content.get("gpus", {}), found.at("gpus"), lambda value, at: at.read(_gpu, value)),
        "levels": _named(content.get("levels", {}), found.at("levels"), lambda value, at: _made(Level, value, at)),
        "nodes": _named(content.get("nodes", {}), found.at("nodes"), lambda value, at: _made(Node, value, at)),
        "jobs": _named(content.get("jobs", {}), found.at("jobs"), lambda value, at: _made(PlacedJob, value, at)),
    }
    for key, kind in (("cloud", Cloud), ("edge", EdgePrices)):
        if content.get(key) is not None:
            several[key] = _made(kind, content[key], found.at(key))
    if "window" in content:
        several["window"] = found.at("window").read(parse_duration, content["window"])
    for key in ("epochs", "whole", "cycle"):
        if key in content:
            several[key] = found.at(key).read(_switch if key in SWITCHES else _number, content[key])
    periods = content.get("periods", [])
    if not isinstance(periods, list) or not all(isinstance(name, str) for name in periods):
        found.at("periods").add(f"expected a list of names, got {periods!r}")
    if found.messages:
        raise BundleError(found.messages)
    made = found.read(lambda value: Demands(tuple(value), **several), periods)
    if made is None:
        raise BundleError(found.messages)
    return made


def read_arrivals(path: Path, demands: Demands) -> dict[str, FloatArray]:
    """Return what arrives for a task of each job in each step, relative to plan.

    Args:
        path: CSV file: a column per job, a row per step, in samples a second.
        demands: The jobs.

    Raises:
        BundleError: With every problem found, each with its line.
    """
    try:
        header, *rows = list(csv.reader(StringIO(read_text(path, MAX_TABLE_BYTES), newline=""))) or [[]]
    except (OSError, ValueError, csv.Error) as error:
        raise BundleError([f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}"]) from None
    if sorted(header) != sorted(demands.jobs):
        problem = f"expected a column for each of {', '.join(demands.jobs)}, got {', '.join(header) or 'none'}"
        raise BundleError([f"{path}:1: {problem}"])
    problems: list[str] = []
    if not rows or len(rows) % len(demands.periods):
        problems.append(f"{path}: must be as many rows for each of {len(demands.periods)} periods, got {len(rows)}")
    table = np.ones((len(rows), len(header)))
    for number, row in enumerate(rows):
        try:
            table[number] = [float(value) for value in row]
            good = bool(np.all(np.isfinite(table[number]) & (table[number] > 0)))
        except ValueError:
            good = False
        if not good:
            problems.append(f"{path}:{number + 2}: expected {len(header)} positive numbers, got {','.join(row)!r}")
    if problems:
        raise BundleError(problems)
    periods = len(demands.periods)
    planned = {
        name: np.repeat([job.during(period).rate for period in range(periods)], len(rows) // periods)
        for name, job in demands.jobs.items()
    }
    return {name: table[:, at] / planned[name] for at, name in enumerate(header)}


def _named(value: Any, found: Problems, read: Callable[[Any, Problems], T | None]) -> dict[str, T]:
    """Return the entries of a mapping that are valid; the problems of the others are recorded."""
    if not isinstance(value, Mapping):
        found.add(f"expected a mapping by name, got {value!r}")
        return {}
    parts = {str(name): read(part, found.at(str(name))) for name, part in value.items()}
    return {name: part for name, part in parts.items() if part is not None}


def _made(kind: type[T], value: Any, found: Problems) -> T | None:
    """One part, its numbers read."""
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    if not isinstance(value, Mapping):
        found.add(f"expected a mapping of {', '.join(known)}, got {value!r}")
        return None
    before = len(found.messages)
    found.check_keys(value, known)
    for name, field in known.items():
        if name not in value and field.default is MISSING and field.default_factory is MISSING:
            found.add(f"{name} is missing")
    given = {
        str(name): found.at(str(name)).read(_reader(str(name)), part) for name, part in value.items() if name in known
    }
    if len(found.messages) > before:
        return None
    return found.read(lambda parts: kind(**parts), given)


def _reader(name: str) -> Callable[[Any], Any]:
    if name in SWITCHES:
        return _switch
    if name == "tasks":
        return _counts
    if name in BY_PERIOD:
        return _by_period
    if name == "levels":
        return _by_level
    return _numbers if name in ("gpus", "throughput") else _number


def _gpu(value: Any) -> Gpu:
    return Gpu(_number(value))


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise ValueError(f"must be a number, got {value!r}")
    return float(value)


def _by_period(value: Any) -> float | tuple[float, ...]:
    return tuple(map(_number, value)) if isinstance(value, list) else _number(value)


def _by_level(value: Any) -> dict[str, SampleNeeds]:
    rules = SampleNeeds._fields
    if not isinstance(value, Mapping) or not all(isinstance(part, Mapping) for part in value.values()):
        raise ValueError(f"must be a mapping of levels, each one of {', '.join(rules)}, got {value!r}")
    for level, part in value.items():
        if strange := [rule for rule in part if rule not in rules]:
            raise ValueError(f"{level} must be a mapping of {', '.join(rules)}, got {strange[0]!r}")
    return {
        str(level): SampleNeeds(**{rule: _by_period(given) for rule, given in part.items()})
        for level, part in value.items()
    }


def _numbers(value: Any) -> dict[str, float]:
    if not isinstance(value, Mapping):
        raise ValueError(f"must be numbers by type of GPU, got {value!r}")
    return {str(name): _number(part) for name, part in value.items()}


def _counts(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(count) is int for count in value):
        raise ValueError(f"must be a list of whole numbers, one a period, got {value!r}")
    return tuple(value)


def _switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, got {value!r}")
    return value
