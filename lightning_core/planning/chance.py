"""The chance that a job reaches its target in time, with a prior for jobs without observations."""

from __future__ import annotations

from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from lightning_core.core.arrays import LEVELS, BoolArray, FloatArray, IntArray
from lightning_core.core.durations import FAR
from lightning_core.core.plans import JobView, Plan
from lightning_core.core.reasons import index
from lightning_core.core.row_cache import RowCache
from lightning_core.planning.sequencing import completion_times

# Cells from which on a job is planned with its own curve, not with the prior, and judged.
MIN_CELLS_TO_PLAN = 4

# The usual work has this part of the belief in a forecast by a job's own curve, and half of it after so many cells.
USUAL_PART, USUAL_CELLS = 0.3, 8.0


class WorkPrior(NamedTuple):
    """The prior over the loss cells that a job needs to reach its target.

    Attributes:
        cells: Median number of cells.
        spread: Standard deviation of the logarithm of that number.
        never: Probability that the job never reaches its target.
    """

    cells: float = 150.0
    spread: float = 1.0
    never: float = 0.15

    def quantiles(self) -> FloatArray:
        """Return the quantiles at :data:`~lightning_core.core.arrays.LEVELS`, shape ``(20,)``."""
        reached = LEVELS / (1.0 - self.never)
        cells = [self.cells * np.exp(self.spread * NormalDist().inv_cdf(p)) if p < 1 else np.inf for p in reached]
        return np.array(cells)


PRIOR_CELLS = WorkPrior().quantiles()


class Judgement(NamedTuple):
    """What is believed of each job, arrays over the rows.

    Attributes:
        slack: Seconds to the deadline, positive.
        known: Whether the job has shown enough to be judged.
        work: Quantiles of its seconds of work, shape ``(n, 20)``; inf where it does not reach its target, never NaN.
        chance: Probability that it reaches its target by its deadline alone on its devices.
        passes: Whether it is scheduled for now.
    """

    slack: FloatArray
    known: BoolArray
    work: FloatArray
    chance: FloatArray
    passes: BoolArray

    def occupied_time(self, level: float) -> FloatArray:
        """Return the seconds that each job occupies at this quantile; capped by its slack, at which it is given up."""
        return np.minimum(quantile(self.work, level), self.slack)


class Judge:
    """Filter that gives up, for now, on the jobs that can hardly reach their targets.

    Giving up on a job that could make it costs several times as much as keeping one that cannot: the first gets no data
    that would correct the error, while the second ends at its deadline at the latest. So the judge decides late and
    only for now: it tests every job again in each round.

    Args:
        after: Loss cells that a job must show before it is judged. A job that follows no loss is judged at once. No job
            is judged while its throughput is unknown.
        min_chance: Minimum probability of reaching the target by the deadline alone on its devices.

    Raises:
        ValueError: If an argument is out of its range.
    """

    def __init__(self, after: int, min_chance: float) -> None:
        if after < 0:
            raise ValueError(f"judge_after must be at least 0 cells, got {after}")
        if not 0 <= min_chance < 1:
            raise ValueError(f"min_chance must be at least 0 and below 1, got {min_chance}")
        self.after = after
        self.min_chance = min_chance
        self._with_usual = RowCache(_with_usual, len(LEVELS) + 3, len(LEVELS))

    def __call__(self, jobs: JobView, now: float) -> Judgement:
        slack = np.maximum(jobs.deadline - now, 1e-9)
        forecast = ~np.isnan(jobs.work)
        known = forecast & ~np.isnan(jobs.throughput) & (jobs.exact | (jobs.cells >= self.after))
        # A forecast before the first cell is a person's estimate.
        own = forecast & (jobs.exact | jobs.ready | (jobs.cells >= MIN_CELLS_TO_PLAN) | (jobs.cells == 0))
        work, pace = jobs.quantiles.copy(), cell_seconds(jobs)
        if len(new := np.flatnonzero(~own)):
            work[new] = prior_work(jobs.cells[new], pace[new], slack[new])
        if len(unsure := np.flatnonzero(own & ~jobs.exact & (jobs.ready | (jobs.cells > 0)))):
            without_pace = np.where(np.isnan(pace), slack, 0.0)
            arguments = np.column_stack([work, jobs.cells, pace, without_pace])[unsure]
            work[unsure] = self._with_usual(jobs.row[unsure], arguments)
        chance = chances(work, slack)
        return Judgement(slack, known, work, chance, ~known | (chance >= self.min_chance))


