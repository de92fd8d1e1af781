"""Tasks that train where their data is made, or in the cloud: what there is, what is wanted, what a choice costs.

A job's data comes in at ``rate`` samples a second, in each of its tasks. What comes in within a window is trained on
for so many epochs within the next, so a task needs ``rate * epochs / speed`` GPUs of a type for as long as its period
lasts. The faster kind of arithmetic needs fewer and is less accurate. Nodes at the edge have few of everything; the
cloud has all, but is far away (Sartzetakis et al., "Dynamic Edge/Cloud Resource Allocation for Distributed Computation
under Semi-Static Demands"). Its formulas have slips; what is meant is told in :mod:`.planner`.

All costs are of one window.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

CLOUD = "cloud"
# Counts that differ by less are one.
EXACT = 1e-9


@dataclass(frozen=True, slots=True)
class Gpu:
    """A type of GPU.

    Args:
        price: of one for an hour in the cloud.
    """

    price: float

    def __post_init__(self) -> None:
        _positive(price=self.price)


@dataclass(frozen=True, slots=True)
class Level:
    """A kind of arithmetic.

    Args:
        accuracy: that is reached with it, 0 to 1.
        speed: samples a second on one GPU, by type.
    """

    accuracy: float
    speed: Mapping[str, float]

    def __post_init__(self) -> None:
        if not 0 <= self.accuracy <= 1:
            raise ValueError(f"accuracy must be 0 to 1, got {self.accuracy}")
        if not self.speed:
            raise ValueError("speed must be of at least one type of GPU, got none")
        _positive(**self.speed)


@dataclass(frozen=True, slots=True)
class Node:
    """A place at the edge.

    Args:
        gpus: that it has, by type.
        bandwidth: megabytes a second that can come in.
        aggregation: of its processors, in the unit of the jobs' ``aggregation``.
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
    """Far away, and without end.

    Args:
        delay: milliseconds to it.
        gigabyte: price of one that goes there.
    """

    delay: float = 0.0
    gigabyte: float = 0.01

    def __post_init__(self) -> None:
        _not_negative(delay=self.delay, gigabyte=self.gigabyte)


@dataclass(frozen=True, slots=True)
class EdgePrices:
    """What the edge costs.

    Args:
        gpu: a GPU, in what it costs in the cloud.
        gigabyte: price of one that goes to a node.
    """

    gpu: float = 1.5
    gigabyte: float = 0.001

    def __post_init__(self) -> None:
        _not_negative(gpu=self.gpu, gigabyte=self.gigabyte)


@dataclass(frozen=True, slots=True)
class PlacedJob:
    """A job: tasks that are alike.

    Args:
        tasks: how many in each period. Those of a period with fewer are the first of those of one with more.
        rate: samples a second that come in for each task.
        sample: megabytes of one.
        aggregation: that each task needs of a node's processors.
        delay: milliseconds that its data may be under way; how far away the cloud may be.
        accuracy: that each task must reach at least.
        moves: whether a task may train elsewhere in the next period.
    """

    tasks: tuple[int, ...]
    rate: float
    sample: float
    aggregation: float = 0.0
    delay: float = math.inf
    accuracy: float = 0.0
    moves: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "tasks", tuple(self.tasks))
        if not self.tasks or any(type(count) is not int or count < 0 for count in self.tasks) or not max(self.tasks):
            raise ValueError(f"tasks must be a whole number for each period, at least one of them, got {self.tasks}")
        _positive(rate=self.rate, sample=self.sample)
        for rule, value in (("aggregation", self.aggregation), ("delay", self.delay)):
            if not value >= 0:
                raise ValueError(f"{rule} must be at least 0, got {value}")
        if not 0 <= self.accuracy <= 1:
            raise ValueError(f"accuracy must be 0 to 1, got {self.accuracy}")


@dataclass(frozen=True, slots=True)
class Demands:
    """What there is and what is wanted over the day.

    Args:
        periods: their names, in their order.
        gpus: types, by name.
        levels: kinds of arithmetic, by name.
        nodes: at the edge, by name.
        jobs: by name.
        cloud: how far away it is, and what goes there costs.
        edge: what the edge costs.
        window: seconds of one.
        epochs: that a window's samples are trained on.
        whole: whether a task has whole GPUs.
        cycle: whether the last period goes over into the first.

    Raises:
        ValueError: if a part does not fit to the others.
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
            raise ValueError(f"periods must be at least one, each of another name, got {self.periods}")
        for rule, some in (("gpus", self.gpus), ("levels", self.levels), ("jobs", self.jobs)):
            if not some:
                raise ValueError(f"{rule} must be at least one, got none")
        if CLOUD in self.nodes:
            raise ValueError(f"a node must not be called {CLOUD!r}")
        _positive(window=self.window, epochs=self.epochs)
        for part, name, types in (
            *(("level", name, level.speed) for name, level in self.levels.items()),
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
        """Periods that follow each other."""
        steps = [(period, period + 1) for period in range(len(self.periods) - 1)]
        return [*steps, (len(self.periods) - 1, 0)] if self.cycle and len(self.periods) > 2 else steps

    def choices(self, job: PlacedJob) -> list[Choice]:
        """How a task of a job may best be served, at each place.

        The cloud has enough of everything: of each level there only the cheapest type can be the best.
        """
        found = self.every(job)
        cheapest: dict[str, Choice] = {}
        for choice in found:
            if choice.location == CLOUD and choice.cost < cheapest.get(choice.level, choice).cost + EXACT:
                cheapest[choice.level] = choice
        return [one for one in found if one.location != CLOUD or cheapest[one.level] is one]

    def every(self, job: PlacedJob) -> list[Choice]:
        """How a task of a job may be served at all."""
        found = []
        for location, (level_name, level) in product(self.locations, self.levels.items()):
            if level.accuracy < job.accuracy - EXACT or (location == CLOUD and self.cloud.delay > job.delay):
                continue
            for gpu, speed in level.speed.items():
                if location != CLOUD and not self.nodes[location].gpus.get(gpu, 0):
                    continue
                gpu_count = self.epochs * job.rate / speed
                gpu_count = float(math.ceil(gpu_count - EXACT)) if self.whole else gpu_count
                found.append(
                    Choice(
                        location, gpu, level_name, gpu_count, level.accuracy, self._cost(job, location, gpu, gpu_count)
                    )
                )
        return found

    def _cost(self, job: PlacedJob, location: str, gpu: str, gpu_count: float) -> float:
        """Of a task for a window (eq. 2; there both places are charged what processing costs in the cloud)."""
        hours, gigabytes = self.window / 3600, job.rate * self.window * job.sample / 1000
        processing = gpu_count * hours * self.gpus[gpu].price
        if location == CLOUD:
            return processing + gigabytes * self.cloud.gigabyte
        return self.edge.gpu * processing + gigabytes * self.edge.gigabyte


class Choice(NamedTuple):
    """How a task may be served.

    Args:
        location: a node, or the cloud.
        gpu: type.
        level: of accuracy.
        gpu_count: GPUs that it takes.
        accuracy: that it reaches.
        cost: for a window.
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
