"""State that can be saved as JSON and restored, to the bit.

A part that remembers something between two calls is :class:`Stateful`: it names the attributes that it remembers, and
all others follow from its arguments. Arrays are kept as bytes, so that no digit is lost; numbers that JSON does not
know have a form of their own.

Example::

    >>> class Counter(Stateful):
    ...     STATE = ("seen", "best")
    ...     def __init__(self) -> None:
    ...         self.seen = np.zeros(2, np.int64)
    ...         self.best = math.inf
    >>> counter = Counter()
    >>> counter.seen[1] = 7
    >>> saved = counter.state()
    >>> saved["best"]
    {'float': 'inf'}
    >>> other = Counter()
    >>> other.restore(saved)
    >>> other.seen
    array([0, 7])
"""

from __future__ import annotations

import math
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import numpy as np

from lightning_core.errors import LightningCoreError

# Permitted dtypes of a state's arrays: nothing else is built from input.
_DTYPES = {"bool": np.dtype(np.bool_), "int64": np.dtype("<i8"), "float64": np.dtype("<f8")}


class StateError(LightningCoreError, ValueError):
    """A saved state does not fit the part that should be restored from it."""


@runtime_checkable
class Saves(Protocol):
    """A part whose state can be saved and restored."""

    def state(self) -> dict[str, Any]:
        """Return the state as JSON values."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that :meth:`state` returned, in a new object with the same arguments.

        Raises:
            StateError: If it is not the state of such a part.
        """


Part = TypeVar("Part", bound=Saves)


class Stateful:
    """A part that remembers the attributes named in ``STATE``, and nothing else.

    An attribute is a number, a text, an array, a container of these, or a part that saves its own state.
    """

    __slots__ = ()
    STATE: ClassVar[tuple[str, ...]] = ()

    def state(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {name: encode(getattr(self, name)) for name in self.STATE}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that :meth:`state` returned, in a new object with the same arguments.

        Raises:
            StateError: If it is not the state of such a part.
        """
        if set(state) != set(self.STATE):
            raise StateError(f"{type(self).__name__} must have the state {sorted(self.STATE)}, got {sorted(state)}")
        for name in self.STATE:
            part = getattr(self, name)
            if isinstance(part, Saves):
                part.restore(state[name])
            else:
                setattr(self, name, decode(state[name]))


def encode(value: Any) -> Any:
    """Return a value as JSON values that :func:`decode` turns back into an equal one of the same type.

    Raises:
        TypeError: If it is of another type than a state may have.

    Example::

        >>> encode({1: (2.5, None), 4: ()})
        {'dict': [[1, {'tuple': [2.5, None]}], [4, {'tuple': []}]]}
        >>> decode(encode({1: (2.5, None), 4: ()}))
        {1: (2.5, None), 4: ()}
    """
    match value:
        case None | bool() | str() | int():
            return value
        case float():
            return float(value) if math.isfinite(value) else {"float": repr(float(value))}
        case np.ndarray():
            kind = next((name for name, dtype in _DTYPES.items() if dtype == value.dtype), None)
            if kind is None:
                raise TypeError(f"arrays of a state must be one of {', '.join(_DTYPES)}, got {value.dtype}")
            data = b64encode(np.ascontiguousarray(value, _DTYPES[kind]).tobytes()).decode()
            return {"array": kind, "shape": list(value.shape), "data": data}
        case dict():
            return {"dict": [[key, encode(one)] for key, one in value.items()]}
        case tuple():
            return {"tuple": [encode(one) for one in value]}
        case list():
            return [encode(one) for one in value]
        case deque():
            return {"deque": [encode(one) for one in value], "size": value.maxlen}
        case set() | frozenset():
            return {type(value).__name__: sorted(value)}
        case Saves():  # last: asking whether it is one takes longest
            return value.state()
    raise TypeError(f"a state must not hold {type(value).__name__}: {value!r}")


def decode(value: Any) -> Any:
    """Return the value that :func:`encode` was given; a part that saves its own state stays a dictionary.

    Raises:
        StateError: If it is no result of :func:`encode`.
    """
    if isinstance(value, list):
        return [decode(one) for one in value]
    if not isinstance(value, dict):
        return value
    try:
        match value:
            case {"float": str(text)}:
                return float(text)
            case {"array": str(kind), "shape": [*shape], "data": str(data)}:
                flat = np.frombuffer(b64decode(data, validate=True), _DTYPES[kind])
                return flat.reshape(shape).copy()
            case {"dict": [*items]}:
                return {key: decode(one) for key, one in items}
            case {"tuple": [*items]}:
                return tuple(map(decode, items))
            case {"deque": [*items], "size": size}:
                return deque(map(decode, items), size)
            case {"set": [*items]}:
                return set(items)
            case {"frozenset": [*items]}:
                return frozenset(items)
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(f"not a saved state: {type(error).__name__}: {error}") from None
    return value


def restored(part: Part, state: Mapping[str, Any]) -> Part:
    """Return a part after it has taken on a state.

    Raises:
        StateError: If it is not the state of such a part.
    """
    part.restore(state)
    return part
