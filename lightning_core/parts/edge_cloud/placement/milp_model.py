"""The mixed-integer program behind the planner: variables, constraints, objective and its solution."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lightning_core.core.arrays import FloatArray
from lightning_core.parts.edge_cloud.placement.demands import EXACT, Choice, Demands, PlacedJob
from lightning_core.parts.edge_cloud.placement.plan import (
    ObjectiveRanges,
    Task,
    TaskPlacement,
    Weights,
    capacity_of,
    range_width,
    usage,
)

if TYPE_CHECKING:  # imported when a plan is made: most processes that import this make none
    from scipy.optimize import LinearConstraint, OptimizeResult

MAX_SEARCH_NODES = 100_000


# Price of an unserved task, above all other parts of the objective.
UNSERVED = 1e3


class TaskGroup(NamedTuple):
    """Tasks with equal needs that are present in the same periods.

    Attributes:
        job: Job of one of them.
        periods: Periods in which they are present.
        tasks: The tasks.
        choices: Choices for each of them, by period.
    """

    job: PlacedJob
    periods: tuple[int, ...]
    tasks: tuple[Task, ...]
    choices: Mapping[int, tuple[Choice, ...]]


@dataclass
class ConstraintRows:
    """Rows of a sparse constraint matrix under construction."""

    data: list[float] = field(default_factory=list)
    row: list[int] = field(default_factory=list)
    column: list[int] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)

    def add(self, entries: Sequence[tuple[int, float]], low: float, high: float) -> None:
        """Add a row: columns with coefficients, and the bounds of their sum."""
        self.row += [len(self.low)] * len(entries)
        self.column += [column for column, _ in entries]
        self.data += [value for _, value in entries]
        self.low.append(low)
        self.high.append(high)

    def constraint(self, columns: int) -> LinearConstraint:
        """Return the rows for a solver."""
        from scipy.optimize import LinearConstraint
        from scipy.sparse import csr_array

        matrix = csr_array((self.data, (self.row, self.column)), shape=(len(self.low), columns))
        return LinearConstraint(matrix, self.low, self.high)


class MilpModel:
    """The program: how many tasks of each group are served by which choice in each period.

    Args:
        demands: Capacities and tasks.
        groups: The tasks.
        moves: Whether moves count.
        partly: Whether tasks may go unserved, at a prohibitive price.
    """

    def __init__(self, demands: Demands, groups: Sequence[TaskGroup], *, moves: bool, partly: bool = False) -> None:
        self.demands, self.groups = demands, groups
        self.offset = 0.0
        """Constant part of the objective, which the solver does not see."""
        self.cost: list[float] = []
        self.accurate: list[float] = []
        self.high: list[float] = []
        self.pairs = sum(len(group.tasks) * len(group.periods) for group in groups)
        """Number of pairs of a task and a period in which it is present."""
        self.steps = 0
        """Number of steps of tasks from one period to the next."""
        self._first: dict[tuple[int, int], int] = {}  # column of the first choice, by group and period
        self._without: dict[tuple[int, int], int] = {}
        self._stays: list[int] = []
        self._rows = ConstraintRows()
        for number, group in enumerate(groups):
            for period in group.periods:
                self._serve(number, group, period, partly)
        self._room()
        for number, group in enumerate(groups):
            self._stay(number, group, moves)
        self._objective = np.array(self.cost)

    def _column(self, cost: float, accuracy: float, high: float) -> int:
        self.cost.append(cost)
        self.accurate.append(accuracy)
        self.high.append(high)
        return len(self.cost) - 1

    def _serve(self, number: int, group: TaskGroup, period: int, partly: bool) -> None:
        """Serve each task once (eq. 4)."""
        count = float(len(group.tasks))
        self._first[number, period] = len(self.cost)
        columns = [self._column(choice.cost, choice.accuracy, count) for choice in group.choices[period]]
        if partly:
            self._without[number, period] = self._column(UNSERVED, 0.0, count)
            columns.append(self._without[number, period])
        self._rows.add([(column, 1.0) for column in columns], count, count)

    def _room(self) -> None:
        """Respect each node's capacity in each period (5 to 7)."""
        for period in range(len(self.demands.periods)):
            used: dict[tuple[str, str], list[tuple[int, float]]] = {}
            for (number, when), first in self._first.items():
                if when == period:
                    group = self.groups[number]
                    needs = group.job.during(period)
                    for column, choice in enumerate(group.choices[period], first):
                        for resource, amount in usage(needs, choice).items():
                            if amount:
                                used.setdefault((choice.location, resource), []).append((column, amount))
            for (location, resource), entries in used.items():
                if (room := capacity_of(self.demands, location, resource)) < math.inf:
                    self._rows.add(entries, 0.0, room)

    def _stay(self, number: int, group: TaskGroup, moves: bool) -> None:
        """Keep tasks that must not move in place; count how many of the others stay (10, 11)."""
        if not group.job.moves:
            for one, two in zip(group.periods, group.periods[1:], strict=False):
                for location in self.demands.locations:
                    entries = [
                        *self._at(number, one, location),
                        *((c, -1.0) for c, _ in self._at(number, two, location)),
                    ]
                    if entries:
                        self._rows.add(entries, 0.0, 0.0)
            return
        for one, two in self.demands.steps:
            if not (moves and one in group.periods and two in group.periods):
                continue
            self.steps += len(group.tasks)
            for location in self.demands.locations:
                if here := self._at(number, one, location):
                    stays = self._column(0.0, 0.0, float(len(group.tasks)))
                    self._stays.append(stays)
                    for period, there in ((one, here), (two, self._at(number, two, location))):
                        assert period in group.periods
                        self._rows.add([(stays, 1.0), *((column, -1.0) for column, _ in there)], -math.inf, 0.0)

    def _at(self, number: int, period: int, location: str) -> list[tuple[int, float]]:
        """Return the columns of a group at a location in a period."""
        first, choices = self._first[number, period], self.groups[number].choices[period]
        return [(first + k, 1.0) for k, choice in enumerate(choices) if choice.location == location]

    # -------------------------------------------------------------------------------------------- the request

    def weigh(self, weights: Weights, ranges: ObjectiveRanges) -> None:
        """Set the objective (1)."""
        cost, accurate = np.array(self.cost), np.array(self.accurate)
        by_cost = weights.cost / range_width(ranges.cost)
        by_accuracy = weights.accuracy / range_width(ranges.accuracy) / max(self.pairs, 1)
        by_moves = weights.moves / range_width(ranges.moves)
        self._objective = by_cost * cost - by_accuracy * accurate
        self._objective[self._stays] = -by_moves
        self.offset = (
            weights.accuracy * ranges.accuracy[0] / range_width(ranges.accuracy)
            - by_cost * ranges.cost[0] + by_moves * (self.steps - ranges.moves[0])
        )  # fmt: skip

    def at_least(self, accuracy: float) -> None:
        """Bound the mean accuracy from below."""
        entries = [(column, value) for column, value in enumerate(self.accurate) if value]
        self._rows.add(entries, accuracy * self.pairs - EXACT, math.inf)

    def ranges(self) -> ObjectiveRanges:
        """Return the ranges from the cheapest plan to the cheapest of the most accurate ones, with tasks divisible."""
        from scipy.optimize import LinearConstraint

        cost, accurate = np.array(self.cost), np.array(self.accurate)
        cheapest = self._solved(cost, whole=False)
        best = self._solved(-accurate, whole=False)
        if cheapest.x is None or best.x is None:  # solving it will explain why
            return ObjectiveRanges((0.0, 1.0), (0.0, 1.0), (0.0, 1.0))
        # In two steps: a cost weight that is too small to affect accuracy is also too small for a solver.
        reached = float(accurate @ best.x)
        as_good = self._solved(cost, whole=False, bound=LinearConstraint(accurate[None], reached * (1 - 1e-7)))
        best = best if as_good.x is None else as_good
        costs = [float(cost @ one.x) for one in (cheapest, best)]
        means = [value / max(self.pairs, 1) for value in (float(accurate @ cheapest.x), reached)]
        return ObjectiveRanges((costs[0], costs[1]), (means[0], means[1]), (0.0, float(self.steps)))

    def relaxed(self) -> OptimizeResult:
        """Solve the relaxation in which tasks are divisible."""
        return self._solved(np.array(self.cost), whole=False)

    def solve(self, gap: float, nodes: int, seconds: float | None) -> OptimizeResult:
        """Solve the program with HiGHS."""
        return self._solved(self._objective, whole=True, gap=gap, nodes=nodes, seconds=seconds)

    def _solved(
        self,
        objective: FloatArray,
        *,
        whole: bool,
        gap: float = 0.0,
        nodes: int = MAX_SEARCH_NODES,
        seconds: float | None = None,
        bound: LinearConstraint | None = None,
    ) -> OptimizeResult:
        from scipy.optimize import Bounds, milp

        columns = len(self.cost)
        integral = np.full(columns, 1 if whole else 0)
        integral[self._stays] = 0  # integral where the others are
        options = {"mip_rel_gap": gap, "node_limit": nodes} | ({} if seconds is None else {"time_limit": seconds})
        objective = np.concatenate([objective, np.zeros(columns - len(objective))])
        return milp(objective, integrality=integral, bounds=Bounds(np.zeros(columns), self.high),
                    constraints=[self._rows.constraint(columns), *([] if bound is None else [bound])],
                    options=options)  # fmt: skip

    # ------------------------------------------------------------------------------------------------- the solution

    def assign(self, found: FloatArray) -> TaskPlacement:
        """Return the placement of a solution, with as many tasks staying where they were as possible."""
        served: dict[Task, list[Choice | None]] = {
            task: [None] * len(self.demands.periods) for group in self.groups for task in group.tasks
        }
        for number, group in enumerate(self.groups):
            before: dict[Task, str] = {}
            for period in group.periods:
                first = self._first[number, period]
                available: list[Choice] = []
                for column, choice in enumerate(group.choices[period], first):
                    available += [choice] * round(float(found[column]))
                before = _assign_tasks(group.tasks, available, before, served, period)
        order = {
            task: None
            for name, job in self.demands.jobs.items()
            for task in (Task(name, k) for k in range(max(job.tasks)))
        }
        return TaskPlacement(self.demands, {task: tuple(served[task]) for task in order})


def _assign_tasks(
    tasks: Sequence[Task],
    available: list[Choice],
    before: dict[Task, str],
    served: dict[Task, list[Choice | None]],
    period: int,
) -> dict[Task, str]:
    """Assign the tasks of a group to its choices in a period, first those that can stay; return their locations."""
    free: dict[str, list[Choice]] = {}
    for choice in available:
        free.setdefault(choice.location, []).append(choice)
    left = []
    for task in tasks:
        if (location := before.get(task)) is not None and free.get(location):
            served[task][period] = free[location].pop()
        else:
            left.append(task)
    rest = [choice for some in free.values() for choice in some]
    for task, choice in zip(left, rest, strict=False):  # where not all are served, the last tasks go unserved
        served[task][period] = choice
    return {task: now.location for task in tasks if (now := served[task][period]) is not None}
