"""Index-EDF: the jobs with the best chance for their work, as many as fit, most urgent first."""

from __future__ import annotations

import numpy as np

from lightning_core.core.arrays import BoolArray, FloatArray, IntArray
from lightning_core.core.plans import JobView, Plan
from lightning_core.core.saved_state import Stateful
from lightning_core.planning.chance import Judge, served_in_order
from lightning_core.planning.sequencing import completion_times

# Maximum number of jobs that do not fit before the set counts as full: each try costs O(n).
MAX_MISFITS = 50


class IndexEdf(Stateful):
    """The jobs with the best chance for the work that they take, as many as fit; the most urgent of them first.

    A job's index is its weight times its chance over the seconds that it is expected to occupy devices, until its
    target or its deadline. Jobs are added by index, each if all that were added still end in time, earliest deadline
    first. :class:`~lightning_core.planning.chance.Judge` decides which jobs are given up for now.

    A decision costs O(n^2): 10,000 jobs take seconds.

    Args:
        level: Quantile of the forecast work that a job is planned with.
        judge_after: Loss cells that a job must show before it is judged.
        min_chance: Minimum chance of a job; below it the job is given up for now.

    Raises:
        ValueError: If an argument is out of its range.
    """

    def __init__(self, level: float = 0.4, judge_after: int = 20, min_chance: float = 0.15) -> None:
        if not 0 < level < 1:
            raise ValueError(f"level must be above 0 and below 1, got {level}")
        self.level = level
        self._judge = Judge(judge_after, min_chance)

    def plan(self, jobs: JobView, now: float) -> Plan:
        judgement = self._judge(jobs, now)
        occupied = judgement.occupied_time(self.level)
        expected = np.minimum(judgement.work, judgement.slack[:, None]).mean(axis=1) * jobs.size
        by_index = np.argsort(-jobs.weight * judgement.chance / expected, kind="stable")
        first = _addable(jobs, by_index[judgement.passes[by_index]], occupied, now)
        key = np.where(judgement.passes, jobs.deadline, -judgement.chance)
        order = np.lexsort((key, np.where(judgement.passes, ~first, 2)))
        return served_in_order(jobs, judgement, first, order, occupied, now)


def _addable(jobs: JobView, candidates: IntArray, occupied: FloatArray, now: float) -> BoolArray:
    """Return which candidates, in their order, can be added to those before, shape ``(n,)``."""
    by_deadline = np.argsort(jobs.deadline, kind="stable")
    taken = np.zeros(len(jobs), np.bool_)
    misfits = 0
    for row in candidates.tolist():
        taken[row] = True
        rows = by_deadline[taken[by_deadline]]
        ends = completion_times(occupied, jobs.size, rows, jobs.devices, now)[rows]
        if np.any(ends > jobs.deadline[rows] + 1e-9):
            taken[row] = False
            misfits += 1
            if misfits == MAX_MISFITS:
                break
    return taken
