"""Patience with others, counted in the time in which this process could have heard them."""

from __future__ import annotations

import asyncio
import time

# How much later than asked a process may be woken before it counts as having been stopped, seconds.
STOOD_STILL = 2.0
STEP = 0.5


class StallAwareClock:
    """Tells how long this process has been awake since it was last asked: a time in which it was stopped is none.

    Whoever waits for an answer with a clock alone gives everybody up when it was stopped itself: their answers wait
    in sockets that it has not read.

    Args:
        most: longest time between two questions that is no standstill, seconds.
    """

    def __init__(self, most: float) -> None:
        self._most = most
        self._asked = time.monotonic()

    def since(self) -> float | None:
        """Seconds since the last question; None if it stood still in between."""
        now = time.monotonic()
        gone, self._asked = now - self._asked, now
        return gone if gone <= self._most else None


async def sleep(seconds: float) -> None:
    """Sleeps until this process was awake for so many seconds; a step in which it stood still does not count."""
    left = seconds
    while left > 0:
        step = min(STEP, left)
        awake = StallAwareClock(step + STOOD_STILL)
        await asyncio.sleep(step)
        if awake.since() is not None:
            left -= step
