"""Clocks of the scheduler's process: time-outs that ignore its own stalls, and the wall clock of the controllers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from lightning_core.core.control import WallClock

# Delay of a wake-up beyond which the process counts as stalled, seconds.
MAX_WAKEUP_DELAY = 2.0
STEP = 0.5
# Seconds between two looks, and the deviation in seconds beyond which the wall clock is reported again.
INTERVAL, TOLERANCE = 10.0, 1.0


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


def wall_clock() -> WallClock:
    """Return the wall clock, in local time."""
    seconds = time.time()
    return WallClock(seconds, float(time.localtime(seconds).tm_gmtoff))


class WallClockWatch:
    """Notices when the wall clock deviates from the time expected by scheduler time.

    This happens when it is set, when daylight saving time begins or ends, or after the machine was suspended.

    Args:
        read: Function that reads the clock.
    """

    def __init__(self, read: Callable[[], WallClock] = wall_clock) -> None:
        self._read = read
        self._told: WallClock | None = None
        self._told_at = self._looked_at = 0.0

    def news(self, now: float) -> WallClock | None:
        """Return the wall clock if the scheduler must learn it; None if not.

        Args:
            now: Scheduler time in seconds.
        """
        told = self._told
        if told is not None and now - self._looked_at < INTERVAL:
            return None
        shown, self._looked_at = self._read(), now
        if told is not None and shown.utc_offset == told.utc_offset:
            expected = told.seconds + now - self._told_at
            if abs(shown.seconds - expected) <= TOLERANCE:
                return None
        self._told, self._told_at = shown, now
        return shown

    def forget(self) -> None:
        """Forget the last reading, so that the next one is reported."""
        self._told = None
