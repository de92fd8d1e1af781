"""Values in the address of a request."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request

MAX_SECONDS = 1e10


def whole_number(request: Request, name: str) -> int | None:
    """Return a whole number of at most nine digits; None if it is not given.

    Raises:
        HTTPException: If it is none.
    """
    text = request.query_params.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise HTTPException(400, f"{name} must be a whole number of at most nine digits, got {text[:20]!r}")
    return int(text)


def seconds(request: Request, name: str) -> float | None:
    """Return a number of seconds; None if it is not given.

    Raises:
        HTTPException: If it is none, or out of range.
    """
    text = request.query_params.get(name)
    if text is None:
        return None
    try:
        value = float(text[:40])
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= MAX_SECONDS:
        raise HTTPException(400, f"{name} must be seconds from 0 to {MAX_SECONDS:.0e}, got {text[:20]!r}")
    return value
