"""What the clock on the wall shows, and when the scheduler must be told anew."""

from __future__ import annotations

import time
from collections.abc import Callable

from lightning_core.core.control import WallClock

# Seconds between two looks, and by which the clock must have been set, or have gone on alone, to be told anew.
INTERVAL, TOLERANCE = 10.0, 1.0


def wall_clock() -> WallClock:
    """Return what the clock on the wall shows now, in local time."""
    seconds = time.time()
    return WallClock(seconds, float(time.localtime(seconds).tm_gmtoff))


class WallClockWatch:
    """Tells when the clock on the wall shows something else than scheduler time leads one to expect.

    It is set, daylight saving time begins or ends, or the machine was suspended.

    Args:
        read: Function that reads the clock.
    """

    def __init__(self, read: Callable[[], WallClock] = wall_clock) -> None:
        self._read = read
        self._told: WallClock | None = None
        self._told_at = self._looked_at = 0.0

    def news(self, now: float) -> WallClock | None:
        """Return what the clock shows, if it must be told; None if not.

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
        """Forget what was told: it must be told anew."""
        self._told = None
