"""What policies are made of: jobs one after the other, jobs side by side, and when they would end."""

from __future__ import annotations

from bisect import insort
from math import inf, isinf, isnan, nan

import numpy as np

from lightning_core.core.arrays import FloatArray, IntArray
from lightning_core.core.plans import JobView, Plan
from lightning_core.core.reasons import index


def completion_times(work: FloatArray, size: IntArray, order: IntArray, devices: int, now: float) -> FloatArray:
    """When each job ends if they take the devices in order (list scheduling), shape ``(n,)``.

    A job of several devices starts when so many are free at once; nobody is counted on to use the gap before it, so
    that the ends behind it are rather too late than too early. A job larger than the pool never ends. Behind a job
    that does not end on every device the end is inf, behind one of unknown work NaN.

    Args:
        work: seconds alone on its devices, shape ``(n,)``.
        size: devices that each takes, shape ``(n,)``.
        order: rows that take part, shape ``(m,)``; the others get NaN.
        devices: of the pool.
        now: scheduler time.

    Example::

        >>> completion_times(np.array([4.0, 2.0, 3.0]), np.array([1, 1, 2]), np.array([0, 1, 2]), 2, 0.0)
        array([4., 2., 7.])
    """
    ends = np.full(len(work), np.nan)
    ends[size > devices] = inf
    order = order[size[order] <= devices]
    if devices == 1:
        ends[order] = now + np.cumsum(work[order])
        return ends
    free = [now] * devices
    unknown = False  # whether a job of unknown work is among those that hold a device for good
    for row, n, seconds in zip(order.tolist(), size[order].tolist(), work[order].tolist(), strict=True):
        start = free[n - 1]
        end = nan if isinf(start) and unknown else start + seconds
        unknown |= isnan(end)
        ends[row] = end
        del free[:n]
        for _ in range(n):
            insort(free, inf if isnan(end) else end)
    return ends


def one_by_one(jobs: JobView, order: IntArray, now: float) -> Plan:
    """Whole devices for the first job of ``order``, then for the next: shape of ``order`` ``(n,)``."""
    n = len(jobs)
    numbers = np.zeros((n, 2))
    numbers[order, 0] = np.arange(n)
    return Plan(
        order=order,
        share=np.ones(n),
        finish=completion_times(jobs.work, jobs.size, order, jobs.devices, now),
        codes=np.full(n, index("first_in_line")),
        waiting=np.full(n, index("behind")),
        numbers=numbers,
    )


def side_by_side(jobs: JobView, rows: IntArray, now: float, code: str) -> Plan:
    """The pool shared among the jobs of ``rows``, as equally as whole processes on whole devices can be.

    Each device is shared by as many jobs as any other, or by one more: of five jobs on two devices two have a half and
    three a third. The smaller parts are dealt first; a job that cannot leave its device then takes what is left there.
    A job of several devices cannot have a part of them: with one among ``rows`` they go one after the other.

    Args:
        jobs: all of them.
        rows: who takes part, at least one, shape ``(m,)``; the others come last, with a duty of 0.
        now: scheduler time.
        code: why they hold what they hold.
    """
    n, parts = len(jobs), len(rows)
    share, finish = np.zeros(n), np.full(n, np.nan)
    if np.any(jobs.size[rows] > 1):
        share[rows] = 1.0
        finish = completion_times(jobs.work, jobs.size, rows, jobs.devices, now)
    else:
        fewest, crowded = divmod(parts, jobs.devices) if parts > jobs.devices else (1, 0)
        in_crowd = crowded * (fewest + 1)
        share[rows] = 1.0 / np.where(np.arange(parts) < in_crowd, fewest + 1, fewest)
        finish[rows] = now + jobs.work[rows] / share[rows]
    numbers = np.zeros((n, 2))
    numbers[:, 0] = parts
    others = np.ones(n, np.bool_)
    others[rows] = False
    return Plan(
        order=np.concatenate([rows, np.flatnonzero(others)]),
        share=share,
        finish=finish,
        codes=np.full(n, index(code)),
        waiting=np.full(n, index("no_room")),
        numbers=numbers,
    )
