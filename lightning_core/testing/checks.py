"""Shared checks of all conformance suites."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Collection, Iterator
from enum import Enum
from functools import partial
from types import FunctionType, MethodType
from typing import Any, TypeVar

import numpy as np

from lightning_core.core.row_cache import Memo, RowCache
from lightning_core.core.saved_state import Saves

Part = TypeVar("Part")


def require(holds: bool, rule: str) -> None:
    """Fail with a rule that does not hold.

    Raises:
        AssertionError: If ``holds`` is false; the message is the rule.
    """
    if not holds:
        raise AssertionError(rule)


def saved_and_restored(part: Part, new: Part, transient: Collection[str] = ()) -> Part:
    """Return a new part with the state of another, which goes through the text of a snapshot and is compared whole.

    Args:
        part: Part whose state is saved.
        new: New part, made of the same arguments.
        transient: Names of attributes that need not come back, because every call sets them.

    Raises:
        AssertionError: If one of them cannot save its state.
    """
    rule = "must have the methods state() and restore(state), as lightning_core.core.saved_state.Stateful has"
    if not isinstance(part, Saves) or not isinstance(new, Saves):
        raise AssertionError(f"{type(part).__name__} {rule}")
    text = json.dumps(part.state(), allow_nan=False)
    new.restore(json.loads(text))
    for path in _differences(part, new, type(part).__name__):
        rule = f"restore() must bring all that is remembered back: {path} differs"
        require(any(re.search(rf"\.{name}\b", path) for name in transient), rule)
    return new


def _differences(one: Any, other: Any, path: str) -> Iterator[str]:
    """Yield the paths of the attributes and elements in which two objects differ."""
    ours, theirs = _contents(one), _contents(other)
    if type(one) is not type(other) or (ours is None) != (theirs is None):
        yield path
    elif ours is None or theirs is None:
        if one != other and (one == one or other == other):  # a NaN is equal to no number
            yield path
    elif list(ours) != list(theirs):
        yield path
    else:
        for step in ours:
            yield from _differences(ours[step], theirs[step], f"{path}{step}")


def _contents(part: Any) -> dict[str, Any] | None:
    """Return the attributes or elements of an object by how they are reached; None if it has none."""
    if isinstance(part, RowCache | Memo):
        return {}  # whatever it holds, its values are the same
    if isinstance(part, np.ndarray):
        return {".shape": part.shape, "": part.tolist() if part.dtype == object else part.tobytes()}
    if isinstance(part, dict):
        return {f"[{key!r}]": value for key, value in part.items()}
    if isinstance(part, list | tuple | deque):
        return {f"[{number}]": value for number, value in enumerate(part)}
    if isinstance(part, type | FunctionType | MethodType | partial | Enum):
        return None
    slots = [name for kind in type(part).__mro__ for name in getattr(kind, "__slots__", ())]
    names = [*slots, *getattr(part, "__dict__", ())]
    if not names and not hasattr(part, "__dict__"):
        return None
    return {f".{name}": getattr(part, name, None) for name in names}
