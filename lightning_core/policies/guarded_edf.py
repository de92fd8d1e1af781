"""Guarded EDF: earliest deadline first, but not for jobs that can hardly make it.

Plain EDF is hard to beat while all jobs can make it, and pours the devices into the first that cannot. The guard takes
those out. A job that is taken for hopeless and is not costs several times as much as the reverse: it gets no data, so
that nothing corrects the error, while time spent on a hopeless one ends at its deadline at the latest. So the guard
judges late, on a generous forecast, and only for now.
"""

from __future__ import annotations

from math import erfc, sqrt
from typing import NamedTuple

import numpy as np

from lightning_core.policies.in_order import ends_in_order
from lightning_core.policies.moore_hodgson import largest_feasible_set
from lightning_core.reasons import index
from lightning_core.types import BoolArray, FloatArray, IntArray, JobView, Plan

# What a fitted curve does not know of itself: its own error is of the past, and curves bend. Of ln(work).
WIDENING = 0.4
# A measured speed wanders by some per cent. Of ln(work).
SPEED_SPREAD = 0.05
# Where a forecast does not say how sure it is. Of ln(work).
UNSAID_SPREAD = 1.0
# Cells that a run needs to its target, where nothing but their number so far is known (half of all runs need more).
USUAL_CELLS = 150.0


class Stalled(NamedTuple):
    """A forecast that the curve will not get there is a reading, not a proof: slopes are noisy, and curves that stand
    still come down again, with a smaller learning rate for one. Such a job is believed to need ``again`` times the
    batches it has done, give or take ``spread`` of the logarithm, if it is not among those that never get there.

    On 210 published curves and 15,868 such readings from the 20th cell on, 2, 5, 8, 14 and 22 % of the targets were
    reached within 1/4, 1/2, 1, 2 and 4 times the batches done so far; these numbers say 2, 5, 9, 15 and 21 %.
    """

    again: float = 2.0
    spread: float = 1.4
    ever: float = 0.3


STALLED = Stalled()


class GuardedEdf:
    """Earliest deadline first among the jobs that have a chance; the others get what nobody else needs.

    The chance that a job would reach its target by its deadline alone on its devices comes from a normal distribution
    of ln(work), around the forecast, with the forecast's standard error widened by 0.4. Below ``least_chance`` the job
    is given up for now, and tested again each round. If no job passes, the likeliest go first.

    - A curve is not judged before it has shown ``judge_after`` cells: until then its job passes, whatever its curve
      says and however many batches that takes. The same holds while its speed is unknown.
    - A target in batches is exact up to the measured speed: it is given up when it is 5 % short.
    - A curve that does not come down is judged by :class:`Stalled`: its job passes while it has left at least twice
      the time that it has trained.

    If weights differ, those of the :func:`~lightning_core.policies.moore_hodgson.largest_feasible_set` go first, by
    deadline, and after them the others that pass: else a light job that is urgent would push out a heavy one. With
    equal weights that set gains little while forecasts are uncertain, and costs switches. There, and for the expected
    ends, a job not yet forecast is taken to need 150 cells at the batches a cell that it has shown so far, or half of
    its time while not even its speed is known; and no job is taken to need more time than it has, for it is given up on
    no later than that.

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
        slack = np.maximum(jobs.deadline - now, 0.0)
        judged = ~np.isnan(jobs.throughput) & (jobs.exact | (jobs.cells >= self.judge_after)) & ~np.isnan(jobs.work)
        chance = chances(jobs, slack)
        passes = ~judged | (chance >= self.least_chance)
        occupied = np.minimum(_expected_work(jobs, slack), slack)
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
        codes, waiting = self._reasons(jobs, judged, passes, first)
        known = np.isfinite(jobs.work)
        return Plan(
            order=order,
            duty=duty,
            finish=ends - occupied + jobs.work,
            codes=codes,
            waiting=waiting,
            numbers=np.stack([np.where(known, jobs.work, 0.0), np.where(judged, chance, 0.0)], axis=1),
        )

    def _first(self, jobs: JobView, passes: BoolArray, occupied: FloatArray, now: float) -> BoolArray:
        """Who goes before the others that pass: all of them if they count the same."""
        if np.ptp(jobs.weight[passes]) == 0:
            return passes
        work = np.where(passes, occupied, np.inf)
        return largest_feasible_set(work, jobs.deadline, now, jobs.weight, jobs.size, jobs.devices)

    def _reasons(
        self, jobs: JobView, judged: BoolArray, passes: BoolArray, first: BoolArray
    ) -> tuple[IntArray, IntArray]:
        stalled = judged & np.isinf(jobs.work)
        if passes.any():
            codes = np.where(stalled, index("stalled"), index("has_a_chance"))
            waiting = np.where(first, index("more_urgent"), index("heavier"))
            waiting[stalled] = index("stalled_later")
        else:
            codes = np.full(len(jobs), index("likeliest"))
            waiting = np.full(len(jobs), index("unlikely"))
        codes[~judged], waiting[~judged] = index("unjudged"), index("unjudged_later")
        waiting[~passes] = np.where(stalled[~passes], index("not_falling"), index("unlikely"))
        return codes, waiting


def chances(jobs: JobView, slack: FloatArray) -> FloatArray:
    """How likely each job reaches its target in ``slack`` seconds alone, shape ``(n,)``; NaN while unknown.

    Example::

        >>> import numpy as np
        >>> from lightning_core.types import JobView
        >>> one, count = np.ones(3), np.array([100, 100, 100])
        >>> exact = np.array([False, False, True])
        >>> work = np.array([20.0, np.inf, 20.0])
        >>> jobs = JobView(np.arange(3), 30 * one, count, count, exact, 10 * work, 10 * one, work, 0 * one, one, count)
        >>> chances(jobs, 10 * one).round(3)
        array([0.042, 0.093, 0.   ])
    """
    stalled = np.isinf(jobs.work)
    median = np.where(stalled, STALLED.again * np.maximum(jobs.batches, 1) / jobs.throughput, jobs.work)
    said = np.where(np.isfinite(jobs.spread), jobs.spread, UNSAID_SPREAD)
    spread = np.where(jobs.exact, SPEED_SPREAD, np.hypot(said, WIDENING))
    spread = np.where(stalled, STALLED.spread, spread)
    with np.errstate(divide="ignore"):
        z = np.log(slack / median) / spread
    normal = np.array([0.5 * erfc(-value / sqrt(2.0)) for value in z.tolist()])
    return np.where(stalled, STALLED.ever * normal, normal)


def _expected_work(jobs: JobView, slack: FloatArray) -> FloatArray:
    """Seconds alone on its devices that each job is taken to need, finite, shape ``(n,)``."""
    usual = np.maximum(USUAL_CELLS / np.maximum(jobs.cells, 1) - 1.0, 1.0) * np.maximum(jobs.batches, 1)
    again = np.where(np.isinf(jobs.work), STALLED.again * np.maximum(jobs.batches, 1), usual) / jobs.throughput
    again = np.where(np.isnan(again), 0.5 * slack, again)
    return np.where(np.isfinite(jobs.work), jobs.work, again)