def _with_usual(arguments: FloatArray) -> FloatArray:
    """Return quantiles of forecast work with the usual work mixed in.

    Args:
        arguments: The quantiles, the cells that a job has shown, the seconds of a cell, and its slack if those are NaN.
    """
    cells, pace, slack = arguments[:, len(LEVELS) :].T
    usual = prior_work(cells, pace, slack)
    return mixture(arguments[:, : len(LEVELS)], usual, USUAL_PART / (1.0 + cells / USUAL_CELLS))


def chances(quantiles: FloatArray, slack: FloatArray) -> FloatArray:
    """Return how likely each job reaches its target in ``slack`` seconds alone on its devices, shape ``(n,)``.

    Args:
        quantiles: Seconds of work at :data:`~lightning_core.core.arrays.LEVELS`, shape ``(n, 20)``, no NaN.
        slack: Seconds, positive, shape ``(n,)``.

    Example::

        >>> work = np.array([[*range(1, 21)], [*range(1, 11), *[np.inf] * 10]], float)
        >>> chances(work, np.array([10.0, 100.0]))
        array([0.475, 0.5  ])
    """
    within, n = (quantiles <= slack[:, None]).sum(axis=1), len(LEVELS)
    rows, last = np.arange(len(slack)), np.maximum(within - 1, 0)
    below, above = quantiles[rows, last], quantiles[rows, np.minimum(within, n - 1)]
    between = (within > 0) & (within < n) & np.isfinite(above) & (above > below)
    # The logarithm of work is taken as uniform between two quantiles; towards an infinite one the chance stays put.
    chance: FloatArray = within / n
    step = np.log(slack[between] / below[between]) / np.log(above[between] / below[between])
    chance[between] = LEVELS[last[between]] + step / n
    none = within == 0  # still, the job nearest to its first quantile is the likeliest
    chance[none] = LEVELS[0] * slack[none] / quantiles[none, 0]
    return chance


def mixture(quantiles: FloatArray, others: FloatArray, part: FloatArray) -> FloatArray:
    """Return the quantiles of mixtures, shape ``(n, 20)``, each one that one of both has.

    Args:
        quantiles: Quantiles at :data:`~lightning_core.core.arrays.LEVELS`, shape ``(n, 20)``, no NaN.
        others: Quantiles of what is mixed in, likewise.
        part: Part of the belief that this has, in [0, 1], shape ``(n,)``.

    Example::

        >>> low, high = np.full((1, 20), 1.0), np.full((1, 20), 9.0)
        >>> mixture(low, high, np.array([0.25])).astype(int)
        array([[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 9, 9, 9, 9, 9]])
    """
    both, n = np.concatenate([quantiles, others], axis=1), len(LEVELS)
    order = np.argsort(both, axis=1, kind="stable")
    weight = np.where(order < n, (1.0 - part[:, None]) / n, part[:, None] / n)
    up_to = np.ascontiguousarray(np.cumsum(weight, axis=1).T)
    at = np.stack([(up_to < level).sum(axis=0) for level in LEVELS.tolist()], axis=1)
    rows = np.arange(len(both))[:, None]
    mixed: FloatArray = both[rows, order[rows, np.minimum(at, 2 * n - 1)]]
    return mixed


