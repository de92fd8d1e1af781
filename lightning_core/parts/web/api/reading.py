"""Reader of requests, by the dataclass that declares their fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from enum import Enum
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from lightning_core.core.limits import shown
from lightning_core.core.names import did_you_mean
from lightning_core.core.validation import checked
from lightning_core.parts.web.api.openapi import Schemas, is_required

# Characters of a value in an address, and digits of a number there.
MAX_LENGTH, MAX_DIGITS = 200, 9


def read_query(kind: type, given: Mapping[str, str]) -> Any:
    """Return the query of a request.

    Args:
        kind: Dataclass whose fields it may give.
        given: Values in the address.

    Raises:
        ValueError: If a value is unknown, of another type or out of range.

    Example::

        >>> from lightning_core.parts.web.api.shapes import LogQuery
        >>> read_query(LogQuery, {"lines": "5"})
        LogQuery(lines=5)
        >>> read_query(LogQuery, {"lines": "0"})
        Traceback (most recent call last):
        ...
        ValueError: lines must be at least 1, got 0
    """
    _check_names(kind, given)
    hints = get_type_hints(kind, include_extras=True)
    return kind(**{name: _value(name, hints[name], text) for name, text in given.items()})


def read_body(kind: type, given: Any) -> dict[str, Any]:
    """Return the body of a request; None is an empty one.

    Args:
        kind: Dataclass whose fields it must or may give.
        given: The body, read from JSON.

    Raises:
        ValueError: If it is no object, a key is unknown or missing, or a value of another type.
    """
    body = {} if given is None else given
    if not isinstance(body, dict):
        raise ValueError(f"a request must be a JSON object, got {shown(body)}")
    _check_names(kind, body)
    hints = get_type_hints(kind)
    if missing := [name for name in hints if is_required(kind, name) and name not in body]:
        raise ValueError(f"{missing[0]} is missing")
    for name, value in body.items():
        if hints[name] is not str:  # a bundle may be longer than other texts, and the request is bounded
            try:
                checked(value, hints[name])
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        elif not isinstance(value, str):
            raise ValueError(f"{name}: expected str, got {shown(value)}")
    return body


def _check_names(kind: type, given: Mapping[str, Any]) -> None:
    known = [field.name for field in fields(kind)]
    for name in given:
        if name not in known:
            raise ValueError(f"unknown value {shown(name)}{did_you_mean(name, known)}")


def _value(name: str, hint: Any, text: str) -> Any:
    kind, schema = hint, Schemas().of(hint)
    while get_origin(kind) is not None:  # Annotated, or a union with None
        kind = next(one for one in get_args(kind) if one is not NoneType)
    if len(text) > MAX_LENGTH:
        raise ValueError(f"{name} must have at most {MAX_LENGTH} characters, got {len(text):,}")
    if issubclass(kind, Enum):
        known = [str(one.value) for one in kind]
        if text not in known:
            raise ValueError(f"{name} must be one of {', '.join(known)}, got {shown(text)}")
        return kind(text)
    if kind is str:
        return text
    if not text.isascii() or not text.isdigit() or len(text) > MAX_DIGITS:
        raise ValueError(f"{name} must be a whole number of at most {MAX_DIGITS} digits, got {shown(text)}")
    number = int(text)
    if number < (least := schema.get("minimum", 0)):
        raise ValueError(f"{name} must be at least {least}, got {number}")
    if number > (most := schema.get("maximum", number)):
        raise ValueError(f"{name} must be at most {most:,}, got {number:,}")
    return number
