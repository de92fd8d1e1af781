"""Backtests policies: each plays a batch of jobs through recorded markets, interval by interval, and leaves a ledger.

The safety net (:mod:`.safety_net`) constrains what a policy requests. Several policies play side by side, each as if it
were alone; what they have in common, such as the tables of :mod:`.window_planner`, is computed once an interval.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lightning_core.market.job_batch import JobBatch
from lightning_core.market.ledger import Ledger
from lightning_core.market.observation import Forecast, ForecastProvider, Observation, SpotPolicy
from lightning_core.market.safety_net import SafetyNet, throughput_of
from lightning_core.market.spot_job import EXACT, Overhead, intervals_after, value_at


def backtest(
    policies: Sequence[SpotPolicy],
    batch: JobBatch,
    forecasts: ForecastProvider,
    *,
    guarded: bool = True,
    overhead: Overhead = "total",
    preemption_cost: float = 0.0,
    held: tuple[int, int] = (0, 0),
) -> list[Ledger]:
    """Play policies through the markets of a batch, from each job's first interval to its deadline.

    Args:
        policies: The policies, each playing for itself.
        batch: The jobs.
        forecasts: Forecasts for the policies.
        guarded: Whether the safety net guards deadlines.
        overhead: What costs a fraction of an interval: a change of the total number of nodes, or any launch.
        preemption_cost: Cost, in intervals at full throughput, if fewer spot nodes are on offer than were held in the
            interval before; the time that the change of the number costs is part of it.
        held: Spot and on-demand nodes that each job holds at its beginning.

    Returns:
        A ledger for each policy.

    Example::

        >>> from lightning_core.market import JobBatch, LastValue, Market, MarketForecaster, SpotJob
        >>> from lightning_core.market.policies import OnDemand
        >>> market = Market([0.4] * 10, [4] * 10)
        >>> batch = JobBatch([SpotJob(work=80.0, deadline=10)], market, [0])
        >>> [ledger] = backtest([OnDemand()], batch, MarketForecaster(LastValue()))
        >>> ledger.cost.tolist(), ledger.utility.tolist(), ledger.on_time.tolist()
        ([81.0], [39.0], [True])
    """
    several, jobs, intervals = len(policies), len(batch), batch.intervals
    horizon = max(policy.horizon for policy in policies)
    rows, planned = batch.only(list(range(jobs)) * several), batch.with_reserve()
    shape = several * jobs, intervals
    spot, on_demand = np.zeros((2, *shape), np.int64)
    part, progress, paid = np.ones(shape), np.zeros(shape), np.zeros(shape)
    has, done = np.repeat(np.array(held, np.int64)[:, None], several * jobs, 1), np.zeros(several * jobs)
    for interval in range(intervals):
        forecast = forecasts.look(batch, interval, horizon)
        by_policy = done.reshape(several, jobs)
        lowest, highest = by_policy.min(0), by_policy.max(0)
        wanted = np.zeros((2, several * jobs), np.int64)
        for number, policy in enumerate(policies):
            own = slice(number * jobs, (number + 1) * jobs)
            wanted[:, own] = policy.decide(
                Observation(planned, interval, done[own], has[0, own], has[1, own], forecast, lowest, highest)
            )
        now = Forecast(np.tile(forecast.prices[:, :1], (several, 1)), np.tile(forecast.counts[:, :1], (several, 1)))
        net = SafetyNet(Observation(rows, interval, done, has[0], has[1], now, done, done), overhead)
        open_ = (done < rows.work - EXACT) & (interval < rows.deadline)
        chosen = np.where(open_, net.constrain(wanted[0], wanted[1], guarded=guarded), 0)
        left = np.where(open_, net.fraction_left(chosen[0], chosen[1]), 1.0)
        throughput = throughput_of(rows, chosen.sum(0))
        lost = np.where(
            open_ & net.preempted, np.maximum(preemption_cost * rows.fastest - (1.0 - left) * throughput, 0.0), 0.0
        )
        done = np.clip(done + left * throughput - lost, 0.0, rows.work)
        spot[:, interval], on_demand[:, interval] = chosen
        part[:, interval], progress[:, interval] = left, done
        paid[:, interval] = chosen[0] * rows.price[:, interval] + chosen[1] * rows.on_demand
        has = np.where(interval < rows.deadline, chosen, has)  # after its deadline it continues with these
    kept = has[1] if overhead == "launches" else has.sum(0)  # there, replacing spot nodes costs time
    late = intervals_after(rows.work - done, kept == rows.max_nodes, rows.fastest, rows.growth_fraction)
    cost = paid.sum(1) + late * rows.max_nodes * rows.on_demand
    utility = value_at(rows.deadline + late, rows.deadline, rows.value, rows.grace) - cost
    ledger = Ledger(spot, on_demand, part, progress * rows.units[:, None], paid, late, cost, utility)
    return [ledger.of(slice(at, at + jobs)) for at in range(0, several * jobs, jobs)]
