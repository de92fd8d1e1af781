"""LARA: explore each job a little, then give the device to the most jobs that can make it.

Liu et al., "Learning with Adaptive Resource Allocation", ICML 2024, Algorithms 1 and 2.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from lightning_core.policies.classic import equal_shares
from lightning_core.policies.moore_hodgson import largest_feasible_set
from lightning_core.reasons import index
from lightning_core.types import BoolArray, FloatArray, JobView, Plan

Order = Literal["share", "edf"]
# Batches for each cell of the exploration threshold after which a job is explored, whatever it has shown.
PATIENCE = 100


class Lara:
    """Learning with Adaptive Resource Allocation.

    Args:
        order: how the kept jobs take the device. ``"share"``, as printed (eq. 3.8, Algorithm 2, lines 11 and 12): by
            stick-breaking all at once, so that each would end exactly at its deadline, rescaled to fill the device.
            ``"edf"``: one after the other by deadline, so that each ends as early as it can and all slack is kept.
        explore: loss cells that a job must have shown before it is judged (the exploration threshold H).

    Raises:
        ValueError: if an argument is out of its range.
    """

    def __init__(self, order: Order = "share", explore: int = 10) -> None:
        if order not in get_args(Order):
            raise ValueError(f"order must be one of {', '.join(get_args(Order))}, got {order!r}")
        if explore < 0:
            raise ValueError(f"explore must be at least 0 cells, got {explore}")
        self.order = order
        self.explore = explore

    def plan(self, jobs: JobView, now: float) -> Plan:
        # A job without a measured speed or a forecast cannot be judged, whatever the threshold. But one that has had
        # its batches and shown no usable loss must not keep all others waiting: it is judged as it is.
        unseen = np.isnan(jobs.work) | (~jobs.exact & (jobs.cells < self.explore))
        unexplored = unseen & (jobs.batches <= PATIENCE * max(self.explore, 1))
        if unexplored.any():
            return self._explore(jobs, unexplored, now)
        kept = largest_feasible_set(jobs.work, jobs.deadline, now)
        if not kept.any():
            return equal_shares(jobs, np.ones(len(jobs)), now, "nothing_fits")
        return self._exploit(jobs, kept, now)

    def _explore(self, jobs: JobView, unexplored: BoolArray, now: float) -> Plan:
        plan = equal_shares(jobs, unexplored.astype(np.float64), now, "explore")
        plan.codes[~unexplored] = index("explored")
        plan.numbers[:, 0] = jobs.cells
        plan.numbers[:, 1] = self.explore
        return plan

    def _exploit(self, jobs: JobView, kept: BoolArray, now: float) -> Plan:
        n = len(jobs)
        rows = np.flatnonzero(kept)
        rows = rows[np.lexsort((rows, jobs.work[rows], jobs.deadline[rows]))]
        work = jobs.work[rows]
        ends = np.cumsum(work)
        slack = jobs.deadline - now
        duty = np.zeros(n)
        duty[rows] = stick_breaking(work, slack[rows]) if self.order == "share" else np.eye(1, len(rows))[0]
        finish = np.full(n, np.nan)
        # By `share` a job ends at its deadline, or sooner where the shares were scaled up to fill the device.
        alone = now + (ends if self.order == "edf" else work / np.maximum(duty[rows], 1e-9))
        finish[rows] = np.minimum(alone, jobs.deadline[rows])
        codes = np.where(np.isfinite(jobs.work), index("dropped"), index("not_falling"))
        codes[rows] = np.where(duty[rows] > 0, index("chosen"), index("chosen_later"))
        numbers = np.stack([np.where(np.isfinite(jobs.work), jobs.work, 0.0), slack], axis=1)
        return Plan(duty, finish, codes, numbers)


def stick_breaking(work: FloatArray, slack: FloatArray) -> FloatArray:
    """Shares under which each of the kept jobs ends at its deadline, rescaled to fill the device (eqs. 3.8, 3.10).

    Args:
        work: seconds alone on the device, by deadline, shape ``(m,)``.
        slack: seconds to the deadline, shape ``(m,)``.

    Example::

        >>> stick_breaking(np.array([2.0, 3.0]), np.array([4.0, 8.0]))
        array([0.66666667, 0.33333333])
    """
    before = np.cumsum(work) - work
    part = np.minimum(1.0, work / np.maximum(slack - before, 1e-9))
    shares: FloatArray = part * np.concatenate([[1.0], np.cumprod(1.0 - part[:-1])])
    shares /= shares.sum()
    return shares
