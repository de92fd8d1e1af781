"""Reads JSON from outside: its depth and its number of values are checked before anything is built of it."""

from __future__ import annotations

import json
import math
import re
from typing import Any

# As for YAML: no config is larger, and no other request has a tenth of it.
MAX_DEPTH, MAX_VALUES = 50, 50_000
# A string, up to the end of the text if it does not end; every match succeeds, so the time is linear.
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_NO_BRACKET = re.compile(r"[^\[\]{}]++")


def loads(text: str | bytes, max_values: int = MAX_VALUES) -> Any:
    """Return the value of a JSON text.

    Args:
        text: JSON; bytes are UTF-8.
        max_values: Maximum number of values in it, in lists and mappings of any depth.

    Raises:
        ValueError: If it is not valid JSON, has too many values or levels, or a number in it is not finite.

    Example::

        >>> loads('{"a": [1, 2.5]}')
        {'a': [1, 2.5]}
        >>> loads("[" * 60)
        Traceback (most recent call last):
        ...
        ValueError: nested too deeply (limit 50)
    """
    if isinstance(text, bytes):
        text = text.decode()
    check(text, max_values)
    return json.loads(text, parse_constant=_finite, parse_float=_finite)


def check(text: str, max_values: int = MAX_VALUES) -> None:
    """Check that a JSON text has no more values and levels than the limits; it may still be invalid.

    Raises:
        ValueError: If it has.
    """
    if weigh(text) <= max_values and text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    if text.count('"') > 4 * max_values:
        raise ValueError(f"too many strings (limit {2 * max_values:,})")
    outside = _STRING.sub("", text)
    if weigh(outside) > max_values:
        raise ValueError(f"too many values (limit {max_values:,})")
    depth = 0
    for bracket in _NO_BRACKET.sub("", outside):
        depth += 1 if bracket in "[{" else -1
        if depth > MAX_DEPTH:
            raise ValueError(f"nested too deeply (limit {MAX_DEPTH})")


def weigh(text: str | bytes) -> int:
    """Return an upper bound of the number of values in a JSON text; quickly, without telling strings apart."""
    if isinstance(text, bytes):
        return 1 + text.count(b",") + text.count(b"[") + text.count(b"{")
    return 1 + text.count(",") + text.count("[") + text.count("{")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"numbers must be finite, got {text if len(text) <= 60 else f'{text[:57]}...'}")
    return number
