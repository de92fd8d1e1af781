"""Points that a course of learning rates runs through."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import pairwise

from lightning_core.core.reported import TOLERANCE, Points

# Points with which the search begins, and at which it ends.
FIRST_POINTS, MAX_SEEN = 129, 2500
# A point of an interval at which its line is checked: no simple fraction, which could hide a period.
INSIDE = 0.381966


def seen_points(rate: Callable[[int], float], first: int, last: int) -> Points:
    """Return points of a course, more where it bends: both sides of each step, if there are not too many.

    Args:
        rate: Function that returns the learning rate of a batch.
        first: Number of the first batch.
        last: Number of the last batch.

    Example::

        >>> points = seen_points(lambda batch: 0.1 if batch < 700_000 else 0.01, 1, 1_000_000)
        >>> [point for point in points if 699_998 < point[0] < 700_002]
        [(699999, 0.1), (700000, 0.01)]
    """
    grid = sorted({first + (last - first) * k // (FIRST_POINTS - 1) for k in range(FIRST_POINTS)})
    seen = {batch: rate(batch) for batch in grid}
    highest = max(map(abs, seen.values()))

    def judged(start: int, end: int) -> tuple[float, int, int, int, float]:
        inside = start + max(int((end - start) * INSIDE), 1)
        found = rate(inside)
        part = (inside - start) / (end - start)
        return -abs(found - (1 - part) * seen[start] - part * seen[end]), start, inside, end, found

    intervals = [judged(a, b) for a, b in pairwise(grid) if b - a > 1]
    heapify(intervals)
    while intervals and len(seen) < MAX_SEEN:
        error, start, inside, end, found = heappop(intervals)
        if -error <= TOLERANCE * highest:
            break
        seen[inside] = found
        for a, b in ((start, inside), (inside, end)):
            if b - a > 1:
                heappush(intervals, judged(a, b))
    return sorted(seen.items())
