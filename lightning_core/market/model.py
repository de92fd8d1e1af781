"""A market of instances, jobs that must end in it, and the ledger of what they held.

Time goes in slots. In each, so many spot instances are to be had at a price; on-demand instances always are, at theirs.
A job holds ``n`` instances in a slot and does ``mu * H(n)`` of its work: ``H`` is its speed, ``mu`` what a change of
``n`` leaves of the slot. What is not done by the deadline is done behind it, on as many on-demand instances as the job
can use, and its value falls with each such slot (Kong et al., "Deadline-Aware Online Scheduling for LLM Fine-Tuning
with Spot Market Predictions", eqs. 1 to 9).

1. Within a slot nothing changes: no instance is lost in the middle of one. Whoever loads a trace takes the least count
   of each slot, so what is counted could be kept.
2. A slot is paid for whole.
3. Spot and on-demand instances are the same to a job; which of them it holds matters to what it pays, and, where
   overhead is counted by launches, to what a slot leaves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

import numpy as np

from lightning_core.core.arrays import BoolArray, FloatArray, IntArray

# What counts as equal, in money and in work, of which one instance does about 1 in a slot (:class:`JobBatch`).
EXACT = 1e-9

Overhead = Literal["total", "launches"]
Numbers = FloatArray | IntArray | float


@dataclass(frozen=True, eq=False, slots=True)
class Market:
    """Spot instances slot by slot.

    Args:
        price: of a spot instance for a slot, shape ``(T,)``, not negative.
        available: how many can be had, shape ``(T,)``, whole.
        on_demand: price of an on-demand instance for a slot.
        seconds: of a slot.
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
            raise ValueError(f"price and available must be of the same slots, got {price.shape} and {available.shape}")
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
        deadline: slots from its start, at least 1.
        least: instances that it needs to train at all.
        most: instances that it can use.
        speed: work that 0, 1, .. ``most`` instances do in a slot; none: as much as there are instances.
        up: part of a slot that is left if the number of instances grows, above 0 to 1.
        down: part of a slot that is left if it shrinks.
        value: of its end by the deadline, in the unit of the prices.
        grace: after so many times its deadline, above 1, its end is worth nothing.
        loss: slots at full speed that it costs if spot instances go without notice: what has to be done again, and to
            start again. Policies plan for one, and the safety net lets it hold spot instances only where there is time
            for one, or where it is later than by one. None by itself.

    Raises:
        ValueError: if one is out of its range.

    Example::

        >>> job = SpotJob(work=80.0, deadline=10, most=12, value=120.0)
        >>> job.feasible, job.slots_after(80.0, 0), job.worth_of_rest(80.0, 0)
        (True, 7, -84.0)
    """

    work: float
    deadline: int
    least: int = 1
    most: int = 12
    speed: tuple[float, ...] = ()
    up: float = 0.9
    down: float = 0.9
    value: float = 120.0
    grace: float = 1.5
    loss: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.work < math.inf:
            raise ValueError(f"work must be positive and finite, got {self.work}")
        if self.deadline < 1:
            raise ValueError(f"deadline must be at least 1 slot, got {self.deadline}")
        if not 1 <= self.least <= self.most:
            raise ValueError(f"least must be at least 1 and at most {self.most} instances, got {self.least}")
        if not self.speed:
            object.__setattr__(self, "speed", tuple(map(float, range(self.most + 1))))
        if len(self.speed) != self.most + 1:
            raise ValueError(f"speed must be of 0 to {self.most} instances, got {len(self.speed)} numbers")
        if not all(map(math.isfinite, self.speed)):
            raise ValueError(f"speed must be finite, got {self.speed}")
        if self.speed[0] != 0 or any(b < a for a, b in zip(self.speed, self.speed[1:], strict=False)):
            raise ValueError(f"speed must be 0 without instances, and not fall with more, got {self.speed}")
        if not self.speed[self.least] > 0:
            raise ValueError(f"speed must be positive on {self.least} instances, got {self.speed}")
        if not 0 < self.up <= self.down <= 1:
            raise ValueError(f"up must be above 0 and at most down, and that at most 1, got {self.up} and {self.down}")
        if not 0 <= self.value < math.inf:
            raise ValueError(f"value must be at least 0 and finite, got {self.value}")
        if not 1 < self.grace < math.inf:
            raise ValueError(f"grace must be above 1 and finite, got {self.grace}")
        if not 0 <= self.loss < math.inf:
            raise ValueError(f"loss must be at least 0 slots and finite, got {self.loss}")

    @property
    def feasible(self) -> bool:
        """Whether all on-demand instances that it can use end it by its deadline."""
        return self.work <= (self.up + self.deadline - 1) * self.speed[-1] * (1 + EXACT)

    def slots_after(self, left: float, held: int) -> int:
        """Slots behind the deadline until so much work is done, on all that it can use; it held so many before."""
        return int(slots_after(left, held == self.most, self.speed[-1], self.up))

    def worth_of_rest(self, left: float, held: int, on_demand: float = 1.0) -> float:
        """What its end is worth less what that costs, if so much work is left at the deadline (V~ of eq. 9)."""
        late = self.slots_after(left, held)
        return self.value_at(self.deadline + late) - late * self.most * on_demand

    def value_at(self, slot: int) -> float:
        """What its end at a slot is worth (eq. 4)."""
        return float(value_at(slot, self.deadline, self.value, self.grace))


def slots_after(left: Numbers, at_most: BoolArray | bool, fastest: Numbers, up: Numbers) -> IntArray:
    """Slots that the rest takes on all instances that a job can use; ``at_most``: it holds those already."""
    first = fastest * np.where(at_most, 1.0, up)
    more = np.ceil((left - first) / fastest - EXACT)
    return np.where(left <= EXACT, 0, 1 + np.maximum(more, 0)).astype(np.int64)


def value_at(slot: Numbers, deadline: Numbers, value: Numbers, grace: Numbers) -> FloatArray:
    """Worth of an end at a slot (eq. 4): all of it by the deadline, then less and less, and nothing in the end."""
    part = 1.0 - (slot - deadline) / ((grace - 1.0) * deadline)
    worth: FloatArray = value * np.clip(part, 0.0, 1.0)
    return worth


class JobBatch:
    """Jobs with the slots that each of them lives in, as arrays; one row a job.

    Args:
        jobs: the jobs.
        markets: where each trains, or one for all of them.
        starts: the slot of its market in which each begins; its deadline must lie within that market.

    Raises:
        ValueError: if a job does not fit into its market, or if their number differs.

    Attributes:
        jobs: with their work and speed in ``units``.
        units: what an instance does in a slot, where a job has as few as it may, shape ``(B,)``. All work that the
            policies see is in these units, so nothing depends on the units of the jobs.
        work, value, grace, up, down, loss, on_demand: shape ``(B,)``.
        reserve: work that is only planned for (:meth:`with_reserve`), shape ``(B,)``.
        deadline, least, most: shape ``(B,)``, whole.
        speed: shape ``(B, N + 1)``, N the most of any; behind a job's own most it goes on with that.
        price: shape ``(B, D)``, D the latest deadline; behind a job's own deadline it goes on with the last.
        available: shape ``(B, D)``, whole.
        before: how many there were in the slot before each, shape ``(B,)``; 0 where there is none.
    """

    def __init__(self, jobs: Sequence[SpotJob], markets: Market | Sequence[Market], starts: Sequence[int]) -> None:
        several = [markets] * len(jobs) if isinstance(markets, Market) else list(markets)
        if not len(jobs) == len(several) == len(starts) or not jobs:
            raise ValueError(f"each job needs a market and a start, got {len(jobs)}, {len(several)} and {len(starts)}")
        for job, market, start in zip(jobs, several, starts, strict=True):
            if not 0 <= start <= len(market) - job.deadline:
                raise ValueError(
                    f"a job of {job.deadline} slots must begin at 0 to {len(market) - job.deadline} of {market.name}, "
                    f"got {start}"
                )
        self.units = np.array([job.speed[job.least] / job.least for job in jobs])
        jobs = [_in_units(job, unit) for job, unit in zip(jobs, self.units.tolist(), strict=True)]
        self.jobs, self.markets, self.starts = tuple(jobs), tuple(several), np.array(starts, np.int64)
        self.work, self.value, self.grace, self.up, self.down, self.loss = (
            np.array([getattr(job, name) for job in jobs], float)
            for name in ("work", "value", "grace", "up", "down", "loss")
        )
        self.deadline, self.least, self.most = (
            np.array([getattr(job, name) for job in jobs], np.int64) for name in ("deadline", "least", "most")
        )
        self.reserve = np.zeros(len(jobs))
        self.on_demand = np.array([market.on_demand for market in several])
        top, slots = int(self.most.max()), int(self.deadline.max())
        self.speed = np.array([[*job.speed, *[job.speed[-1]] * (top - job.most)] for job in jobs])
        at = np.minimum(self.starts[:, None] + np.arange(slots), (self.starts + self.deadline - 1)[:, None])
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
        if not self.loss.any():
            return self
        other = self.only(range(len(self)))
        other.reserve = self.loss * self.fastest
        other.work = self.work + other.reserve
        other.jobs = tuple(replace(job, work=work) for job, work in zip(self.jobs, other.work.tolist(), strict=True))
        return other

    @property
    def slots(self) -> int:
        """The latest deadline."""
        return int(self.price.shape[1])

    @property
    def fastest(self) -> FloatArray:
        """Work that each does in a slot on all that it can use, shape ``(B,)``."""
        fastest: FloatArray = self.speed[:, -1]
        return fastest

    @property
    def feasible(self) -> BoolArray:
        """Whether on-demand instances alone end each in time, shape ``(B,)``."""
        feasible: BoolArray = self.work <= (self.up + self.deadline - 1) * self.fastest + EXACT
        return feasible

    def part_left(self, held: IntArray, total: IntArray) -> FloatArray:
        """What a change from so many instances to so many leaves of a slot (eq. 2); of any shape ``(B, ...)``."""
        up, down = (_spread(one, held) for one in (self.up, self.down))
        return np.where(total > held, up, np.where(total < held, down, 1.0))

    def worth_of_rest(self, left: FloatArray, held: IntArray) -> FloatArray:
        """What the end is worth less what the rest costs behind the deadline (V~), shape of ``left``, ``(B, ...)``."""
        most, fastest, up, deadline, value, grace, price = (
            _spread(one, left)
            for one in (self.most, self.fastest, self.up, self.deadline, self.value, self.grace, self.on_demand)
        )
        late = slots_after(left, held == most, fastest, up)
        return value_at(deadline + late, deadline, value, grace) - late * most * price


def _in_units(job: SpotJob, unit: float) -> SpotJob:
    return job if unit == 1 else replace(job, work=job.work / unit, speed=tuple(one / unit for one in job.speed))


def _spread(column: FloatArray | IntArray, like: FloatArray | IntArray) -> FloatArray | IntArray:
    """A column of shape ``(B,)`` so that it goes with an array of shape ``(B, ...)``."""
    return column.reshape(column.shape + (1,) * (like.ndim - 1))


@dataclass(frozen=True, eq=False, slots=True)
class Ledger:
    """What a batch of jobs held, did and paid.

    Attributes:
        spot, on_demand: instances held, shape ``(B, D)``.
        part: of each slot that was left to train in, shape ``(B, D)``.
        progress: work done by the end of each slot, shape ``(B, D)``, at most all of it.
        paid: for each slot up to the deadline, shape ``(B, D)``.
        late: slots behind the deadline until the rest was done, shape ``(B,)``.
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
