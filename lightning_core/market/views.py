"""What a spot policy sees of a slot, and the two plugs of a market: policies and forecasters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from lightning_core.core.arrays import FloatArray, IntArray
from lightning_core.market.model import JobBatch


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

    def look(self, batch: JobBatch, slot: int, horizon: int) -> Forecast:
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

    batch: JobBatch
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
