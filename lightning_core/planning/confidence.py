"""Confidence in a forecast: verdicts for users depend on it, the decisions of policies do not.

A forecast follows the curve that it has seen. A loss that has stood still may drop, and one that falls may stop above
its target; a posterior over smooth curves knows neither. So a forecast is doubted, the more the farther it reaches
beyond what the job has trained, and the fewer cells it rests on. As far as it is doubted, the job counts as any job of
which nothing is known but that it has not reached its target yet: a scale-free law, by which half of such jobs reach it
in eight times as long.

A forecast also fluctuates from cell to cell. The chance of a job is averaged over the last part of its training, by
batches and not by time: a job that waits learns nothing of its curve.
"""

from __future__ import annotations

import numpy as np

from lightning_core.core.arrays import FloatArray, IntArray
from lightning_core.core.durations import MAX_FORECAST
from lightning_core.core.plans import JobView
from lightning_core.planning.chance import chances, quantile

# Cells on which a forecast must rest to be doubted half as much.
CELLS_TO_TRUST = 100
# A forecast that reaches this many times as far as the job has trained, by its pessimistic quantile, is doubted fully.
FAR, PESSIMISTIC = 20.0, 0.85
# Part of the doubt that earlier runs take away.
HISTORY_TRUST = 0.5
# Of the jobs that have not reached their targets, s^-USUAL have not after s times as long.
USUAL = 1 / 3
# Weight of a chance, as of when the job had trained a part p of what it has now: p^MEMORY.
MEMORY = 10.0


def trusted_chances(jobs: JobView, now: float, history: FloatArray) -> FloatArray:
    """Return how likely each job reaches its target in time alone on its devices, given doubt; shape ``(n,)``.

    Args:
        jobs: Jobs whose work is forecast from their curves, each with a cell.
        now: Scheduler time.
        history: Part of the belief in each forecast that rests on earlier runs, which is doubted less; in [0, 1].
    """
    slack = np.clip(jobs.deadline - now, 1e-9, MAX_FORECAST)  # without a deadline: if ever
    seen, available = jobs.position, jobs.throughput * slack
    if len(jobs.ends_at):
        available = np.minimum(available, np.maximum(jobs.ends_at - jobs.position, 0.0))
    usual = 1.0 - (seen / (seen + available)) ** USUAL
    reaches = 1.0 + quantile(jobs.quantiles, PESSIMISTIC) * jobs.throughput / seen
    doubt = np.minimum(np.log(reaches) / np.log(FAR), 1.0) * CELLS_TO_TRUST / (CELLS_TO_TRUST + jobs.cells)
    doubt *= 1.0 - HISTORY_TRUST * history
    trusted: FloatArray = (1.0 - doubt) * chances(jobs.quantiles, slack) + doubt * usual
    return trusted


def averaged(before: FloatArray, at: IntArray, now: FloatArray, seen: FloatArray) -> FloatArray:
    """Return the chances averaged over the last part of each training.

    Args:
        before: Averages so far; NaN where there is none.
        at: Batches at the last cell that they count, positive where there is one.
        now: Chances as of the last cell.
        seen: Batches at the last cell, positive.

    Example: the second of three jobs has trained by 7 % since, the third has none so far::

        >>> before, at = np.array([0.8, 0.8, np.nan]), np.array([500, 500, 0])
        >>> averaged(before, at, np.full(3, 0.4), np.array([500, 536, 9])).round(2)
        array([0.8, 0.6, 0.4])
    """
    keep = (np.minimum(at, seen) / seen) ** MEMORY
    mean: FloatArray = np.where(np.isnan(before), now, keep * np.nan_to_num(before) + (1.0 - keep) * now)
    return mean
