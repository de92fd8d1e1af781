"""The wall clock, for controllers that use it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lightning_core.core.limits import check_at_most

# The largest offset of a time zone, in seconds, and the last second that counts: in the year 9000.
MAX_OFFSET, MAX_WALL = 86400.0, 221_845_392_000.0


@dataclass(frozen=True, slots=True)
class WallClock:
    """The wall clock now, from which wall-clock time follows until the next event of this kind.

    Args:
        seconds: Seconds since the epoch.
        utc_offset: Seconds by which local time is ahead of UTC.

    Raises:
        ValueError: If a number is out of its range.
    """

    seconds: float
    utc_offset: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.seconds < math.inf:
            raise ValueError(f"seconds must be at least 0 and finite, got {self.seconds}")
        check_at_most("seconds", self.seconds, MAX_WALL)
        if not abs(self.utc_offset) <= MAX_OFFSET:
            raise ValueError(f"utc_offset must be at most {MAX_OFFSET:g} seconds, got {self.utc_offset}")
