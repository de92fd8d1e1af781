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

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

import numpy as np

from lightning_core.core.arrays import BoolArray, FloatArray, IntArray

# What counts as equal, in money and in work, of which one instance does about 1 in an interval (:class:`JobBatch`).
EXACT = 1e-9

Overhead = Literal["total", "launches"]
Numbers = FloatArray | IntArray | float


@dataclass(frozen=True, eq=False, slots=True)
class Market:
    """Spot instances interval by interval.

    Args:
        price: of a spot instance for an interval, shape ``(T,)``, not negative.
        available: how many can be had, shape ``(T,)``, whole.
        on_demand: price of an on-demand instance for an interval.
        seconds: of an interval.
        name: for people.

    Raises:
        ValueError: if one is out of its range.

    Example::

        >>> market = Market([0.4, 0.5, 0.4], [8, 0, 3])
        >>> len(market), float(market.price.mean().round(3))
        (3, 0.433)
    """

    price: FloatArray
    available: IntArray
    on_demand: float = 1.0
    seconds: float = 1800.0
    name: str = "market"

    def __post_init__(self) -> None:
        price, available = np.asarray(self.price, float), np.asarray(self.available)
        if price.ndim != 1 or price.shape != available.shape or not len(price):
            raise ValueError(
                f"price and available must be of the same intervals, got {price.shape} and {available.shape}"
            )
        if not (np.isfinite(price).all() and (price >= 0).all()):
            raise ValueError(f"price must be at least 0 and finite, got {price.min()} to {price.max()}")
        whole = available.astype(np.int64)
        if (whole != available).any() or (whole < 0).any():
            raise ValueError(f"available must be whole and at least 0, got {available.min()} to {available.max()}")
        for rule, value in (("on_demand", self.on_demand), ("seconds", self.seconds)):
            if not 0 < value < math.inf:
                raise ValueError(f"{rule} must be positive and finite, got {value}")
        object.__setattr__(self, "price", price)
        object.__setattr__(self, "available", whole)

    def __len__(self) -> int:
        return len(self.price)


@dataclass(frozen=True, slots=True)
class SpotJob:
    """Work that must end by a deadline, on instances.

    Args:
        work: to do, in any unit, positive.
        deadline: intervals from its start, at least 1.
        min_nodes: instances that it needs to train at all.
        max_nodes: instances that it can use.
        throughput: work that 0, 1, .. ``max_nodes`` instances do in an interval; none: as much as there are instances.
        growth_fraction: part of an interval that is left if the number of instances grows, above 0 to 1.
        shrink_fraction: part of an interval that is left if it shrinks.
        value: of its end by the deadline, in the unit of the prices.
        grace: after so many times its deadline, above 1, its end is worth nothing.
        preemption_cost: intervals at full speed that it costs if spot instances go without notice: what has to be done again, and to
            start again. Policies plan for one, and the safety net lets it hold spot instances only where there is time
            for one, or where it is later than by one. None by itself.

    Raises:
        ValueError: if one is out of its range.

    Example::

        >>> job = SpotJob(work=80.0, deadline=10, max_nodes=12, value=120.0)
        >>> job.feasible, job.intervals_after(80.0, 0), job.worth_of_rest(80.0, 0)
        (True, 7, -84.0)
    """

    work: float
    deadline: int
    min_nodes: int = 1
    max_nodes: int = 12
    throughput: tuple[float, ...] = ()
    growth_fraction: float = 0.9
    shrink_fraction: float = 0.9
    value: float = 120.0
    grace: float = 1.5
    preemption_cost: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.work < math.inf:
            raise ValueError(f"work must be positive and finite, got {self.work}")
        if self.deadline < 1:
            raise ValueError(f"deadline must be at least 1 interval, got {self.deadline}")
        if not 1 <= self.min_nodes <= self.max_nodes:
            raise ValueError(
                f"min_nodes must be at least 1 and at most {self.max_nodes} instances, got {self.min_nodes}"
            )
        if not self.throughput:
            object.__setattr__(self, "throughput", tuple(map(float, range(self.max_nodes + 1))))
        if len(self.throughput) != self.max_nodes + 1:
            raise ValueError(
                f"throughput must be of 0 to {self.max_nodes} instances, got {len(self.throughput)} numbers"
            )
        if not all(map(math.isfinite, self.throughput)):
            raise ValueError(f"throughput must be finite, got {self.throughput}")
        if self.throughput[0] != 0 or any(b < a for a, b in zip(self.throughput, self.throughput[1:], strict=False)):
            raise ValueError(f"throughput must be 0 without instances, and not fall with more, got {self.throughput}")
        if not self.throughput[self.min_nodes] > 0:
            raise ValueError(f"throughput must be positive on {self.min_nodes} instances, got {self.throughput}")
        if not 0 < self.growth_fraction <= self.shrink_fraction <= 1:
            raise ValueError(
                f"growth_fraction and shrink_fraction must satisfy 0 < growth_fraction <= shrink_fraction <= 1, got {self.growth_fraction} and {self.shrink_fraction}"
            )
        if not 0 <= self.value < math.inf:
            raise ValueError(f"value must be at least 0 and finite, got {self.value}")
        if not 1 < self.grace < math.inf:
            raise ValueError(f"grace must be above 1 and finite, got {self.grace}")
        if not 0 <= self.preemption_cost < math.inf:
            raise ValueError(f"preemption_cost must be at least 0 intervals and finite, got {self.preemption_cost}")

    @property
    def feasible(self) -> bool:
        """Whether all on-demand instances that it can use end it by its deadline."""
        return self.work <= (self.growth_fraction + self.deadline - 1) * self.throughput[-1] * (1 + EXACT)

    def intervals_after(self, left: float, held: int) -> int:
        """Intervals behind the deadline until so much work is done, on all that it can use; it held so many before."""
        return int(intervals_after(left, held == self.max_nodes, self.throughput[-1], self.growth_fraction))

    def worth_of_rest(self, left: float, held: int, on_demand: float = 1.0) -> float:
        """What its end is worth less what that costs, if so much work is left at the deadline (V~ of eq. 9)."""
        late = self.intervals_after(left, held)
        return self.value_at(self.deadline + late) - late * self.max_nodes * on_demand

    def value_at(self, interval: int) -> float:
        """What its end at an interval is worth (eq. 4)."""
        return float(value_at(interval, self.deadline, self.value, self.grace))


