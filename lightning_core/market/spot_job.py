"""TODO."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from lightning_core.core.arrays import BoolArray, FloatArray, IntArray

# What counts as equal, in money and in work, of which one instance does about 1 in an interval (:class:`JobBatch`).
EXACT = 1e-9


Overhead = Literal["total", "launches"]


Numbers = FloatArray | IntArray | float


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
