"""Repeated requests: a change that is requested again because the response was lost is made once.

A program gives each request an id, and sends it again under the same id. The answers are kept in memory: a restarted
server does not know earlier requests.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from lightning_core.core.limits import shown

HEADER = "Request-Id"
# Requests that are remembered; of more, the oldest is forgotten. Characters of an id.
MAX_REMEMBERED, MAX_ID = 10_000, 64


class _PastRequest(NamedTuple):
    digest: bytes
    answer: asyncio.Future[Any]


class Repeats:
    """Remembers the answers to requests by user and id."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], _PastRequest] = {}

    async def once(self, person: str, number: str | None, content: str, do: Callable[[], Awaitable[Any]]) -> Any:
        """Carry out a request, unless that is in progress or done; a failed request may be repeated.

        Args:
            person: Name of the user.
            number: Id of the request; None for one that is never sent again.
            content: Content of the request.
            do: Does it, and returns the answer.

        Raises:
            ValueError: If the id is not printable or too long, or was that of another request.
        """
        if number is None:
            return await do()
        if not 0 < len(number) <= MAX_ID or not number.isascii() or not number.isprintable():
            raise ValueError(f"{HEADER} must be 1 to {MAX_ID} printable characters of ASCII, got {shown(number)}")
        key, digest = (person, number), hashlib.sha256(content.encode()).digest()
        known = self._known.get(key)
        if known is None:
            # A task of its own: it completes even if the client hangs up, and the next request gets the answer.
            known = self._known[key] = _PastRequest(digest, asyncio.ensure_future(do()))
            known.answer.add_done_callback(lambda answer: self._forget_failure(key, answer))
            if len(self._known) > MAX_REMEMBERED:
                del self._known[next(iter(self._known))]
        elif known.digest != digest:
            raise ValueError(f"{HEADER} {number} was that of another request; give each its own")
        return await asyncio.shield(known.answer)

    def _forget_failure(self, key: tuple[str, str], answer: asyncio.Future[Any]) -> None:
        if answer.cancelled() or answer.exception() is not None:
            self._known.pop(key, None)
