"""The market as it comes: interval after interval a job's policy decides, by what it has really done so far.

The same rules as when a recording is played (:mod:`.playing`), one job at a time: what is asked for is made possible,
the safety net looks at it, and nobody gets more than ends its job in the interval.
"""

from __future__ import annotations

import numpy as np

from lightning_core.market.job_batch import JobBatch
from lightning_core.market.observation import Forecast, ForecastProvider, Observation, SpotPolicy
from lightning_core.market.online.node_counts import NodeCounts
from lightning_core.market.safety_net import Pair, SafetyNet
from lightning_core.market.spot_job import EXACT, SpotJob
from lightning_core.market.spot_market import Market


class OnlinePlan:
    """Decides for one job, interval by interval.

    Args:
        policy: of its own: it may have a state.
        forecasts: what it is told of the intervals to come; it must not know them.
    """

    def __init__(self, policy: SpotPolicy, forecasts: ForecastProvider) -> None:
        self._policy, self._forecasts = policy, forecasts

    def decide(
        self,
        job: SpotJob,
        market: Market,
        start: int,
        interval: int,
        done: float,
        held: NodeCounts,
        taken: int = 0,
        *,
        gone: bool = False,
    ) -> NodeCounts:
        """What it should hold in an interval.

        Args:
            job: as it is known now; its speed may have been measured anew.
            market: up to this interval as it was; what stands behind it nobody looks at.
            start: interval of the market in which the job began.
            interval: from there, 0 in its first. Behind its deadline it is ended on all on-demand instances it can use.
            done: work, in the job's units.
            held: in the interval before.
            taken: spot instances that others have in this interval.
            gone: some of those that were held have just gone, and what that costs cannot be seen yet.
        """
        if done >= job.work * (1 - EXACT):
            return NodeCounts()
        if interval >= job.deadline:
            return NodeCounts(0, job.max_nodes)
        batch = JobBatch([job], market, [start])
        if gone:
            done -= job.preemption_cost * job.throughput[-1]
        observation = self._observe(batch.with_reserve(), interval, max(done, 0.0), held, taken, gone=gone)
        spot, on_demand = self._policy.decide(observation)
        observation = self._observe(batch, interval, done, held, taken, gone=gone)
        return _of(SafetyNet(observation).constrain(spot, on_demand, guarded=True))

    def must_have(
        self, job: SpotJob, market: Market, start: int, interval: int, done: float, held: NodeCounts, gone: float
    ) -> NodeCounts:
        """What it should hold for the rest of an interval in which it has lost instances: more only if the net says so.

        Args:
            job: as it is known now.
            market: up to this interval as it was.
            start: interval of the market in which the job began.
            interval: from there.
            done: work, in the job's units.
            held: what is left of what it held.
            gone: part of the interval that is over, 0 to 1.
        """
        if done >= job.work * (1 - EXACT):
            return held
        max_nodes = NodeCounts(held.spot, max(job.max_nodes - held.spot, held.on_demand))
        if interval >= job.deadline - 1:
            return max_nodes
        throughput = job.throughput[min(held.all, job.max_nodes)] if held.all >= job.min_nodes else 0.0
        # What the loss costs may not be seen yet, and the spot instances that are left may go as well.
        losses = 1 + (held.spot > 0)
        done += (1.0 - gone) * throughput - losses * job.preemption_cost * job.throughput[-1]
        # From the next interval on, of which nothing is known, on all on-demand instances that it can use.
        observation = self._observe(JobBatch([job], market, [start]), interval + 1, done, NodeCounts(0, held.all), 0)
        waits = SafetyNet(observation).is_safe(np.zeros(1, np.int64), np.array([job.max_nodes]))
        return held if waits[0] else max_nodes

    def _observe(
        self, batch: JobBatch, interval: int, done: float, held: NodeCounts, taken: int, *, gone: bool = False
    ) -> Observation:
        forecast = self._forecasts.look(batch, interval, self._policy.horizon)
        offered = int(forecast.counts[0, 0])
        if gone or held.spot <= offered:  # what others have got instead has not gone, nor has what was paid for already
            there = min(held.spot, max(offered - taken, 0))
            held = NodeCounts(there, held.all - there)
        forecast = Forecast(forecast.prices, np.maximum(forecast.counts - taken, 0))
        progress = np.array([done / float(batch.units[0])])
        spot, on_demand = (np.array([number], np.int64) for number in held)
        return Observation(batch, interval, progress, spot, on_demand, forecast, progress, progress)


def _of(pair: Pair) -> NodeCounts:
    return NodeCounts(int(pair[0][0]), int(pair[1][0]))