def cell_seconds(jobs: JobView) -> FloatArray:
    """Return the seconds that a cell of each job takes, shape ``(n,)``.

    Before its first one it is taken as that of the median job; NaN while there is none.
    """
    with np.errstate(invalid="ignore"):
        pace: FloatArray = jobs.position / jobs.cells / jobs.throughput
    seen = np.isfinite(pace)
    if not seen.all():
        pace[~seen] = np.median(pace[seen]) if seen.any() else np.nan
    return pace


def prior_work(cells: IntArray | FloatArray, pace: FloatArray, slack: FloatArray) -> FloatArray:
    """Return quantiles of the seconds of work by the prior, less what a job has shown; shape ``(n, 20)``.

    Args:
        cells: Cells that each job has shown, shape ``(n,)``.
        pace: Seconds of a cell; where it is NaN, the median job is assumed to need half of its time.
        slack: That time in seconds, shape ``(n,)``.
    """
    # A job that has come further than most still has some way to go.
    left = np.maximum(PRIOR_CELLS - cells[:, None], 0.3 * PRIOR_CELLS)
    work: FloatArray = left * pace[:, None]
    if (unknown := np.isnan(pace)).any():
        work[unknown] = 0.5 * slack[unknown, None] * PRIOR_CELLS / WorkPrior().cells
    return work


def quantile(quantiles: FloatArray, level: float) -> FloatArray:
    """Return one quantile of each row, shape ``(n,)``, interpolated between those of the forecast by logarithm.

    Example::

        >>> quantile(np.array([[*range(1, 21)], [*range(1, 11), *[np.inf] * 10]], float), 0.5).round(2)
        array([10.49,   inf])
    """
    at = min(max(level * len(LEVELS) - 0.5, 0.0), len(LEVELS) - 1.0)
    low = int(at)
    high = min(low + 1, len(LEVELS) - 1)
    if at == low:
        return quantiles[:, low]
    finite = np.isfinite(quantiles[:, high])
    between: FloatArray = np.full(len(quantiles), np.inf)
    between[finite] = quantiles[finite, low] ** (low + 1 - at) * quantiles[finite, high] ** (at - low)
    return between


def served_in_order(
    jobs: JobView, judgement: Judgement, first: BoolArray, order: IntArray, occupied: FloatArray, now: float
) -> Plan:
    """Return a plan with whole devices in ``order`` for the jobs that pass, or for all if none does.

    Args:
        jobs: All jobs.
        judgement: Judgement of each job.
        first: Whether a job goes before the others that pass.
        order: All rows, those that do not pass last.
        occupied: Seconds that each job is planned with.
        now: Scheduler time.
    """
    n, passes = len(jobs), judgement.passes
    served = order[passes[order]] if passes.any() else order
    share = np.zeros(n)
    share[served] = 1.0
    ends = completion_times(occupied, jobs.size, served, jobs.devices, now)
    told = np.isfinite(jobs.work) & (jobs.work <= FAR * judgement.slack)
    never = ~told & judgement.known  # no time to report: half of its quantiles are infinite, or out of all reach

    def reasons(code: str, without_time: str) -> IntArray:
        return np.where(never, index(without_time), index(code))

    waiting = reasons("unlikely", "never")
    if passes.any():
        codes = reasons("has_a_chance", "likely_never")
        urgent, others = reasons("more_urgent", "likely_never_urgent"), reasons("others_first", "likely_never_others")
        waiting = np.where(passes, np.where(first, urgent, others), waiting)
    else:
        codes = np.full(n, index("likeliest"))
    unjudged = ~judgement.known
    codes[unjudged], waiting[unjudged] = index("unjudged"), index("unjudged_later")
    return Plan(
        order=order,
        share=share,
        finish=ends - occupied + jobs.work,
        codes=codes,
        waiting=waiting,
        numbers=np.stack([np.where(told, jobs.work, 0.0), np.where(unjudged, 0.0, judgement.chance)], axis=1),
    )
