"""Baselines of the planner: one task after the other, with or without a plan of the busiest period."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from lightning_core.parts.edge_cloud.day_plan import SampleNeeds
from lightning_core.parts.edge_cloud.placement.demands import BY_PERIOD, EXACT, Choice, Demands
from lightning_core.parts.edge_cloud.placement.plan import (
    ObjectiveRanges,
    Task,
    TaskPlacement,
    Weights,
    capacity_of,
    range_width,
    usage,
)
from lightning_core.parts.edge_cloud.placement.planner import plan


def incremental(
    demands: Demands, weights: Weights | None, ranges: ObjectiveRanges, accuracy: float | None = None
) -> TaskPlacement:
    """Serve tasks in order of arrival, period by period, each with the best choice for itself that has room.

    Args:
        demands: Capacities and tasks.
        weights: Weights of the objective.
        ranges: Ranges of its parts.
        accuracy: Lower bound of the mean accuracy: each task takes the cheapest choice that respects it.
    """
    return Greedy(demands, weights or Weights(), ranges, accuracy).placement({})


def one_period(
    demands: Demands, weights: Weights | None, ranges: ObjectiveRanges, accuracy: float | None = None
) -> TaskPlacement:
    """Plan the busiest period, that of the most processing; in the others each task takes the best choice for itself.

    Args:
        demands: Capacities and tasks.
        weights: Weights of the objective.
        ranges: Ranges of its parts.
        accuracy: Lower bound of the mean accuracy.

    Raises:
        InfeasibleError: If not all tasks of the busiest period can be served.
    """
    jobs = demands.jobs.values()
    loads = [
        sum(needs.rate * needs.processing * job.tasks[period] for job in jobs for needs in [job.during(period)])
        for period in range(len(demands.periods))
    ]
    busiest = max(range(len(loads)), key=loads.__getitem__)
    planned = plan(only(demands, busiest), weights, accuracy=accuracy).placement
    first = {(task, busiest): choices[0] for task, choices in planned.served.items() if choices[0] is not None}
    return Greedy(demands, weights or Weights(), ranges, accuracy).placement(first)


def only(demands: Demands, period: int) -> Demands:
    """Return the demands of one period."""
    jobs = {}
    for name, job in demands.jobs.items():
        if job.tasks[period]:
            needs = job.during(period)
            levels = {level: SampleNeeds(*differs) for level, differs in needs.levels}
            rules: dict[str, Any] = {rule: getattr(needs, rule) for rule in BY_PERIOD}
            jobs[name] = replace(job, tasks=(job.tasks[period],), levels=levels, **rules)
    return replace(demands, periods=(demands.periods[period],), jobs=jobs)


class Greedy:
    """Serves tasks one by one.

    Args:
        demands: Capacities and tasks.
        weights: Weights of the objective.
        ranges: Ranges of its parts.
        accuracy: Lower bound of the mean accuracy.
    """

    def __init__(self, demands: Demands, weights: Weights, ranges: ObjectiveRanges, accuracy: float | None) -> None:
        self.demands, self.weights, self.ranges, self.accuracy = demands, weights, ranges, accuracy
        periods = range(len(demands.periods))
        self._needs = {(name, at): job.during(at) for name, job in demands.jobs.items() for at in periods}
        self._choices = {key: demands.choices(needs) for key, needs in self._needs.items()}
        self._used: dict[tuple[str, int, str], float] = {}
        self._served: dict[Task, list[Choice | None]] = {}
        self._pairs = sum(sum(job.tasks) for job in demands.jobs.values())
        self._sum = self._count = 0.0

    def placement(self, given: Mapping[tuple[Task, int], Choice]) -> TaskPlacement:
        """Serve all tasks, the given ones first; a task for which there is no room goes unserved."""
        demands, periods = self.demands, range(len(self.demands.periods))
        for name, job in demands.jobs.items():
            for number in range(max(job.tasks)):
                self._served[Task(name, number)] = [None] * len(periods)
        for (task, period), choice in given.items():
            self._take(task, period, choice)
        for period in periods:
            for task in self._served:
                if task.number < demands.jobs[task.job].tasks[period] and self._served[task][period] is None:
                    best = self._best(task, period)
                    if best is not None:
                        self._take(task, period, best)
        return TaskPlacement(demands, {task: tuple(choices) for task, choices in self._served.items()})

    def _best(self, task: Task, period: int) -> Choice | None:
        job, others = self.demands.jobs[task.job], self._served[task]
        locations = {choice.location for choice in others if choice is not None}
        allowed = [one for one in self._choices[task.job, period] if self._fits(task, period, one)]
        if not job.moves and locations:
            allowed = [one for one in allowed if one.location in locations]
        if self.accuracy is not None:
            wanted = self.accuracy * (self._count + 1) - self._sum - EXACT
            good = [one for one in allowed if one.accuracy >= wanted]
            # If none keeps the mean, take the most accurate.
            return min(good or allowed, key=lambda one: one.cost if good else -one.accuracy, default=None)
        before = self._before(task, period)
        return min(allowed, key=lambda one: self._worth(one, before), default=None)

    def _worth(self, choice: Choice, before: str | None) -> float:
        weights, ranges = self.weights, self.ranges
        moved = before is not None and before != choice.location
        return (
            weights.cost * choice.cost / range_width(ranges.cost)
            - weights.accuracy * choice.accuracy / range_width(ranges.accuracy) / self._pairs
            + weights.moves * moved / range_width(ranges.moves)
        )

    def _before(self, task: Task, period: int) -> str | None:
        return next(
            (
                one.location
                for first, then in self.demands.steps
                if then == period and (one := self._served[task][first])
            ),
            None,
        )

    def _fits(self, task: Task, period: int, choice: Choice) -> bool:
        return all(
            self._used.get((choice.location, period, resource), 0.0) + amount
            <= capacity_of(self.demands, choice.location, resource) + EXACT
            for resource, amount in self._taken(task, period, choice)
        )

    def _take(self, task: Task, period: int, choice: Choice) -> None:
        self._served[task][period] = choice
        self._sum, self._count = self._sum + choice.accuracy, self._count + 1
        for resource, amount in self._taken(task, period, choice):
            key = choice.location, period, resource
            self._used[key] = self._used.get(key, 0.0) + amount

    def _taken(self, task: Task, period: int, choice: Choice) -> Iterable[tuple[str, float]]:
        return usage(self._needs[task.job, period], choice).items()
