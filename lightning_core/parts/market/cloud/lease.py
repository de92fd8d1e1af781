"""The lease under which a provisioner may hold paid nodes: as long as the pool answers."""

from __future__ import annotations

import math

# Seconds without an answer of the pool after which nodes are returned, at least, and as a fraction of an interval.
MIN_LEASE, LEASE_FRACTION = 120.0, 0.25


def lease_seconds(interval: float) -> float:
    """Return the seconds that a lease lasts, for intervals of this many seconds."""
    return max(MIN_LEASE, LEASE_FRACTION * interval)


class Lease:
    """A lease that each answer of the pool renews. Without a first answer it is over.

    Args:
        seconds: Seconds that it lasts, positive.

    Raises:
        ValueError: If they are not positive and finite.

    Example::

        >>> lease = Lease(120.0)
        >>> lease.is_over(0.0)
        True
        >>> lease.renew(5.0)
        >>> lease.is_over(125.0), lease.is_over(125.1)
        (False, True)
    """

    def __init__(self, seconds: float) -> None:
        if not 0 < seconds < math.inf:
            raise ValueError(f"a lease must last a positive and finite time, got {seconds}")
        self.seconds = seconds
        self._until = -math.inf

    def renew(self, now: float) -> None:
        """Take note that the pool has answered."""
        self._until = now + self.seconds

    def is_over(self, now: float) -> bool:
        """Return whether the pool has not answered for too long."""
        return now > self._until
