"""Parsers of single values of a bundle file; each raises ``ValueError`` with the rule and the value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeVar

import numpy as np

from lightning_core.core.names import did_you_mean
from lightning_core.core.targets import STEP_LOSS, BatchTarget, LossTarget, Target, parse_target

E = TypeVar("E", bound=StrEnum)

TARGET_KEYS = ("loss", "metric", "at_most", "at_least", "best", "batches", "for_evaluations")
TARGET_FORMS = "val_acc>=0.9, {loss: E}, {metric: NAME, at_most: E}, {metric: NAME, at_least: X} or {batches: N}"


def read_target(value: Any) -> Target:
    """Read the target of a job.

    Args:
        value: One line such as ``val_acc>=0.9``; or ``{loss: E}``, ``{metric: NAME, at_most: E}``, ``{metric: NAME,
            at_least: X, best: 1.0}``, each with ``for_evaluations: N`` if N evaluations in a row must reach it; or
            ``{batches: N}``.

    Raises:
        ValueError: If it has none of these forms, or a number is out of range.
    """
    if isinstance(value, str):
        return parse_target(value)
    if not isinstance(value, Mapping):
        raise ValueError(f"expected {TARGET_FORMS}, got {value!r}")
    for key in value:
        if key not in TARGET_KEYS:
            raise ValueError(f"unknown key {key!r}{did_you_mean(key, TARGET_KEYS)}")
    terms = dict(value)
    if terms.keys() == {"batches"}:
        return BatchTarget(positive_int(terms["batches"]))
    if terms.keys() == {"batches", "for_evaluations"}:
        raise ValueError("for_evaluations needs a metric, and this target counts batches; remove it")
    if "loss" in terms and not {"metric", "at_most"} & terms.keys():
        terms |= {"metric": STEP_LOSS, "at_most": terms.pop("loss")}
    evaluations = positive_int(terms.pop("for_evaluations", 1))
    if not isinstance(terms.get("metric", ""), str):
        raise ValueError(f"metric must be a name, got {terms['metric']!r}")
    if terms.keys() not in ({"metric", "at_most"}, {"metric", "at_least"}, {"metric", "at_least", "best"}):
        raise ValueError(f"expected {TARGET_FORMS}, got {', '.join(sorted(value)) or 'nothing'}")
    numbers = {key: read_number(terms[key]) for key in ("at_most", "at_least", "best") if key in terms}
    return LossTarget(terms["metric"], **numbers, for_evaluations=evaluations)


def exact_duration(seconds: float) -> str:
    """Format a duration such that it is read back as exactly the same number of seconds.

    Example::

        >>> exact_duration(90.0), exact_duration(1e-05)
        ('90s', '0.00001s')
    """
    return f"{np.format_float_positional(seconds, trim='-')}s"


def positive_int(value: Any, maximum: int | None = None) -> int:
    """Read an integer of at least 1.

    Raises:
        ValueError: If it is no integer (a bool is none), or out of range.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1 or (maximum is not None and value > maximum):
        limit = "of at least 1" if maximum is None else f"from 1 to {maximum}"
        raise ValueError(f"must be a whole number {limit}, got {value!r}")
    return value


def non_negative_int(value: Any) -> int:
    """Read an integer of at least 0.

    Raises:
        ValueError: If it is no integer (a bool is none), or negative.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"must be a whole number of at least 0, got {value!r}")
    return value


def read_number(value: Any) -> float:
    """Read a number.

    Raises:
        ValueError: If it is none; a bool is none.
    """
    if isinstance(value, str):  # YAML 1.1 reads 1e-3 as text
        try:
            return float(value)
        except ValueError:
            pass
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"must be a number, got {value!r}")
    return float(value)


def positive_number(value: Any) -> float:
    """Read a positive, finite number.

    Raises:
        ValueError: If it is none.
    """
    number = read_number(value)
    if not (number > 0 and math.isfinite(number)):
        raise ValueError(f"must be positive and finite, got {value!r}")
    return number


def read_bool(value: Any) -> bool:
    """Read a bool.

    Raises:
        ValueError: If it is none.
    """
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, got {value!r}")
    return value


def read_choice(choices: type[E], value: Any) -> E:
    """Read one of the values of an enumeration.

    Raises:
        ValueError: If it is none of them.
    """
    try:
        return choices(value)
    except ValueError:
        raise ValueError(f"{value!r} is unknown{did_you_mean(value, map(str, choices))}") from None


def read_moment(value: Any) -> datetime:
    """Read a moment that a run wrote; naive, in the time zone of the machine, which knows summer time.

    Raises:
        ValueError: If it is no moment.
    """
    try:
        return datetime.fromtimestamp(datetime.fromisoformat(value).timestamp())
    except (TypeError, ValueError, OverflowError, OSError):
        raise ValueError(f"is written by a run, as 2026-11-23T18:00:00+00:00; remove it, got {value!r}") from None
