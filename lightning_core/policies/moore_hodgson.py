"""The most jobs that can end by their deadlines, one after the other on one device (Moore and Hodgson, 1968).

LARA's Algorithm 1 is this algorithm on the forecast work; a heap makes it O(n log n) where the printed arg max costs
O(n^2).
"""

from __future__ import annotations

from heapq import heappush, heappushpop

import numpy as np

from lightning_core.types import BoolArray, FloatArray


def largest_feasible_set(work: FloatArray, deadline: FloatArray, now: float) -> BoolArray:
    """Which jobs to keep, shape ``(n,)``.

    Jobs are taken by deadline (ties: less work, then order); whenever the kept ones no longer fit, the one with the
    most work goes. Work that is infinite or NaN is never kept.

    Args:
        work: seconds alone on the device, shape ``(n,)``.
        deadline: scheduler time, shape ``(n,)``.
        now: scheduler time.

    Example::

        >>> largest_feasible_set(np.array([5.0, 2.0, 3.0]), np.array([5.0, 6.0, 7.0]), 0.0)
        array([False,  True,  True])
    """
    keep = np.isfinite(work)
    rows = np.flatnonzero(keep)
    rows = rows[np.lexsort((rows, work[rows], deadline[rows]))]
    if np.all(np.cumsum(work[rows]) <= deadline[rows] - now):
        return keep
    total = now
    heap: list[tuple[float, int]] = []
    for row, p, d in zip(rows.tolist(), work[rows].tolist(), deadline[rows].tolist(), strict=True):
        if total + p <= d:
            heappush(heap, (-p, row))
            total += p
        else:  # the longest of the kept and this one goes
            longest, gone = heappushpop(heap, (-p, row))
            total += p + longest
            keep[gone] = False
    return keep
