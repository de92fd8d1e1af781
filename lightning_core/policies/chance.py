"""What every policy that judges jobs asks: how likely is it in time, and what if nothing is known of it yet?"""

from __future__ import annotations

from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from lightning_core.types import LEVELS, BoolArray, FloatArray, JobView


def chances(quantiles: FloatArray, slack: FloatArray) -> FloatArray:
    """How likely each job reaches its target in ``slack`` seconds alone on its devices, shape ``(n,)``.

    Args:
        quantiles: of the seconds of work at :data:`~lightning_core.types.LEVELS`, shape ``(n, 20)``, no NaN.
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
    chance = np.where(between, LEVELS[np.maximum(within - 1, 0)] + part / len(LEVELS), within / len(LEVELS))
    none = within == 0  # still, the one that is nearest to its first quantile is the likeliest
    chance[none] = LEVELS[0] * slack[none] / quantiles[none, 0]
    return chance


def judged(jobs: JobView, after: int) -> BoolArray:
    """Which jobs have shown enough to be given up on: their speed, and ``after`` cells if they follow a loss."""
    return ~np.isnan(jobs.throughput) & (jobs.exact | (jobs.cells >= after)) & ~np.isnan(jobs.work)


class Usual(NamedTuple):
    """What is believed of a job that has shown nothing yet: the loss cells that it needs to its target.

    Published curves with targets at 6 to 70 % of their length: half need more than ``cells``, the logarithm spreads by
    ``spread``, and ``never`` of them do not get there.
    """

    cells: float = 150.0
    spread: float = 1.0
    never: float = 0.15


USUAL = Usual()


def expected_work(jobs: JobView, known: BoolArray, slack: FloatArray, usual: Usual = USUAL) -> FloatArray:
    """Quantiles of the seconds of work, finite or not but never NaN, shape ``(n, 20)``.

    Of a job that is not ``known`` (nor expected by a person to need so much) it is the usual, less what it has done: in
    cells, as fast as its own or, before its first, as those of the others; half of its time while there are none either.
    """
    quantiles = jobs.quantiles.copy()
    rows = np.flatnonzero(~known)
    pace = jobs.position / np.maximum(jobs.cells, 1) / jobs.throughput  # seconds a cell
    seen = np.isfinite(pace) & (jobs.cells > 0)
    common = float(np.median(pace[seen])) if seen.any() else np.nan
    cell = np.where(seen[rows], pace[rows], common)
    left = np.maximum(usual.cells * _USUAL_SHAPE - jobs.cells[rows, None], 0.3 * usual.cells * _USUAL_SHAPE)
    seconds = left * cell[:, None]
    seconds = np.where(np.isnan(cell)[:, None], 0.5 * slack[rows, None] * _USUAL_SHAPE, seconds)
    quantiles[rows] = seconds
    return quantiles


def _shape(usual: Usual) -> FloatArray:
    reach = LEVELS / (1.0 - usual.never)
    return np.array([np.exp(usual.spread * NormalDist().inv_cdf(p)) if p < 1 else np.inf for p in reach.tolist()])


_USUAL_SHAPE = _shape(USUAL)


def quantile(quantiles: FloatArray, level: float) -> FloatArray:
    """One quantile of each row, between those at :data:`~lightning_core.types.LEVELS` by logarithm, shape ``(n,)``."""
    at = float(np.clip(level * len(LEVELS) - 0.5, 0, len(LEVELS) - 1))
    low = int(at)
    high = min(low + 1, len(LEVELS) - 1)
    part = at - low
    if part == 0.0:
        return quantiles[:, low].copy()
    return np.where(
        np.isfinite(quantiles[:, high]), quantiles[:, low] ** (1 - part) * quantiles[:, high] ** part, np.inf
    )
