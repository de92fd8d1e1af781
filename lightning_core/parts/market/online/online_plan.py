"""Online plan of a job on a live market: decides interval by interval, from the job's real progress.

The rules are those of a backtest (:mod:`lightning_core.parts.market.backtest`): the policy's request is made feasible,
the safety net checks it, and no job gets more nodes than complete it in the interval.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lightning_core.parts.market.job_batch import JobBatch
from lightning_core.parts.market.node_counts import NodeCounts
from lightning_core.parts.market.observation import ForecastProvider, Observation, SpotForecast, SpotPolicy
from lightning_core.parts.market.safety_net import Pair, SafetyNet, kept_deadline
from lightning_core.parts.market.spot_job import EXACT, SpotJob
from lightning_core.parts.market.spot_market import Market


class OnlinePlan:
    """Plan of one job.

    Args:
        policy: Policy of this job alone, because it may have state.
        forecasts: Forecasts for the policy; they must not know the future.
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
        reserved: int = 0,
        elapsed: float = 0.0,
        *,
        preempted: bool = False,
    ) -> NodeCounts:
        """Return the nodes to hold in an interval.

        Args:
            job: The job as known now; its measured throughput may have changed.
            market: The market; nothing after this interval is used.
            start: Interval of the market in which the job began.
            interval: Intervals since then, 0 in its first. After its deadline a job gets all on-demand nodes that it
                can use.
            done: Work done, in the job's units.
            held: Nodes held in the interval before.
            reserved: Spot nodes that other jobs get in this interval.
            elapsed: Elapsed fraction of the interval. The safety net decides as at its beginning, minus the work that
                the most nodes would do in that time, so it counts on the rest of the interval alone.
            preempted: Whether held nodes have just been preempted and the lost work is not yet known.
        """
        if done >= job.work * (1 - EXACT):
            return NodeCounts()
        if interval >= job.deadline:
            return NodeCounts(0, job.max_nodes)
        batch = JobBatch([job], market, [start])
        if preempted:
            done -= job.preemption_cost * job.throughput[-1]
        observation = self._observe(batch.with_reserve(), interval, max(done, 0.0), held, reserved, preempted=preempted)
        spot, on_demand = self._policy.decide(replace(observation, elapsed=elapsed))
        done -= elapsed * job.throughput[-1]
        observation = self._observe(batch, interval, done, held, reserved, preempted=preempted)
        net = SafetyNet(observation, kept_deadline(batch, self._policy))
        return _node_counts(net.constrain(spot, on_demand, guarded=True))

    def must_have(
        self, job: SpotJob, market: Market, start: int, interval: int, done: float, held: NodeCounts, elapsed: float
    ) -> NodeCounts:
        """Return the nodes to hold for the rest of an interval with a preemption: more only if the job cannot wait.

        Args:
            job: The job as known now.
            market: The market; nothing after this interval is used.
            start: Interval of the market in which the job began.
            interval: Intervals since then.
            done: Work done, in the job's units.
            held: Nodes that are left of those held.
            elapsed: Elapsed fraction of the interval, 0 to 1.
        """
        if done >= job.work * (1 - EXACT):
            return held
        most = NodeCounts(held.spot, max(job.max_nodes - held.spot, held.on_demand))
        if interval >= job.deadline - 1:
            return most
        throughput = job.throughput[min(held.all, job.max_nodes)] if held.all >= job.min_nodes else 0.0
        # The work lost may not be known yet, and the spot nodes that are left may be preempted as well.
        preemptions = 1 + (held.spot > 0)
        done += (1.0 - elapsed) * throughput - preemptions * job.preemption_cost * job.throughput[-1]
        # From the next interval on, about which nothing is known, on all on-demand nodes that it can use.
        kept = NodeCounts(0, held.on_demand if job.overhead == "launches" else held.all)
        observation = self._observe(JobBatch([job], market, [start]), interval + 1, done, kept, reserved=0)
        net = SafetyNet(observation, kept_deadline(observation.batch, self._policy))
        can_wait = net.is_safe(np.zeros(1, np.int64), np.array([job.max_nodes]))
        return held if can_wait[0] else most

    def _observe(
        self, batch: JobBatch, interval: int, done: float, held: NodeCounts, reserved: int, *, preempted: bool = False
    ) -> Observation:
        forecast = self._forecasts.look(batch, interval, self._policy.horizon)
        offered = int(forecast.counts[0, 0])
        # A node that another job got instead was not preempted, nor was one that has been paid for already.
        waits = 0.0
        if preempted or held.spot <= offered:
            spot = min(held.spot, max(offered - reserved, 0))
            if batch.overhead == "total":
                held = NodeCounts(spot, held.all - spot)
            elif spot < held.spot:  # nothing is lost, but the job continues on fewer nodes
                held, waits = NodeCounts(spot, held.on_demand), float(batch.shrink_time[0])
        forecast = SpotForecast(forecast.prices, np.maximum(forecast.counts - reserved, 0))
        progress = np.array([done / float(batch.units[0])])
        spot_nodes, on_demand = (np.array([number], np.int64) for number in held)
        launching = np.array([waits])
        return Observation(batch, interval, progress, spot_nodes, on_demand, forecast, progress, progress, launching)


def _node_counts(pair: Pair) -> NodeCounts:
    return NodeCounts(int(pair[0][0]), int(pair[1][0]))
