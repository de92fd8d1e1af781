"""The space of a search: what each hyper-parameter is drawn from, as Optuna's distributions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from lightning_core.bundle.problems import Problems
from lightning_core.bundle.values import read_bool
from lightning_core.core.limits import shown
from lightning_core.core.validation import read_number

FORMS = "{float: [LOW, HIGH]}, {int: [LOW, HIGH]} or {choices: [A, B]}"
MAX_PARAMETERS, MAX_VALUES = 100, 1000


class Parameter(NamedTuple):
    """What a hyper-parameter is drawn from: a range of numbers, or choices."""

    path: tuple[str, ...]
    """Keys that lead to it in the config of a job."""
    low: float = 0.0
    high: float = 0.0
    whole: bool = False
    """Whether it is a whole number."""
    log: bool = False
    """Whether its logarithm is drawn uniformly."""
    step: float | None = None
    """Distance between two of its values; None for any."""
    choices: tuple[str | float | bool | None, ...] = ()
    """Its values, if it is no range."""

    @property
    def name(self) -> str:
        """Name of the parameter, as in the file."""
        return ".".join(self.path)

    @property
    def grid(self) -> tuple[Any, ...] | None:
        """All values that it can have; None if they cannot be counted."""
        if self.choices:
            return self.choices
        step = self.step or (1.0 if self.whole else None)
        if step is None or self.log:
            return None
        count = math.floor((self.high - self.low) / step + 1e-9) + 1
        if count > MAX_VALUES:
            return None
        values = [self.low + k * step for k in range(count)]
        return tuple(round(value) for value in values) if self.whole else tuple(values)

    @property
    def ends(self) -> tuple[Any, ...]:
        """Values on which a config is checked: all choices, or the ends of the range."""
        return self.choices or ((int(self.low), int(self.high)) if self.whole else (self.low, self.high))


def read_space(section: Any, problems: Problems) -> tuple[Parameter, ...]:
    """Return the hyper-parameters of a space; without those that are wrong, with the problems added."""
    if section is None:
        return ()
    if not isinstance(section, Mapping) or not section:
        problems.add(f"expected a mapping of at least one hyper-parameter, got {shown(section)}")
        return ()
    if len(section) > MAX_PARAMETERS:
        problems.add(f"must be at most {MAX_PARAMETERS} hyper-parameters, got {len(section)}")
        return ()
    found = [_parameter(str(name), value, problems.at(str(name))) for name, value in section.items()]
    return tuple(parameter for parameter in found if parameter is not None)


def _parameter(name: str, value: Any, problems: Problems) -> Parameter | None:
    """Return one hyper-parameter; None, with the problems added, if it is wrong."""
    before, path = len(problems.messages), tuple(name.split("."))
    kinds = [kind for kind in ("float", "int", "choices") if isinstance(value, Mapping) and kind in value]
    if len(kinds) != 1:
        problems.add(f"expected {FORMS}, got {shown(value)}")
        return None
    [kind] = kinds
    problems.check_keys(value, (kind,) if kind == "choices" else (kind, "log", "step"))
    if not all(path):
        problems.add(f"must be keys of the config with dots between them, got {shown(name)}")
    if kind == "choices":
        choices = problems.at(kind).read(_choices, value[kind])
        return None if len(problems.messages) > before else Parameter(path, choices=tuple(choices or ()))
    whole = kind == "int"
    ends = problems.at(kind).read(_whole_range if whole else _range, value[kind])
    log = problems.at("log").read(read_bool, value.get("log", False)) or False
    step = None if value.get("step") is None else problems.at("step").read(_step(whole), value["step"])
    if ends is not None and log and ends[0] <= 0:
        problems.at(kind).add(f"must be above 0 where log is true, got {ends[0]:g}")
    if log and step is not None:
        problems.at("step").add("is for a range without log; remove one of them")
    if len(problems.messages) > before or ends is None:
        return None
    return Parameter(path, *ends, whole=whole, log=log, step=step)


def finite(value: Any) -> float:
    """Read a finite number.

    Raises:
        ValueError: If it is none.
    """
    number = read_number(value)
    if not math.isfinite(number):
        raise ValueError(f"must be finite, got {shown(value)}")
    return number


def _range(value: Any) -> tuple[float, float]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ValueError(f"must be [LOW, HIGH], got {shown(value)}")
    low, high = map(finite, value)
    if not low < high:
        raise ValueError(f"must have a low end below its high end, got {shown(value)}")
    return low, high


def _whole_range(value: Any) -> tuple[float, float]:
    low, high = _range(value)
    if not (low.is_integer() and high.is_integer()):
        raise ValueError(f"must be whole numbers, got {shown(value)}")
    return low, high


def _step(whole: bool) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        step = finite(value)
        if step <= 0 or (whole and not step.is_integer()):
            raise ValueError(f"must be a positive {'whole ' if whole else ''}number, got {shown(value)}")
        return step

    return read


def _choices(value: Any) -> list[Any]:
    if not isinstance(value, list) or not 2 <= len(value) <= MAX_VALUES:
        raise ValueError(f"must be a list of 2 to {MAX_VALUES} values, got {shown(value)}")
    for one in value:
        if not isinstance(one, str | int | float | bool | None):
            raise ValueError(f"must be texts, numbers, bools or null, got {shown(one)}")
    if any(a == b and type(a) is type(b) for a, b in itertools.combinations(value, 2)):
        raise ValueError(f"must differ from each other, got {shown(value)}")
    return value
