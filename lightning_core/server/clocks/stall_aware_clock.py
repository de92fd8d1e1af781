"""Time-outs that count only while this process runs, so that others are not blamed for its own stalls."""

from __future__ import annotations

import asyncio
import time

# Delay of a wake-up beyond which the process counts as stalled, seconds.
MAX_WAKEUP_DELAY = 2.0
STEP = 0.5


class StallAwareClock:
    """Measures the time between calls, unless this process stalled in between.

    After a stall, a plain clock would time out on peers whose answers are waiting in sockets that have not been read.

    Args:
        max_gap: Seconds between two calls beyond which the process counts as stalled.
    """

    def __init__(self, max_gap: float) -> None:
        self._max_gap = max_gap
        self._asked = time.monotonic()

    def since(self) -> float | None:
        """Return the seconds since the last call, None if the process stalled in between."""
        now = time.monotonic()
        gap, self._asked = now - self._asked, now
        return gap if gap <= self._max_gap else None


async def sleep(seconds: float) -> None:
    """Sleep until this process has run for that many seconds; steps in which it stalled do not count."""
    left = seconds
    while left > 0:
        step = min(STEP, left)
        awake = StallAwareClock(step + MAX_WAKEUP_DELAY)
        await asyncio.sleep(step)
        if awake.since() is not None:
            left -= step
