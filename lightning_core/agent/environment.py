"""Terms of a job as the environment says them, for any loop; :mod:`lightning_core.autojoin` has the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, TypeVar

from lightning_core.core.durations import parse_when
from lightning_core.core.jobs import OnHold, OnMiss, OnNan, OnRefused, check_term
from lightning_core.core.limits import check_length
from lightning_core.core.targets import parse_target
from lightning_core.variables import MAX_VALUE_LENGTH, PREFIX

T = TypeVar("T")


def read(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments of the callback.

    Raises:
        ValueError: If a variable is missing or invalid; the message names it and the rule.

    Example::

        >>> read({"LIGHTNING_CORE_JOB": "a", "LIGHTNING_CORE_DEADLINE": "2h", "LIGHTNING_CORE_TARGET": "2000 batches"})
        {'job': 'a', 'deadline': '2h', 'target': BatchTarget(batches=2000)}
    """
    arguments: dict[str, Any] = {"job": environment[f"{PREFIX}JOB"]}
    if environment.get(f"{PREFIX}DEADLINE"):
        arguments["deadline"] = _value(environment, "DEADLINE", lambda text: parse_when(text) and text)
    arguments["target"] = _value(environment, "TARGET", parse_target)
    for name, parse in (
        ("POOL", str), ("WEIGHT", _weight), ("LIKE", str), ("ON_MISS", _on_miss), ("ON_HOLD", _on_hold),
        ("ON_NAN", _on_nan), ("ON_REFUSED", _on_refused),
    ):  # fmt: skip
        if environment.get(PREFIX + name):
            arguments[name.lower()] = _value(environment, name, parse)
    return arguments


def _value(environment: Mapping[str, str], name: str, parse: Callable[[str], T]) -> T:
    text = environment.get(PREFIX + name)
    if not text:
        raise ValueError(f"{PREFIX}{name} must be set if {PREFIX}JOB is")
    check_length(f"{PREFIX}{name}", text, MAX_VALUE_LENGTH)
    try:
        return parse(text)
    except ValueError as error:
        raise ValueError(f"{PREFIX}{name}: {error}") from None


def _weight(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = -1.0
    if not 0 < weight < float("inf"):
        raise ValueError(f"weight must be positive and finite, got {text!r}")
    check_term("weight", weight)
    return weight


def _on_nan(text: str) -> str:
    if text == OnNan.RESTART:
        raise ValueError("on_nan must be continue or stop in a script, got 'restart': only a launched job can go back")
    return _one_of(OnNan, "on_nan", text)


def _on_miss(text: str) -> str:
    return _one_of(OnMiss, "on_miss", text)


def _on_hold(text: str) -> str:
    return _one_of(OnHold, "on_hold", text)


def _on_refused(text: str) -> str:
    return _one_of(OnRefused, "on_refused", text)


def _one_of(kind: type[StrEnum], name: str, text: str) -> str:
    if text not in tuple(kind):
        raise ValueError(f"{name} must be one of {', '.join(kind)}, got {text!r}")
    return text
