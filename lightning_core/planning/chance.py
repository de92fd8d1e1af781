"""What every policy that judges jobs asks: how likely is it in time, and what if nothing is known of it yet?"""

from __future__ import annotations

from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from lightning_core.core.arrays import LEVELS, BoolArray, FloatArray, IntArray
from lightning_core.core.plans import JobView, Plan
from lightning_core.core.reasons import index
from lightning_core.planning.sequencing import completion_times

# Reasons that tell how much time a job needs, and what is told where its forecast gives none.
CODES_WITHOUT_WORK = {
    "has_a_chance": "likely_never",
    "more_urgent": "likely_never_urgent",
    "others_first": "likely_never_others",
    "unlikely": "never",
}
# Cells after which a job's own curve is planned with, not what is usual.
MIN_CELLS_TO_PLAN = 10


class WorkPrior(NamedTuple):
    """What is believed of a job that has shown nothing yet: the loss cells that it needs to its target.

    Half need more than ``cells``, the logarithm spreads by ``spread``, and ``never`` of them do not get there.
    """

    cells: float = 150.0
    spread: float = 1.0
    never: float = 0.15

    def quantiles(self) -> FloatArray:
        """At :data:`~lightning_core.core.arrays.LEVELS`, shape ``(20,)``."""
        reached = LEVELS / (1.0 - self.never)
        cells = [self.cells * np.exp(self.spread * NormalDist().inv_cdf(p)) if p < 1 else np.inf for p in reached]
        return np.array(cells)


PRIOR_CELLS = WorkPrior().quantiles()


class Judgement(NamedTuple):
    """What is believed of each job, arrays over the rows.

    Args:
        slack: seconds to the deadline, positive.
        known: whether the job has shown enough to be given up on.
        work: quantiles of its seconds of work, shape ``(n, 20)``, inf where it does not get there, never NaN.
        chance: how likely it reaches its target by its deadline alone on its devices.
        passes: whether it is not given up for now.
    """

    slack: FloatArray
    known: BoolArray
    work: FloatArray
    chance: FloatArray
    passes: BoolArray

    def occupied_time(self, level: float) -> FloatArray:
        """Seconds that a job takes up, by this quantile: no more than it has, for it is given up on no later."""
        return np.minimum(quantile(self.work, level), self.slack)


class Judge:
    """Gives up, for now, on those who can hardly make it.

    A job that is taken for hopeless and is not costs several times as much as the reverse: it gets no data, so that
    nothing corrects the error, while time spent on a hopeless one ends at its deadline at the latest. So it judges
    late, and only for now: every job is tested again each round.

    Args:
        after: loss cells that a job must have shown before it is judged. One that follows no loss is judged at once;
            none is while its speed is unknown.
        min_chance: of reaching its target by its deadline alone on its devices; below it a job is given up.

    Raises:
        ValueError: if an argument is out of its range.
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
        own = forecast & (jobs.exact | (jobs.cells >= MIN_CELLS_TO_PLAN) | (jobs.cells == 0))  # 0: a person's estimate
        work = jobs.quantiles.copy()
        work[~own] = prior_work(jobs, slack)[~own]
        chance = chances(work, slack)
        return Judgement(slack, known, work, chance, ~known | (chance >= self.min_chance))


def chances(quantiles: FloatArray, slack: FloatArray) -> FloatArray:
    """How likely each job reaches its target in ``slack`` seconds alone on its devices, shape ``(n,)``.

    Args:
        quantiles: of the seconds of work at :data:`~lightning_core.core.arrays.LEVELS`, shape ``(n, 20)``, no NaN.
        slack: seconds, positive, shape ``(n,)``.

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
    # The logarithm of work is taken to be evenly spread between two quantiles; of an infinite one nothing is reached.
    part = np.zeros(len(slack))
    part[between] = np.log(slack[between] / below[between]) / np.log(above[between] / below[between])
    chance: FloatArray = np.where(between, LEVELS[np.maximum(within - 1, 0)] + part / len(LEVELS), within / len(LEVELS))
    none = within == 0  # still, the one that is nearest to its first quantile is the likeliest
    chance[none] = LEVELS[0] * slack[none] / quantiles[none, 0]
    return chance


def prior_work(jobs: JobView, slack: FloatArray) -> FloatArray:
    """Quantiles of the seconds of work by what is usual, less what a job has shown; shape ``(n, 20)``.

    A cell takes as long as the job's own, before its first as long as those of the others; while there are none
    either, the usual job is taken to need half of its time.
    """
    with np.errstate(invalid="ignore"):
        pace = jobs.position / jobs.cells / jobs.throughput
    seen = np.isfinite(pace)
    others = float(np.median(pace[seen])) if seen.any() else np.nan
    pace = np.where(seen, pace, others)
    # Who has come further than most has still some way to go.
    left = np.maximum(PRIOR_CELLS - jobs.cells[:, None], 0.3 * PRIOR_CELLS)
    half = 0.5 * slack[:, None] * PRIOR_CELLS / WorkPrior().cells
    work: FloatArray = np.where(np.isnan(pace)[:, None], half, left * pace[:, None])
    return work


def quantile(quantiles: FloatArray, level: float) -> FloatArray:
    """One quantile of each row, shape ``(n,)``, between those of the forecast by logarithm.

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
    """Whole devices in ``order`` for those who pass; if none does, for all.

    Args:
        jobs: all of them.
        judgement: of each.
        first: who goes before the others that pass.
        order: all rows, who does not pass last.
        occupied: seconds that each is planned with.
        now: scheduler time.
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
    told = np.isfinite(jobs.work)
    never = ~told & judgement.known  # there is no time to tell: half of what is believed does not get there
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
