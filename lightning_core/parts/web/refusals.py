"""HTTP status codes of refusals, by the error with which the pool refuses a request."""

from __future__ import annotations

from starlette.exceptions import HTTPException

from lightning_core.bundle.problems import BundleError
from lightning_core.core.protocols import AccessRefusedError, JoinRefusedError
from lightning_core.pool.pool_errors import UnknownJobError

# The first that fits.
STATUS: dict[type[Exception], int] = {
    AccessRefusedError: 403,
    UnknownJobError: 404,
    FileNotFoundError: 404,
    JoinRefusedError: 409,
    BundleError: 422,
    TimeoutError: 503,
    ConnectionError: 503,
    ValueError: 400,
    TypeError: 400,
    LookupError: 409,
    RuntimeError: 409,
}
REFUSALS = tuple(STATUS)


def refusal(error: Exception) -> HTTPException:
    """Return the HTTP error for a refusal of the pool, with the pool's own message."""
    return HTTPException(next(status for kind, status in STATUS.items() if isinstance(error, kind)), str(error))
