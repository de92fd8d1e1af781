"""Controller of the report period, which keeps the load of the scheduler's process within its share of a core."""

from __future__ import annotations

import time
from collections.abc import Callable

# Cores that the process may use: half of one, with something to spare. And seconds by which its event loop may be late:
# beside busy trainings it gets less of a core than it could use.
TARGET_CORES, MAX_LAG = 0.4, 0.1
# Seconds between two reports of a job: as short as the mailbox's own period, and as long as its watch of hangs allows.
MIN_PERIOD, MAX_PERIOD = 0.2, 5.0
# Seconds between two adjustments, besides a period: until then not all jobs have obeyed the last one.
INTERVAL = 1.0
# Factors of one adjustment.
MIN_FACTOR, MAX_FACTOR = 0.5, 2.0


class ReportPeriod:
    """The seconds between two reports of a job that the scheduler asks for.

    Nothing that the scheduler decides depends on it: it is no part of its state, and is not in the journal.

    Args:
        lag: Function that returns the seconds by which the event loop was late since it was asked last.
        used: Clock of the CPU time of this process, in seconds.
        clock: Monotonic clock, in seconds.

    Example::

        >>> used, now, asked = 0.0, 0.0, []
        >>> period = ReportPeriod(lambda: 0.0, lambda: used, lambda: now)
        >>> for now, used in ((5.0, 4.0), (10.0, 8.0), (15.0, 8.1), (20.0, 8.2), (25.0, 8.3)):
        ...     asked.append(round(period(), 2))
        >>> asked
        [0.4, 0.8, 0.4, 0.0, 0.0]
    """

    def __init__(
        self,
        lag: Callable[[], float],
        used: Callable[[], float] = time.process_time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lag, self._used, self._clock = lag, used, clock
        self._period = MIN_PERIOD
        self._since = clock(), used()

    def __call__(self) -> float:
        """Return the seconds; 0 while jobs may report as often as they do."""
        began, used_before = self._since
        passed = self._clock() - began
        if passed >= INTERVAL + self._period:
            self._since = began + passed, self._used()
            cores = (self._since[1] - used_before) / passed
            load = max(cores / TARGET_CORES, self._lag() / MAX_LAG)
            if load < 1.0:
                load **= 0.5  # the load follows late; too few reports do less harm than too many
            self._period *= min(max(load, MIN_FACTOR), MAX_FACTOR)
            self._period = min(max(self._period, MIN_PERIOD), MAX_PERIOD)
        return self._period if self._period > MIN_PERIOD else 0.0
