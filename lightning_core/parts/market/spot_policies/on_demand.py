"""Policy of on-demand nodes only: the fewest that complete the job in time, from its start to its end."""

from __future__ import annotations

import numpy as np

from lightning_core.core.arrays import IntArray
from lightning_core.parts.market.backtest import backtest
from lightning_core.parts.market.forecasters import LastValue, MarketForecaster
from lightning_core.parts.market.job_batch import JobBatch
from lightning_core.parts.market.observation import Observation
from lightning_core.parts.market.spot_job import EXACT, SpotJob
from lightning_core.parts.market.spot_market import Market


def fewest_in_time(batch: JobBatch) -> IntArray:
    """Return the fewest nodes that, held from the start on, complete each job in time; all of them if none do."""
    done = batch.throughput * (batch.due - batch.launch)[:, None]
    number = np.arange(batch.throughput.shape[1])
    work = batch.work - batch.reserve  # on-demand nodes are not preempted
    enough = (done >= work[:, None] - EXACT) & (number >= batch.min_nodes[:, None])
    return np.where(enough.any(1), np.minimum(enough.argmax(1), batch.max_nodes), batch.max_nodes)


class OnDemand:
    """Holds the fewest on-demand nodes that complete the job in time."""

    horizon = 0

    def decide(self, observation: Observation) -> tuple[IntArray, IntArray]:
        on_demand = fewest_in_time(observation.batch)
        return np.zeros_like(on_demand), on_demand


def steady_cost(job: SpotJob, price: float) -> float:
    """Return about the same as :func:`on_demand_cost`, of nodes billed by the second until the job is done, at once."""
    none = Market(np.full(job.deadline, price), np.zeros(job.deadline, np.int64), price)
    nodes = int(fewest_in_time(JobBatch([job], none, [0]))[0])
    return price * nodes * (job.launch + job.work / job.throughput[nodes])


def on_demand_cost(job: SpotJob, price: float) -> float:
    """Return the cost of a job on the fewest on-demand nodes that complete it in time."""
    none = Market(np.full(job.deadline, price), np.zeros(job.deadline, np.int64), price)
    [ledger] = backtest([OnDemand()], JobBatch([job], none, [0]), MarketForecaster(LastValue()))
    return float(ledger.cost[0])
