"""A plan: the location of each task in each period, and its accuracy and cost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from lightning_core.parts.edge_cloud.placement.demands import EXACT, Choice, Demands, TaskNeeds


class Task(NamedTuple):
    """A task of a job."""

    job: str
    number: int
    """Number from 0; the task is present in the periods in which its job has more tasks than that."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights of the objective (eq. 1); each part is scaled to its range, from the cheapest to the most accurate plan.

    Args:
        cost: Weight of the cost.
        accuracy: Weight of the mean accuracy.
        moves: Weight of tasks that train elsewhere than in the period before.
    """

    cost: float = 0.5
    accuracy: float = 0.5
    moves: float = 0.0

    def __post_init__(self) -> None:
        for rule in ("cost", "accuracy", "moves"):
            if not getattr(self, rule) >= 0:
                raise ValueError(f"{rule} must be at least 0, got {getattr(self, rule)}")
        if not self.cost + self.accuracy + self.moves > 0:
            raise ValueError("at least one weight must be above 0, got 0, 0 and 0")


class ObjectiveRanges(NamedTuple):
    """Ranges of the objective's parts: cost, mean accuracy, moves."""

    cost: tuple[float, float]
    accuracy: tuple[float, float]
    moves: tuple[float, float]

    def objective(self, weights: Weights, cost: float, accuracy: float, moves: float) -> float:
        """Return the weighted sum of the scaled parts; less is better."""
        parts = (_part(cost, self.cost), -_part(accuracy, self.accuracy), _part(moves, self.moves))
        return weights.cost * parts[0] + weights.accuracy * parts[1] + weights.moves * parts[2]


def _part(value: float, within: tuple[float, float]) -> float:
    return (value - within[0]) / range_width(within)


def range_width(within: tuple[float, float]) -> float:
    """Return the width of a range; 1 where there is no choice."""
    return within[1] - within[0] if within[1] - within[0] > EXACT else 1.0


@dataclass(frozen=True, slots=True)
class TaskPlacement:
    """All tasks and their choices.

    Args:
        demands: Demands that it serves.
        served: Choice of each task by period; None where it is not present, or not served.
    """

    demands: Demands
    served: Mapping[Task, tuple[Choice | None, ...]]

    @property
    def cost(self) -> float:
        """Cost of a window, summed over periods (eq. 2)."""
        return sum(choice.cost for choice in self.choices())

    @property
    def accuracy(self) -> float:
        """Mean accuracy over all served tasks and periods (eq. 3, divided by their number); 0 if there are none."""
        found = [choice.accuracy for choice in self.choices()]
        return sum(found) / len(found) if found else 0.0

    @property
    def gpu_count(self) -> float:
        """GPUs, summed over periods."""
        return sum(choice.gpu_count for choice in self.choices())

    @property
    def moves(self) -> int:
        """Tasks that train elsewhere than in the period before, whatever their accuracy (eqs. 10 and 11)."""
        return sum(
            before is not None and after is not None and before.location != after.location
            for choices in self.served.values()
            for before, after in ((choices[one], choices[two]) for one, two in self.demands.steps)
        )

    @property
    def unserved(self) -> list[tuple[Task, int]]:
        """Tasks and periods in which they are present but not served."""
        return [
            (task, period)
            for task, choices in self.served.items()
            for period, choice in enumerate(choices)
            if choice is None and task.number < self.demands.jobs[task.job].tasks[period]
        ]

    def choices(self) -> Iterator[Choice]:
        """Return the choices of all served tasks in all periods."""
        return (choice for choices in self.served.values() for choice in choices if choice is not None)

    def held(self, location: str, period: int) -> dict[str, float]:
        """Return the usage of a location in a period: GPUs by type, ``bandwidth`` and ``aggregation``."""
        held = dict.fromkeys([*self.demands.gpus, "bandwidth", "aggregation"], 0.0)
        for task, choices in self.served.items():
            if (choice := choices[period]) is not None and choice.location == location:
                for resource, amount in usage(self.demands.jobs[task.job].during(period), choice).items():
                    held[resource] += amount
        return held

    def check(self) -> None:
        """Raise AssertionError if a constraint is violated: capacity, delay, accuracy, or a forbidden move."""
        demands = self.demands
        for location, (period, name) in product(demands.nodes, enumerate(demands.periods)):
            for resource, amount in self.held(location, period).items():
                has = capacity_of(demands, location, resource)
                assert amount <= has * (1 + 1e-6) + 1e-6, f"{location} in {name}: {amount:g} of {has:g} {resource}"
        allowed = {
            (name, period): demands.choices(job.during(period))
            for name, job in demands.jobs.items()
            for period in range(len(demands.periods))
        }
        for task, choices in self.served.items():
            job = demands.jobs[task.job]
            for period, choice in enumerate(choices):
                assert choice is None or task.number < job.tasks[period], f"{task} is not present in period {period}"
                assert choice is None or choice in allowed[task.job, period], f"{task}: {choice} is not allowed"
            locations = {choice.location for choice in choices if choice is not None}
            assert job.moves or len(locations) <= 1, (
                f"{task} must not move, and trains in {', '.join(sorted(locations))}"
            )


def usage(needs: TaskNeeds, choice: Choice) -> dict[str, float]:
    """Return a task's usage of its location (the left sides of eqs. 5 to 7)."""
    sample, aggregation, _ = needs.at(choice.level)
    return {choice.gpu: choice.gpu_count, "bandwidth": needs.rate * sample, "aggregation": needs.rate * aggregation}


def capacity_of(demands: Demands, location: str, resource: str) -> float:
    """Return a capacity of a location: GPUs of a type, ``bandwidth`` or ``aggregation``."""
    if location not in demands.nodes:
        return math.inf
    node = demands.nodes[location]
    if resource == "bandwidth":
        return node.bandwidth
    return node.aggregation if resource == "aggregation" else float(node.gpus.get(resource, 0.0))
