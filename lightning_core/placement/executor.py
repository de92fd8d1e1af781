"""Executes a plan on a pool: each of its tasks is a job, which is told where to train, and on how many devices.

The pool's devices are at the plan's locations, and a GPU is a device. A task that is not present in a period is paused
and its memory released. A task that moves saves, leaves and resumes, as with any other change of devices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lightning_core.core.control import Ask, Asker
from lightning_core.core.events import Event
from lightning_core.core.reasons import Reason
from lightning_core.placement.demands import Choice, Demands
from lightning_core.placement.plan import Placement, Task
from lightning_core.placement.reconfigurer import Change, ReconfigurationLimits, Reconfigurer


def job_name(demands: Demands, task: Task) -> str:
    """Return the name of the pool's job for a task: its job's name, numbered if that has several tasks.

    Example::

        >>> from lightning_core.placement import Demands, Gpu, Level, Node, PlacedJob, Task
        >>> jobs = {"cars": PlacedJob((2,), rate=15.0, sample=0.4), "bus": PlacedJob((1,), rate=15.0, sample=0.4)}
        >>> demands = Demands(("day",), {"v100": Gpu(2.0)}, {"fp32": Level(0.9, {"v100": 150.0})}, {}, jobs)
        >>> job_name(demands, Task("cars", 1)), job_name(demands, Task("bus", 0))
        ('cars-1', 'bus')
    """
    return f"{task.job}-{task.number}" if max(demands.jobs[task.job].tasks) > 1 else task.job


class PlanExecutor:
    """Holds the jobs of a pool to a plan, period by period, and moves them where demand exceeds the plan.

    Args:
        placement: The plan.
        tell: Hands an event to the pool's scheduler.
        limits: Limits of a change within a period.
    """

    def __init__(
        self,
        placement: Placement,
        tell: Callable[[Event], object],
        limits: ReconfigurationLimits | None = None,
    ) -> None:
        self.placement = placement
        self.now: Reconfigurer | None = None
        """The present period, as it is changed; None before the first."""
        self._tell, self._limits = tell, limits

    def begin(self, period: int) -> None:
        """Begin a period: send every job where the plan has it."""
        self.now = Reconfigurer(self.placement, period, self._limits)
        name = self.placement.demands.periods[period]
        for task in self.placement.served:
            if (choice := self.now.now.get(task)) is not None:
                self._send(task, choice, Reason("in_plan", text=name))
            else:
                job = job_name(self.placement.demands, task)
                self._tell(Ask(job, Asker.PLAN, hold=True, release=True, reason=Reason("not_in_plan", text=name)))

    def serve(self, arrival_rates: Mapping[str, float]) -> list[Change]:
        """Serve the expected demand, as :meth:`Reconfigurer.serve` does, and move the jobs.

        Raises:
            ValueError: If no period has begun, there is no such job, or a rate is not positive.
        """
        if self.now is None:
            raise ValueError("no period has begun: call begin first")
        changes = self.now.serve(arrival_rates)
        for change in changes:
            if change.after != change.before:
                self._send(change.task, change.after, Reason("plan_changed", text=change.reason))
        return changes

    def _send(self, task: Task, choice: Choice, reason: Reason) -> None:
        job, devices = job_name(self.placement.demands, task), max(round(choice.gpu_count), 1)
        self._tell(Ask(job, Asker.PLAN, location=choice.location, devices=devices, reason=reason))
