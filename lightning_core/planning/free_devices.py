"""The devices that are free from now on, as a step function of time."""

from __future__ import annotations

from bisect import bisect_right

# Differences of devices or seconds up to which two values count as equal.
EPSILON = 1e-9


class FreeDevices:
    """Devices that are free from now on: a step function of time.

    Args:
        now: Scheduler time.
        devices: Devices of the pool.
    """

    __slots__ = ("devices", "times")

    def __init__(self, now: float, devices: float) -> None:
        self.times = [now]
        self.devices = [float(devices)]

    def copy(self) -> FreeDevices:
        """Return an independent copy."""
        other = FreeDevices.__new__(FreeDevices)
        other.times, other.devices = self.times.copy(), self.devices.copy()
        return other

    def take(self, begin: float, end: float, devices: float) -> None:
        """Reserve devices from ``begin`` to ``end``."""
        first, last = self._cut(begin), self._cut(end)
        for at in range(first, last):
            self.devices[at] -= devices
        for at in (last, first):  # remove steps where nothing changes
            if at and abs(self.devices[at] - self.devices[at - 1]) < EPSILON:
                del self.times[at], self.devices[at]

    def min_until(self, end: float) -> float:
        """Return the devices that are free all the time until ``end``."""
        return self.min_between(self.times[0], end)

    def min_between(self, begin: float, end: float) -> float:
        """Return the devices that are free all the time between two moments."""
        first = max(bisect_right(self.times, begin) - 1, 0)
        return min(self.devices[first : max(bisect_right(self.times, end - EPSILON), first + 1)])

    def _cut(self, when: float) -> int:
        at = bisect_right(self.times, when) - 1
        if self.times[at] == when:
            return at
        self.times.insert(at + 1, when)
        self.devices.insert(at + 1, self.devices[at])
        return at + 1
