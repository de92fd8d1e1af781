"""The offline optimum: the best plan of each job if all prices and counts are known beforehand.

Where only the total number of nodes costs time, dynamic programming over (interval, progress, nodes held) is exact if
the work of an interval lies on a grid (:mod:`.window_planner`). Where launches do, it is one over the pairs of spot and
on-demand nodes (:mod:`.node_pairs`). Without a grid the same recursions run on the undominated pairs of progress and
cost. Tests compare all of them with an enumeration of all plans.

Losses by preemption are not counted: the optimum knows them beforehand.
"""

from __future__ import annotations

import math

import numpy as np

from lightning_core.core.arrays import FloatArray, IntArray
from lightning_core.parts.market.job_batch import JobBatch
from lightning_core.parts.market.observation import Observation, SpotForecast
from lightning_core.parts.market.programs.node_pairs import NodePairs, OnOffer
from lightning_core.parts.market.programs.pair_labels import by_pair_labels, undominated
from lightning_core.parts.market.programs.progress_grid import exact_grid
from lightning_core.parts.market.programs.window_planner import WindowPlanner
from lightning_core.parts.market.spot_job import EXACT, SpotJob


def optimum(batch: JobBatch) -> FloatArray:
    """Return the highest utility that each job could have had, shape ``(B,)``.

    Example::

        >>> from lightning_core.parts.market.job_batch import JobBatch
        >>> from lightning_core.parts.market.spot_job import SpotJob
        >>> from lightning_core.parts.market.spot_market import Market
        >>> market = Market([0.5, 0.2, 0.9], [2, 2, 2])
        >>> job = SpotJob(2.0, 3, max_nodes=2, growth_fraction=1.0, shrink_fraction=1.0, value=10.0)
        >>> optimum(JobBatch([job], market, [0])).tolist()
        [9.6]
    """
    if batch.overhead == "launches":
        return np.array([_of_launches(batch, row) for row in range(len(batch))])
    on_grid = [
        exact_grid(np.array(job.throughput), job.growth_fraction, job.shrink_fraction) is not None for job in batch.jobs
    ]
    best = np.zeros(len(batch))
    if rows := [row for row, exact in enumerate(on_grid) if exact]:
        some = batch.only(rows)
        nothing, progress = np.zeros(len(some), np.int64), np.zeros(len(some))
        now = SpotForecast(some.price, some.available)
        observation = Observation(some, 0, progress, nothing, nothing, now, progress, progress)
        best[rows] = WindowPlanner("literal").worth(observation, some.intervals - 1)
    for row, exact in enumerate(on_grid):
        if not exact:
            job, price = batch.jobs[row], float(batch.on_demand[row])
            best[row] = by_labels(job, batch.price[row], batch.available[row], price)
    return best


def _of_launches(batch: JobBatch, row: int) -> float:
    job, on_demand = batch.jobs[row], float(batch.on_demand[row])
    waits = NodePairs(job, np.zeros(1), 1.0).waits
    trains = [1.0 - waits, 1.0 - np.maximum(waits, job.shrink_time), job.overlap - waits]
    unit = exact_grid(np.array(job.throughput), *np.maximum(np.concatenate(trains), 0.0).tolist())
    terms = batch.price[row], batch.available[row], on_demand
    return by_pair_labels(job, *terms) if unit is None else by_pairs(job, unit, *terms)


def by_pairs(job: SpotJob, unit: float, price: FloatArray, available: IntArray, on_demand: float = 1.0) -> float:
    """Return the highest utility of a job where launches cost time.

    Args:
        job: The job.
        unit: Work of a cell of progress; exact if every gain is a multiple of it.
        price: Price of a spot node by interval, shape ``(D,)``.
        available: Spot nodes on offer, shape ``(D,)``.
        on_demand: Price of an on-demand node.
    """
    # Up to all of the work, or to the farthest cell that can be reached.
    cells = math.ceil(min(job.work, job.deadline * job.throughput[-1]) / unit - 1e-6)
    left = np.maximum(job.work - np.arange(cells + 1) * unit, 0.0)
    pairs = NodePairs(job, left, unit)
    worth = pairs.end(left, on_demand)
    for interval in range(job.deadline - 1, -1, -1):
        worth = pairs.step_back(
            worth, OnOffer(float(price[interval]), on_demand, available[interval]), job.charge(interval)
        )
    return float(worth[0, 0, 0, 0])


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
                best = max(best, job.value_at(interval + 1) - float(paid[ended].min()))
            if not ended.all():
                after[number] = undominated(done[~ended], paid[~ended])
        labels = after
        if not labels:
            return best
    for held, (done, paid) in labels.items():
        rest = [job.worth_of_rest(job.work - one, held, on_demand) for one in done.tolist()]
        best = max(best, float((rest - paid).max()))
    return best
