"""Parsers of single values of a bundle file; each raises ``ValueError`` with the rule and the value."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from numbers import Real
from typing import Any, TypeVar

import numpy as np

from lightning_core.core.limits import MAX_MEMORY, format_bytes, shown
from lightning_core.core.names import did_you_mean
from lightning_core.core.specs import Spec, parse_spec
from lightning_core.core.validation import read_number

E = TypeVar("E", bound=StrEnum)
_PREFIXES = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)(b?)", re.ASCII | re.IGNORECASE)


def exact_duration(seconds: float) -> str:
    """Format a duration such that it is read back as exactly the same number of seconds.

    Example::

        >>> exact_duration(90.0), exact_duration(1e-05)
        ('90s', '0.00001s')
    """
    return f"{np.format_float_positional(seconds, trim='-')}s"


def non_negative_int(value: Any) -> int:
    """Read an integer of at least 0.

    Raises:
        ValueError: If it is no integer (a bool is none), or negative.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"must be a whole number of at least 0, got {shown(value)}")
    return value


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


def read_spec(kind: str, value: Any, default: str = "") -> Spec:
    """Read ``lara``, ``lara:order=edf``, ``{name: lara, order: edf}`` or ``{class_path: mine.Lara, init_args: {}}``.

    Raises:
        ValueError: If it is none of them.
    """
    if isinstance(value, str):
        return parse_spec(value, kind)
    if isinstance(value, Mapping) and "class_path" in value:
        given = value.get("init_args") or {}
        if unknown := value.keys() - {"class_path", "init_args"}:
            raise ValueError(f"beside class_path there is only init_args, got {shown(min(map(str, unknown)))}")
        if not isinstance(given, Mapping) or not isinstance(value["class_path"], str):
            raise ValueError(f"must be like {{class_path: package.Class, init_args: {{...}}}}, got {shown(value)}")
        return Spec(value["class_path"], {str(key): inner for key, inner in given.items()})
    if not isinstance(value, Mapping):
        raise ValueError(f"expected a name or a mapping with 'name', got {value!r}")
    arguments = {str(key): inner for key, inner in value.items()}
    return Spec(str(arguments.pop("name", default)), arguments)


def read_moment(value: Any) -> datetime:
    """Read a moment that a run wrote; naive, in the time zone of the machine, which knows summer time.

    Raises:
        ValueError: If it is no moment.
    """
    try:
        return datetime.fromtimestamp(datetime.fromisoformat(value).timestamp())
    except (TypeError, ValueError, OverflowError, OSError):
        raise ValueError(f"is written by a run, as 2026-11-23T18:00:00+00:00; remove it, got {value!r}") from None


def parse_bytes(value: object) -> int:
    """Return the bytes of an amount of memory.

    Args:
        value: Text such as ``"16GiB"`` or ``"800 MB"``, or a number of bytes. ``GiB`` and a bare ``G`` are 2**30 bytes,
            as ``free -h`` counts; ``GB`` is 10**9.

    Raises:
        ValueError: If it is none, less than a byte, or more than a pebibyte.

    Example::

        >>> [parse_bytes(value) for value in ("1.5GiB", "800 MB", "24g", 1024)]
        [1610612736, 800000000, 25769803776, 1024]
        >>> parse_bytes("many")
        Traceback (most recent call last):
            ...
        ValueError: memory must be such as '16GiB' or '800MB', got 'many'
    """
    amount = None
    if isinstance(value, Real) and not isinstance(value, bool):
        amount = float(value)
    elif isinstance(value, str) and (found := _AMOUNT.fullmatch(value.strip())) is not None:
        number, prefix, binary, unit = found.groups()
        amount = float(number) * (1000 if unit and not binary else 1024) ** _PREFIXES[prefix.lower()]
    if amount is None:
        raise ValueError(f"memory must be such as '16GiB' or '800MB', got {shown(value, 100)}")
    if not 1 <= amount <= MAX_MEMORY:
        raise ValueError(f"memory must be 1 byte to {format_bytes(MAX_MEMORY)}, got {shown(value, 100)}")
    return int(amount)
