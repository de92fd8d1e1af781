"""The jobs to keep when not all can end by their deadlines (Moore and Hodgson, 1968; LARA's Algorithm 1).

On one device and with equal weights the most jobs are kept that can be: LARA's Algorithm 1 is this algorithm on the
forecast work, and a heap makes it O(n log n) where the printed arg max costs O(n^2). With weights, or on several
devices, the problem is NP-hard, and the same rule is a heuristic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush

import numpy as np

from lightning_core.core.arrays import BoolArray, FloatArray, IntArray

# Of those that went, how many may try to come back: each costs as much as the whole choice.
MAX_RETRIES = 4
# Jobs that are placed one by one on several devices.
MAX_LISTED_JOBS = 1000


def largest_feasible_set(
    work: FloatArray,
    deadline: FloatArray,
    now: float,
    weight: FloatArray | None = None,
    size: IntArray | None = None,
    devices: int = 1,
    rather: IntArray | None = None,
) -> BoolArray:
    """Which jobs to keep, shape ``(n,)``.

    Jobs are taken by deadline (ties: less work, then order), each on the devices that are free first. Whenever one of
    the kept would end too late, the one with the most work for its weight goes: seconds times devices, divided by the
    weight. So of two equal jobs the heavier is kept, and a job of weight 3 counts for three of weight 1 that together
    need what it needs. With weights, the heaviest of those that went come back if they outweigh all that they displace.
    Work that is infinite or NaN is never kept, nor a job larger than the pool.

    On one device with equal weights no other choice keeps more jobs. Else it is a heuristic. Of the best weight that
    any choice and any placing can reach it kept, over 500 random instances of 8 to 10 jobs each, 0.997 on one device,
    0.970 on two and 0.972 on three (weights 1 to 4; with equal weights 0.959 and 0.961; at the worst 0.67). On several
    devices the rest is not the choice, but that jobs take the device that is free first: of the best choice among those
    that do, it kept 0.996 on two devices and all on three (60 instances each).

    The time is O(n log n) on one device, else O(n) for each job that goes, up to O(n^2). So with more than ``MAX_LISTED_JOBS``
    jobs several devices are taken for one that is so many times as fast: among thousands it differs by little.

    Args:
        work: seconds alone on its devices, shape ``(n,)``.
        deadline: scheduler time, shape ``(n,)``.
        now: scheduler time.
        weight: how many jobs of weight 1 each counts for, shape ``(n,)``; None if they are equal.
        size: devices that each takes, shape ``(n,)``; None for one.
        devices: of the pool.
        rather: rows that are kept if no weight is lost by it: who trains already.

    Example::

        >>> work, deadline = np.array([5.0, 2.0, 3.0]), np.array([5.0, 6.0, 7.0])
        >>> largest_feasible_set(work, deadline, 0.0)
        array([False,  True,  True])
        >>> largest_feasible_set(work, deadline, 0.0, weight=np.array([3.0, 1.0, 1.0]))
        array([ True, False, False])
        >>> largest_feasible_set(work, deadline, 0.0, devices=2)
        array([ True,  True,  True])
        >>> largest_feasible_set(np.array([5.0, 4.0]), np.array([6.0, 6.0]), 0.0, rather=np.array([0]))
        array([ True, False])
    """
    size = np.ones(len(work), np.int64) if size is None else size
    keep = np.isfinite(work) & (work <= deadline - now) & (size <= devices)
    rows = np.flatnonzero(keep)
    rows = rows[np.lexsort((rows, work[rows], deadline[rows]))]
    if devices == 1 and np.all(np.cumsum(work[rows]) <= deadline[rows] - now):
        return keep
    weight = np.ones(len(work)) if weight is None else weight
    equal = bool(np.all(weight[rows] == weight[rows[0]])) if len(rows) else True
    greed = work * size if equal else work * size / weight

    def on_time(greed: FloatArray) -> list[int]:
        if devices == 1 or len(rows) > MAX_LISTED_JOBS:
            return _on_one(rows, work * size / devices, deadline, greed, now)
        return _on_several(rows, work, deadline, greed, size, devices, now)

    best = on_time(greed)
    if not equal:
        best = _come_back(best, rows, weight, greed, on_time)
    for row in () if rather is None else rather.tolist():
        if keep[row] and row not in best:
            instead = on_time(np.where(np.arange(len(work)) == row, -np.inf, greed))
            if weight[instead].sum() >= weight[best].sum() * (1 - 1e-12):
                best = instead
    keep[:] = False
    keep[best] = True
    return keep


def _come_back(
    best: list[int], rows: IntArray, weight: FloatArray, greed: FloatArray, on_time: Callable[[FloatArray], list[int]]
) -> list[int]:
    """Tries to keep those that went, the heaviest first: a rule that goes by work alone may drop one that outweighs
    all for whom it went.
    """
    gone = np.setdiff1d(rows, best)
    for row in gone[np.lexsort((greed[gone], -weight[gone]))][:MAX_RETRIES].tolist():
        wanted = greed.copy()
        wanted[row] = -np.inf
        instead = on_time(wanted)
        if weight[instead].sum() > weight[best].sum() * (1 + 1e-12):
            best = instead
    return best


def _on_one(rows: IntArray, work: FloatArray, deadline: FloatArray, greed: FloatArray, now: float) -> list[int]:
    total = now
    heap: list[tuple[float, int, float]] = []
    columns = (rows, work[rows], deadline[rows], greed[rows])
    for row, seconds, due, most in zip(*(column.tolist() for column in columns), strict=True):
        heappush(heap, (-most, row, seconds))
        total += seconds
        while total > due:
            total -= heappop(heap)[2]
    return [row for _, row, _ in heap]


def _on_several(
    rows: IntArray,
    work: FloatArray,
    deadline: FloatArray,
    greed: FloatArray,
    size: IntArray,
    devices: int,
    now: float,
) -> list[int]:
    seconds, due, most, takes = work.tolist(), deadline.tolist(), greed.tolist(), size.tolist()
    todo: list[int] = rows[::-1].tolist()
    kept: list[int] = []
    before: list[Sequence[float]] = []  # when each device was free before a kept job was placed, soonest first
    free: Sequence[float] = (now,) * devices
    while todo:
        row = todo.pop()
        kept.append(row)
        before.append(free)
        n = takes[row]
        end = free[n - 1] + seconds[row]
        free = sorted((*free[n:], *(end,) * n))
        if end > due[row]:  # one goes, and those behind it are placed anew
            gone = max(range(len(kept)), key=lambda k: most[kept[k]])
            todo.extend(reversed(kept[gone + 1 :]))
            free = before[gone]
            del kept[gone:], before[gone:]
    return kept
