"""A placement as the plain data of an event, and back."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Literal

from lightning_core.core.limits import shown
from lightning_core.core.names import listed
from lightning_core.parts.edge_cloud.day_plan import (
    STEP_SECONDS,
    DayPlan,
    PlannedJob,
    PlannedLevel,
    PlannedNode,
    PlannedTask,
    PlanTerms,
    Way,
)
from lightning_core.parts.edge_cloud.placement.demands import (
    BY_PERIOD,
    Choice,
    Cloud,
    Demands,
    EdgePrices,
    Gpu,
    Level,
    Node,
    PlacedJob,
)
from lightning_core.parts.edge_cloud.placement.plan import Task, TaskPlacement
from lightning_core.parts.edge_cloud.placement.reconfigurer import ReconfigurationLimits


def job_name(demands: Demands, task: Task) -> str:
    """Return the name of the pool's job for a task: its job's name, numbered if that has several tasks.

    Example::

        >>> jobs = {"cars": PlacedJob((2,), rate=15.0, sample=0.4), "bus": PlacedJob((1,), rate=15.0, sample=0.4)}
        >>> demands = Demands(("day",), {"v100": Gpu(2.0)}, {"fp32": Level(0.9, {"v100": 150.0})}, {}, jobs)
        >>> job_name(demands, Task("cars", 1)), job_name(demands, Task("bus", 0))
        ('cars-1', 'bus')
    """
    return f"{task.job}-{task.number}" if max(demands.jobs[task.job].tasks) > 1 else task.job


def plan_of(
    placement: TaskPlacement,
    length: float,
    begins: float,
    *,
    on_wall: bool = False,
    limits: ReconfigurationLimits | None = None,
    reconfigure: Literal["replan", "heuristic"] = "replan",
    forecast: Literal["", "persistence", "autoregression", "trend"] = "",
    step: float = STEP_SECONDS,
) -> DayPlan:
    """Return a placement as plain data.

    Args:
        placement: The placement.
        length: Seconds of a period.
        begins: Scheduler time at which the first period begins.
        on_wall: Whether that time is a wall-clock time instead: local seconds since 1970.
        limits: Limits of a change within a period.
        reconfigure: How a period changes for more than was planned.
        forecast: Name of what forecasts the demand that is told; empty for none.
        step: Seconds of a step of the forecasts.
    """
    demands, limits = placement.demands, limits or ReconfigurationLimits()
    ways: dict[Way, int] = {}
    tasks = []
    for task, choices in placement.served.items():
        served = tuple(None if one is None else ways.setdefault(_way(one), len(ways)) for one in choices)
        tasks.append(PlannedTask(job_name(demands, task), task.job, task.number, served))
    jobs = [
        PlannedJob(name, job.tasks, **_alike(job), delay=_limit(job.delay), levels=tuple(job.levels.items()))
        for name, job in demands.jobs.items()
    ]
    nodes = [
        PlannedNode(name, tuple(node.gpus.items()), _limit(node.bandwidth), _limit(node.aggregation))
        for name, node in demands.nodes.items()
    ]
    levels = [
        PlannedLevel(name, level.accuracy, tuple(level.throughput.items())) for name, level in demands.levels.items()
    ]
    return DayPlan(
        demands.periods, length, begins, tuple((name, gpu.price) for name, gpu in demands.gpus.items()),
        tuple(levels), tuple(nodes), tuple(jobs), tuple(ways), tuple(tasks),
        PlanTerms(demands.cloud.delay, demands.cloud.gigabyte, demands.edge.gpu, demands.edge.gigabyte, demands.window,
                  demands.epochs, demands.whole, demands.cycle, limits.cost, limits.moves, limits.move_price,
                  reconfigure, forecast, step),
        on_wall,
    )  # fmt: skip


@lru_cache(maxsize=4)  # a plan is checked, compared and taken, one after the other
def placement_of(plan: DayPlan) -> tuple[TaskPlacement, ReconfigurationLimits]:
    """Return the placement that a plan is, and the limits of a change within a period.

    Raises:
        ValueError: If its demands do not go together, or a task is served where or when it cannot be.
    """
    terms = plan.terms
    jobs = {
        job.name: PlacedJob(job.tasks, **_alike(job), delay=_unlimited(job.delay), levels=dict(job.levels))
        for job in plan.jobs
    }
    demands = Demands(
        plan.periods,
        {name: Gpu(price) for name, price in plan.gpus},
        {level.name: Level(level.accuracy, dict(level.throughput)) for level in plan.levels},
        {
            node.name: Node(dict(node.gpus), _unlimited(node.bandwidth), _unlimited(node.aggregation))
            for node in plan.nodes
        },
        jobs,
        Cloud(terms.delay, terms.cloud_gigabyte),
        EdgePrices(terms.edge_gpu, terms.edge_gigabyte),
        terms.window,
        terms.epochs,
        terms.whole,
        terms.cycle,
    )
    served = {Task(task.job, task.number): _choices(task, plan, demands) for task in plan.tasks}
    return TaskPlacement(demands, served), ReconfigurationLimits(terms.extra_cost, terms.moves, terms.move_price)


def _choices(task: PlannedTask, plan: DayPlan, demands: Demands) -> tuple[Choice | None, ...]:
    if task.job not in demands.jobs:
        raise ValueError(f"{task.name}: must be a task of {listed(demands.jobs)}, got {shown(task.job)}")
    job = demands.jobs[task.job]
    counts = job.tasks
    if not 0 <= task.number < max(counts):
        raise ValueError(f"{task.name}: number must be 0 to {max(counts) - 1}, got {shown(task.number)}")
    found: list[Choice | None] = []
    for number, (place, period, count) in enumerate(zip(task.ways, plan.periods, counts, strict=True)):
        if place is None:
            found.append(None)
            continue
        if task.number >= count:
            raise ValueError(f"{task.name}: must not be served in {period}, which has {count} tasks of its job")
        way = plan.ways[place]
        if (choice := demands.choice(job.during(number), *way)) is None:
            raise ValueError(f"{task.name}: must be served as its job can be, got {', '.join(way)} in {period}")
        found.append(choice)
    return tuple(found)


def _way(choice: Choice) -> Way:
    return Way(choice.location, choice.gpu, choice.level)


def _alike(job: PlacedJob | PlannedJob) -> dict[str, Any]:
    return {rule: getattr(job, rule) for rule in (*BY_PERIOD, "accuracy", "moves")}


def _limit(value: float) -> float | None:
    return None if value == math.inf else value


def _unlimited(value: float | None) -> float:
    return math.inf if value is None else value
