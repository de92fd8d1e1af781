"""A market of instances, jobs that must end in it, and the ledger of what they held.

Time goes in intervals. In each, so many spot instances are to be had at a price; on-demand instances always are, at theirs.
A job holds ``n`` instances in an interval and does ``mu * H(n)`` of its work: ``H`` is its speed, ``mu`` what a change of
``n`` leaves of the interval. What is not done by the deadline is done behind it, on as many on-demand instances as the job
can use, and its value falls with each such interval (Kong et al., "Deadline-Aware Online Scheduling for LLM Fine-Tuning
with Spot Market Predictions", eqs. 1 to 9).

1. Within an interval nothing changes: no instance is lost in the middle of one. Whoever loads a trace takes the least count
   of each interval, so what is counted could be kept.
2. An interval is paid for whole.
3. Spot and on-demand instances are the same to a job; which of them it holds matters to what it pays, and, where
   overhead is counted by launches, to what an interval leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lightning_core.core.arrays import BoolArray, FloatArray, IntArray
from lightning_core.market.spot_job import EXACT, SpotJob, intervals_after, value_at
from lightning_core.market.spot_market import Market


class JobBatch:
    """Jobs with the intervals that each of them lives in, as arrays; one row a job.

    Args:
        jobs: the jobs.
        markets: where each trains, or one for all of them.
        starts: the interval of its market in which each begins; its deadline must lie within that market.

    Raises:
        ValueError: if a job does not fit into its market, or if their number differs.

    Attributes:
        jobs: with their work and speed in ``units``.
        units: what an instance does in an interval, where a job has as few as it may, shape ``(B,)``. All work that the
            policies see is in these units, so nothing depends on the units of the jobs.
        work, value, grace, up, down, loss, on_demand: shape ``(B,)``.
        reserve: work that is only planned for (:meth:`with_reserve`), shape ``(B,)``.
        deadline, least, most: shape ``(B,)``, whole.
        throughput: shape ``(B, N + 1)``, N the most of any; behind a job's own most it goes on with that.
        price: shape ``(B, D)``, D the latest deadline; behind a job's own deadline it goes on with the last.
        available: shape ``(B, D)``, whole.
        before: how many there were in the interval before each, shape ``(B,)``; 0 where there is none.
    """

    def __init__(self, jobs: Sequence[SpotJob], markets: Market | Sequence[Market], starts: Sequence[int]) -> None:
        several = [markets] * len(jobs) if isinstance(markets, Market) else list(markets)
        if not len(jobs) == len(several) == len(starts) or not jobs:
            raise ValueError(f"each job needs a market and a start, got {len(jobs)}, {len(several)} and {len(starts)}")
        for job, market, start in zip(jobs, several, starts, strict=True):
            if not 0 <= start <= len(market) - job.deadline:
                raise ValueError(
                    f"a job of {job.deadline} intervals must begin at 0 to {len(market) - job.deadline} of {market.name}, "
                    f"got {start}"
                )
        self.units = np.array([job.throughput[job.min_nodes] / job.min_nodes for job in jobs])
        jobs = [_in_units(job, unit) for job, unit in zip(jobs, self.units.tolist(), strict=True)]
        self.jobs, self.markets, self.starts = tuple(jobs), tuple(several), np.array(starts, np.int64)
        self.work, self.value, self.grace, self.growth_fraction, self.shrink_fraction, self.preemption_cost = (
            np.array([getattr(job, name) for job in jobs], float)
            for name in ("work", "value", "grace", "growth_fraction", "shrink_fraction", "preemption_cost")
        )
        self.deadline, self.min_nodes, self.max_nodes = (
            np.array([getattr(job, name) for job in jobs], np.int64) for name in ("deadline", "min_nodes", "max_nodes")
        )
        self.reserve = np.zeros(len(jobs))
        self.on_demand = np.array([market.on_demand for market in several])
        top, intervals = int(self.max_nodes.max()), int(self.deadline.max())
        self.throughput = np.array([[*job.throughput, *[job.throughput[-1]] * (top - job.max_nodes)] for job in jobs])
        at = np.minimum(self.starts[:, None] + np.arange(intervals), (self.starts + self.deadline - 1)[:, None])
        self.price = np.array([market.price[row] for market, row in zip(several, at, strict=True)])
        self.available = np.array([market.available[row] for market, row in zip(several, at, strict=True)])

    def __len__(self) -> int:
        return len(self.work)

    def only(self, rows: Sequence[int]) -> JobBatch:
        """Some of the jobs, in any order, maybe more than once."""
        other = object.__new__(JobBatch)
        for name, column in vars(self).items():
            picked = tuple(column[row] for row in rows) if isinstance(column, tuple) else column[list(rows)]
            setattr(other, name, picked)
        return other

    def with_reserve(self) -> JobBatch:
        """The jobs as policies plan for them: with as much work more as a loss without notice costs each."""
        if not self.preemption_cost.any():
            return self
        other = self.only(range(len(self)))
        other.reserve = self.preemption_cost * self.fastest
        other.work = self.work + other.reserve
        other.jobs = tuple(replace(job, work=work) for job, work in zip(self.jobs, other.work.tolist(), strict=True))
        return other

    @property
    def intervals(self) -> int:
        """The latest deadline."""
        return int(self.price.shape[1])

    @property
    def fastest(self) -> FloatArray:
        """Work that each does in an interval on all that it can use, shape ``(B,)``."""
        fastest: FloatArray = self.throughput[:, -1]
        return fastest

    @property
    def feasible(self) -> BoolArray:
        """Whether on-demand instances alone end each in time, shape ``(B,)``."""
        feasible: BoolArray = self.work <= (self.growth_fraction + self.deadline - 1) * self.fastest + EXACT
        return feasible

    def fraction_left(self, held: IntArray, total: IntArray) -> FloatArray:
        """What a change from so many instances to so many leaves of an interval (eq. 2); of any shape ``(B, ...)``."""
        growth_fraction, shrink_fraction = (_spread(one, held) for one in (self.growth_fraction, self.shrink_fraction))
        return np.where(total > held, growth_fraction, np.where(total < held, shrink_fraction, 1.0))

    def worth_of_rest(self, left: FloatArray, held: IntArray) -> FloatArray:
        """What the end is worth less what the rest costs behind the deadline (V~), shape of ``left``, ``(B, ...)``."""
        max_nodes, fastest, growth_fraction, deadline, value, grace, price = (
            _spread(one, left)
            for one in (
                self.max_nodes,
                self.fastest,
                self.growth_fraction,
                self.deadline,
                self.value,
                self.grace,
                self.on_demand,
            )
        )
        late = intervals_after(left, held == max_nodes, fastest, growth_fraction)
        return value_at(deadline + late, deadline, value, grace) - late * max_nodes * price


def _in_units(job: SpotJob, unit: float) -> SpotJob:
    return (
        job if unit == 1 else replace(job, work=job.work / unit, throughput=tuple(one / unit for one in job.throughput))
    )


def _spread(column: FloatArray | IntArray, like: FloatArray | IntArray) -> FloatArray | IntArray:
    """A column of shape ``(B,)`` so that it goes with an array of shape ``(B, ...)``."""
    return column.reshape(column.shape + (1,) * (like.ndim - 1))
