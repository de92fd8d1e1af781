"""A job that must complete by a deadline on nodes of a market (Kong et al., eqs. 1 to 9).

A job that holds ``n`` nodes in an interval does ``mu * H(n)`` of its work: ``H`` is its throughput, and ``mu`` the
fraction of the interval that a change of ``n`` leaves. Work left at the deadline is done after it, on as many on-demand
nodes as the job can use, and the job's value falls with each such interval (Kong et al., "Deadline-Aware Online
Scheduling for LLM Fine-Tuning with Spot Market Predictions").

That is eq. 9. With a soft deadline before its deadline a job is as in the paper's eq. 5: its value falls from the soft
one on, and between the two it may still hold any nodes. So it is late where that costs less than on-demand nodes.

In the paper only the total number of nodes matters to that fraction, so that spot nodes replace on-demand ones for
nothing. A cloud launches each of them: by default every launch of a node, of either kind, costs the job its start-up,
which may last longer than an interval. Two more terms describe the bill of a cloud and the loss of an elastic job: with
a hand-over time a job trains on the nodes that it has, and pays for them too, while others start; with a minimum charge
nodes are billed by the second instead of by the interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from lightning_core.core.arrays import FloatArray, IntArray

# Tolerance in money and in work, of which one node does about 1 in an interval (see JobBatch.units).
EXACT = 1e-9


Overhead = Literal["launches", "total"]
"""Change that costs a job part of an interval: any launch of a node, or (in the paper) any change of the total."""

Numbers = FloatArray | IntArray | float


@dataclass(frozen=True, slots=True)
class SpotJob:
    """Work to be done by a deadline.

    Args:
        work: Work to do, in any unit, positive.
        deadline: Intervals from its start, at least 1. The safety net keeps it.
        min_nodes: Fewest nodes on which it can train.
        max_nodes: Most nodes that it can use.
        throughput: Work done in an interval on 0, 1, .. ``max_nodes`` nodes; empty: as much as there are nodes.
        growth_fraction: Fraction of an interval left for training when the number of nodes grows, above 0 to 1.
        shrink_fraction: The same when it shrinks.
        launch_time: Intervals from a launch until the node trains, at least 0, however long; None for
            ``1 - growth_fraction``.
        overhead: Whether each launch of a node costs that, or only a larger total (the paper's).
        value: Value of completion by the soft deadline, in the unit of the prices.
        grace: Multiple of the soft deadline, above 1, after which completion is worth nothing.
        preemption_cost: Cost of a preemption without notice, in intervals at full throughput: starting again, and
            the work to be done again. Policies plan for one preemption, and the safety net lets the job hold spot nodes
            only where there is time for one, or where the job is late by more than one anyway.
        hand_over_time: Intervals that the job takes to save, move to other nodes and restore, from 0 to the launch and
            to 1. Where it swaps or adds nodes, it trains on those it had for the rest of the launch, at most to the end
            of the interval, and both are paid for; where it gives nodes back, this is all that it loses. Only a start
            from nothing and a preemption cost the whole launch. None: the job stands still for the whole launch.
        minimum_charge: Intervals for which a node is billed at least, from its launch on, 0 to 1: nodes are billed by
            the second, and those of a job that is done are returned. None: each interval is billed whole.
        soft_deadline: Intervals from its start after which its value falls, 1 to the deadline; None for the deadline.

    Raises:
        ValueError: If one is out of its range.

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
    launch_time: float | None = None
    overhead: Overhead = "launches"
    hand_over_time: float | None = None
    minimum_charge: float | None = None
    soft_deadline: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.work < math.inf:
            raise ValueError(f"work must be positive and finite, got {self.work}")
        if self.deadline < 1:
            raise ValueError(f"deadline must be at least 1 interval, got {self.deadline}")
        if not 1 <= self.due <= self.deadline:
            raise ValueError(f"soft_deadline must be 1 to the deadline {self.deadline}, got {self.soft_deadline}")
        if not 1 <= self.min_nodes <= self.max_nodes:
            raise ValueError(
                f"min_nodes must be at least 1 and at most max_nodes {self.max_nodes}, got {self.min_nodes}"
            )
        if not self.throughput:
            object.__setattr__(self, "throughput", tuple(map(float, range(self.max_nodes + 1))))
        self._check_throughput()
        if not 0 < self.growth_fraction <= self.shrink_fraction <= 1:
            raise ValueError(
                f"fractions must satisfy 0 < growth_fraction <= shrink_fraction <= 1, got "
                f"{self.growth_fraction} and {self.shrink_fraction}"
            )
        if self.launch_time is not None and not 0 <= self.launch_time < math.inf:
            raise ValueError(f"launch_time must be at least 0 intervals and finite, got {self.launch_time}")
        if self.overhead not in get_args(Overhead):
            raise ValueError(f"overhead must be one of {get_args(Overhead)}, got {self.overhead!r}")
        if not 0 <= self.value < math.inf:
            raise ValueError(f"value must be at least 0 and finite, got {self.value}")
        if not 1 < self.grace < math.inf:
            raise ValueError(f"grace must be above 1 and finite, got {self.grace}")
        if not 0 <= self.preemption_cost < math.inf:
            raise ValueError(f"preemption_cost must be at least 0 intervals and finite, got {self.preemption_cost}")
        self._check_bill()

    def _check_bill(self) -> None:
        for name, number, most in (
            ("hand_over_time", self.hand_over_time, min(self.launch, 1.0)), ("minimum_charge", self.minimum_charge, 1.0)
        ):  # fmt: skip
            if number is None:
                continue
            if self.overhead == "total":
                raise ValueError(f"{name} must be None where overhead is 'total', got {number}")
            if not 0 <= number <= most + EXACT:
                raise ValueError(f"{name} must be at least 0 and at most {most:g} intervals, got {number}")

    def _check_throughput(self) -> None:
        if len(self.throughput) != self.max_nodes + 1:
            raise ValueError(f"throughput must have {self.max_nodes + 1} numbers, got {len(self.throughput)}")
        if not all(map(math.isfinite, self.throughput)):
            raise ValueError(f"throughput must be finite, got {self.throughput}")
        if self.throughput[0] != 0 or any(b < a for a, b in zip(self.throughput, self.throughput[1:], strict=False)):
            raise ValueError(f"throughput must be 0 on 0 nodes and must not fall with more, got {self.throughput}")
        if not self.throughput[self.min_nodes] > 0:
            raise ValueError(f"throughput must be positive on min_nodes {self.min_nodes}, got {self.throughput}")

    @property
    def due(self) -> int:
        """Intervals from its start after which its value falls."""
        return self.deadline if self.soft_deadline is None else self.soft_deadline

    @property
    def launch(self) -> float:
        """Intervals without training from a launch on."""
        return 1.0 - self.growth_fraction if self.launch_time is None else self.launch_time

    @property
    def overlap(self) -> float:
        """Intervals for which the nodes that a job has train on while others are launched, at most 1."""
        return 0.0 if self.hand_over_time is None else min(max(self.launch - self.hand_over_time, 0.0), 1.0)

    @property
    def shrink_time(self) -> float:
        """Intervals without training when nodes are returned or lost, and none launched."""
        if self.hand_over_time is not None:
            return self.hand_over_time
        stands_still = 1.0 - self.shrink_fraction
        return stands_still if self.overhead == "total" else min(stands_still, self.launch)

    @property
    def feasible(self) -> bool:
        """Return whether all on-demand nodes that it can use complete it by its deadline."""
        return self.work <= (self.deadline - self.launch) * self.throughput[-1] * (1 + EXACT)

    def intervals_after(self, left: float, held: int) -> int:
        """Return the intervals after the deadline until the work left is done, given the nodes held before."""
        return int(intervals_after(left, self.throughput[-1], 0.0 if held == self.max_nodes else self.launch))

    def worth_of_rest(self, left: float, held: int, on_demand: float = 1.0) -> float:
        """Return the value of completion less its cost, given the work left at the deadline (V~ of eq. 9)."""
        late = self.intervals_after(left, held)
        return self.value_at(self.deadline + late) - late * self.max_nodes * on_demand

    def value_at(self, interval: int) -> float:
        """Return the value of completion in an interval (eq. 4)."""
        return float(value_at(interval, self.due, self.value, self.grace))

    def charge(self, interval: int) -> float:
        """Return the value that it loses in an interval at whose beginning it is not done: 0 before it is due."""
        return self.value_at(interval) - self.value_at(interval + 1)

    def softened(self) -> SpotJob:
        """Return the job with its deadline as the soft one, and the end of its grace as the deadline."""
        return replace(self, deadline=end_of_grace(self.due, self.grace), soft_deadline=self.due)


def end_of_grace(due: int, grace: float) -> int:
    """Return the intervals from the start of a job to the end of its grace, by when it is due after so many."""
    return max(math.floor(grace * due + EXACT), due)


def intervals_after(left: Numbers, fastest: Numbers, wait: Numbers) -> IntArray:
    """Return the intervals that the work left takes on all nodes that a job can use.

    Args:
        left: Work left.
        fastest: Work of all those nodes in an interval.
        wait: Intervals until they train: 0 for nodes that do.
    """
    intervals = np.ceil(left / fastest + wait - EXACT)
    return np.where(left <= EXACT, 0, np.maximum(intervals, 1)).astype(np.int64)


def value_at(interval: Numbers, due: Numbers, value: Numbers, grace: Numbers) -> FloatArray:
    """Return the value of completion in an interval (eq. 4): all of it until it is due, then falling linearly to 0."""
    part = 1.0 - (interval - due) / ((grace - 1.0) * due)
    worth: FloatArray = value * np.clip(part, 0.0, 1.0)
    return worth
