"""Checks the types of values from outside, and reads the numbers that people write in a bundle.

JSON can hold any type in any field, and Python does not check annotations. What the scheduler is handed goes into its
journal, so it is checked first.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints, is_typeddict

from lightning_core.core.limits import MAX_ITEMS, MAX_TEXT, Deadline, shown

# Largest integer that is accepted: beyond it, floats cannot tell neighbouring integers apart.
MAX_INTEGER = 2**53
# Halves of a character: JSON can hold them, and no file or terminal can.
_SURROGATE = re.compile("[\ud800-\udfff]")

Check = Callable[[Any], str | None]
"""Returns what is wrong with a value; None if nothing is."""


def checked(value: Any, kind: Any) -> Any:
    """Return a value after checking its type, part by part.

    Args:
        value: The value.
        kind: Its type: a class, a union, a tuple, list or frozenset of one type, a dataclass, NamedTuple or TypedDict.

    Raises:
        ValueError: If it is of another type; the message names the first part that is. Numbers must be finite, integers
            at most 2**53, and a bool is not a number; texts and lists have at most as many characters and values as
            :mod:`~lightning_core.core.limits` says.

    Example::

        >>> checked({"a": 1}, dict), checked(0.5, float), checked(2, float)
        ({'a': 1}, 0.5, 2)
        >>> checked(True, int)
        Traceback (most recent call last):
        ...
        ValueError: expected int, got True
    """
    wrong = _check_of(kind)(value)
    if wrong is not None:
        raise ValueError(wrong)
    return value


@cache
def _check_of(kind: Any) -> Check:
    """Return the check of a type; made once, because a replay checks every event."""
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        # None first: it is the most common value, and what is wrong with another one takes longer to say.
        return _check_any(kind, [_check_of(one) for one in sorted(get_args(kind), key=lambda one: one is not NoneType)])
    if origin is tuple and get_args(kind)[-1] is not Ellipsis:
        return _check_positions(kind, [_check_of(one) for one in get_args(kind)])
    if origin in (tuple, list, frozenset):
        return _check_items(kind, origin, _check_of(get_args(kind)[0]))
    if is_typeddict(kind):
        hints = get_type_hints(kind, include_extras=True)
        return _check_mapping({name: _check_of(hint) for name, hint in hints.items()})
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kind is Deadline:
        return _check_deadline
    return _check_instance(origin or kind)


def _check_any(kind: Any, checks: Sequence[Check]) -> Check:
    def check(value: Any) -> str | None:
        for one in checks:
            if one(value) is None:
                return None
        return f"expected {kind}, got {shown(value)}"

    return check


def _check_items(kind: Any, origin: Any, check_item: Check) -> Check:
    def check(value: Any) -> str | None:
        if not isinstance(value, origin):
            return f"expected {kind}, got {shown(value)}"
        if len(value) > MAX_ITEMS:
            return f"expected at most {MAX_ITEMS:,} values, got {len(value):,}"
        for item in value:
            if (wrong := check_item(item)) is not None:
                return wrong
        return None

    return check


def _check_positions(kind: Any, checks: Sequence[Check]) -> Check:
    def check(value: Any) -> str | None:
        if not isinstance(value, tuple) or len(value) != len(checks):
            return f"expected {kind}, got {shown(value)}"
        return next((wrong for one, part in zip(checks, value, strict=True) if (wrong := one(part)) is not None), None)

    return check


def _check_mapping(checks: Mapping[str, Check]) -> Check:
    def check(value: Any) -> str | None:
        if not isinstance(value, dict) or value.keys() != checks.keys():
            return f"expected a mapping of {', '.join(checks)}, got {shown(value)}"
        for name, check_value in checks.items():
            if (wrong := check_value(value[name])) is not None:
                return f"{name}: {wrong}"
        return None

    return check


def _check_instance(kind: Any) -> Check:
    def check(value: Any) -> str | None:
        if not isinstance(value, kind):
            return f"expected {kind.__name__}, got {shown(value)}"
        own: Any = type(value)  # an abstract class has no fields of its own
        for name, check_value in _fields_of(own):
            if (wrong := check_value(getattr(value, name))) is not None:
                return f"{name}: {wrong}"
        return None

    return check


@cache
def _fields_of(kind: Any) -> tuple[tuple[str, Check], ...]:
    """Return the fields of a dataclass or a NamedTuple with their checks; empty for another class."""
    if is_dataclass(kind):
        names: Sequence[str] = [field.name for field in fields(kind)]
    elif issubclass(kind, tuple) and hasattr(kind, "_fields"):
        names = kind._fields
    else:
        return ()
    hints = get_type_hints(kind, include_extras=True)
    return tuple((name, _check_of(hints[name])) for name in names)


def _check_any_value(_: Any) -> None:
    return None


def _check_text(value: Any) -> str | None:
    if not isinstance(value, str):
        return f"expected str, got {shown(value)}"
    if len(value) > MAX_TEXT:
        return f"expected at most {MAX_TEXT:,} characters, got {len(value):,}"
    if not value.isascii() and _SURROGATE.search(value):
        return f"expected characters of UTF-8, got {value[:20]!a}"
    return None


def _check_int(value: Any) -> str | None:
    return None if type(value) is int and abs(value) <= MAX_INTEGER else f"expected int, got {shown(value)}"


def _check_float(value: Any) -> str | None:
    if type(value) is float or isinstance(value, float):
        right = math.isfinite(value)
    else:
        right = isinstance(value, int) and not isinstance(value, bool | Enum) and abs(value) <= MAX_INTEGER
    return None if right else f"expected a finite number, got {shown(value)}"


def _check_deadline(value: Any) -> str | None:
    return None if value == math.inf else _check_float(value)


_PLAIN: dict[Any, Check] = {Any: _check_any_value, str: _check_text, int: _check_int, float: _check_float}


def positive_int(value: Any, maximum: int | None = None) -> int:
    """Read an integer of at least 1.

    Raises:
        ValueError: If it is no integer (a bool is none), or out of range.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1 or (maximum is not None and value > maximum):
        limit = "of at least 1" if maximum is None else f"from 1 to {maximum}"
        raise ValueError(f"must be a whole number {limit}, got {shown(value)}")
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
        raise ValueError(f"must be a number, got {shown(value)}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"must be a number that a float can hold, got {shown(value)}") from None
