"""Policies play a batch of jobs through their markets, interval by interval, and a ledger is kept for each.

What a policy asks for is made possible, the safety net looks at it, and nobody gets more than ends its job in the interval
(:mod:`.net`). Several policies play side by side, each as if it were alone: what they have in common, such as the
tables of :mod:`.planner`, is made once an interval.
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
    """Has policies decide for each job of a batch, from its first interval to its deadline.

    Args:
        policies: who decides, each for itself.
        batch: the jobs.
        forecasts: what they are told of the intervals to come.
        guarded: whether the safety net is there.
        overhead: what costs a part of an interval: a change of the number of instances, or any that is launched.
        preemption_cost: intervals at full speed that it costs if there are fewer spot instances than were held in the interval before, of
            which what a change of the number costs in that interval is a part.
        held: spot and on-demand instances that each job has as it begins.

    Returns:
        A ledger for each policy.

    Example::

        >>> from lightning_core.market import JobBatch, MarketForecaster, LastValue, Market, SpotJob
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
        has = np.where(interval < rows.deadline, chosen, has)  # at its own deadline it goes on with what it has
    kept = has[1] if overhead == "launches" else has.sum(0)  # there, spot instances are not replaced for nothing
    late = intervals_after(rows.work - done, kept == rows.max_nodes, rows.fastest, rows.growth_fraction)
    cost = paid.sum(1) + late * rows.max_nodes * rows.on_demand
    utility = value_at(rows.deadline + late, rows.deadline, rows.value, rows.grace) - cost
    ledger = Ledger(spot, on_demand, part, progress * rows.units[:, None], paid, late, cost, utility)
    return [ledger.of(slice(at, at + jobs)) for at in range(0, several * jobs, jobs)]
