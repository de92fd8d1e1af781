"""The market as it comes: slot after slot a job's policy decides, by what it has really done so far.

The same rules as when a recording is played (:mod:`.playing`), one job at a time: what is asked for is made possible,
the safety net looks at it, and nobody gets more than ends its job in the slot.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lightning_core.market.choices import Choices, Pair
from lightning_core.market.model import EXACT, JobBatch, Market, SpotJob
from lightning_core.market.views import Forecast, Foresight, Seen, SpotPolicy


class Nodes(NamedTuple):
    """How many of which kind."""

    spot: int = 0
    on_demand: int = 0

    @property
    def all(self) -> int:
        """Together."""
        return self.spot + self.on_demand


class LivePlan:
    """Decides for one job, slot by slot.

    Args:
        policy: of its own: it may have a state.
        foresight: what it is told of the slots to come; it must not know them.
    """

    def __init__(self, policy: SpotPolicy, foresight: Foresight) -> None:
        self._policy, self._foresight = policy, foresight

    def decide(
        self,
        job: SpotJob,
        market: Market,
        start: int,
        slot: int,
        done: float,
        held: Nodes,
        taken: int = 0,
        *,
        gone: bool = False,
    ) -> Nodes:
        """What it should hold in a slot.

        Args:
            job: as it is known now; its speed may have been measured anew.
            market: up to this slot as it was; what stands behind it nobody looks at.
            start: slot of the market in which the job began.
            slot: from there, 0 in its first. Behind its deadline it is ended on all on-demand instances it can use.
            done: work, in the job's units.
            held: in the slot before.
            taken: spot instances that others have in this slot.
            gone: some of those that were held have just gone, and what that costs cannot be seen yet.
        """
        if done >= job.work * (1 - EXACT):
            return Nodes()
        if slot >= job.deadline:
            return Nodes(0, job.most)
        batch = JobBatch([job], market, [start])
        if gone:
            done -= job.loss * job.speed[-1]
        seen = self._seen(batch.with_reserve(), slot, max(done, 0.0), held, taken, gone=gone)
        spot, on_demand = self._policy.decide(seen)
        seen = self._seen(batch, slot, done, held, taken, gone=gone)
        return _of(Choices(seen).choose(spot, on_demand, guarded=True))

    def must_have(
        self, job: SpotJob, market: Market, start: int, slot: int, done: float, held: Nodes, gone: float
    ) -> Nodes:
        """What it should hold for the rest of a slot in which it has lost instances: more only if the net says so.

        Args:
            job: as it is known now.
            market: up to this slot as it was.
            start: slot of the market in which the job began.
            slot: from there.
            done: work, in the job's units.
            held: what is left of what it held.
            gone: part of the slot that is over, 0 to 1.
        """
        if done >= job.work * (1 - EXACT):
            return held
        most = Nodes(held.spot, max(job.most - held.spot, held.on_demand))
        if slot >= job.deadline - 1:
            return most
        speed = job.speed[min(held.all, job.most)] if held.all >= job.least else 0.0
        # What the loss costs may not be seen yet, and the spot instances that are left may go as well.
        losses = 1 + (held.spot > 0)
        done += (1.0 - gone) * speed - losses * job.loss * job.speed[-1]
        # From the next slot on, of which nothing is known, on all on-demand instances that it can use.
        seen = self._seen(JobBatch([job], market, [start]), slot + 1, done, Nodes(0, held.all), 0)
        waits = Choices(seen).safe(np.zeros(1, np.int64), np.array([job.most]))
        return held if waits[0] else most

    def _seen(self, batch: JobBatch, slot: int, done: float, held: Nodes, taken: int, *, gone: bool = False) -> Seen:
        forecast = self._foresight.look(batch, slot, self._policy.horizon)
        offered = int(forecast.counts[0, 0])
        if gone or held.spot <= offered:  # what others have got instead has not gone, nor has what was paid for already
            there = min(held.spot, max(offered - taken, 0))
            held = Nodes(there, held.all - there)
        forecast = Forecast(forecast.prices, np.maximum(forecast.counts - taken, 0))
        progress = np.array([done / float(batch.units[0])])
        spot, on_demand = (np.array([number], np.int64) for number in held)
        return Seen(batch, slot, progress, spot, on_demand, forecast, progress, progress)


def _of(pair: Pair) -> Nodes:
    return Nodes(int(pair[0][0]), int(pair[1][0]))
