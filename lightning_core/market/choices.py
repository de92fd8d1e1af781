"""What a policy asks for, made possible, safe and no more than needed.

1. Possible: no more spot instances than there are; none at all, or at least as many as the job needs; no more than it
   can use, the dearer ones going first.
2. Safe: if, after this slot, on-demand instances could not end the job in time any more, be it on as many as it has or
   on all that it can use, it gets all that it can use now, spot ones first; where even that is too late, for a change
   costs a part of the slot, it keeps as many as it has. No forecast is in this. A job that can be ended in time at all
   is. Where spot instances may go without notice, what that costs must be left as well, in every slot in which it
   holds some or they have just gone: else it gets on-demand ones alone, unless it is later than by one loss anyway.
3. Needed: not more than ends the job in this slot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lightning_core.core.arrays import BoolArray, FloatArray, IntArray
from lightning_core.market.model import EXACT, JobBatch, Overhead

if TYPE_CHECKING:
    from lightning_core.market.views import Seen

Pair = tuple[IntArray, IntArray]
"""Spot and on-demand instances, each of shape ``(B,)``."""


def speed_of(batch: JobBatch, total: IntArray) -> FloatArray:
    """Work in a whole slot on so many instances, shape ``(B,)``."""
    speed: FloatArray = np.take_along_axis(batch.speed, total[:, None], 1)[:, 0]
    return speed


class Choices:
    """What the jobs of a batch may have in a slot.

    Args:
        seen: the slot.
        overhead: what costs a part of it: a change of the number of instances, or any that is launched.
    """

    def __init__(self, seen: Seen, overhead: Overhead = "total") -> None:
        self.seen, self.overhead = seen, overhead
        self.batch = seen.batch
        self.cheap = seen.price <= self.batch.on_demand
        self.left = self.batch.work - seen.progress

    @property
    def fewer(self) -> BoolArray:
        """Whether some of the spot instances that were held have gone."""
        fewer: BoolArray = self.seen.spot > self.seen.available
        return fewer

    def choose(self, spot: IntArray, on_demand: IntArray, *, guarded: bool) -> Pair:
        """What becomes of what a policy asks for."""
        pair = self.possible(spot, on_demand)
        if guarded:
            pair = self.guarded(*pair)
        return self.trimmed(*pair)

    def part_left(self, spot: IntArray, on_demand: IntArray) -> FloatArray:
        """What is left of the slot to train in."""
        seen, total = self.seen, spot + on_demand
        part = self.batch.part_left(seen.held, total)
        if self.overhead == "total":
            return part
        launched = (spot > seen.spot) | (on_demand > seen.on_demand)
        return np.where(launched, self.batch.up, part)

    def gain(self, spot: IntArray, on_demand: IntArray) -> FloatArray:
        """Work that is done in the slot."""
        return self.part_left(spot, on_demand) * speed_of(self.batch, spot + on_demand)

    def split(self, total: IntArray) -> Pair:
        """So many instances, the cheaper kind first."""
        spot = np.where(self.cheap, np.minimum(self.seen.available, total), 0)
        return spot, total - spot

    def possible(self, spot: IntArray, on_demand: IntArray) -> Pair:
        """Rule 1."""
        least, most, available = self.batch.least, self.batch.most, self.seen.available
        spot, on_demand = np.clip(spot, 0, available), np.maximum(on_demand, 0)
        spot, on_demand = self._shrunk(spot, on_demand, np.minimum(spot + on_demand, most))
        lacks = np.where(spot + on_demand > 0, np.maximum(least - spot - on_demand, 0), 0)
        more = np.where(self.cheap, np.minimum(available - spot, lacks), 0)
        return spot + more, on_demand + lacks - more

    def _shrunk(self, spot: IntArray, on_demand: IntArray, total: IntArray) -> Pair:
        """So many of them, the dearer going first."""
        kept_spot = np.where(self.cheap, np.minimum(spot, total), np.maximum(total - on_demand, 0))
        return kept_spot, total - kept_spot

    def guarded(self, spot: IntArray, on_demand: IntArray) -> Pair:
        """Rule 2."""
        seen, most = self.seen, self.batch.most
        all_of_them, none = self.split(most), np.zeros_like(most)
        lossy = bool(self.batch.loss.any())
        alone = [(none, seen.held if self.overhead == "total" else seen.on_demand), (none, most)]
        ways = alone if lossy or self.overhead == "launches" else []
        if self.overhead == "total":
            ways = [*ways, self.split(seen.held)]
        ways += [all_of_them, (spot, on_demand)]
        spare = [self.spare(*way) for way in ways]
        chosen = all_of_them
        if lossy:  # where none is safe if spot ones go, on-demand ones that are if they do not
            one = self.batch.loss * self.batch.fastest
            # Late by a hair is late by more with a loss; later than that, on-demand ones only cost more.
            chosen = _where((spare[1] >= -one) & (one > 0), (none, most), chosen)
            for way, enough in zip(alone, spare, strict=False):
                chosen = _where(enough >= -EXACT, way, chosen)
        # The last that is safe counts: what was asked for, if it is, else the more the better.
        for way, enough in zip(ways, spare, strict=True):
            chosen = _where(enough >= self.at_risk(way[0]) - EXACT, way, chosen)
        return chosen

    def safe(self, spot: IntArray, on_demand: IntArray) -> BoolArray:
        """Whether on-demand instances could still end the job in time from the next slot on."""
        safe: BoolArray = self.spare(spot, on_demand) >= self.at_risk(spot) - EXACT
        return safe

    def at_risk(self, spot: IntArray) -> FloatArray:
        """Work that is lost if spot instances go without notice: those held now, and any that have just gone."""
        times = (spot > 0).astype(float) + self.fewer
        work: FloatArray = times * self.batch.loss * self.batch.fastest
        return work

    def spare(self, spot: IntArray, on_demand: IntArray) -> FloatArray:
        """Work that could be done by the deadline beyond what is left, on on-demand instances from the next slot on."""
        batch, later = self.batch, np.maximum(self.seen.slots_left - 1, 0)
        # Where a launch costs, spot instances that go are not replaced for nothing.
        kept = on_demand if self.overhead == "launches" else spot + on_demand
        first = np.where((self.overhead == "launches") & (spot > 0), batch.down, 1.0)
        stays = np.where(kept >= batch.least, (first + later - 1) * speed_of(batch, kept), 0.0)
        grows = (batch.up + later - 1) * batch.fastest
        then = np.where(later > 0, np.maximum(stays, grows), 0.0)
        spare: FloatArray = self.gain(spot, on_demand) + then - self.left
        return spare

    def trimmed(self, spot: IntArray, on_demand: IntArray) -> Pair:
        """Rule 3."""
        total = spot + on_demand
        ends = self.gain(spot, on_demand) >= self.left - EXACT
        if not ends.any():
            return spot, on_demand
        fewest = total.copy()
        for number in range(int(total[ends].max()) - 1, 0, -1):
            fewer = self._shrunk(spot, on_demand, np.minimum(total, number))
            enough = ends & (number < total) & (number >= self.batch.least) & (self.gain(*fewer) >= self.left - EXACT)
            enough &= self.safe(*fewer)
            fewest = np.where(enough, number, fewest)
        return self._shrunk(spot, on_demand, fewest)


def _where(which: BoolArray, one: Pair, other: Pair) -> Pair:
    return np.where(which, one[0], other[0]), np.where(which, one[1], other[1])
