"""What a spot policy sees of an interval, and the two plugs of a market: policies and forecasters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from lightning_core.core.arrays import FloatArray, IntArray
from lightning_core.market.job_batch import JobBatch


class Forecast(NamedTuple):
    """An interval as it is and those behind it as they are thought to be; one row a job, shape ``(B, 1 + horizon)``.

    Args:
        prices: of a spot instance.
        counts: of spot instances, whole.
    """

    prices: FloatArray
    counts: IntArray


class ForecastProvider(Protocol):
    """What is thought of the intervals to come."""

    def look(self, batch: JobBatch, interval: int, horizon: int) -> Forecast:
        """Of so many intervals behind one that is known."""


@dataclass(frozen=True, eq=False, slots=True)
class Observation:
    """What a policy sees at the beginning of an interval; one row a job, columns of shape ``(B,)``.

    Attributes:
        batch: the jobs. Of its prices and counts only those up to ``interval`` may be looked at.
        interval: counted from 0.
        progress: work done.
        spot: instances held in the interval before.
        on_demand: instances held in the interval before.
        forecast: this interval and, by forecast, at least as many behind it as the policy wants.
        lowest, highest: no policy that plays beside it has less progress, or more: so they can share what they make of
            the interval.
    """

    batch: JobBatch
    interval: int
    progress: FloatArray
    spot: IntArray
    on_demand: IntArray
    forecast: Forecast
    lowest: FloatArray
    highest: FloatArray

    @property
    def held(self) -> IntArray:
        """Instances held in the interval before."""
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
        count = np.minimum(self.available, batch.max_nodes)
        return np.where((self.price <= batch.on_demand) & (count >= batch.min_nodes), count, 0)

    def due(self, intervals: int = 0) -> FloatArray:
        """Work that is done so many intervals behind this one if it is done evenly (eq. 6); at most all of it."""
        batch = self.batch
        return batch.work * np.minimum((self.interval + 1 + intervals) / batch.deadline, 1.0)

    @property
    def intervals_left(self) -> IntArray:
        """Up to the deadline, this one among them."""
        return self.batch.deadline - self.interval


class SpotPolicy(Protocol):
    """How many instances of which kind to hold in an interval, for each job of a batch.

    A policy may have a state; it comes from the intervals that it was shown alone, and interval 0 begins anew.
    """

    @property
    def horizon(self) -> int:
        """For how many intervals behind the present one it wants forecasts."""

    def decide(self, observation: Observation) -> tuple[IntArray, IntArray]:
        """Spot and on-demand instances, each of shape ``(B,)``; what cannot be is made possible."""
