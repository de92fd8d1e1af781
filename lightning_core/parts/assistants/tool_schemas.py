"""Schemas of the tools by JSON Schema, made from the types of their arguments and answers."""

from __future__ import annotations

from functools import cache
from typing import Any

from msgspec.json import schema_components

Schema = dict[str, Any]


@cache
def arguments_schema(kind: type) -> Schema:
    """Return the schema of a dataclass of arguments; no others are allowed."""
    return _schema(kind) | {"additionalProperties": False}


@cache
def answer_schema(kind: Any) -> Schema:
    """Return the schema of a type of answers."""
    return _schema(kind)


def _schema(kind: Any) -> Schema:
    """Return the schema of an object, with those of the types in it beside it."""
    [reference], named = schema_components([kind], ref_template="#/$defs/{name}")
    for schema in named.values():
        if "description" in schema:
            schema["description"] = schema["description"].partition("\n\n")[0]
    whole = named.pop(reference["$ref"].rpartition("/")[2])
    return {**whole, **({"$defs": named} if named else {})}
