"""Checks values from outside and converts them to the types that declare them; reads the numbers of a bundle.

JSON can hold any type in any field, and Python does not check annotations. What the scheduler is handed goes into its
journal, so it is checked first: types by msgspec, in its strict mode, and bounds that hold for every value here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypedDict, get_type_hints, is_typeddict

import msgspec

from lightning_core.core.limits import MAX_ITEMS, MAX_TEXT, shown
from lightning_core.core.names import did_you_mean
from lightning_core.errors import LightningCoreError

# Largest integer that is accepted: beyond it, floats cannot tell neighbouring integers apart.
MAX_INTEGER = 2**53
# Halves of a character: JSON can hold them, and no file or terminal can.
_SURROGATE = re.compile("[\ud800-\udfff]")
_COLLECTIONS = (list, tuple, dict, set, frozenset)
# Where a value is that msgspec refuses: `$.cells[0][1]`.
_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")

Hook = Callable[[type, Any], Any]
"""Makes a value of a type that msgspec does not know, of JSON values."""


def checked(value: Any, kind: Any, hook: Hook | None = None) -> Any:
    """Return JSON values as a value of a type, after checking them part by part.

    Args:
        value: The values: None, booleans, numbers, texts, and lists, tuples, sets and dictionaries of them.
        kind: The type: a class, a union, a tuple, list or frozenset of one type, a dataclass or a TypedDict, made of a
            dictionary, or a NamedTuple, made of a list.
        hook: Makes values of other types.

    Raises:
        ValueError: If they are not of that type, or a key is unknown; the message names the first part that is not.
            Numbers must be finite, integers at most 2**53, and a bool is not a number; texts and lists have at most as
            many characters and values as :mod:`~lightning_core.core.limits` says.

    Example::

        >>> checked({"a": 1}, dict), checked([0.5], tuple[float, ...])
        ({'a': 1}, (0.5,))
        >>> checked([1, [True]], tuple[int, list[int]])
        Traceback (most recent call last):
        ...
        ValueError: [1][0]: expected int, got True
    """
    check_bounds(value)
    return converted(value, kind, hook)


def converted(value: Any, kind: Any, hook: Hook | None = None, *, texts: bool = False) -> Any:
    """Return values whose bounds were checked as a value of a type; see :func:`checked`.

    Args:
        value: The values.
        kind: The type.
        hook: Makes values of other types.
        texts: Whether the values are texts, of which numbers are read too.
    """
    names = _names_of(kind)
    if names is not None and isinstance(value, dict) and not value.keys() <= names:
        unknown = next(name for name in value if name not in names)
        raise ValueError(f"unknown field {shown(unknown)}{did_you_mean(str(unknown), sorted(names))}")
    try:
        return msgspec.convert(value, kind, dec_hook=hook, strict=not texts)
    except msgspec.ValidationError as error:
        words, cause = _in_words(error, value), error.__cause__
        raise type(cause)(words) if isinstance(cause, LightningCoreError) else ValueError(words) from None


def made(kind: Any, values: dict[str, Any], hook: Hook | None = None) -> Any:
    """Return a dataclass or NamedTuple of values by name whose bounds were checked; see :func:`checked`.

    Raises:
        ValueError: If a name is unknown, or a value is of another type or out of its range.
        TypeError: If a value is missing.
    """
    return converted(values, kind, hook) if is_dataclass(kind) else kind(**converted(values, form_of(kind), hook))


@cache
def form_of(kind: Any) -> Any:
    """Return a TypedDict of the fields of a NamedTuple, each of which may be missing."""
    return TypedDict(kind.__name__, get_type_hints(kind, include_extras=True), total=False)  # type: ignore[operator]


@cache
def _names_of(kind: Any) -> frozenset[str] | None:
    """Return the names of a dataclass or TypedDict; None for any other type."""
    if is_dataclass(kind):
        return frozenset(field.name for field in fields(kind))
    return frozenset(get_type_hints(kind)) if is_typeddict(kind) else None


def _in_words(error: msgspec.ValidationError, value: Any) -> str:
    """Return what was expected where, and what came."""
    rule, _, path = str(error).partition(" - at `")
    path = path.removeprefix("key in ").removeprefix("$").removesuffix("`")
    place = f"{path.removeprefix('.')}: " if path else ""
    if error.__cause__ is not None:  # a check of our own, which names its value
        return f"{place}{error.__cause__}"
    if rule.startswith("Expected") and "[...]" not in path:
        for name, index in _STEP.findall(path):
            value = value[name] if name else value[int(index)]
        rule = f"{rule.partition(', got ')[0]}, got {shown(value)}"
    return f"{place}{rule[0].lower()}{rule[1:].replace('`', '')}"


def check_bounds(value: Any) -> None:
    """Check the bounds that hold for all values from outside, of any type.

    Raises:
        ValueError: If one is too long or too large, is not finite, or is no JSON value; where it stands in a
            dictionary, the message names its key.
    """
    try:
        _check_each((value,))
    except ValueError:
        for name, one in value.items() if isinstance(value, dict) else ():
            try:
                check_bounds(one)
            except ValueError as error:
                raise ValueError(f"{shown(name) if not isinstance(name, str) else name[:60]}: {error}") from None
        raise


def _check_each(values: Iterable[Any]) -> None:
    for value in values:
        kind = type(value)
        if kind is int:
            if not -MAX_INTEGER <= value <= MAX_INTEGER:
                raise ValueError(f"expected int of at most 2**53, got {shown(value)}")
        elif kind is float:
            if value - value != 0.0:  # of nan and inf it is nan
                raise ValueError(f"expected a finite number, got {value}")
        elif kind is str or isinstance(value, str):
            if len(value) > MAX_TEXT or not value.isascii():
                _check_text(value)
        elif isinstance(value, _COLLECTIONS):
            if len(value) > MAX_ITEMS:
                raise ValueError(f"expected at most {MAX_ITEMS:,} values, got {len(value):,}")
            _check_each(value)
            if isinstance(value, dict):
                _check_each(value.values())
        elif value is not None and kind is not bool and not isinstance(value, Enum):
            raise ValueError(f"expected a JSON value, got {shown(value)}")


def _check_text(value: str) -> None:
    if len(value) > MAX_TEXT:
        raise ValueError(f"expected at most {MAX_TEXT:,} characters, got {len(value):,}")
    if _SURROGATE.search(value):
        raise ValueError(f"expected characters of UTF-8, got {value[:20]!a}")


def loads(text: str | bytes) -> Any:
    """Return what a text of JSON says; :func:`check_bounds` is for its caller.

    Raises:
        ValueError: If it is not valid JSON: in UTF-8, its numbers finite.
        RecursionError: If it is nested too deeply.
    """
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise ValueError(f"invalid JSON: {error}") from None


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