def intervals_after(left: Numbers, at_most: BoolArray | bool, fastest: Numbers, growth_fraction: Numbers) -> IntArray:
    """Intervals that the rest takes on all instances that a job can use; ``at_most``: it holds those already."""
    first = fastest * np.where(at_most, 1.0, growth_fraction)
    more = np.ceil((left - first) / fastest - EXACT)
    return np.where(left <= EXACT, 0, 1 + np.maximum(more, 0)).astype(np.int64)


def value_at(interval: Numbers, deadline: Numbers, value: Numbers, grace: Numbers) -> FloatArray:
    """Worth of an end at an interval (eq. 4): all of it by the deadline, then less and less, and nothing in the end."""
    part = 1.0 - (interval - deadline) / ((grace - 1.0) * deadline)
    worth: FloatArray = value * np.clip(part, 0.0, 1.0)
    return worth


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


@dataclass(frozen=True, eq=False, slots=True)
class Ledger:
    """What a batch of jobs held, did and paid.

    Attributes:
        spot, on_demand: instances held, shape ``(B, D)``.
        part: of each interval that was left to train in, shape ``(B, D)``.
        progress: work done by the end of each interval, shape ``(B, D)``, at most all of it.
        paid: for each interval up to the deadline, shape ``(B, D)``.
        late: intervals behind the deadline until the rest was done, shape ``(B,)``.
        cost: all that was paid, also behind the deadline, shape ``(B,)``.
        utility: value of the end less the cost, shape ``(B,)`` (eq. 9).
    """

    spot: IntArray
    on_demand: IntArray
    part: FloatArray
    progress: FloatArray
    paid: FloatArray
    late: IntArray
    cost: FloatArray
    utility: FloatArray

    def of(self, rows: slice) -> Ledger:
        """That of some of the jobs."""
        return Ledger(*(getattr(self, field.name)[rows] for field in fields(self)))

    @property
    def on_time(self) -> BoolArray:
        """Whether each ended by its deadline, shape ``(B,)``."""
        on_time: BoolArray = self.late == 0
        return on_time
