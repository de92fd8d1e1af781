"""A batch of jobs as arrays, one row a job: policies decide for all of them at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lightning_core.core.arrays import BoolArray, FloatArray
from lightning_core.parts.market.spot_job import EXACT, Overhead, SpotJob, value_at
from lightning_core.parts.market.spot_market import Market


class JobBatch:
    """Jobs side by side, each with the intervals of the market that it lives in.

    Args:
        jobs: The jobs.
        markets: Market of each, or one for all of them.
        starts: Interval of its market in which each begins; its deadline must lie within that market.

    Raises:
        ValueError: If a job does not fit into its market, or the lengths or the kinds of overhead differ.

    Attributes:
        overhead: Kind of change that costs each of them a part of an interval.
        jobs: The jobs, with their work and throughput in ``units``.
        units: Work of one node in an interval where a job has its fewest nodes, shape ``(B,)``. All work that
            policies see is in these units, so that nothing depends on the units of the jobs.
        work, value, grace, launch, overlap, shrink_time, preemption_cost, on_demand: Shape ``(B,)``.
        by_second: Whether nodes are billed by the second, shape ``(B,)``; else by the interval.
        minimum_charge: Intervals for which a node is billed at least, shape ``(B,)``; 0 where not by the second.
        reserve: Work that is only planned for (:meth:`with_reserve`), shape ``(B,)``.
        deadline, due, min_nodes, max_nodes: Shape ``(B,)``, whole.
        throughput: Shape ``(B, N + 1)``, with N the largest ``max_nodes``; constant beyond a job's own.
        price: Shape ``(B, D)``, with D the latest deadline; constant after a job's own.
        available: Shape ``(B, D)``, whole.
    """

    def __init__(self, jobs: Sequence[SpotJob], markets: Market | Sequence[Market], starts: Sequence[int]) -> None:
        several = [markets] * len(jobs) if isinstance(markets, Market) else list(markets)
        if not len(jobs) == len(several) == len(starts) or not jobs:
            raise ValueError(f"each job needs a market and a start, got {len(jobs)}, {len(several)} and {len(starts)}")
        for job, market, start in zip(jobs, several, starts, strict=True):
            if not 0 <= start <= len(market) - job.deadline:
                raise ValueError(
                    f"a job of {job.deadline} intervals must begin at 0 to {len(market) - job.deadline} of "
                    f"{market.name}, got {start}"
                )
        if len({job.overhead for job in jobs}) > 1:
            raise ValueError("jobs side by side must have the same overhead, got both launches and total")
        self.overhead: Overhead = jobs[0].overhead
        self.units = np.array([job.throughput[job.min_nodes] / job.min_nodes for job in jobs])
        jobs = [_in_units(job, unit) for job, unit in zip(jobs, self.units.tolist(), strict=True)]
        self.jobs, self.markets, self.starts = tuple(jobs), tuple(several), np.array(starts, np.int64)
        self.work, self.value, self.grace, self.launch, self.overlap, self.shrink_time, self.preemption_cost = (
            np.array([getattr(job, name) for job in jobs], float)
            for name in ("work", "value", "grace", "launch", "overlap", "shrink_time", "preemption_cost")
        )
        self.by_second = np.array([job.minimum_charge is not None for job in jobs])
        self.minimum_charge = np.array([job.minimum_charge or 0.0 for job in jobs])
        self.deadline, self.due, self.min_nodes, self.max_nodes = (
            np.array([getattr(job, name) for job in jobs], np.int64)
            for name in ("deadline", "due", "min_nodes", "max_nodes")
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
        """Return some of the jobs, in any order and possibly repeated."""
        other = object.__new__(JobBatch)
        for name, column in vars(self).items():
            picked = column
            if isinstance(column, tuple | np.ndarray):
                picked = tuple(column[row] for row in rows) if isinstance(column, tuple) else column[list(rows)]
            setattr(other, name, picked)
        return other

    def with_reserve(self) -> JobBatch:
        """Return the jobs as policies plan for them: with the work that one preemption without notice costs added."""
        if not self.preemption_cost.any():
            return self
        other = self.only(range(len(self)))
        other.reserve = self.preemption_cost * self.fastest
        other.work = self.work + other.reserve
        other.jobs = tuple(replace(job, work=work) for job, work in zip(self.jobs, other.work.tolist(), strict=True))
        return other

    def charge(self, interval: int) -> FloatArray:
        """Return the value that each job loses in an interval at whose beginning it is not done, shape ``(B,)``."""
        terms = self.due, self.value, self.grace
        return value_at(interval, *terms) - value_at(interval + 1, *terms)

    @property
    def intervals(self) -> int:
        """The latest deadline."""
        return int(self.price.shape[1])

    @property
    def fastest(self) -> FloatArray:
        """Work that each job does in an interval on all nodes that it can use, shape ``(B,)``."""
        fastest: FloatArray = self.throughput[:, -1]
        return fastest

    @property
    def feasible(self) -> BoolArray:
        """Return whether on-demand nodes alone complete each job in time, shape ``(B,)``."""
        feasible: BoolArray = self.work <= (self.deadline - self.launch) * self.fastest + EXACT
        return feasible


def _in_units(job: SpotJob, unit: float) -> SpotJob:
    return (
        job if unit == 1 else replace(job, work=job.work / unit, throughput=tuple(one / unit for one in job.throughput))
    )
