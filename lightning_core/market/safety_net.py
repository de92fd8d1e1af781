"""What a policy asks for, made possible, safe and no more than needed.

1. Possible: no more spot instances than there are; none at all, or at least as many as the job needs; no more than it
   can use, the dearer ones going first.
2. Safe: if, after this interval, on-demand instances could not end the job in time any more, be it on as many as it has or
   on all that it can use, it gets all that it can use now, spot ones first; where even that is too late, for a change
   costs a part of the interval, it keeps as many as it has. No forecast is in this. A job that can be ended in time at all
   is. Where spot instances may go without notice, what that costs must be left as well, in every interval in which it
   holds some or they have just gone: else it gets on-demand ones alone, unless it is later than by one loss anyway.
3. Needed: not more than ends the job in this interval.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lightning_core.core.arrays import BoolArray, FloatArray, IntArray
from lightning_core.market.job_batch import JobBatch
from lightning_core.market.spot_job import EXACT, Overhead

if TYPE_CHECKING:
    from lightning_core.market.observation import Observation

Pair = tuple[IntArray, IntArray]
"""Spot and on-demand instances, each of shape ``(B,)``."""


def throughput_of(batch: JobBatch, total: IntArray) -> FloatArray:
    """Work in a whole interval on so many instances, shape ``(B,)``."""
    throughput: FloatArray = np.take_along_axis(batch.throughput, total[:, None], 1)[:, 0]
    return throughput


class SafetyNet:
    """What the jobs of a batch may have in an interval.

    Args:
        observation: the interval.
        overhead: what costs a part of it: a change of the number of instances, or any that is launched.
    """

    def __init__(self, observation: Observation, overhead: Overhead = "total") -> None:
        self.observation, self.overhead = observation, overhead
        self.batch = observation.batch
        self.cheap = observation.price <= self.batch.on_demand
        self.left = self.batch.work - observation.progress

    @property
    def preempted(self) -> BoolArray:
        """Whether some of the spot instances that were held have gone."""
        preempted: BoolArray = self.observation.spot > self.observation.available
        return preempted

    def constrain(self, spot: IntArray, on_demand: IntArray, *, guarded: bool) -> Pair:
        """What becomes of what a policy asks for."""
        pair = self.clip(spot, on_demand)
        if guarded:
            pair = self.guarded(*pair)
        return self.trim(*pair)

    def fraction_left(self, spot: IntArray, on_demand: IntArray) -> FloatArray:
        """What is left of the interval to train in."""
        observation, total = self.observation, spot + on_demand
        part = self.batch.fraction_left(observation.held, total)
        if self.overhead == "total":
            return part
        launched = (spot > observation.spot) | (on_demand > observation.on_demand)
        return np.where(launched, self.batch.growth_fraction, part)

    def work_done(self, spot: IntArray, on_demand: IntArray) -> FloatArray:
        """Work that is done in the interval."""
        return self.fraction_left(spot, on_demand) * throughput_of(self.batch, spot + on_demand)

    def split(self, total: IntArray) -> Pair:
        """So many instances, the cheaper kind first."""
        spot = np.where(self.cheap, np.minimum(self.observation.available, total), 0)
        return spot, total - spot

    def clip(self, spot: IntArray, on_demand: IntArray) -> Pair:
        """Rule 1."""
        min_nodes, max_nodes, available = self.batch.min_nodes, self.batch.max_nodes, self.observation.available
        spot, on_demand = np.clip(spot, 0, available), np.maximum(on_demand, 0)
        spot, on_demand = self._reduce(spot, on_demand, np.minimum(spot + on_demand, max_nodes))
        lacks = np.where(spot + on_demand > 0, np.maximum(min_nodes - spot - on_demand, 0), 0)
        more = np.where(self.cheap, np.minimum(available - spot, lacks), 0)
        return spot + more, on_demand + lacks - more

    def _reduce(self, spot: IntArray, on_demand: IntArray, total: IntArray) -> Pair:
        """So many of them, the dearer going first."""
        kept_spot = np.where(self.cheap, np.minimum(spot, total), np.maximum(total - on_demand, 0))
        return kept_spot, total - kept_spot

    def guarded(self, spot: IntArray, on_demand: IntArray) -> Pair:
        """Rule 2."""
        observation, max_nodes = self.observation, self.batch.max_nodes
        all_of_them, none = self.split(max_nodes), np.zeros_like(max_nodes)
        lossy = bool(self.batch.preemption_cost.any())
        alone = [(none, observation.held if self.overhead == "total" else observation.on_demand), (none, max_nodes)]
        ways = alone if lossy or self.overhead == "launches" else []
        if self.overhead == "total":
            ways = [*ways, self.split(observation.held)]
        ways += [all_of_them, (spot, on_demand)]
        slack = [self.slack(*way) for way in ways]
        chosen = all_of_them
        if lossy:  # where none is safe if spot ones go, on-demand ones that are if they do not
            one = self.batch.preemption_cost * self.batch.fastest
            # Late by a hair is late by more with a loss; later than that, on-demand ones only cost more.
            chosen = _where((slack[1] >= -one) & (one > 0), (none, max_nodes), chosen)
            for way, enough in zip(alone, slack, strict=False):
                chosen = _where(enough >= -EXACT, way, chosen)
        # The last that is safe counts: what was asked for, if it is, else the more the better.
        for way, enough in zip(ways, slack, strict=True):
            chosen = _where(enough >= self.work_at_risk(way[0]) - EXACT, way, chosen)
        return chosen

    def is_safe(self, spot: IntArray, on_demand: IntArray) -> BoolArray:
        """Whether on-demand instances could still end the job in time from the next interval on."""
        is_safe: BoolArray = self.slack(spot, on_demand) >= self.work_at_risk(spot) - EXACT
        return is_safe

    def work_at_risk(self, spot: IntArray) -> FloatArray:
        """Work that is lost if spot instances go without notice: those held now, and any that have just gone."""
        times = (spot > 0).astype(float) + self.preempted
        work: FloatArray = times * self.batch.preemption_cost * self.batch.fastest
        return work

    def slack(self, spot: IntArray, on_demand: IntArray) -> FloatArray:
        """Work that could be done by the deadline beyond what is left, on on-demand instances from the next interval on."""
        batch, later = self.batch, np.maximum(self.observation.intervals_left - 1, 0)
        # Where a launch costs, spot instances that go are not replaced for nothing.
        kept = on_demand if self.overhead == "launches" else spot + on_demand
        first = np.where((self.overhead == "launches") & (spot > 0), batch.shrink_fraction, 1.0)
        stays = np.where(kept >= batch.min_nodes, (first + later - 1) * throughput_of(batch, kept), 0.0)
        grows = (batch.growth_fraction + later - 1) * batch.fastest
        then = np.where(later > 0, np.maximum(stays, grows), 0.0)
        slack: FloatArray = self.work_done(spot, on_demand) + then - self.left
        return slack

    def trim(self, spot: IntArray, on_demand: IntArray) -> Pair:
        """Rule 3."""
        total = spot + on_demand
        ends = self.work_done(spot, on_demand) >= self.left - EXACT
        if not ends.any():
            return spot, on_demand
        fewest = total.copy()
        for number in range(int(total[ends].max()) - 1, 0, -1):
            preempted = self._reduce(spot, on_demand, np.minimum(total, number))
            enough = (
                ends
                & (number < total)
                & (number >= self.batch.min_nodes)
                & (self.work_done(*preempted) >= self.left - EXACT)
            )
            enough &= self.is_safe(*preempted)
            fewest = np.where(enough, number, fewest)
        return self._reduce(spot, on_demand, fewest)


def _where(which: BoolArray, one: Pair, other: Pair) -> Pair:
    return np.where(which, one[0], other[0]), np.where(which, one[1], other[1])
