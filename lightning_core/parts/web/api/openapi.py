"""The description of the API by OpenAPI 3.1, made from the declarations of its endpoints."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from inspect import getdoc
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

from lightning_core.parts.web.api.endpoints import ENDPOINTS, VERSION, Endpoint
from lightning_core.parts.web.api.repeats import HEADER, MAX_ID
from lightning_core.parts.web.api.shapes import ErrorAnswer, Nothing

Schema = dict[str, Any]
PLAIN: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null"}
DESCRIPTION = (
    "Every request carries a token (`lightning-core token new`) as `Authorization: Bearer ...`, or the cookie of a "
    "browser that has signed in. Users without the right `see` only see their own jobs. Within a version, answers may "
    "get further keys; none is taken away, and none changes its meaning."
)
REPEATED = "Id of this request, of your choice. A request that is sent again under the same id is done once."


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


def document() -> dict[str, Any]:
    """Return the description as JSON values."""
    schemas = Schemas()
    error = {"description": "Reason of the refusal.", "content": _json(schemas.of(ErrorAnswer))}
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in ENDPOINTS:
        found = paths.setdefault(f"/api/{VERSION}{endpoint.path}", {})
        found[endpoint.method.lower()] = _operation(endpoint, schemas, error)
    return {
        "openapi": "3.1.0",
        "info": {"title": "lightning_core: a pool", "version": VERSION.removeprefix("v"), "description": DESCRIPTION},
        "servers": [{"url": "/"}],
        "security": [{"token": []}, {"session": []}],
        "paths": paths,
        "components": {
            "schemas": schemas.named,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "session": {"type": "apiKey", "in": "cookie", "name": "lightning_core_PORT"},
            },
        },
    }


def _operation(endpoint: Endpoint, schemas: Schemas, error: Schema) -> dict[str, Any]:
    words = [word for word in re.split(r"[/{}]+", endpoint.path) if word not in ("", "name")]
    operation: dict[str, Any] = {
        "operationId": "_".join([endpoint.method.lower(), *words, *(["of_job"] if "{name}" in endpoint.path else [])]),
        "summary": endpoint.summary,
        "parameters": list(_parameters(endpoint)),
        "responses": {
            "200": {"description": "The answer.", "content": _json(schemas.of(endpoint.answer))},
            "default": error,
        },
    }
    if endpoint.body is not Nothing:
        required = any(is_required(endpoint.body, one.name) for one in fields(endpoint.body))
        operation["requestBody"] = {"required": required, "content": _json(schemas.of(endpoint.body))}
    return operation


def _parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    found = []
    if "{name}" in endpoint.path:
        words = "Name of the job."
        found.append(_parameter("name", "path", {"type": "string", "description": words}, required=True))
    declared = Schemas()
    declared.of(endpoint.query)
    for name, schema in declared.named[endpoint.query.__name__]["properties"].items():
        found.append(_parameter(name, "query", _inlined(schema, declared)))
    if endpoint.method == "POST":
        found.append(_parameter(HEADER, "header", {"type": "string", "maxLength": MAX_ID, "description": REPEATED}))
    return found


def _inlined(schema: Schema, declared: Schemas) -> Schema:
    """Return the schema of a value in an address: none of them is null, and none refers to another."""
    notes = {key: value for key, value in schema.items() if key != "anyOf"}
    for one in schema.get("anyOf", ()):
        if one != {"type": "null"}:
            notes = (declared.named[one["$ref"].rpartition("/")[2]] if "$ref" in one else one) | notes
    return notes


def _parameter(name: str, place: str, schema: Schema, *, required: bool = False) -> dict[str, Any]:
    words = schema.get("description", "")
    plain = {key: value for key, value in schema.items() if key != "description"}
    return {"name": name, "in": place, "required": required, "description": words, "schema": plain}


def _json(schema: Schema) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
