"""Demands of a day: tasks that train where their data is produced, or in the cloud, and the cost of each choice.

A job's data arrives at ``rate`` samples a second in each of its tasks, the same all day or another in each period. The
data of a window is trained on for a number of epochs within the next one, so a task needs ``rate * epochs * processing
/ throughput`` GPUs of a type for its period. Faster arithmetic needs fewer GPUs and is less accurate. Edge nodes have
little of everything; the cloud has plenty, but is far away (Sartzetakis et al., "Dynamic Edge/Cloud Resource Allocation
for Distributed Computation under Semi-Static Demands"). Its formulas have slips; :mod:`.planner` documents their
meaning. Its rates are by task, and its needs of a sample by period, job, task and level of arithmetic: a task that
differs from the others is a job of its own here.

All costs are for one window.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

from lightning_core.parts.edge_cloud.day_plan import CLOUD, SampleNeeds

# Tolerance of counts and amounts.
EXACT = 1e-9


@dataclass(frozen=True, slots=True)
class Gpu:
    """A type of GPU.

    Args:
        price: Price of one for an hour in the cloud.
    """

    price: float

    def __post_init__(self) -> None:
        _positive(price=self.price)


@dataclass(frozen=True, slots=True)
class Level:
    """A kind of arithmetic.

    Args:
        accuracy: Accuracy reached with it, 0 to 1.
        throughput: Samples per second on one GPU, by type.
    """

    accuracy: float
    throughput: Mapping[str, float]

    def __post_init__(self) -> None:
        if not 0 <= self.accuracy <= 1:
            raise ValueError(f"accuracy must be 0 to 1, got {self.accuracy}")
        if not self.throughput:
            raise ValueError("throughput must be given for at least one type of GPU, got none")
        _positive(**self.throughput)


@dataclass(frozen=True, slots=True)
class Node:
    """A node at the edge.

    Args:
        gpus: Its GPUs, by type.
        bandwidth: Incoming bandwidth, in megabytes a second.
        aggregation: Capacity of its processors for aggregating weights: samples a second times the jobs'
            ``aggregation``.
    """

    gpus: Mapping[str, float]
    bandwidth: float = math.inf
    aggregation: float = math.inf

    def __post_init__(self) -> None:
        for name, count in {**self.gpus, "bandwidth": self.bandwidth, "aggregation": self.aggregation}.items():
            if not count >= 0:
                raise ValueError(f"{name} must be at least 0, got {count}")


@dataclass(frozen=True, slots=True)
class Cloud:
    """The cloud, far away and without limits.

    Args:
        delay: Delay to it, in milliseconds.
        gigabyte: Price of sending a gigabyte there.
    """

    delay: float = 0.0
    gigabyte: float = 0.01

    def __post_init__(self) -> None:
        _not_negative(delay=self.delay, gigabyte=self.gigabyte)


@dataclass(frozen=True, slots=True)
class EdgePrices:
    """Prices at the edge.

    Args:
        gpu: Price of a GPU, relative to its price in the cloud.
        gigabyte: Price of sending a gigabyte to a node.
    """

    gpu: float = 1.5
    gigabyte: float = 0.001

    def __post_init__(self) -> None:
        _not_negative(gpu=self.gpu, gigabyte=self.gigabyte)


ByPeriod = float | tuple[float, ...]
"""A number for all periods, or one for each."""
BY_PERIOD = ("rate", "sample", "aggregation", "processing")
"""What may differ by period."""


@dataclass(frozen=True, slots=True)
class TaskNeeds:
    """What each task of a job needs in a period.

    Args:
        rate: Samples a second that arrive.
        sample: Megabytes of a sample.
        aggregation: Capacity of a node's processors that each sample a second needs.
        processing: Processing of a sample, relative to that of the levels' throughput.
        delay: Delay that its data tolerates, in milliseconds.
        accuracy: Accuracy that it must reach.
        moves: Whether it may train elsewhere in the next period.
        levels: Levels of arithmetic with needs of their own: sample, aggregation and processing at each.
    """

    rate: float
    sample: float
    aggregation: float
    processing: float
    delay: float
    accuracy: float
    moves: bool
    levels: tuple[tuple[str, tuple[float, float, float]], ...] = ()

    def at(self, level: str) -> tuple[float, float, float]:
        """Return the sample, aggregation and processing at a level of arithmetic."""
        return dict(self.levels).get(level, (self.sample, self.aggregation, self.processing))


@dataclass(frozen=True, slots=True)
class PlacedJob:
    """A job: a set of equal tasks. Tasks that differ are jobs of their own.

    Args:
        tasks: Number of tasks in each period. Those of a period with fewer are the first of those of one with more.
        rate: Samples a second that arrive for each task.
        sample: Megabytes of a sample.
        aggregation: Capacity of a node's processors that each sample a second needs.
        processing: Processing of a sample (the paper's G), relative to that of the levels' throughput: 2 for a model
            of which a GPU trains half as many samples.
        delay: Delay that its data tolerates, in milliseconds: how far away the cloud may be.
        accuracy: Accuracy that each task must reach.
        moves: Whether a task may train elsewhere in the next period.
        levels: Needs of a sample at each level of arithmetic where they differ from the job's own.
    """

    tasks: tuple[int, ...]
    rate: ByPeriod
    sample: ByPeriod
    aggregation: ByPeriod = 0.0
    processing: ByPeriod = 1.0
    delay: float = math.inf
    accuracy: float = 0.0
    moves: bool = True
    levels: Mapping[str, SampleNeeds] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tasks", tuple(self.tasks))
        if not self.tasks or any(type(count) is not int or count < 0 for count in self.tasks) or not max(self.tasks):
            raise ValueError(f"tasks must be a whole number for each period, at least one of them, got {self.tasks}")
        for rule in BY_PERIOD:
            object.__setattr__(self, rule, self._checked(rule, getattr(self, rule)))
        differ = {
            level: SampleNeeds(*(None if given is None else self._checked(rule, given, f" at level {level}")
                                 for rule, given in needs._asdict().items()))
            for level, needs in self.levels.items()
        }  # fmt: skip
        object.__setattr__(self, "levels", differ)
        if not self.delay >= 0:
            raise ValueError(f"delay must be at least 0, got {self.delay}")
        if not 0 <= self.accuracy <= 1:
            raise ValueError(f"accuracy must be 0 to 1, got {self.accuracy}")

    def _checked(self, rule: str, given: ByPeriod, where: str = "") -> ByPeriod:
        if not isinstance(given, float | int):
            given = tuple(given)
            if len(given) != len(self.tasks):
                raise ValueError(f"{rule}{where} must have one entry per period, {len(self.tasks)}, got {len(given)}")
        for value in by_period(given, len(self.tasks)):
            if rule != "aggregation":
                _positive(**{f"{rule}{where}": value})
            elif not value >= 0:
                raise ValueError(f"{rule}{where} must be at least 0, got {value}")
        return given

    def during(self, period: int) -> TaskNeeds:
        """Return what each task needs in a period, by its number.

        Example::

            >>> job = PlacedJob((1, 1), rate=(5.0, 20.0), sample=0.4)
            >>> [job.during(period).rate * job.during(period).sample for period in (0, 1)]
            [2.0, 8.0]
        """
        now = {rule: by_period(getattr(self, rule), len(self.tasks))[period] for rule in BY_PERIOD}
        levels = []
        for level, needs in self.levels.items():
            sample, aggregation, processing = (
                now[rule] if given is None else by_period(given, len(self.tasks))[period]
                for rule, given in needs._asdict().items()
            )
            levels.append((level, (sample, aggregation, processing)))
        return TaskNeeds(**now, delay=self.delay, accuracy=self.accuracy, moves=self.moves, levels=tuple(levels))


def by_period(given: ByPeriod, periods: int) -> Sequence[float]:
    """Return the number of each period."""
    return (given,) * periods if isinstance(given, float | int) else given


@dataclass(frozen=True, slots=True)
class Demands:
    """Supply and demand over the day.

    Args:
        periods: Names of the periods, in order.
        gpus: Types of GPU, by name.
        levels: Kinds of arithmetic, by name.
        nodes: Nodes at the edge, by name.
        jobs: Jobs, by name.
        cloud: Distance and prices of the cloud.
        edge: Prices at the edge.
        window: Seconds of a window.
        epochs: Epochs that a window's samples are trained for.
        whole: Whether a task gets whole GPUs.
        cycle: Whether the first period follows the last.

    Raises:
        ValueError: If a part does not fit the others.
    """

    periods: tuple[str, ...]
    gpus: Mapping[str, Gpu]
    levels: Mapping[str, Level]
    nodes: Mapping[str, Node]
    jobs: Mapping[str, PlacedJob]
    cloud: Cloud = field(default_factory=Cloud)
    edge: EdgePrices = field(default_factory=EdgePrices)
    window: float = 30.0
    epochs: float = 100.0
    whole: bool = True
    cycle: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "periods", tuple(self.periods))
        if not self.periods or len(set(self.periods)) < len(self.periods):
            raise ValueError(f"periods must have distinct names, at least one, got {self.periods}")
        for rule, some in (("gpus", self.gpus), ("levels", self.levels), ("jobs", self.jobs)):
            if not some:
                raise ValueError(f"{rule} must have at least one entry, got none")
        if CLOUD in self.nodes:
            raise ValueError(f"a node must not be called {CLOUD!r}")
        _positive(window=self.window, epochs=self.epochs)
        for part, name, types in (
            *(("level", name, level.throughput) for name, level in self.levels.items()),
            *(("node", name, node.gpus) for name, node in self.nodes.items()),
        ):
            if strangers := set(types) - set(self.gpus):
                raise ValueError(f"{part} {name}: must have GPUs of {', '.join(self.gpus)}, got {min(strangers)!r}")
        best = max(level.accuracy for level in self.levels.values())
        for name, job in self.jobs.items():
            if len(job.tasks) != len(self.periods):
                raise ValueError(
                    f"job {name}: tasks must be {len(self.periods)} numbers, one a period, got {job.tasks}"
                )
            if strangers := set(job.levels) - set(self.levels):
                raise ValueError(f"job {name}: levels must be of {', '.join(self.levels)}, got {min(strangers)!r}")
            if job.accuracy > best + EXACT:
                raise ValueError(
                    f"job {name}: accuracy must be at most that of the best level, {best:g}, got {job.accuracy:g}"
                )

    @property
    def locations(self) -> tuple[str, ...]:
        """The nodes, and the cloud last."""
        return (*self.nodes, CLOUD)

    @property
    def steps(self) -> list[tuple[int, int]]:
        """Pairs of consecutive periods; in a cycle of more than two, also the last and the first."""
        steps = [(period, period + 1) for period in range(len(self.periods) - 1)]
        return [*steps, (len(self.periods) - 1, 0)] if self.cycle and len(self.periods) > 2 else steps

    def choices(self, needs: TaskNeeds) -> list[Choice]:
        """Return the best choices for a task at each location.

        The cloud has enough of everything, so for each level only its cheapest type of GPU can be the best.
        """
        found = self.every(needs)
        cheapest: dict[str, Choice] = {}
        for choice in found:
            best = cheapest.get(choice.level)
            if choice.location == CLOUD and (best is None or choice.cost < best.cost + EXACT):
                cheapest[choice.level] = choice
        return [one for one in found if one.location != CLOUD or cheapest[one.level] is one]

    def every(self, needs: TaskNeeds) -> list[Choice]:
        """Return all choices for a task."""
        every = (
            self.choice(needs, location, gpu, name)
            for location, (name, level) in product(self.locations, self.levels.items())
            for gpu in level.throughput
        )
        return [one for one in every if one is not None]

    def choice(self, needs: TaskNeeds, location: str, gpu: str, level_name: str) -> Choice | None:
        """Return one choice for a task; None if there is no such one."""
        level = self.levels.get(level_name)
        if level is None or gpu not in level.throughput or level.accuracy < needs.accuracy - EXACT:
            return None
        if location == CLOUD:
            is_there = self.cloud.delay <= needs.delay
        else:
            is_there = location in self.nodes and bool(self.nodes[location].gpus.get(gpu, 0))
        if not is_there:
            return None
        sample, _, processing = needs.at(level_name)
        gpu_count = self.epochs * needs.rate * processing / level.throughput[gpu]
        gpu_count = float(math.ceil(gpu_count - EXACT)) if self.whole else gpu_count
        cost = self._cost(needs.rate, sample, location, gpu, gpu_count)
        return Choice(location, gpu, level_name, gpu_count, level.accuracy, cost)

    def served_rate(self, needs: TaskNeeds, choice: Choice) -> float:
        """Return the samples a second of a task that a choice can train on."""
        throughput = self.levels[choice.level].throughput[choice.gpu]
        _, _, processing = needs.at(choice.level)
        return choice.gpu_count * throughput / (self.epochs * processing)

    def _cost(self, rate: float, sample: float, location: str, gpu: str, gpu_count: float) -> float:
        """Return the cost of a task for a window (eq. 2, which charges the cloud's price of processing everywhere)."""
        hours, gigabytes = self.window / 3600, rate * self.window * sample / 1000
        processing = gpu_count * hours * self.gpus[gpu].price
        if location == CLOUD:
            return processing + gigabytes * self.cloud.gigabyte
        return self.edge.gpu * processing + gigabytes * self.edge.gigabyte


class Choice(NamedTuple):
    """A way to serve a task.

    Attributes:
        location: A node, or the cloud.
        gpu: Type of GPU.
        level: Kind of arithmetic.
        gpu_count: GPUs that it takes.
        accuracy: Accuracy that it reaches.
        cost: Cost for a window.
    """

    location: str
    gpu: str
    level: str
    gpu_count: float
    accuracy: float
    cost: float


def _not_negative(**values: float) -> None:
    for rule, value in values.items():
        if not 0 <= value < math.inf:
            raise ValueError(f"{rule} must be at least 0 and finite, got {value}")


def _positive(**values: float) -> None:
    for rule, value in values.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{rule} must be positive and finite, got {value}")
