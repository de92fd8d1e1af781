"""Checks the types of values from outside.

JSON can hold any type in any field, and Python does not check annotations. What the scheduler is handed goes into its
journal, so it is checked first.
"""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import lru_cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints, is_typeddict

# Largest integer that is accepted: beyond it, floats cannot tell neighbouring integers apart.
MAX_INTEGER = 2**53


def checked(value: Any, kind: Any) -> Any:
    """Return a value after checking its type, part by part.

    Args:
        value: The value.
        kind: Its type: a class, a union, a tuple, list or frozenset of one type, a dataclass, NamedTuple or TypedDict.

    Raises:
        ValueError: If it is of another type; the message names the first part that is. Numbers must be finite, integers
            at most 2**53, and a bool is not a number.

    Example::

        >>> checked({"a": 1}, dict), checked(0.5, float), checked(2, float)
        ({'a': 1}, 0.5, 2)
        >>> checked(True, int)
        Traceback (most recent call last):
        ...
        ValueError: expected int, got True
    """
    wrong = _wrong(value, kind)
    if wrong is not None:
        raise ValueError(wrong)
    return value


def _wrong(value: Any, kind: Any) -> str | None:
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        wrong = [_wrong(value, one) for one in get_args(kind)]
        return None if None in wrong else f"expected {kind}, got {_short(value)}"
    if origin in (tuple, list, frozenset):
        if not isinstance(value, origin):
            return f"expected {kind}, got {_short(value)}"
        return _first(_wrong(part, get_args(kind)[0]) for part in value)
    if is_typeddict(kind):
        hints = _hints(kind)
        if not isinstance(value, dict) or value.keys() != hints.keys():
            return f"expected a mapping of {', '.join(hints)}, got {_short(value)}"
        return _first(_within(name, _wrong(value[name], hint)) for name, hint in hints.items())
    if kind is float:
        return None if _is_number(value) else f"expected a finite number, got {_short(value)}"
    if kind is int:
        return None if type(value) is int and abs(value) <= MAX_INTEGER else f"expected int, got {_short(value)}"
    kind = origin or kind
    if not isinstance(value, kind):
        return f"expected {kind.__name__}, got {_short(value)}"
    own = type(value)  # an abstract class has no fields of its own
    if is_dataclass(own) or (issubclass(own, tuple) and hasattr(own, "_fields")):
        return _first(_within(name, _wrong(getattr(value, name), _hints(own)[name])) for name in _field_names(own))
    return None


def _is_number(value: Any) -> bool:
    if isinstance(value, bool | Enum) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) if isinstance(value, float) else abs(value) <= MAX_INTEGER


def _first(wrong: Any) -> str | None:
    return next((words for words in wrong if words is not None), None)


def _within(name: str, wrong: str | None) -> str | None:
    return None if wrong is None else f"{name}: {wrong}"


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def _field_names(kind: Any) -> tuple[str, ...]:
    return tuple(f.name for f in fields(kind)) if is_dataclass(kind) else kind._fields


@lru_cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)
