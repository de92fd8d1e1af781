"""Guarded EDF: earliest deadline first, but not for jobs that can hardly make it.

Plain EDF is hard to beat while all jobs can finish in time, and gives the devices to the first one that cannot. The
guard takes such jobs out.
"""

from __future__ import annotations

import numpy as np

from lightning_core.core.arrays import BoolArray, FloatArray
from lightning_core.core.plans import JobView, Plan
from lightning_core.core.saved_state import Stateful
from lightning_core.planning.chance import MIN_CELLS_TO_PLAN, Judge, Judgement, served_in_order
from lightning_core.planning.moore_hodgson import largest_feasible_set


class GuardedEdf(Stateful):
    """Earliest deadline first among the jobs that have a chance; the others get devices that no other job needs.

    :class:`~lightning_core.planning.chance.Judge` decides which jobs are given up for now. If no job passes, the
    likeliest go first.

    If weights differ, the jobs of :func:`~lightning_core.planning.moore_hodgson.largest_feasible_set` go first, by
    deadline, and then the others that pass: otherwise a light urgent job would displace a heavy one.

    Args:
        judge_after: Loss cells that a job must show before it is judged.
        min_chance: Minimum chance of a job; below it the job is given up for now.

    Raises:
        ValueError: If an argument is out of its range.
    """

    def __init__(self, judge_after: int = MIN_CELLS_TO_PLAN, min_chance: float = 0.15) -> None:
        self._judge = Judge(judge_after, min_chance)

    def plan(self, jobs: JobView, now: float) -> Plan:
        judgement = self._judge(jobs, now)
        occupied = judgement.occupied_time(0.5)
        first = self._first(jobs, judgement, occupied, now)
        key = np.where(judgement.passes, jobs.deadline, -judgement.chance)
        order = np.lexsort((key, np.where(judgement.passes, ~first, 2)))
        return served_in_order(jobs, judgement, first, order, occupied, now)

    def _first(self, jobs: JobView, judgement: Judgement, occupied: FloatArray, now: float) -> BoolArray:
        """Return which jobs go before the others that pass; all of them if their weights are equal."""
        passes = judgement.passes
        if not passes.any() or np.ptp(jobs.weight[passes]) == 0:
            return passes
        work = np.where(passes, occupied, np.inf)
        return largest_feasible_set(work, jobs.deadline, now, jobs.weight, jobs.size, jobs.devices)
