"""Errors of the API as JSON: a code for the broken rule, and an explanation."""

from __future__ import annotations

from typing import Any

from starlette.responses import JSONResponse

PREFIX = "/api"
RULES = {
    400: "value",
    401: "token",
    403: "right",
    404: "unknown",
    405: "method",
    409: "conflict",
    413: "size",
    415: "json",
    421: "host",
    422: "bundle",
    503: "pool",
}
"""The word for each status; `failed` for all others."""


def is_api(path: str) -> bool:
    """Return whether a path belongs to the API, where every response is JSON."""
    return path == PREFIX or path.startswith(f"{PREFIX}/")


def error_answer(status: int, words: str, **more: Any) -> JSONResponse:
    """Return the answer to a request that is refused."""
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    error = {"rule": RULES.get(status, "failed"), "words": words.strip(), **more}
    return JSONResponse({"error": error}, status, headers)
