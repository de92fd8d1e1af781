"""The description of the API by OpenAPI 3.1, made from the declarations of its endpoints."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from msgspec.json import schema_components

from lightning_core.core.names import MAX_PROGRAM_LENGTH
from lightning_core.parts.web.api.endpoints import ENDPOINTS, VERSION, Endpoint
from lightning_core.parts.web.api.repeats import HEADER, MAX_ID
from lightning_core.pool.api_connection import THROUGH
from lightning_core.pool.shapes import ErrorAnswer, Nothing

Schema = dict[str, Any]
DESCRIPTION = (
    "Every request carries a token (`lightning-core token new`) as `Authorization: Bearer ...`, or the cookie of a "
    "browser that has signed in. Users without the right `see` only see their own jobs. Within a version, answers may "
    "get further keys; none is taken away, and none changes its meaning."
)
REPEATED = "Id of this request, of your choice. A request that is sent again under the same id is done once."
PROGRAM = "Name of the program through which the user asks, which is noted with a command: `assistant`."


def document() -> Schema:
    """Return the description as JSON values."""
    bodies = [one.body for one in ENDPOINTS if one.body is not Nothing]
    kinds = [ErrorAnswer, *(one.answer for one in ENDPOINTS), *bodies]
    references, named = schema_components(kinds, ref_template="#/components/schemas/{name}")
    schemas = dict(zip(map(str, kinds), references, strict=True))
    for schema in named.values():
        schema["description"] = schema["description"].partition("\n\n")[0]
    for body in bodies:  # answers may get further keys
        named[body.__name__]["additionalProperties"] = False
    paths: dict[str, Schema] = {}
    for one in ENDPOINTS:
        operation: Schema = {
            "operationId": _name(one),
            "summary": one.summary,
            "parameters": list(_parameters(one)),
            "responses": {
                "200": {"description": "The answer.", "content": _json(schemas[str(one.answer)])},
                "default": {"description": "Reason of the refusal.", "content": _json(schemas[str(ErrorAnswer)])},
            },
        }
        if one.body is not Nothing:
            required = bool(named[one.body.__name__]["required"])
            operation["requestBody"] = {"required": required, "content": _json(schemas[str(one.body)])}
        paths.setdefault(f"/api/{VERSION}{one.path}", {})[one.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "lightning_core: a pool", "version": VERSION.removeprefix("v"), "description": DESCRIPTION},
        "servers": [{"url": "/"}],
        "security": [{"token": []}, {"session": []}],
        "paths": paths,
        "components": {
            "schemas": named,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "session": {"type": "apiKey", "in": "cookie", "name": "lightning_core_PORT"},
            },
        },
    }


def _name(endpoint: Endpoint) -> str:
    words = [word for word in re.split(r"[/{}]+", endpoint.path) if word not in ("", "name")]
    return "_".join([endpoint.method.lower(), *words, *(["of_job"] if "{name}" in endpoint.path else [])])


def _parameters(endpoint: Endpoint) -> Iterator[Schema]:
    if "{name}" in endpoint.path:
        yield _parameter("name", "path", "Name of the job.", {"type": "string"}) | {"required": True}
    _, named = schema_components([endpoint.query], ref_template="{name}")
    for name, schema in named[endpoint.query.__name__]["properties"].items():
        words = schema.pop("description")
        kind = schema.get("anyOf", [schema])[0]  # no value in an address is null
        yield _parameter(name, "query", words, named.get(kind.get("$ref"), kind))
    if endpoint.method == "POST":
        yield _parameter(HEADER, "header", REPEATED, {"type": "string", "maxLength": MAX_ID})
        yield _parameter(THROUGH, "header", PROGRAM, {"type": "string", "maxLength": MAX_PROGRAM_LENGTH})


def _parameter(name: str, place: str, words: str, schema: Schema) -> Schema:
    return {"name": name, "in": place, "required": False, "description": words, "schema": schema}


def _json(schema: Schema) -> Schema:
    return {"application/json": {"schema": schema}}
