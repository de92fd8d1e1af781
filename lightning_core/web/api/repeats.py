"""Requests that change something, sent again because the answer was lost: they are done once.

A program gives each request an id, and sends it again under the same id. The answers are kept in memory: a
server that was restarted does not know what was asked before.
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
    """Remembers the answers to requests by who asked, and their ids."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], _PastRequest] = {}

    async def once(self, person: str, number: str | None, content: str, do: Callable[[], Awaitable[Any]]) -> Any:
        """Do what a request asks, unless it is being done or has been; what failed may be asked again.

        Args:
            person: Name of who asks.
            number: Id of the request; None for one that is never sent again.
            content: What it asks.
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
            # A task of its own: it is done even if who asked hangs up, and the answer is there for the next request.
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
