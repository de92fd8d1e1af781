"""Policies play a batch of jobs through their markets, slot by slot, and a ledger is kept for each.

What a policy asks for is made possible, the safety net looks at it, and nobody gets more than ends its job in the slot
(:mod:`.choices`). Several policies play side by side, each as if it were alone: what they have in common, such as the
tables of :mod:`.windows`, is made once a slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from lightning_core.core.arrays import FloatArray, IntArray
from lightning_core.market.choices import Choices, speed_of
from lightning_core.market.model import EXACT, Batch, Ledger, Overhead, slots_after, value_at


class Forecast(NamedTuple):
    """A slot as it is and those behind it as they are thought to be; one row a job, shape ``(B, 1 + horizon)``.

    Args:
        prices: of a spot instance.
        counts: of spot instances, whole.
    """

    prices: FloatArray
    counts: IntArray


class Foresight(Protocol):
    """What is thought of the slots to come."""

    def look(self, batch: Batch, slot: int, horizon: int) -> Forecast:
        """Of so many slots behind one that is known."""


@dataclass(frozen=True, eq=False, slots=True)
class Seen:
    """What a policy sees at the beginning of a slot; one row a job, columns of shape ``(B,)``.

    Attributes:
        batch: the jobs. Of its prices and counts only those up to ``slot`` may be looked at.
        slot: counted from 0.
        progress: work done.
        spot: instances held in the slot before.
        on_demand: instances held in the slot before.
        forecast: this slot and, by forecast, at least as many behind it as the policy wants.
        lowest, highest: no policy that plays beside it has less progress, or more: so they can share what they make of
            the slot.
    """

    batch: Batch
    slot: int
    progress: FloatArray
    spot: IntArray
    on_demand: IntArray
    forecast: Forecast
    lowest: FloatArray
    highest: FloatArray

    @property
    def held(self) -> IntArray:
        """Instances held in the slot before."""
        return self.spot + self.on_demand

    @property
    def price(self) -> FloatArray:
        """Of a spot instance now."""
        return self.forecast.prices[:, 0]

    @property
    def available(self) -> IntArray:
        """Spot instances now."""
        return self.forecast.counts[:, 0]

    @property
    def usable(self) -> IntArray:
        """Spot instances now that a job can use and that are not dearer than others; 0 if they are too few for it."""
        batch = self.batch
        count = np.minimum(self.available, batch.most)
        return np.where((self.price <= batch.on_demand) & (count >= batch.least), count, 0)

    def due(self, slots: int = 0) -> FloatArray:
        """Work that is done so many slots behind this one if it is done evenly (eq. 6); at most all of it."""
        batch = self.batch
        return batch.work * np.minimum((self.slot + 1 + slots) / batch.deadline, 1.0)

    @property
    def slots_left(self) -> IntArray:
        """Up to the deadline, this one among them."""
        return self.batch.deadline - self.slot


class SpotPolicy(Protocol):
    """How many instances of which kind to hold in a slot, for each job of a batch.

    A policy may have a state; it comes from the slots that it was shown alone, and slot 0 begins anew.
    """

    @property
    def horizon(self) -> int:
        """For how many slots behind the present one it wants forecasts."""

    def decide(self, seen: Seen) -> tuple[IntArray, IntArray]:
        """Spot and on-demand instances, each of shape ``(B,)``; what cannot be is made possible."""


def play(
    policies: Sequence[SpotPolicy],
    batch: Batch,
    foresight: Foresight,
    *,
    guarded: bool = True,
    overhead: Overhead = "total",
    gone: float = 0.0,
    held: tuple[int, int] = (0, 0),
) -> list[Ledger]:
    """Has policies decide for each job of a batch, from its first slot to its deadline.

    Args:
        policies: who decides, each for itself.
        batch: the jobs.
        foresight: what they are told of the slots to come.
        guarded: whether the safety net is there.
        overhead: what costs a part of a slot: a change of the number of instances, or any that is launched.
        gone: slots at full speed that it costs if there are fewer spot instances than were held in the slot before, of
            which what a change of the number costs in that slot is a part.
        held: spot and on-demand instances that each job has as it begins.

    Returns:
        A ledger for each policy.

    Example::

        >>> from lightning_core.market import Batch, Foreseen, LastValue, Market, SpotJob
        >>> from lightning_core.market.policies import OnDemand
        >>> market = Market([0.4] * 10, [4] * 10)
        >>> batch = Batch([SpotJob(work=80.0, deadline=10)], market, [0])
        >>> [ledger] = play([OnDemand()], batch, Foreseen(LastValue()))
        >>> ledger.cost.tolist(), ledger.utility.tolist(), ledger.on_time.tolist()
        ([81.0], [39.0], [True])
    """
    several, jobs, slots = len(policies), len(batch), batch.slots
    horizon = max(policy.horizon for policy in policies)
    rows, planned = batch.only(list(range(jobs)) * several), batch.with_reserve()
    shape = several * jobs, slots
    spot, on_demand = np.zeros((2, *shape), np.int64)
    part, progress, paid = np.ones(shape), np.zeros(shape), np.zeros(shape)
    has, done = np.repeat(np.array(held, np.int64)[:, None], several * jobs, 1), np.zeros(several * jobs)
    for slot in range(slots):
        forecast = foresight.look(batch, slot, horizon)
        by_policy = done.reshape(several, jobs)
        lowest, highest = by_policy.min(0), by_policy.max(0)
        wanted = np.zeros((2, several * jobs), np.int64)
        for number, policy in enumerate(policies):
            own = slice(number * jobs, (number + 1) * jobs)
            wanted[:, own] = policy.decide(
                Seen(planned, slot, done[own], has[0, own], has[1, own], forecast, lowest, highest)
            )
        now = Forecast(np.tile(forecast.prices[:, :1], (several, 1)), np.tile(forecast.counts[:, :1], (several, 1)))
        choices = Choices(Seen(rows, slot, done, has[0], has[1], now, done, done), overhead)
        open_ = (done < rows.work - EXACT) & (slot < rows.deadline)
        chosen = np.where(open_, choices.choose(wanted[0], wanted[1], guarded=guarded), 0)
        left = np.where(open_, choices.part_left(chosen[0], chosen[1]), 1.0)
        speed = speed_of(rows, chosen.sum(0))
        lost = np.where(open_ & choices.fewer, np.maximum(gone * rows.fastest - (1.0 - left) * speed, 0.0), 0.0)
        done = np.clip(done + left * speed - lost, 0.0, rows.work)
        spot[:, slot], on_demand[:, slot] = chosen
        part[:, slot], progress[:, slot] = left, done
        paid[:, slot] = chosen[0] * rows.price[:, slot] + chosen[1] * rows.on_demand
        has = np.where(slot < rows.deadline, chosen, has)  # at its own deadline it goes on with what it has
    kept = has[1] if overhead == "launches" else has.sum(0)  # there, spot instances are not replaced for nothing
    late = slots_after(rows.work - done, kept == rows.most, rows.fastest, rows.up)
    cost = paid.sum(1) + late * rows.most * rows.on_demand
    utility = value_at(rows.deadline + late, rows.deadline, rows.value, rows.grace) - cost
    ledger = Ledger(spot, on_demand, part, progress * rows.units[:, None], paid, late, cost, utility)
    return [ledger.of(slice(at, at + jobs)) for at in range(0, several * jobs, jobs)]
