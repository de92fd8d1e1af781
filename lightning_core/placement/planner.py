"""The plan of the day, as an integer programme (Sartzetakis et al., eqs. 1 to 11), solved by HiGHS.

What its formulas mean: the edge charges its own price of processing (2); the accuracy is the mean over tasks and
periods (3); each node has room in each period (5 to 7); a task may go to the cloud if that is no further than its data
may travel (8); a task has moved if its place differs, whatever its accuracy, and one that must not move stays (10, 11).

Tasks that are alike are counted, not listed: alike in what they need and in which periods they are there. How many are
where in each period is decided, and how many stay from one period to the next: at most as many as are there in both. On
an open chain of periods that is exact, for each step can be dealt out on its own; around a cycle it is not, and tasks
whose moves count are listed one by one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, OptimizeResult, milp
from scipy.sparse import csr_array

from lightning_core.core.arrays import FloatArray
from lightning_core.placement.model import EXACT, Choice, Demands, PlacedJob
from lightning_core.placement.plan import Placed, Ranges, Task, Weights, taken, width

# What is left when a solution counts as the best, and how many nodes of the search are looked at, at most.
GAP, NODES = 1e-3, 100_000
# A task that is not served costs more than all that could be said of it.
UNSERVED = 1e3


class Infeasible(ValueError):
    """Not all that is wanted can be served; the words say what is missing where.

    Attributes:
        largest: the plan that serves the most.
        missing: by period and what is short, how much of it those that are not served would take at least.
    """

    def __init__(self, words: str, largest: Placed, missing: dict[tuple[str, str], float]) -> None:
        super().__init__(words)
        self.largest, self.missing = largest, missing


class Kind(NamedTuple):
    """Tasks that are alike.

    Args:
        job: one of theirs.
        periods: in which they are there.
        tasks: all of them.
        choices: how each may be served.
    """

    job: PlacedJob
    periods: tuple[int, ...]
    tasks: tuple[Task, ...]
    choices: tuple[Choice, ...]


@dataclass(frozen=True, slots=True)
class Solved:
    """A plan, and how good it is.

    Args:
        placed: the plan.
        ranges: between which its parts lie.
        objective: weighted, each part in its range; less is better.
        bound: no plan has less.
        variables: of the programme.
    """

    placed: Placed
    ranges: Ranges
    objective: float
    bound: float
    variables: int


def plan(
    demands: Demands,
    weights: Weights | None = None,
    *,
    accuracy: float | None = None,
    ranges: Ranges | None = None,
    listed: bool = False,
    gap: float = GAP,
    nodes: int = NODES,
    seconds: float | None = None,
) -> Solved:
    """The best plan.

    Args:
        demands: what there is and what is wanted.
        weights: what counts.
        accuracy: that the mean must reach at least; None: what the weights make of it.
        ranges: between which the parts of the objective lie, if they are known.
        listed: whether each task is a variable of its own; it is slower, and the same.
        gap: that may be left to the bound.
        nodes: of the search, at most.
        seconds: that it may take at most; with a limit the answer depends on the machine.

    Raises:
        Infeasible: if not all tasks can be served.
        ValueError: if the mean accuracy cannot be reached, or the limits were too low for any plan.

    Example::

        >>> from lightning_core.placement import Demands, Gpu, Level, Node, PlacedJob
        >>> demands = Demands(("day",), {"v100": Gpu(2.0)}, {"fp32": Level(0.9, {"v100": 150.0})},
        ...                   {"edge": Node({"v100": 10})}, {"cars": PlacedJob((2,), rate=15.0, sample=0.4)})
        >>> solved = plan(demands)
        >>> [choices[0].place for choices in solved.placed.served.values()]
        ['cloud', 'cloud']
    """
    weights = weights or Weights()
    kinds = kinds_of(demands, listed=listed)
    _servable(demands, kinds)
    if demands.cycle and weights.moves:
        kinds = [one for kind in kinds for one in (_split(kind) if kind.job.moves else [kind])]
    programme = MilpModel(demands, kinds, moves=weights.moves > 0)
    ranges = ranges or programme.ranges()
    programme.weigh(weights, ranges)
    if accuracy is not None:
        programme.at_least(accuracy)
    found = programme.solve(gap, nodes, seconds)
    if found.x is None:
        if accuracy is not None and MilpModel(demands, kinds, moves=False).relaxed().status == 0:
            raise ValueError(
                f"accuracy must be one that can be reached, at most {ranges.accuracy[1]:.4f}, got {accuracy:g}"
            )
        if found.status == 1:
            raise ValueError(f"no plan was found within {nodes} nodes" + (f" and {seconds:g} s" if seconds else ""))
        raise _explained(demands, kinds)
    placed = programme.dealt(found.x)
    objective = ranges.objective(weights, placed.cost, placed.accuracy, placed.moves)
    bound = float(found.mip_dual_bound) + programme.offset
    return Solved(placed, ranges, objective, bound, len(found.x))


def kinds_of(demands: Demands, *, listed: bool = False) -> list[Kind]:
    """The tasks by what they are like; ``listed``: each on its own."""
    alike: dict[tuple[object, ...], list[Task]] = {}
    of: dict[tuple[object, ...], tuple[PlacedJob, tuple[int, ...]]] = {}
    for name, job in demands.jobs.items():
        far = demands.cloud.delay > job.delay
        for number in range(max(job.tasks)):
            periods = tuple(period for period, count in enumerate(job.tasks) if number < count)
            key = (job.rate, job.sample, job.aggregation, far, job.accuracy, job.moves, periods)
            alike.setdefault(key, []).append(Task(name, number))
            of.setdefault(key, (job, periods))
    kinds = [Kind(*of[key], tuple(tasks), tuple(demands.choices(of[key][0]))) for key, tasks in alike.items()]
    return [one for kind in kinds for one in _split(kind)] if listed else kinds


def _split(kind: Kind) -> list[Kind]:
    return [kind._replace(tasks=(task,)) for task in kind.tasks]


def _servable(demands: Demands, kinds: Sequence[Kind]) -> None:
    for kind in kinds:
        if not kind.choices:
            raise ValueError(
                f"job {kind.tasks[0].job}: must be servable somewhere: its data may travel {kind.job.delay:g} ms, the "
                f"cloud is {demands.cloud.delay:g} ms away, and no node has GPUs for it"
            )


@dataclass
class Rows:
    """Rows of a sparse matrix, as they are made."""

    data: list[float] = field(default_factory=list)
    row: list[int] = field(default_factory=list)
    column: list[int] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)

    def add(self, entries: Sequence[tuple[int, float]], low: float, high: float) -> None:
        """One row: columns with what they count for, and between which limits their sum lies."""
        self.row += [len(self.low)] * len(entries)
        self.column += [column for column, _ in entries]
        self.data += [value for _, value in entries]
        self.low.append(low)
        self.high.append(high)

    def constraint(self, columns: int) -> LinearConstraint:
        """For a solver."""
        matrix = csr_array((self.data, (self.row, self.column)), shape=(len(self.low), columns))
        return LinearConstraint(matrix, self.low, self.high)


class MilpModel:
    """The integer programme: how many of each kind are served how in each period.

    Args:
        demands: what there is and what is wanted.
        kinds: the tasks.
        moves: whether moves count.
        partly: whether tasks may go without, at a price above all others.
    """

    def __init__(self, demands: Demands, kinds: Sequence[Kind], *, moves: bool, partly: bool = False) -> None:
        self.demands, self.kinds = demands, kinds
        self.offset = 0.0
        """Of the objective, which the solver does not see."""
        self.cost: list[float] = []
        self.accurate: list[float] = []
        self.high: list[float] = []
        self.pairs = sum(len(kind.tasks) * len(kind.periods) for kind in kinds)
        """Tasks and periods in which they are there."""
        self.steps = 0
        """Of tasks from one period to the next."""
        self._first: dict[tuple[int, int], int] = {}  # column of the first choice, by kind and period
        self._without: dict[tuple[int, int], int] = {}
        self._stays: list[int] = []
        self._rows = Rows()
        for number, kind in enumerate(kinds):
            for period in kind.periods:
                self._serve(number, kind, period, partly)
        self._room()
        for number, kind in enumerate(kinds):
            self._stay(number, kind, moves)
        self._objective = np.array(self.cost)

    def _column(self, cost: float, accuracy: float, high: float) -> int:
        self.cost.append(cost)
        self.accurate.append(accuracy)
        self.high.append(high)
        return len(self.cost) - 1

    def _serve(self, number: int, kind: Kind, period: int, partly: bool) -> None:
        """Each task once (4)."""
        count = float(len(kind.tasks))
        self._first[number, period] = len(self.cost)
        columns = [self._column(choice.cost, choice.accuracy, count) for choice in kind.choices]
        if partly:
            self._without[number, period] = self._column(UNSERVED, 0.0, count)
            columns.append(self._without[number, period])
        self._rows.add([(column, 1.0) for column in columns], count, count)

    def _room(self) -> None:
        """Of each node in each period (5 to 7)."""
        for period in range(len(self.demands.periods)):
            used: dict[tuple[str, str], list[tuple[int, float]]] = {}
            for (number, when), first in self._first.items():
                if when == period:
                    kind = self.kinds[number]
                    for column, choice in enumerate(kind.choices, first):
                        for what, amount in taken(kind.job, choice).items():
                            if amount:
                                used.setdefault((choice.place, what), []).append((column, amount))
            for (place, what), entries in used.items():
                if (room := room_of(self.demands, place, what)) < math.inf:
                    self._rows.add(entries, 0.0, room)

    def _stay(self, number: int, kind: Kind, moves: bool) -> None:
        """Who may not move is where he was; else it is counted who stays (10, 11)."""
        if not kind.job.moves:
            for one, two in zip(kind.periods, kind.periods[1:], strict=False):
                for place in self.demands.places:
                    entries = [*self._at(number, one, place), *((c, -1.0) for c, _ in self._at(number, two, place))]
                    if entries:
                        self._rows.add(entries, 0.0, 0.0)
            return
        for one, two in self.demands.steps:
            if not (moves and one in kind.periods and two in kind.periods):
                continue
            self.steps += len(kind.tasks)
            for place in self.demands.places:
                if here := self._at(number, one, place):
                    stays = self._column(0.0, 0.0, float(len(kind.tasks)))
                    self._stays.append(stays)
                    for period, there in ((one, here), (two, self._at(number, two, place))):
                        assert period in kind.periods
                        self._rows.add([(stays, 1.0), *((column, -1.0) for column, _ in there)], -math.inf, 0.0)

    def _at(self, number: int, period: int, place: str) -> list[tuple[int, float]]:
        """The columns of a kind that is at a place in a period."""
        first = self._first[number, period]
        return [(first + k, 1.0) for k, choice in enumerate(self.kinds[number].choices) if choice.place == place]

    # -------------------------------------------------------------------------------------------- what is wanted

    def weigh(self, weights: Weights, ranges: Ranges) -> None:
        """Sets the objective (1)."""
        cost, accurate = np.array(self.cost), np.array(self.accurate)
        by_cost = weights.cost / width(ranges.cost)
        by_accuracy = weights.accuracy / width(ranges.accuracy) / max(self.pairs, 1)
        by_moves = weights.moves / width(ranges.moves)
        self._objective = by_cost * cost - by_accuracy * accurate
        self._objective[self._stays] = -by_moves
        self.offset = (
            weights.accuracy * ranges.accuracy[0] / width(ranges.accuracy)
            - by_cost * ranges.cost[0] + by_moves * (self.steps - ranges.moves[0])
        )  # fmt: skip

    def at_least(self, accuracy: float) -> None:
        """The mean accuracy must be so much."""
        entries = [(column, value) for column, value in enumerate(self.accurate) if value]
        self._rows.add(entries, accuracy * self.pairs - EXACT, math.inf)

    def ranges(self) -> Ranges:
        """From the cheapest plan to the most accurate one that is cheapest, without asking for whole tasks."""
        cost, accurate = np.array(self.cost), np.array(self.accurate)
        cheapest = self._solved(cost, whole=False)
        best = self._solved(-accurate, whole=False)
        if cheapest.x is None or best.x is None:  # whoever solves it explains
            return Ranges((0.0, 1.0), (0.0, 1.0), (0.0, 1.0))
        # In two steps: a price too small to matter for accuracy is too small for a solver as well.
        reached = float(accurate @ best.x)
        as_good = self._solved(cost, whole=False, least=LinearConstraint(accurate[None], reached * (1 - 1e-7)))
        best = best if as_good.x is None else as_good
        costs = [float(cost @ one.x) for one in (cheapest, best)]
        means = [value / max(self.pairs, 1) for value in (float(accurate @ cheapest.x), reached)]
        return Ranges((costs[0], costs[1]), (means[0], means[1]), (0.0, float(self.steps)))

    def relaxed(self) -> OptimizeResult:
        """Whether it could be done, if tasks could be parted."""
        return self._solved(np.array(self.cost), whole=False)

    def solve(self, gap: float, nodes: int, seconds: float | None) -> OptimizeResult:
        """By HiGHS."""
        return self._solved(self._objective, whole=True, gap=gap, nodes=nodes, seconds=seconds)

    def _solved(
        self,
        objective: FloatArray,
        *,
        whole: bool,
        gap: float = 0.0,
        nodes: int = NODES,
        seconds: float | None = None,
        least: LinearConstraint | None = None,
    ) -> OptimizeResult:
        columns = len(self.cost)
        integral = np.full(columns, 1 if whole else 0)
        integral[self._stays] = 0  # they are whole where the others are
        options = {"mip_rel_gap": gap, "node_limit": nodes} | ({} if seconds is None else {"time_limit": seconds})
        objective = np.concatenate([objective, np.zeros(columns - len(objective))])
        return milp(objective, integrality=integral, bounds=Bounds(np.zeros(columns), self.high),
                    constraints=[self._rows.constraint(columns), *([] if least is None else [least])],
                    options=options)  # fmt: skip

    # ------------------------------------------------------------------------------------------------- who is where

    def dealt(self, found: FloatArray) -> Placed:
        """The tasks themselves: as many as can stay where they were."""
        served: dict[Task, list[Choice | None]] = {
            task: [None] * len(self.demands.periods) for kind in self.kinds for task in kind.tasks
        }
        for number, kind in enumerate(self.kinds):
            before: dict[Task, str] = {}
            for period in kind.periods:
                first = self._first[number, period]
                slots: list[Choice] = []
                for column, choice in enumerate(kind.choices, first):
                    slots += [choice] * round(float(found[column]))
                if before and not any(step[1] == period and step[0] in kind.periods for step in self.demands.steps):
                    before = before if not kind.job.moves else {}
                before = _deal(kind.tasks, slots, before, served, period)
        order = {
            task: None
            for name, job in self.demands.jobs.items()
            for task in (Task(name, k) for k in range(max(job.tasks)))
        }
        return Placed(self.demands, {task: tuple(served[task]) for task in order})


def _deal(
    tasks: Sequence[Task],
    slots: list[Choice],
    before: dict[Task, str],
    served: dict[Task, list[Choice | None]],
    period: int,
) -> dict[Task, str]:
    """Gives each task a slot, first those that can stay; where they are now."""
    free: dict[str, list[Choice]] = {}
    for choice in slots:
        free.setdefault(choice.place, []).append(choice)
    left = []
    for task in tasks:
        if (place := before.get(task)) is not None and free.get(place):
            served[task][period] = free[place].pop()
        else:
            left.append(task)
    rest = [choice for some in free.values() for choice in some]
    for task, choice in zip(left, rest, strict=False):  # where not all are served, the last go without
        served[task][period] = choice
    return {task: now.place for task in tasks if (now := served[task][period]) is not None}


def room_of(demands: Demands, place: str, what: str) -> float:
    """What a place has: GPUs of a type, ``bandwidth`` or ``aggregation``."""
    if place not in demands.nodes:
        return math.inf
    node = demands.nodes[place]
    if what == "bandwidth":
        return node.bandwidth
    return node.aggregation if what == "aggregation" else float(node.gpus.get(what, 0.0))


def _explained(demands: Demands, kinds: Sequence[Kind]) -> Infeasible:
    """What is missing, and the largest part that fits."""
    programme = MilpModel(demands, kinds, moves=False, partly=True)
    found = programme.solve(GAP, NODES, None)
    largest = programme.dealt(found.x)
    missing: dict[tuple[str, str], float] = {}
    count: dict[int, int] = {}
    for task, period in largest.unserved:
        job = demands.jobs[task.job]
        count[period] = count.get(period, 0) + 1
        for what, amount in taken(job, min(demands.choices(job), key=lambda choice: choice.cost)).items():
            short = any(_left(largest, node, period, what) < amount for node in demands.nodes)
            if amount and short:
                key = demands.periods[period], what
                missing[key] = missing.get(key, 0.0) + amount
    lines = [f"{number} tasks cannot be served in {demands.periods[period]}" for period, number in count.items()]
    for period, name in enumerate(demands.periods):
        for (when, what), amount in missing.items():
            if when == name:
                free = ", ".join(f"{node} {_left(largest, node, period, what):g}" for node in demands.nodes)
                lines.append(f"{name}: {amount:g} more {what} at the edge would be needed; free: {free or 'no node'}")
    return Infeasible("; ".join(lines), largest, missing)


def _left(placed: Placed, node: str, period: int, what: str) -> float:
    return room_of(placed.demands, node, what) - placed.held(node, period)[what]
