"""The classic policies, which need no forecast; two of them are baselines of LARA and LaiRA.

Wang, Yu, Zhao and Zhou, "Learning with Adaptive Resource Allocation", ICML 2024, section 4.1: Uniform Allocation and
Shortest Thread First, which is earliest deadline first. Of first come, first served both papers say in their
introductions that it is what people do, and neither compares with it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lightning_core.core.arrays import BoolArray, IntArray, kept
from lightning_core.core.plans import JobView, Plan
from lightning_core.core.reasons import index
from lightning_core.core.saved_state import Stateful
from lightning_core.planning.sequencing import one_by_one, side_by_side
from lightning_core.policies.round_robin import RoundRobin


class Fifo(Stateful):
    """First come, first served: each job keeps its devices until it ends."""

    keeps_devices = True

    def queue(self, jobs: JobView) -> IntArray:
        return np.arange(len(jobs))

    def plan(self, jobs: JobView, now: float) -> Plan:
        return one_by_one(jobs, self.queue(jobs), now)


class Edf(Stateful):
    """Earliest deadline first, whatever the forecasts say (LARA's Shortest Thread First); ties by submission."""

    keeps_devices = False

    def queue(self, jobs: JobView) -> IntArray:
        return np.argsort(jobs.deadline, kind="stable")

    def plan(self, jobs: JobView, now: float) -> Plan:
        return one_by_one(jobs, self.queue(jobs), now)


class Uniform(Stateful):
    """Equal shares for all (LARA's Uniform Allocation).

    A job of several devices cannot have a share of them; while there is one, round robin gives equal shares over time.
    """

    STATE = ("_in_time",)

    def __init__(self) -> None:
        self._in_time = RoundRobin()

    def keep(self, stays: BoolArray) -> None:
        self._in_time.keep(stays)

    def plan(self, jobs: JobView, now: float) -> Plan:
        if np.any(jobs.size > 1):
            return self._in_time.plan(jobs, now)
        return side_by_side(jobs, np.arange(len(jobs)), now, "equal_share")


class Fixed(Stateful):
    """Fixed shares, whatever happens; what a job leaves when it ends stays unused.

    Args:
        shares: Share of its device that each job gets, in the order of submission, above 0 and at most 1. If they
            exceed the devices, the last jobs get less. A job of several devices has them whole.

    Raises:
        ValueError: If a share is out of its range.
    """

    STATE = ("shares",)

    def __init__(self, shares: Sequence[float]) -> None:
        if not all(0 < share <= 1 for share in shares):
            raise ValueError(f"shares must be above 0 and at most 1, got {list(shares)}")
        self.shares = list(shares)

    def keep(self, stays: BoolArray) -> None:
        shares = np.array(self.shares, np.float64)
        self.shares = [*kept(shares, stays).tolist(), *self.shares[len(stays) :]]

    def plan(self, jobs: JobView, now: float) -> Plan:
        n = len(jobs)
        shares = np.array(self.shares, np.float64)
        has = jobs.row < len(shares)
        share = np.zeros(n)
        share[has] = np.where(jobs.size[has] > 1, 1.0, shares[jobs.row[has]])
        return Plan(
            order=np.arange(n),
            share=share,
            finish=now + jobs.work / np.where(has, share, np.nan),
            codes=np.full(n, index("fixed_share")),
            waiting=np.where(has, index("no_room"), index("no_share")),
            numbers=np.zeros((n, 2)),
            work_conserving=False,
        )
