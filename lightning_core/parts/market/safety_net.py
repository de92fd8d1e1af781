"""The safety net: makes the requests of a policy feasible, safe, and no larger than needed.

1. Feasible: no more spot nodes than are on offer; no nodes at all, or at least as many as the job needs; no more than
   it can use, the dearer kind being dropped first.
2. Safe: if after this interval on-demand nodes could no longer complete the job in time, on as many as it has or on all
   that it can use, it gets as many as it can use now, spot nodes first. Where even that is too late, because a change
   costs a fraction of the interval, it keeps its number of nodes. This uses no forecast, and completes in time every
   job that can be. Where spot nodes may be preempted without notice, time for that must be left as well, in every
   interval in which the job holds some or they have just been preempted; else it gets on-demand nodes only, unless it
   is late by more than one preemption anyway.
3. Needed: no more nodes than complete the job in this interval; where nodes are billed by the second, as many as do so
   at the lowest cost.

Guarantee: a job that on-demand nodes alone can complete in time (:attr:`.SpotJob.feasible`) is completed in time
whatever the market does, if on-demand nodes are always available and train ``launch`` after their request, no loss of
spot nodes costs more than ``preemption_cost``, and they are lost once an interval at most. There is no limit to the
number of losses: spot nodes are held only where the next loss still leaves time for on-demand ones. If any of these
does not hold, nothing is promised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lightning_core.core.arrays import BoolArray, FloatArray, IntArray
from lightning_core.parts.market.changeover import Changeover, throughput_of
from lightning_core.parts.market.spot_job import EXACT

if TYPE_CHECKING:
    from lightning_core.parts.market.job_batch import JobBatch
    from lightning_core.parts.market.observation import Observation, SpotPolicy

Pair = tuple[IntArray, IntArray]
"""Spot and on-demand nodes, each of shape ``(B,)``."""


def kept_deadline(batch: JobBatch, policy: SpotPolicy) -> IntArray:
    """Return the deadline that is kept under a policy, shape ``(B,)``: the soft one unless it sees what that costs."""
    return batch.deadline if getattr(policy, "sees_value", False) else batch.due


class SafetyNet:
    """Constrains the nodes of the jobs of a batch in an interval.

    Args:
        observation: The interval.
        deadline: Interval by which each job is completed, shape ``(B,)`` (:func:`kept_deadline`); None for its
            deadline.
    """

    def __init__(self, observation: Observation, deadline: IntArray | None = None) -> None:
        self.observation, self.batch = observation, observation.batch
        self._left = (self.batch.deadline if deadline is None else deadline) - observation.interval
        self.change = Changeover(observation)
        self.by_launches = self.batch.overhead == "launches"
        self.cheap = observation.price <= self.batch.on_demand

    def constrain(self, spot: IntArray, on_demand: IntArray, *, guarded: bool) -> Pair:
        """Return the constrained request; without ``guarded`` rule 2 alone is left out."""
        pair = self.clip(spot, on_demand)
        if guarded:
            pair = self.guarded(*pair)
        return self.trim(*pair)

    def split(self, total: IntArray) -> Pair:
        """Split a total into spot and on-demand nodes, the cheaper kind first."""
        spot = np.where(self.cheap, np.minimum(self.observation.available, total), 0)
        return spot, total - spot

    def clip(self, spot: IntArray, on_demand: IntArray) -> Pair:
        """Apply rule 1."""
        min_nodes, max_nodes, available = self.batch.min_nodes, self.batch.max_nodes, self.observation.available
        spot, on_demand = np.clip(spot, 0, available), np.maximum(on_demand, 0)
        spot, on_demand = self._reduce(spot, on_demand, np.minimum(spot + on_demand, max_nodes))
        lacks = np.where(spot + on_demand > 0, np.maximum(min_nodes - spot - on_demand, 0), 0)
        more = np.where(self.cheap, np.minimum(available - spot, lacks), 0)
        return spot + more, on_demand + lacks - more

    def _reduce(self, spot: IntArray, on_demand: IntArray, total: IntArray) -> Pair:
        """Reduce a pair to a total, dropping the dearer kind first."""
        kept_spot = np.where(self.cheap, np.minimum(spot, total), np.maximum(total - on_demand, 0))
        return kept_spot, total - kept_spot

    def guarded(self, spot: IntArray, on_demand: IntArray) -> Pair:
        """Apply rule 2."""
        observation, max_nodes = self.observation, self.batch.max_nodes
        all_of_them, none = self.split(max_nodes), np.zeros_like(max_nodes)
        lossy = bool(self.batch.preemption_cost.any())
        alone = [(none, observation.on_demand if self.by_launches else observation.held), (none, max_nodes)]
        ways = alone if lossy or self.by_launches else []
        if not self.by_launches:
            ways = [*ways, self.split(observation.held)]
        ways += [all_of_them, (spot, on_demand)]
        slack = [self.slack(*way) for way in ways]
        chosen = all_of_them
        if lossy:  # if nothing is safe with a preemption, on-demand nodes that are safe without one
            one = self.batch.preemption_cost * self.batch.fastest
            # A preemption makes a slightly late job later; if it is later than that, on-demand nodes only cost more.
            chosen = _where((slack[1] >= -one) & (one > 0), (none, max_nodes), chosen)
            for way, enough in zip(alone, slack, strict=False):
                chosen = _where(enough >= -EXACT, way, chosen)
        # The last safe candidate wins: the request itself if it is safe, else the larger ones first.
        for way, enough in zip(ways, slack, strict=True):
            chosen = _where(enough >= self.work_at_risk(way[0]) - EXACT, way, chosen)
        return chosen

    def is_safe(self, spot: IntArray, on_demand: IntArray) -> BoolArray:
        """Return whether on-demand nodes can still complete the job in time from the next interval on."""
        is_safe: BoolArray = self.slack(spot, on_demand) >= self.work_at_risk(spot) - EXACT
        return is_safe

    def work_at_risk(self, spot: IntArray) -> FloatArray:
        """Return the work lost if spot nodes are preempted without notice: those held now, and any just preempted."""
        times = (spot > 0).astype(float) + self.change.preempted
        work: FloatArray = times * self.batch.preemption_cost * self.batch.fastest
        return work

    def slack(self, spot: IntArray, on_demand: IntArray) -> FloatArray:
        """Return the work that on-demand nodes can do by the deadline, from the next interval on, beyond that left."""
        batch, later = self.batch, np.maximum(self._left - 1, 0)
        # Where launches cost time, replacing preempted spot nodes does as well.
        kept = on_demand if self.by_launches else spot + on_demand
        had = throughput_of(batch, kept)
        wait = np.maximum(self.change.wait(spot, on_demand) - 1.0, 0.0)
        # Others may be launched in the next interval; while they are, on-demand nodes alone are sure to train.
        meanwhile = np.where(spot > 0, 0.0, np.maximum(batch.overlap - wait, 0.0))
        if self.by_launches:
            wait = np.where(spot > 0, np.maximum(wait, batch.shrink_time), wait)
        enough = kept >= batch.min_nodes
        stays = np.where(enough, np.maximum(later - wait, 0.0) * had, 0.0)
        grows = (later - batch.launch) * batch.fastest + np.where(enough, meanwhile * had, 0.0)
        then = np.where(later > 0, np.maximum(stays, grows), 0.0)
        slack: FloatArray = self.change.work_done(spot, on_demand) + then - self.change.left
        return slack

    def trim(self, spot: IntArray, on_demand: IntArray) -> Pair:
        """Apply rule 3."""
        change, total = self.change, spot + on_demand
        ends = change.completes(spot, on_demand)
        if not ends.any():
            return spot, on_demand
        fewest, cheapest = total.copy(), change.bill(spot, on_demand)
        for number in range(int(total[ends].max()) - 1, 0, -1):
            fewer = self._reduce(spot, on_demand, np.minimum(total, number))
            bill = change.bill(*fewer)
            enough = ends & (number < total) & (number >= self.batch.min_nodes) & change.completes(*fewer)
            enough &= self.is_safe(*fewer) & (~self.batch.by_second | (bill <= cheapest + EXACT))
            fewest, cheapest = np.where(enough, number, fewest), np.where(enough, bill, cheapest)
        return self._reduce(spot, on_demand, fewest)


def _where(which: BoolArray, one: Pair, other: Pair) -> Pair:
    return np.where(which, one[0], other[0]), np.where(which, one[1], other[1])
