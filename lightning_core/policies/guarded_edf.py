"""Guarded EDF: earliest deadline first, but not for jobs that can hardly make it.

Plain EDF is hard to beat while all jobs can make it, and pours the devices into the first that cannot. The guard takes
those out. A job that is taken for hopeless and is not costs several times as much as the reverse: it gets no data, so
that nothing corrects the error, while time spent on a hopeless one ends at its deadline at the latest. So the guard
judges late, on a generous forecast, and only for now.
"""

from __future__ import annotations

import numpy as np

from lightning_core.policies.chance import chances, expected_work, judged, quantile
from lightning_core.policies.in_order import ends_in_order
from lightning_core.policies.moore_hodgson import largest_feasible_set
from lightning_core.reasons import index
from lightning_core.types import BoolArray, FloatArray, IntArray, JobView, Plan


class GuardedEdf:
    """Earliest deadline first among the jobs that have a chance; the others get what nobody else needs.

    Below ``least_chance`` of reaching its target by its deadline alone on its devices a job is given up for now, and
    tested again each round. If no job passes, the likeliest go first. A curve is not judged before it has shown
    ``judge_after`` cells: until then its job passes, whatever its curve says and however many batches that takes. The
    same holds while its speed is unknown. A target in batches is exact up to the measured speed.

    If weights differ, those of the :func:`~lightning_core.policies.moore_hodgson.largest_feasible_set` go first, by
    deadline, and after them the others that pass: else a light job that is urgent would push out a heavy one. With
    equal weights that set gains little while forecasts are uncertain, and costs switches. There, and for the expected
    ends, a job not yet forecast is taken to need what is usual, and no job to need more time than it has, for it is
    given up on no later than that.

    Args:
        judge_after: loss cells that a job must have shown before it is judged.
        least_chance: below it a job is given up for now.

    Raises:
        ValueError: if an argument is out of its range.
    """

    def __init__(self, judge_after: int = 20, least_chance: float = 0.15) -> None:
        if judge_after < 0:
            raise ValueError(f"judge_after must be at least 0 cells, got {judge_after}")
        if not 0 <= least_chance < 1:
            raise ValueError(f"least_chance must be at least 0 and below 1, got {least_chance}")
        self.judge_after = judge_after
        self.least_chance = least_chance

    def plan(self, jobs: JobView, now: float) -> Plan:
        slack = np.maximum(jobs.deadline - now, 1e-9)
        known = judged(jobs, self.judge_after)
        work = expected_work(jobs, known, slack)
        chance = chances(work, slack)
        passes = ~known | (chance >= self.least_chance)
        occupied = np.minimum(quantile(work, 0.5), slack)
        if not passes.any():
            order = np.lexsort((jobs.deadline, -chance))
            first = np.ones(len(jobs), np.bool_)
        else:
            first = self._first(jobs, passes, occupied, now)
            last_key = np.where(passes, jobs.deadline, -chance)
            order = np.lexsort((last_key, np.where(passes, ~first, 2)))
        served = order[passes[order]] if passes.any() else order
        ends = ends_in_order(occupied, jobs.size, served, jobs.devices, now)
        duty = np.zeros(len(jobs))
        duty[served] = 1.0
        codes, waiting = reasons(known, passes, first)
        finite = np.isfinite(jobs.work)
        return Plan(
            order=order,
            duty=duty,
            finish=ends - occupied + jobs.work,
            codes=codes,
            waiting=waiting,
            numbers=np.stack([np.where(finite, jobs.work, 0.0), np.where(known, chance, 0.0)], axis=1),
        )

    def _first(self, jobs: JobView, passes: BoolArray, occupied: FloatArray, now: float) -> BoolArray:
        """Who goes before the others that pass: all of them if they count the same."""
        if np.ptp(jobs.weight[passes]) == 0:
            return passes
        work = np.where(passes, occupied, np.inf)
        return largest_feasible_set(work, jobs.deadline, now, jobs.weight, jobs.size, jobs.devices)


def reasons(known: BoolArray, passes: BoolArray, first: BoolArray) -> tuple[IntArray, IntArray]:
    """Why each job holds what it holds, and why it waits."""
    n = len(known)
    if passes.any():
        codes = np.full(n, index("has_a_chance"))
        waiting = np.where(first, index("more_urgent"), index("heavier"))
    else:
        codes, waiting = np.full(n, index("likeliest")), np.full(n, index("unlikely"))
    codes[~known], waiting[~known] = index("unjudged"), index("unjudged_later")
    waiting[~passes] = index("unlikely")
    return codes, waiting
