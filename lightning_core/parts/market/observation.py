"""Observations of a spot policy at the beginning of an interval, and the protocols of policies and forecasts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from lightning_core.core.arrays import FloatArray, IntArray
from lightning_core.parts.market.job_batch import JobBatch


class SpotForecast(NamedTuple):
    """An interval and forecasts of those after it; one row a job, shape ``(B, 1 + horizon)``.

    Attributes:
        prices: Price of a spot node.
        counts: Spot nodes on offer, whole.
    """

    prices: FloatArray
    counts: IntArray


class ForecastProvider(Protocol):
    """Forecasts prices and counts for the jobs of a batch."""

    def look(self, batch: JobBatch, interval: int, horizon: int) -> SpotForecast:
        """Return a known interval and forecasts of as many after it as ``horizon`` says."""


@dataclass(frozen=True, eq=False, slots=True)
class Observation:
    """Observation of a policy at the beginning of an interval; one row a job, columns of shape ``(B,)``.

    Attributes:
        batch: The jobs. A policy may look at its prices and counts up to ``interval`` only.
        interval: The interval, from 0.
        progress: Work done.
        spot: Spot nodes held in the interval before.
        on_demand: On-demand nodes held in the interval before.
        forecast: This interval and at least as many after it as the policy's horizon says.
        lowest, highest: Bounds of the progress under all policies that are backtested side by side, so that they can
            share computations of the interval.
        launching: Intervals of start-up still to come of the nodes that were launched; 0 once they train.
        elapsed: Fraction of the interval that is over, where the policy decides on events.
    """

    batch: JobBatch
    interval: int
    progress: FloatArray
    spot: IntArray
    on_demand: IntArray
    forecast: SpotForecast
    lowest: FloatArray
    highest: FloatArray
    launching: FloatArray = field(default_factory=lambda: np.zeros(1))
    elapsed: float = 0.0

    @property
    def held(self) -> IntArray:
        """Nodes held in the interval before."""
        return self.spot + self.on_demand

    @property
    def price(self) -> FloatArray:
        """Price of a spot node now."""
        return self.forecast.prices[:, 0]

    @property
    def available(self) -> IntArray:
        """Spot nodes on offer now."""
        return self.forecast.counts[:, 0]

    @property
    def usable(self) -> IntArray:
        """Spot nodes that a job can use now and that cost no more than on-demand ones; 0 if too few for it."""
        batch = self.batch
        count = np.minimum(self.available, batch.max_nodes)
        return np.where((self.price <= batch.on_demand) & (count >= batch.min_nodes), count, 0)

    def due(self, intervals: int = 0) -> FloatArray:
        """Return the work done by an even pace until it is due (eq. 6), this many intervals after this one."""
        batch = self.batch
        return batch.work * np.minimum((self.interval + 1 + intervals) / batch.due, 1.0)

    @property
    def intervals_left(self) -> IntArray:
        """Intervals to the deadline, this one included."""
        return self.batch.deadline - self.interval


class SpotPolicy(Protocol):
    """Decides how many spot and on-demand nodes each job of a batch should hold in an interval.

    A policy may have state, built from the intervals that it has seen; interval 0 resets it. Live, a policy whose
    attribute ``decides_on_events`` is true also decides within an interval, after changes of the offers or losses of
    nodes; without it a policy decides once per interval, as published ones do. One whose attribute ``sees_value`` is
    true weighs what a job loses after its soft deadline; under any other the safety net keeps that one.
    """

    @property
    def horizon(self) -> int:
        """Number of intervals after the present one that it needs forecasts of."""

    def decide(self, observation: Observation) -> tuple[IntArray, IntArray]:
        """Return the spot and on-demand nodes, each of shape ``(B,)``; the safety net makes them feasible."""
