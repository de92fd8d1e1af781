"""Plans a day as an integer program (Sartzetakis et al., eqs. 1 to 11), solved by HiGHS.

Meaning of the formulas: the edge charges its own price of processing (2); accuracy is the mean over tasks and periods
(3); each node has its capacity in each period (5 to 7); a task may go to the cloud if that is no farther than its data
may travel (8); a task moves if its location differs, whatever its accuracy, and one that must not move stays (10, 11).

Tasks with equal needs that are present in the same periods are counted, not listed. The variables are how many of them
are where in each period, and how many stay from one period to the next: at most as many as are there in both. On an
open chain of periods that is exact, because each step can be assigned on its own. Around a cycle it is not, so tasks
whose moves count are listed one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lightning_core.errors import LightningCoreError
from lightning_core.parts.edge_cloud.placement.demands import Demands, PlacedJob
from lightning_core.parts.edge_cloud.placement.milp_model import MAX_SEARCH_NODES, MilpModel, TaskGroup
from lightning_core.parts.edge_cloud.placement.plan import (
    ObjectiveRanges,
    Task,
    TaskPlacement,
    Weights,
    capacity_of,
    usage,
)

# Relative gap at which a solution counts as optimal.
GAP = 1e-3


class InfeasibleError(LightningCoreError, ValueError):
    """Not all tasks can be served; the message names the missing capacity and its location.

    Attributes:
        largest: Placement that serves the most tasks.
        missing: Minimum need of the unserved tasks, by period and resource.
    """

    def __init__(self, message: str, largest: TaskPlacement, missing: dict[tuple[str, str], float]) -> None:
        super().__init__(message)
        self.largest, self.missing = largest, missing


@dataclass(frozen=True, slots=True)
class Solution:
    """A plan and its quality.

    Attributes:
        placement: The plan.
        ranges: Ranges of the objective's parts.
        objective: Weighted sum of the scaled parts; less is better.
        bound: Lower bound of the objective of any plan.
        variables: Number of variables of the model.
    """

    placement: TaskPlacement
    ranges: ObjectiveRanges
    objective: float
    bound: float
    variables: int


def plan(
    demands: Demands,
    weights: Weights | None = None,
    *,
    accuracy: float | None = None,
    ranges: ObjectiveRanges | None = None,
    listed: bool = False,
    gap: float = GAP,
    nodes: int = MAX_SEARCH_NODES,
    seconds: float | None = None,
) -> Solution:
    """Return the best plan.

    Args:
        demands: Capacities and tasks.
        weights: Weights of the objective.
        accuracy: Lower bound of the mean accuracy; None to let the weights decide.
        ranges: Ranges of the objective's parts, if they are known.
        listed: Whether each task is a variable of its own, which is slower and gives the same.
        gap: Relative gap to the bound that may be left.
        nodes: Most nodes of the search.
        seconds: Most seconds; with a limit the plan depends on the machine.

    Raises:
        InfeasibleError: If not all tasks can be served.
        ValueError: If the mean accuracy cannot be reached, or the limits were too low to find a plan.

    Example::

        >>> from lightning_core.parts.edge_cloud.placement import Demands, Gpu, Level, Node, PlacedJob
        >>> demands = Demands(("day",), {"v100": Gpu(2.0)}, {"fp32": Level(0.9, {"v100": 150.0})},
        ...                   {"edge": Node({"v100": 10})}, {"cars": PlacedJob((2,), rate=15.0, sample=0.4)})
        >>> solution = plan(demands)
        >>> [choices[0].location for choices in solution.placement.served.values()]
        ['cloud', 'cloud']
    """
    weights = weights or Weights()
    groups = group_tasks(demands, listed=listed)
    _servable(demands, groups)
    if demands.cycle and weights.moves:
        groups = [one for group in groups for one in (_split(group) if group.job.moves else [group])]
    model = MilpModel(demands, groups, moves=weights.moves > 0)
    ranges = ranges or model.ranges()
    model.weigh(weights, ranges)
    if accuracy is not None:
        model.at_least(accuracy)
    found = model.solve(gap, nodes, seconds)
    if found.x is None:
        if accuracy is not None and MilpModel(demands, groups, moves=False).relaxed().status == 0:
            raise ValueError(
                f"accuracy must be one that can be reached, at most {ranges.accuracy[1]:.4f}, got {accuracy:g}"
            )
        if found.status == 1:
            raise ValueError(f"no plan was found within {nodes} nodes" + (f" and {seconds:g} s" if seconds else ""))
        raise _explained(demands, groups)
    placement = model.assign(found.x)
    objective = ranges.objective(weights, placement.cost, placement.accuracy, placement.moves)
    bound = float(found.mip_dual_bound) + model.offset
    return Solution(placement, ranges, objective, bound, len(found.x))


def group_tasks(demands: Demands, *, listed: bool = False) -> list[TaskGroup]:
    """Return the tasks grouped by needs and periods; ``listed``: each on its own."""
    alike: dict[tuple[object, ...], list[Task]] = {}
    of: dict[tuple[object, ...], tuple[PlacedJob, tuple[int, ...]]] = {}
    for name, job in demands.jobs.items():
        far = demands.cloud.delay > job.delay
        loads = [replace(job.during(period), delay=0.0) for period in range(len(job.tasks))]
        for number in range(max(job.tasks)):
            periods = tuple(period for period, count in enumerate(job.tasks) if number < count)
            key = (tuple(loads[period] for period in periods), far, periods)
            alike.setdefault(key, []).append(Task(name, number))
            of.setdefault(key, (job, periods))
    groups = []
    for same, tasks in alike.items():
        job, periods = of[same]
        choices = {period: tuple(demands.choices(job.during(period))) for period in periods}
        groups.append(TaskGroup(job, periods, tuple(tasks), choices))
    return [one for group in groups for one in _split(group)] if listed else groups


def _split(group: TaskGroup) -> list[TaskGroup]:
    return [group._replace(tasks=(task,)) for task in group.tasks]


def _servable(demands: Demands, groups: Sequence[TaskGroup]) -> None:
    for group in groups:
        if not all(group.choices.values()):
            raise ValueError(
                f"job {group.tasks[0].job}: no location can serve it: its data may travel {group.job.delay:g} ms, the "
                f"cloud is {demands.cloud.delay:g} ms away, and no edge node has GPUs for it"
            )


def _explained(demands: Demands, groups: Sequence[TaskGroup]) -> InfeasibleError:
    """Return an error that names the missing capacity, with the largest part that fits."""
    model = MilpModel(demands, groups, moves=False, partly=True)
    found = model.solve(GAP, MAX_SEARCH_NODES, None)
    largest = model.assign(found.x)
    missing: dict[tuple[str, str], float] = {}
    count: dict[int, int] = {}
    for task, period in largest.unserved:
        needs = demands.jobs[task.job].during(period)
        count[period] = count.get(period, 0) + 1
        for resource, amount in usage(needs, min(demands.choices(needs), key=lambda choice: choice.cost)).items():
            short = any(_left(largest, node, period, resource) < amount for node in demands.nodes)
            if amount and short:
                key = demands.periods[period], resource
                missing[key] = missing.get(key, 0.0) + amount
    lines = [f"{number} tasks cannot be served in {demands.periods[period]}" for period, number in count.items()]
    for period, name in enumerate(demands.periods):
        for (when, resource), amount in missing.items():
            if when == name:
                free = ", ".join(f"{node} {_left(largest, node, period, resource):g}" for node in demands.nodes)
                lines.append(f"{name}: {amount:g} more {resource} at the edge would be needed; free: {free}")
    return InfeasibleError("; ".join(lines), largest, missing)


def _left(placement: TaskPlacement, node: str, period: int, resource: str) -> float:
    return capacity_of(placement.demands, node, resource) - placement.held(node, period)[resource]
