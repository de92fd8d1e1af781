"""A placement plan as plain data, and the demand that is seen: what the controller of a plan is told.

A plan says of each task of each period by which of its ways it is served: where, on which type of GPU, with which kind
of arithmetic. All that follows from that, such as the number of devices, is computed from the demands, which come with
it. So what is journalled is small, and cannot contradict itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from lightning_core.core.control.wall_clock import MAX_WALL
from lightning_core.core.limits import (
    MAX_COUNT,
    MAX_FACTOR,
    MAX_JOBS,
    MAX_SECONDS,
    check_at_most,
    check_factor,
    check_length,
    shown,
)
from lightning_core.core.names import check_name

# Tasks of a plan: each is a job of the pool. Periods, and tasks times periods: a plan is one request to the pool.
MAX_TASKS, MAX_PERIODS, MAX_SERVED = MAX_JOBS, 400, 20_000
# Ways to serve a task, over all nodes, types of GPU and kinds of arithmetic, and tasks times those: all are looked at
# when demand changes, in a second at most.
MAX_WAYS, MAX_CHOICES = 500, 100_000
# The shortest period, in seconds: each begins with a round of the scheduler.
MIN_PERIOD_SECONDS = 1.0
# Price of a move within a period, relative to the planned cost of the task for a window. A task that moves is away for
# some seconds, in a surge of some minutes at least.
MOVE_PRICE = 0.1
# A step of the predictor: a quarter of an hour, as published.
STEP_SECONDS = 900.0
# Where tasks train that do not train at a node.
CLOUD = "cloud"


class PlannedLevel(NamedTuple):
    """A kind of arithmetic."""

    name: str
    accuracy: float
    """Accuracy reached with it, 0 to 1."""
    throughput: tuple[tuple[str, float], ...]
    """Samples per second on one GPU, by type."""


class PlannedNode(NamedTuple):
    """A node at the edge: a location of the pool."""

    name: str
    gpus: tuple[tuple[str, float], ...]
    """Its GPUs, by type."""
    bandwidth: float | None = None
    """Megabytes a second; None without a limit."""
    aggregation: float | None = None
    """Capacity of its processors; None without a limit."""


class SampleNeeds(NamedTuple):
    """Resources that a sample needs at one level of arithmetic (the paper's B, Theta and G); None: the job's own."""

    sample: float | tuple[float, ...] | None = None
    """Megabytes of it; a number, or one by period."""
    aggregation: float | tuple[float, ...] | None = None
    """Capacity of a node's processors that each sample a second needs; likewise."""
    processing: float | tuple[float, ...] | None = None
    """Processing of it, relative to that of the level's throughput; likewise."""


class PlannedJob(NamedTuple):
    """A job of the plan: tasks that are alike."""

    name: str
    tasks: tuple[int, ...]
    """Number of tasks in each period."""
    rate: float | tuple[float, ...]
    """Samples a second that were planned for each task; a number, or one by period."""
    sample: float | tuple[float, ...]
    """Megabytes of a sample; likewise."""
    aggregation: float | tuple[float, ...] = 0.0
    """Capacity of a node's processors that each sample a second needs; likewise."""
    processing: float | tuple[float, ...] = 1.0
    """Processing of a sample, relative to that of the levels' throughput; likewise."""
    delay: float | None = None
    """Delay that its data tolerates, in milliseconds; None for any."""
    accuracy: float = 0.0
    """Accuracy that each task must reach."""
    moves: bool = True
    """Whether a task may train elsewhere later."""
    levels: tuple[tuple[str, SampleNeeds], ...] = ()
    """Levels of arithmetic at which a sample needs something else."""


class Way(NamedTuple):
    """A way to serve a task."""

    location: str
    gpu: str
    level: str


class PlannedTask(NamedTuple):
    """A task of the plan."""

    name: str
    """Name of the pool's job that does it."""
    job: str
    """Name of the plan's job."""
    number: int
    """Number of the task within that job, from 0."""
    ways: tuple[int | None, ...]
    """By period, the place of its way in the plan's ``ways``; None where it does not train."""


class PlanTerms(NamedTuple):
    """Prices, distances, and what may change within a period."""

    delay: float = 0.0
    """Delay to the cloud, in milliseconds."""
    cloud_gigabyte: float = 0.01
    """Price of sending a gigabyte to the cloud."""
    edge_gpu: float = 1.5
    """Price of a GPU at the edge, relative to its price in the cloud."""
    edge_gigabyte: float = 0.001
    """Price of sending a gigabyte to a node."""
    window: float = 30.0
    """Seconds of a window."""
    epochs: float = 100.0
    """Epochs that a window's samples are trained for."""
    whole: bool = True
    """Whether a task gets whole GPUs."""
    cycle: bool = False
    """Whether the first period follows the last; such a plan has neither a beginning nor an end."""
    extra_cost: float = 1.0
    """Largest additional cost of a task within a period, relative to its planned cost."""
    moves: int = 1000
    """Most tasks that may move at a time within a period."""
    move_price: float = MOVE_PRICE
    """Price of a move within a period, relative to the planned cost of the task for a window."""
    reconfigure: Literal["replan", "heuristic"] = "replan"
    """How a period changes for more than was planned: planned anew, or the published heuristic, task by task."""
    forecast: Literal["", "persistence", "autoregression", "trend"] = ""
    """Predictor of the demand in the next steps, for which the period is changed ahead; empty for none."""
    step: float = STEP_SECONDS
    """Seconds of a step."""


class DayPlan(NamedTuple):
    """A plan, with the demands that it serves."""

    periods: tuple[str, ...]
    """Names of the periods, in order."""
    length: float
    """Seconds of a period."""
    begins: float
    """When the first period begins, in scheduler time."""
    gpus: tuple[tuple[str, float], ...]
    """Types of GPU, each with its price for an hour in the cloud."""
    levels: tuple[PlannedLevel, ...]
    nodes: tuple[PlannedNode, ...]
    jobs: tuple[PlannedJob, ...]
    ways: tuple[Way, ...]
    tasks: tuple[PlannedTask, ...]
    terms: PlanTerms = PlanTerms()
    on_wall: bool = False
    """Whether ``begins`` is a wall-clock time instead: local seconds since 1970."""

    @property
    def locations(self) -> tuple[str, ...]:
        """Where its tasks may be sent: the nodes, and the cloud if that is not too far away for all of them."""
        near = any(job.delay is None or self.terms.delay <= job.delay for job in self.jobs)
        return (*(node.name for node in self.nodes), *([CLOUD] if near else []))


@dataclass(frozen=True, slots=True)
class PlanGiven:
    """The plan that holds from now on, in place of the one before.

    A job that the pool does not have yet is placed once it is submitted.

    Args:
        plan: The plan; None for none.

    Raises:
        ValueError: If it is too large, a number is out of its range, or a part does not fit the others.
    """

    plan: DayPlan | None = None

    def __post_init__(self) -> None:
        if self.plan is not None:
            _check_plan(self.plan)


@dataclass(frozen=True, slots=True)
class DemandSeen:
    """What arrives now: a level for each job that is named; those of the others stay.

    Args:
        rates: Samples a second that arrive for each task, by job of the plan.

    Raises:
        ValueError: If there is none, too many, one twice, or a rate is out of its range.
    """

    rates: tuple[tuple[str, float], ...]

    def __post_init__(self) -> None:
        if not self.rates:
            raise ValueError("rates must be of at least one job, got none")
        _check_names("jobs with a rate", [name for name, _ in self.rates], MAX_TASKS)
        for name, rate in self.rates:
            check_factor(f"job {shown(name)}: rate", rate)


PlanEvent = PlanGiven | DemandSeen


def _check_plan(plan: DayPlan) -> None:
    """Check sizes, ranges and names; whether the demands go together, the controller says."""
    if not plan.periods:
        raise ValueError("a plan must have at least one period, got none")
    _check_names("periods", plan.periods, MAX_PERIODS)
    if not MIN_PERIOD_SECONDS <= plan.length <= MAX_SECONDS:
        raise ValueError(
            f"length must be {MIN_PERIOD_SECONDS:g} to {MAX_SECONDS:.0f} seconds, got {shown(plan.length)}"
        )
    if not abs(plan.begins) <= MAX_WALL:
        raise ValueError(f"begins must be at most {MAX_WALL:.0f} seconds from 0, got {shown(plan.begins)}")
    check_at_most("tasks of a plan", len(plan.tasks), MAX_TASKS)
    check_at_most("tasks times periods of a plan", len(plan.tasks) * len(plan.periods), MAX_SERVED)
    for what, named in (("nodes", plan.nodes), ("levels", plan.levels), ("jobs", plan.jobs)):
        _check_names(what, [one.name for one in named], MAX_TASKS)
    _check_names("types of GPU", [name for name, _ in plan.gpus], MAX_WAYS)
    pairs = sum(len(level.throughput) for level in plan.levels)
    check_at_most("ways to serve a task", (len(plan.nodes) + 1) * pairs, MAX_WAYS)
    check_at_most("tasks times ways to serve one", len(plan.tasks) * (len(plan.nodes) + 1) * pairs, MAX_CHOICES)
    check_at_most("ways of a plan", len(plan.ways), MAX_WAYS)
    _check_numbers(plan)
    names = [check_name(task.name) for task in plan.tasks]
    if (twice := _twice(names)) is not None:
        raise ValueError(f"each job of the pool must do one task of a plan, got {shown(twice)} twice")
    if (again := _twice((task.job, task.number) for task in plan.tasks)) is not None:
        raise ValueError(f"each task must be there once, got task {again[1]} of {shown(again[0])} twice")
    for task in plan.tasks:
        if len(task.ways) != len(plan.periods):
            raise ValueError(f"{task.name}: must have a way for each of {len(plan.periods)} periods, "
                             f"got {len(task.ways)}")  # fmt: skip
        for way in task.ways:
            if way is not None and not 0 <= way < len(plan.ways):
                raise ValueError(f"{task.name}: ways must be those of {len(plan.ways)}, got {shown(way)}")


def _check_numbers(plan: DayPlan) -> None:
    terms = plan.terms
    positive = {"window": terms.window, "epochs": terms.epochs}
    at_least_0 = {name: getattr(terms, name) for name in ("delay", "cloud_gigabyte", "edge_gpu", "edge_gigabyte",
                                                          "extra_cost", "move_price")}  # fmt: skip
    positive |= {f"GPU {shown(name)}: price": price for name, price in plan.gpus}
    for level in plan.levels:
        positive |= {f"level {shown(level.name)}: {gpu} throughput": speed for gpu, speed in level.throughput}
    for node in plan.nodes:
        at_least_0 |= {f"node {shown(node.name)}: {gpu}": count for gpu, count in node.gpus}
        limits = ("bandwidth", node.bandwidth), ("aggregation", node.aggregation)
        at_least_0 |= {f"node {shown(node.name)}: {name}": limit for name, limit in limits if limit is not None}
    for job in plan.jobs:
        _check_names(f"levels of job {shown(job.name)}", [level for level, _ in job.levels], MAX_WAYS)
        for where, rule, given in (("", "rate", job.rate), *_per_sample(job)):
            each = given if isinstance(given, tuple) else (given,)
            check_at_most(f"job {shown(job.name)}: periods with a {rule}", len(each), MAX_PERIODS)
            numbers = at_least_0 if rule == "aggregation" else positive
            numbers |= {f"job {shown(job.name)}: {rule}{where}" + f" in period {k}" * (k > 0): one
                        for k, one in enumerate(each)}  # fmt: skip
        if job.delay is not None:
            at_least_0[f"job {shown(job.name)}: delay"] = job.delay
        for count in job.tasks:
            check_at_most(f"job {shown(job.name)}: tasks", count, MAX_TASKS)
    for name, number in positive.items():
        check_factor(name, number)
    for name, number in at_least_0.items():
        if not 0 <= number <= MAX_FACTOR:
            raise ValueError(f"{name} must be 0 to {MAX_FACTOR:,.0f}, got {shown(number)}")
    if not MIN_PERIOD_SECONDS <= terms.step <= MAX_SECONDS:
        raise ValueError(f"step must be {MIN_PERIOD_SECONDS:g} to {MAX_SECONDS:.0f} seconds, got {shown(terms.step)}")
    if not 0 <= terms.moves <= MAX_COUNT:
        raise ValueError(f"moves must be 0 to {MAX_COUNT:,}, got {shown(terms.moves)}")


def _per_sample(job: PlannedJob) -> Iterator[tuple[str, str, float | tuple[float, ...]]]:
    """Yield what a sample of a job needs, with the words for the level, and the name of the rule."""
    for level, needs in (("", job), *((f" at level {shown(level)}", needs) for level, needs in job.levels)):
        for rule in SampleNeeds._fields:
            if (given := getattr(needs, rule)) is not None:
                yield level, rule, given


def _check_names(what: str, names: Sequence[str], maximum: int) -> None:
    check_at_most(what, len(names), maximum)
    for name in names:
        if not name:
            raise ValueError(f"{what} must have names, got ''")
        check_length(f"a name of {what}", name)
    if (twice := _twice(names)) is not None:
        raise ValueError(f"{what} must be there once each, got {shown(twice)} twice")


def _twice(values: Iterable[Any]) -> Any:
    """Return the first value that was there before; None if there is none."""
    seen = set()
    for value in values:
        if value in seen:
            return value
        seen.add(value)
    return None
