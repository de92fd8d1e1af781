"""Building blocks of policies: jobs one after another, jobs side by side, and their completion times."""

from __future__ import annotations

from bisect import insort
from math import inf, isinf, isnan, nan

import numpy as np

from lightning_core.core.arrays import FloatArray, IntArray
from lightning_core.core.plans import JobView, Plan
from lightning_core.core.reasons import index


def completion_times(work: FloatArray, size: IntArray, order: IntArray, devices: int, now: float) -> FloatArray:
    """Return when each job ends if the jobs take the devices in order (list scheduling), shape ``(n,)``.

    A job of several devices starts when that many are free at once. The gap before it stays empty, so the times behind
    it are pessimistic. A job larger than the pool never ends. Behind a job that never ends on any device the time is
    inf, behind one of unknown work NaN.

    Args:
        work: Seconds alone on its devices, shape ``(n,)``.
        size: Devices of each job, shape ``(n,)``.
        order: Rows that take part, shape ``(m,)``; the others get NaN.
        devices: Devices of the pool.
        now: Scheduler time.

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
    free, unknown, found = [now] * devices, False, list[float]()  # unknown: a job of unknown work has a device for good
    for n, seconds in zip(size[order].tolist(), work[order].tolist(), strict=True):
        end = until = free[n - 1] + seconds
        if not end < inf:
            unknown |= isnan(end)
            end, until = nan if unknown and isinf(free[n - 1]) else end, inf
        found.append(end)
        del free[:n]
        for _ in range(n):
            insort(free, until)
    ends[order] = found
    return ends


def one_by_one(jobs: JobView, order: IntArray, now: float) -> Plan:
    """Return a plan with whole devices for the first job of ``order``, then the next; ``order`` has shape ``(n,)``."""
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
    """Return a plan that shares the pool among the jobs of ``rows``, as equally as processes on whole devices can be.

    The numbers of jobs on any two devices differ by one at most: of five jobs on two devices, two get a half and three
    a third. Smaller shares are allocated first; a job that cannot leave its device then takes what is left there. A job
    of several devices cannot have a share of them: with one among ``rows`` the jobs run one after another.

    Args:
        jobs: All jobs.
        rows: Rows that take part, at least one, shape ``(m,)``; the others come last with a share of 0.
        now: Scheduler time.
        code: Reason of the grants.
    """
    n, count = len(jobs), len(rows)
    share, finish = np.zeros(n), np.full(n, np.nan)
    if np.any(jobs.size[rows] > 1):
        share[rows] = 1.0
        finish = completion_times(jobs.work, jobs.size, rows, jobs.devices, now)
    else:
        fewest, crowded = divmod(count, jobs.devices) if count > jobs.devices else (1, 0)
        in_crowd = crowded * (fewest + 1)
        share[rows] = 1.0 / np.where(np.arange(count) < in_crowd, fewest + 1, fewest)
        finish[rows] = now + jobs.work[rows] / share[rows]
    numbers = np.zeros((n, 2))
    numbers[:, 0] = count
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
