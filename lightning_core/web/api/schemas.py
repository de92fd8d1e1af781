"""JSON schemas of the types by which the API is declared: TypedDicts, dataclasses, enumerations and plain types.

What stands in ``Annotated`` beside a type goes into its schema: a text is its description, a mapping further keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from inspect import getdoc
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

Schema = dict[str, Any]
PLAIN: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null"}


class Schemas:
    """Schemas of types; those that have a name are collected, and referred to by it.

    Example::

        >>> Schemas().of(list[int | None])
        {'type': 'array', 'items': {'anyOf': [{'type': 'integer'}, {'type': 'null'}]}}
    """

    def __init__(self) -> None:
        self.named: dict[str, Schema] = {}

    def of(self, kind: Any) -> Schema:
        """Return the schema of a type.

        Raises:
            TypeError: If there is none for it.
        """
        origin, args = get_origin(kind), get_args(kind)
        if origin is Annotated:
            return self.of(args[0]) | _notes(args[1:])
        if kind is Any:
            return {}
        if kind in PLAIN:
            return {"type": PLAIN[kind]}
        if origin is Literal:
            return {"enum": list(args)}
        if origin in (Union, UnionType):
            return {"anyOf": [self.of(one) for one in args]}
        if origin is list:
            return {"type": "array", "items": self.of(args[0])}
        if origin is dict:
            return {"type": "object", "additionalProperties": self.of(args[1])}
        if isinstance(kind, type):
            if kind.__name__ not in self.named:
                self.named[kind.__name__] = {}  # a type may hold itself
                self.named[kind.__name__] = self._named(kind)
            return {"$ref": f"#/components/schemas/{kind.__name__}"}
        raise TypeError(f"no schema for {kind!r}")

    def _named(self, kind: type) -> Schema:
        words = {"description": (getdoc(kind) or "").split("\n\n")[0]}
        if issubclass(kind, Enum):
            return {"type": "string", "enum": [str(one.value) for one in kind]} | words
        if not is_typeddict(kind) and not is_dataclass(kind):
            raise TypeError(f"no schema for {kind!r}")
        hints = get_type_hints(kind, include_extras=True)
        properties = {name: self.of(_inner(hint)) for name, hint in hints.items()}
        required = [name for name in hints if is_required(kind, name)]
        body: Schema = {"type": "object", "properties": properties}
        if is_dataclass(kind):  # a question; answers may get further keys
            body["additionalProperties"] = False
        return body | ({"required": required} if required else {}) | words


def is_required(kind: type, name: str) -> bool:
    """Return whether a field of a TypedDict or a dataclass must be given."""
    if is_dataclass(kind):
        [field] = [one for one in fields(kind) if one.name == name]
        return field.default is MISSING and field.default_factory is MISSING
    return get_origin(get_type_hints(kind, include_extras=True)[name]) is not NotRequired


def _inner(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is NotRequired else hint


def _notes(notes: tuple[Any, ...]) -> Schema:
    found: Schema = {}
    for note in notes:
        found |= note if isinstance(note, Mapping) else {"description": note}
    return found
