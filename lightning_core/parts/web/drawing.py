"""Draws pages in threads, so that the stream of changes never waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from starlette.exceptions import HTTPException

T = TypeVar("T")
# Pages that are drawn at the same time: drawing takes the processor, not the network.
MAX_DRAWN = 4


class Drawing:
    """Draws a few pages at a time; the others wait."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(MAX_DRAWN)

    async def draw(self, draw: Callable[[], T]) -> T:
        """Return the result of a drawing function.

        Raises:
            HTTPException: If its data is not available in time.
        """
        async with self._places:
            try:
                return await asyncio.to_thread(draw)
            except TimeoutError as error:
                raise HTTPException(503, str(error)) from None
