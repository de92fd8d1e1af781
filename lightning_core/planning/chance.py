"""The chance that a job reaches its target in time, with a prior for jobs without observations."""

from __future__ import annotations

from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from lightning_core.core.arrays import LEVELS, BoolArray, FloatArray, IntArray
from lightning_core.core.durations import FAR
from lightning_core.core.plans import JobView, Plan
from lightning_core.core.reasons import index
from lightning_core.planning.sequencing import completion_times

# Reasons that name the time a job needs, and those used where its forecast gives none.
CODES_WITHOUT_WORK = {
    "has_a_chance": "likely_never",
    "more_urgent": "likely_never_urgent",
    "others_first": "likely_never_others",
    "unlikely": "never",
}
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

    def __call__(self, jobs: JobView, now: float) -> Judgement:
        slack = np.maximum(jobs.deadline - now, 1e-9)
        forecast = ~np.isnan(jobs.work)
        known = forecast & ~np.isnan(jobs.throughput) & (jobs.exact | (jobs.cells >= self.after))
        # A forecast before the first cell is a person's estimate.
        own = forecast & (jobs.exact | jobs.ready | (jobs.cells >= MIN_CELLS_TO_PLAN) | (jobs.cells == 0))
        work = jobs.quantiles.copy()
        usual = prior_work(jobs, slack)
        work[~own] = usual[~own]
        unsure = np.flatnonzero(own & ~jobs.exact & (jobs.ready | (jobs.cells > 0)))
        work[unsure] = mixture(work[unsure], usual[unsure], USUAL_PART / (1.0 + jobs.cells[unsure] / USUAL_CELLS))
        chance = chances(work, slack)
        return Judgement(slack, known, work, chance, ~known | (chance >= self.min_chance))


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
    within = (quantiles <= slack[:, None]).sum(axis=1)
    rows = np.arange(len(slack))
    below = quantiles[rows, np.maximum(within - 1, 0)]
    above = quantiles[rows, np.minimum(within, len(LEVELS) - 1)]
    between = (within > 0) & (within < len(LEVELS)) & np.isfinite(above) & (above > below)
    # The logarithm of work is taken as uniform between two quantiles; towards an infinite one the chance stays put.
    step = np.zeros(len(slack))
    step[between] = np.log(slack[between] / below[between]) / np.log(above[between] / below[between])
    chance: FloatArray = np.where(between, LEVELS[np.maximum(within - 1, 0)] + step / len(LEVELS), within / len(LEVELS))
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
    both = np.concatenate([quantiles, others], axis=1)
    weight = np.repeat(np.stack([1.0 - part, part], axis=1) / len(LEVELS), len(LEVELS), axis=1)
    order = np.argsort(both, axis=1, kind="stable")
    both, weight = np.take_along_axis(both, order, axis=1), np.take_along_axis(weight, order, axis=1)
    at = (np.cumsum(weight, axis=1)[:, :, None] < LEVELS).sum(axis=1)
    mixed: FloatArray = np.take_along_axis(both, np.minimum(at, both.shape[1] - 1), axis=1)
    return mixed


def prior_work(jobs: JobView, slack: FloatArray) -> FloatArray:
    """Return quantiles of the seconds of work by the prior, less what a job has shown; shape ``(n, 20)``.

    A cell takes as long as the job's own cells, before its first one as long as those of the other jobs. While there
    are none either, the median job is assumed to need half of its time.
    """
    with np.errstate(invalid="ignore"):
        cell_seconds = jobs.position / jobs.cells / jobs.throughput
    seen = np.isfinite(cell_seconds)
    others = float(np.median(cell_seconds[seen])) if seen.any() else np.nan
    cell_seconds = np.where(seen, cell_seconds, others)
    # A job that has come further than most still has some way to go.
    left = np.maximum(PRIOR_CELLS - jobs.cells[:, None], 0.3 * PRIOR_CELLS)
    half = 0.5 * slack[:, None] * PRIOR_CELLS / WorkPrior().cells
    work: FloatArray = np.where(np.isnan(cell_seconds)[:, None], half, left * cell_seconds[:, None])
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
    if passes.any():
        codes = np.full(n, index("has_a_chance"))
        waiting = np.where(first, index("more_urgent"), index("others_first"))
    else:
        codes, waiting = np.full(n, index("likeliest")), np.full(n, index("unlikely"))
    unjudged = ~judgement.known
    codes[unjudged], waiting[unjudged] = index("unjudged"), index("unjudged_later")
    waiting[~passes] = index("unlikely")
    told = np.isfinite(jobs.work) & (jobs.work <= FAR * judgement.slack)
    never = ~told & judgement.known  # no time to report: half of its quantiles are infinite, or out of all reach
    for code, instead in CODES_WITHOUT_WORK.items():
        codes[never & (codes == index(code))] = index(instead)
        waiting[never & (waiting == index(code))] = index(instead)
    return Plan(
        order=order,
        share=share,
        finish=ends - occupied + jobs.work,
        codes=codes,
        waiting=waiting,
        numbers=np.stack([np.where(told, jobs.work, 0.0), np.where(unjudged, 0.0, judgement.chance)], axis=1),
    )
