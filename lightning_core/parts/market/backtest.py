"""Backtests policies: each plays a batch of jobs through recorded markets, interval by interval, and leaves a ledger.

The safety net (:mod:`.safety_net`) constrains what a policy requests. Several policies play side by side, independently
of each other; shared data, such as the tables of :mod:`.window_planner`, is computed once per interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lightning_core.core.arrays import FloatArray, IntArray
from lightning_core.parts.market.changeover import Changeover, throughput_of
from lightning_core.parts.market.job_batch import JobBatch
from lightning_core.parts.market.ledger import Ledger
from lightning_core.parts.market.observation import ForecastProvider, Observation, SpotForecast, SpotPolicy
from lightning_core.parts.market.safety_net import SafetyNet, kept_deadline
from lightning_core.parts.market.spot_job import EXACT, intervals_after, value_at


def backtest(
    policies: Sequence[SpotPolicy],
    batch: JobBatch,
    forecasts: ForecastProvider,
    *,
    guarded: bool = True,
    preemption_cost: float = 0.0,
    held: tuple[int, int] = (0, 0),
) -> list[Ledger]:
    """Play policies through the markets of a batch, from each job's first interval to its deadline.

    Args:
        policies: The policies, each playing for itself.
        batch: The jobs.
        forecasts: Forecasts for the policies.
        guarded: Whether the safety net guards deadlines. Without it a request is still cut to what is on offer and to
            what the job can use, and in the interval in which the job ends to what ends it.
        preemption_cost: Cost, in intervals at full throughput, if fewer spot nodes are on offer than were held in the
            interval before; the time that the change of the number costs is part of it.
        held: Spot and on-demand nodes that each job holds at its beginning.

    Returns:
        A ledger for each policy.

    Example::

        >>> from lightning_core.parts.market.forecasters import LastValue, MarketForecaster
        >>> from lightning_core.parts.market.job_batch import JobBatch
        >>> from lightning_core.parts.market.spot_job import SpotJob
        >>> from lightning_core.parts.market.spot_market import Market
        >>> from lightning_core.parts.market.spot_policies import OnDemand
        >>> market = Market([0.4] * 10, [4] * 10)
        >>> batch = JobBatch([SpotJob(work=80.0, deadline=10)], market, [0])
        >>> [ledger] = backtest([OnDemand()], batch, MarketForecaster(LastValue()))
        >>> ledger.cost.tolist(), ledger.utility.tolist(), ledger.on_time.tolist()
        ([81.0], [39.0], [True])
    """
    return play_all(Playback(batch, len(policies), held, guarded, preemption_cost), policies, forecasts)


def play_all(playback: Playback, policies: Sequence[SpotPolicy], forecasts: ForecastProvider) -> list[Ledger]:
    """Play policies to the last deadline, and return a ledger for each."""
    batch = playback.batch
    horizon = max(policy.horizon for policy in policies)
    playback.kept = np.concatenate([kept_deadline(batch, policy) for policy in policies])
    for interval in range(batch.intervals):
        forecast = forecasts.look(batch, interval, horizon)
        playback.lose(interval)
        playback.play(interval, playback.requests(policies, interval, forecast), forecast)
    ledger, jobs = playback.ledger(), len(batch)
    return [ledger.of(slice(at, at + jobs)) for at in range(0, len(policies) * jobs, jobs)]


class Settled(NamedTuple):
    """Work and cost of nodes in an interval; columns of shape ``(rows,)``."""

    wait: FloatArray
    """Intervals until they train."""
    throughput: FloatArray
    """Work that they do in an interval."""
    before: FloatArray
    """Work that is done on the nodes that a job had before, while they are launched."""
    paid: FloatArray


class Playback:
    """All jobs under all policies side by side, one row for each job and policy; all jobs of a policy are adjacent.

    Args:
        batch: The jobs.
        policy_count: Number of policies.
        held: Spot and on-demand nodes that each job holds at its beginning.
        guarded: Whether the safety net guards deadlines.
        preemption_cost: Cost of a preemption, in intervals at full throughput.
    """

    def __init__(
        self,
        batch: JobBatch,
        policy_count: int,
        held: tuple[int, int],
        guarded: bool,
        preemption_cost: float,
    ) -> None:
        self.batch, self.policy_count, self.jobs = batch, policy_count, len(batch)
        self.guarded, self.preemption_cost = guarded, preemption_cost
        self.rows = batch.only(list(range(self.jobs)) * policy_count)
        self.planned = batch.with_reserve()
        self.kept = self.rows.deadline
        count = policy_count * self.jobs
        shape = count, batch.intervals
        self.spot, self.on_demand = np.zeros((2, *shape), np.int64)
        self.part, self.progress, self.paid = np.ones(shape), np.zeros(shape), np.zeros(shape)
        self.has, self.done = np.repeat(np.array(held, np.int64)[:, None], count, 1), np.zeros(count)
        self.launching = np.zeros(count)  # intervals of start-up still to come

    def requests(self, policies: Sequence[SpotPolicy], interval: int, forecast: SpotForecast) -> IntArray:
        """Return the spot and on-demand nodes that the policies request for an interval, shape ``(2, rows)``."""
        by_policy = self.done.reshape(self.policy_count, self.jobs)
        lowest, highest = by_policy.min(0), by_policy.max(0)
        wanted = np.zeros((2, len(self.done)), np.int64)
        for number, policy in enumerate(policies):
            own = slice(number * self.jobs, (number + 1) * self.jobs)
            spot, on_demand = self.has[:, own]
            wanted[:, own] = policy.decide(
                Observation(
                    self.planned,
                    interval,
                    self.done[own],
                    spot,
                    on_demand,
                    forecast,
                    lowest,
                    highest,
                    self.launching[own],
                )
            )
        return wanted

    def play(self, interval: int, wanted: IntArray, forecast: SpotForecast) -> None:
        """Play an interval in which these nodes are requested, and enter it into the ledger."""
        rows, done, several = self.rows, self.done, (self.policy_count, 1)
        now = SpotForecast(np.tile(forecast.prices[:, :1], several), np.tile(forecast.counts[:, :1], several))
        spot, on_demand = self.has
        net = SafetyNet(Observation(rows, interval, done, spot, on_demand, now, done, done, self.launching), self.kept)
        open_ = (done < rows.work - EXACT) & (interval < rows.deadline)
        chosen = np.where(open_, net.constrain(wanted[0], wanted[1], guarded=self.guarded), 0)
        wait, throughput, done_before, paid = self.settle(interval, chosen, net)
        left = np.where(open_, np.maximum(1.0 - wait, 0.0), 1.0)
        done_before = np.where(open_, done_before, 0.0)
        lost = np.where(open_, self._lost(net.change, wait, throughput), 0.0)
        self.launching = np.where(open_, np.maximum(wait - 1.0, 0.0), self.launching)
        self.done = np.clip(done + done_before + left * throughput - lost, 0.0, rows.work)
        self.spot[:, interval], self.on_demand[:, interval] = chosen
        self.part[:, interval], self.progress[:, interval] = left, self.done
        self.paid[:, interval] = np.where(open_, paid, 0.0)
        self.has = np.where(interval < rows.deadline, chosen, self.has)  # after its deadline it continues with these

    def lose(self, interval: int) -> None:
        """Take nodes away before an interval that are gone without being too few; none are in one zone."""

    def settle(self, interval: int, chosen: IntArray, net: SafetyNet) -> Settled:
        """Return the work and the cost of the chosen nodes in an interval."""
        change = net.change
        wait, throughput = change.wait(*chosen), throughput_of(self.rows, chosen.sum(0))
        paid = change.bill(chosen[0], chosen[1], self._lost(change, wait, throughput))
        return Settled(wait, throughput, change.work_before(*chosen), paid)

    def _lost(self, change: Changeover, wait: FloatArray, throughput: FloatArray) -> FloatArray:
        """Return the work that a preemption loses, beside the cost of the wait."""
        stands_still = 1.0 - np.maximum(1.0 - wait, 0.0)
        cost = self.preemption_cost * self.rows.fastest - stands_still * throughput
        return np.where(change.preempted, np.maximum(cost, 0.0), 0.0)

    def ledger(self) -> Ledger:
        """Return the ledger of all rows, with the intervals that each job needs after it is due."""
        rows = self.rows
        kept = self.has[1] if rows.overhead == "launches" else self.has.sum(0)  # there, replacing spot nodes costs time
        wait = np.where(kept == rows.max_nodes, self.launching, rows.launch)
        after = intervals_after(rows.work - self.done, rows.fastest, wait)
        within = (self.progress >= rows.work[:, None] - EXACT).argmax(1) + 1
        ends = np.where(after > 0, rows.deadline + after, within)
        cost = self.paid.sum(1) + after * rows.max_nodes * rows.on_demand
        utility = value_at(ends, rows.due, rows.value, rows.grace) - cost
        late = np.maximum(ends - rows.due, 0)
        progress = self.progress * rows.units[:, None]
        return Ledger(self.spot, self.on_demand, self.part, progress, self.paid, late, cost, utility)
