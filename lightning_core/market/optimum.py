"""The offline optimum: the best plan of each job if all prices and counts are known beforehand.

Where the work of an interval lies on a grid, dynamic programming over (interval, progress, nodes held) is exact
(:mod:`.window_planner`). Where it does not, the same recursion runs without a grid, on the undominated pairs of
progress and cost. Tests compare both with an enumeration of all plans.
"""

from __future__ import annotations

import math

import numpy as np

from lightning_core.core.arrays import FloatArray, IntArray
from lightning_core.market.job_batch import JobBatch
from lightning_core.market.observation import Forecast, Observation
from lightning_core.market.progress_grid import exact_grid
from lightning_core.market.spot_job import EXACT, SpotJob
from lightning_core.market.window_planner import WindowPlanner

# Labels whose progress differs by less are the same.
LABEL_TOLERANCE = 1e-12


def optimum(batch: JobBatch) -> FloatArray:
    """Return the highest utility that each job could have had, shape ``(B,)``.

    Example::

        >>> from lightning_core.market import JobBatch, Market, SpotJob
        >>> market = Market([0.5, 0.2, 0.9], [2, 2, 2])
        >>> job = SpotJob(2.0, 3, max_nodes=2, growth_fraction=1.0, shrink_fraction=1.0, value=10.0)
        >>> optimum(JobBatch([job], market, [0])).tolist()
        [9.6]
    """
    on_grid = [
        exact_grid(np.array(job.throughput), job.growth_fraction, job.shrink_fraction) is not None for job in batch.jobs
    ]
    best = np.zeros(len(batch))
    if rows := [row for row, exact in enumerate(on_grid) if exact]:
        some = batch.only(rows)
        nothing, progress = np.zeros(len(some), np.int64), np.zeros(len(some))
        now = Forecast(some.price, some.available)
        observation = Observation(some, 0, progress, nothing, nothing, now, progress, progress)
        best[rows] = WindowPlanner("literal").worth(observation, some.intervals - 1)
    for row, exact in enumerate(on_grid):
        if not exact:
            job, price = batch.jobs[row], float(batch.on_demand[row])
            best[row] = by_labels(job, batch.price[row], batch.available[row], price)
    return best


def by_labels(job: SpotJob, price: FloatArray, available: IntArray, on_demand: float = 1.0) -> float:
    """Return the highest utility of a job of any throughput.

    Args:
        job: The job.
        price: Price of a spot node by interval, shape ``(D,)``.
        available: Spot nodes on offer, shape ``(D,)``.
        on_demand: Price of an on-demand node.
    """
    numbers = np.array([0, *range(job.min_nodes, job.max_nodes + 1)])
    throughput = np.array(job.throughput)[numbers]
    labels = {0: (np.zeros(1), np.zeros(1))}  # by nodes held: work done, cost
    best = -math.inf
    for interval in range(job.deadline):
        spot = np.minimum(numbers, available[interval]) if price[interval] <= on_demand else np.zeros_like(numbers)
        costs = spot * price[interval] + (numbers - spot) * on_demand
        after = {}
        for number, work_done, cost in zip(numbers.tolist(), throughput.tolist(), costs.tolist(), strict=True):
            parts = [
                job.growth_fraction if number > held else job.shrink_fraction if number < held else 1.0
                for held in labels
            ]
            done = np.concatenate([of + part * work_done for part, (of, _) in zip(parts, labels.values(), strict=True)])
            paid = np.concatenate([of + cost for _, of in labels.values()])
            ended = done >= job.work - EXACT
            if ended.any():
                best = max(best, job.value - float(paid[ended].min()))
            if not ended.all():
                after[number] = _undominated(done[~ended], paid[~ended])
        labels = after
        if not labels:
            return best
    for held, (done, paid) in labels.items():
        rest = [job.worth_of_rest(job.work - one, held, on_demand) for one in done.tolist()]
        best = max(best, float((rest - paid).max()))
    return best


def _undominated(done: FloatArray, paid: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the labels of which no other has done as much for as little."""
    order = np.lexsort((-done, paid))
    done, paid = done[order], paid[order]
    farthest = np.maximum.accumulate(np.concatenate([[-math.inf], done[:-1]]))
    kept = done > farthest + LABEL_TOLERANCE
    return done[kept], paid[kept]
