"""Changes a plan within a period when more arrives than was planned, and back afterwards: the published heuristic.

One task after the other, the one that lacks most first: it grows where it is, if there is room; else it moves, if it
may and the cost is within the limits; else it stays, and that is reported. When demand is as planned again, the added
GPUs are returned, and a task that has moved stays at its new location (Sartzetakis et al., section IV-C).

Two rules are additions. Another type of GPU at the same location will do. A task that stays for lack of room takes the
room there is. The default, :mod:`.replanner`, plans all tasks at once instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from lightning_core.parts.edge_cloud.day_plan import MOVE_PRICE
from lightning_core.parts.edge_cloud.placement.demands import EXACT, Choice, Demands, TaskNeeds
from lightning_core.parts.edge_cloud.placement.plan import Task, TaskPlacement, capacity_of, usage

What = Literal["grown", "moved", "partly", "left", "released"]


class TaskChange(NamedTuple):
    """Change to one task.

    Attributes:
        task: The task.
        kind: ``"grown"`` where it is, ``"moved"``, ``"partly"`` grown though it lacks more, ``"left"`` as it was though
            it lacks something, or ``"released"``.
        before: Choice before.
        after: Choice after.
        reason: Explanation, as text.
    """

    task: Task
    kind: What
    before: Choice
    after: Choice
    reason: str


@dataclass(frozen=True, slots=True)
class ReconfigurationLimits:
    """Limits and prices of a reconfiguration.

    Args:
        cost: Largest additional cost of a task, relative to its planned cost.
        moves: Most tasks that may move in one reconfiguration.
        move_price: Price of a move, relative to the planned cost of the task for a window. The published heuristic
            takes no account of it.
    """

    cost: float = 1.0
    moves: int = 1000
    move_price: float = MOVE_PRICE

    def __post_init__(self) -> None:
        for rule in ("cost", "move_price"):
            if not getattr(self, rule) >= 0:
                raise ValueError(f"{rule} must be at least 0, got {getattr(self, rule)}")
        if self.moves < 0:
            raise ValueError(f"moves must be at least 0, got {self.moves}")


class Reconfigurer:
    """The current state of a period of a plan.

    Args:
        placement: The plan.
        period: Number of the period.
        limits: Limits of a change.
    """

    def __init__(self, placement: TaskPlacement, period: int, limits: ReconfigurationLimits | None = None) -> None:
        self.demands: Demands = placement.demands
        self.limits = limits or ReconfigurationLimits()
        self.now: dict[Task, Choice] = {
            task: choice for task, choices in placement.served.items() if (choice := choices[period]) is not None
        }
        """Present choice of each task."""
        self._planned = {task: choice.cost for task, choice in self.now.items()}
        # Demand served by task: some tasks of a job may have grown and others not.
        self._needs = {name: job.during(period) for name, job in self.demands.jobs.items()}
        self._rates = {task: self._needs[task.job].rate for task in self.now}
        self._used: dict[tuple[str, str], float] = {}
        self._known: dict[TaskNeeds, list[Choice]] = {}
        for task, choice in self.now.items():
            self._count(self._needs[task.job], choice, 1.0)

    def planned_rate(self, job: str) -> float:
        """Return the samples per second that are planned for each task of a job in this period."""
        return self._needs[job].rate

    def serve(self, arrival_rates: Mapping[str, float]) -> list[TaskChange]:
        """Change the plan to serve the expected demand; return the changes.

        Args:
            arrival_rates: Samples per second that arrive for each task, by job; unchanged for jobs that are not named.

        Raises:
            ValueError: If there is no such job, or a rate is not positive.
        """
        for name, rate in arrival_rates.items():
            if name not in self.demands.jobs:
                raise ValueError(f"arrival_rates must be of the jobs {', '.join(self.demands.jobs)}, got {name!r}")
            if not rate > 0:
                raise ValueError(f"job {name}: rate must be positive, got {rate}")
        wanted = {task: arrival_rates.get(task.job, rate) for task, rate in self._rates.items()}
        less = [task for task, rate in self._rates.items() if wanted[task] < rate - EXACT]
        more = [task for task, rate in self._rates.items() if wanted[task] > rate + EXACT]
        changes = [change for task in less if (change := self._shrunk(task, wanted[task])) is not None]
        more.sort(key=lambda task: (self.now[task].gpu_count * (1 - wanted[task] / self._rates[task]), task))
        changes += self._grow({task: wanted[task] for task in more})
        self._known.clear()  # every rate that was ever seen would stay
        return changes

    def _grow(self, more: Mapping[Task, float], moves: int = 0) -> list[TaskChange]:
        """Give tasks the capacity that they lack, one after the other.

        Args:
            more: Samples per second that arrive for each task, the one that lacks most first.
            moves: Tasks that have moved before in this reconfiguration.
        """
        changes = []
        for task, rate in more.items():
            changes.append(change := self._grown(task, rate, moves))
            moves += change.kind == "moved"
        return changes

    def state(self) -> dict[str, Any]:
        """Return the changed plan as JSON values."""
        tasks = [
            [*task, choice.location, choice.gpu, choice.level, self._rates[task]] for task, choice in self.now.items()
        ]
        return {"tasks": tasks, "used": [[*key, amount] for key, amount in self._used.items()]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that :meth:`state` returned, of the same period of the same plan."""
        for job, number, location, gpu, level, rate in state["tasks"]:
            task = Task(job, number)
            self._rates[task] = rate
            self.now[task] = self._chosen(self._job(task), (location, gpu, level))
        # In the order of summation: otherwise the rest of a node may differ in the last bit.
        self._used = {(location, resource): amount for location, resource, amount in state["used"]}

    def _shrunk(self, task: Task, rate: float) -> TaskChange | None:
        before = self.now[task]
        after = self._as_it_is(task, self._job(task, rate))
        self._count(self._job(task), before, -1.0)
        self._take(task, self._job(task, rate), after)
        return (
            None
            if after == before
            else TaskChange(task, "released", before, after, "demand is lower: the additional GPUs are given back")
        )

    def _grown(self, task: Task, rate: float, moves: int) -> TaskChange:
        """Give a task the capacity that it lacks."""
        before, job, bigger = self.now[task], self._job(task), self._job(task, rate)
        self._count(job, before, -1.0)
        after = self._as_it_is(task, bigger)
        if self._fits(bigger, after):
            self._take(task, bigger, after)
            return TaskChange(task, "grown", before, after, f"there is room in {before.location}")
        lacks = f"{self._short(bigger, after)} are free in {before.location}"
        instead = next(self._fitting(bigger, before, there=True), None)
        if instead is not None and self._affordable(task, instead):
            self._take(task, bigger, instead)
            return TaskChange(task, "grown", before, instead, f"{lacks}, but {instead.gpu_count:g} {instead.gpu} are")
        best, why = self._elsewhere(task, bigger, moves)
        if best is not None:
            self._take(task, bigger, best)
            return TaskChange(task, "moved", before, best, f"{lacks}, {best.location} has room")
        part = self._part(job, bigger, before)
        some = self._as_it_is(task, part)
        if some.gpu_count > before.gpu_count + EXACT:
            self._take(task, part, some)
            return TaskChange(task, "partly", before, some, f"{lacks}, and {why}")
        self._take(task, job, before)
        return TaskChange(task, "left", before, before, f"{lacks}, and {why}")

    def _elsewhere(self, task: Task, job: TaskNeeds, moves: int) -> tuple[Choice | None, str]:
        """Return the cheapest choice elsewhere that is no less accurate and has room; else None with the reason."""
        if not job.moves:
            return None, "it must not move"
        if moves >= self.limits.moves:
            return None, f"{moves} tasks have moved already, the limit"
        best = next(self._fitting(job, self.now[task], there=False), None)
        if best is None:
            return None, "no other location has room"
        if not self._affordable(task, best):
            return None, f"{best.location} would cost {best.cost / self._planned[task]:.2f} times the planned cost"
        return best, ""

    def _fitting(self, job: TaskNeeds, has: Choice, *, there: bool) -> Iterator[Choice]:
        """Yield choices with room, at the same location or elsewhere, that are no less accurate, the cheapest first."""
        for one in self._choices(job):
            if (
                (one.location == has.location) == there
                and one.accuracy >= has.accuracy - EXACT
                and self._fits(job, one)
            ):
                yield one

    def _affordable(self, task: Task, choice: Choice) -> bool:
        planned = self._planned[task]
        return choice.cost - planned <= self.limits.cost * planned + EXACT

    def _part(self, job: TaskNeeds, bigger: TaskNeeds, has: Choice) -> TaskNeeds:
        """Return as much of the demand as there is room for."""
        free = self._free(has.location, has.gpu)
        gpu_count = math.floor(free + EXACT) if self.demands.whole else free
        sample, aggregation, _ = job.at(has.level)
        room = min(
            self.demands.served_rate(job, has._replace(gpu_count=gpu_count)),
            self._free(has.location, "bandwidth") / sample,
            self._free(has.location, "aggregation") / aggregation if aggregation else math.inf,
            bigger.rate,
        )
        return replace(job, rate=max(room, job.rate))

    def _short(self, job: TaskNeeds, choice: Choice) -> str:
        """Describe the shortage at a location."""
        for resource, amount in usage(job, choice).items():
            free = self._free(choice.location, resource)
            if amount > free + EXACT:
                return f"{max(free, 0.0):g} of {amount:g} {resource}"
        return "none"

    def _as_it_is(self, task: Task, job: TaskNeeds) -> Choice:
        """Return the choice of the same location, type and level for the present demand."""
        kept = self.now[task]
        return self._chosen(job, (kept.location, kept.gpu, kept.level))

    def _chosen(self, job: TaskNeeds, way: tuple[str, str, str]) -> Choice:
        found = self.demands.choice(job, *way)
        assert found is not None, f"{way} must serve {job}, as it did before"
        return found

    def _job(self, task: Task, rate: float | None = None) -> TaskNeeds:
        job = self._needs[task.job]
        return replace(job, rate=self._rates[task] if rate is None else rate)

    def _fits(self, job: TaskNeeds, choice: Choice) -> bool:
        return all(
            amount <= self._free(choice.location, resource) + EXACT for resource, amount in usage(job, choice).items()
        )

    def _free(self, location: str, resource: str) -> float:
        return capacity_of(self.demands, location, resource) - self._used.get((location, resource), 0.0)

    def _choices(self, job: TaskNeeds) -> list[Choice]:
        """Return the choices, the cheapest first; cached."""
        if job not in self._known:
            self._known[job] = sorted(self.demands.choices(job), key=lambda one: (one.cost, one.location))
        return self._known[job]

    def _take(self, task: Task, job: TaskNeeds, choice: Choice) -> None:
        self.now[task], self._rates[task] = choice, job.rate
        self._count(job, choice, 1.0)

    def _count(self, job: TaskNeeds, choice: Choice, sign: float) -> None:
        for resource, amount in usage(job, choice).items():
            key = choice.location, resource
            self._used[key] = self._used.get(key, 0.0) + sign * amount
