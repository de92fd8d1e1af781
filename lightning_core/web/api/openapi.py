"""The description of the API by OpenAPI 3.1, made from the declarations of its endpoints."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

from lightning_core.web.api.endpoints import ENDPOINTS, VERSION, Endpoint
from lightning_core.web.api.repeats import HEADER, MAX_ID
from lightning_core.web.api.schemas import Schema, Schemas, is_required
from lightning_core.web.api.shapes import ErrorAnswer, Nothing

DESCRIPTION = (
    "Every request carries a token (`lightning-core token new`) as `Authorization: Bearer ...`, or the cookie of a "
    "browser that has come in. Who has not the right `see` sees their own jobs alone. Within a version, answers may "
    "get further keys; none is taken away, and none changes its meaning."
)
REPEATED = "Id of this request, of your choice. A request that is sent again under the same id is done once."


def document() -> dict[str, Any]:
    """Return the description as JSON values."""
    schemas = Schemas()
    error = {"description": "Why it was refused.", "content": _json(schemas.of(ErrorAnswer))}
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
