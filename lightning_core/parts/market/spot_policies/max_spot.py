"""All the spot nodes on offer, and on-demand nodes near the deadline."""

from __future__ import annotations

import numpy as np

from lightning_core.core.arrays import IntArray
from lightning_core.parts.market.observation import Observation


class MaxSpot:
    """Maximises spot use (MSU); the safety net completes the job in time, if it is on.

    Args:
        last: Number of intervals before the deadline in which it adds on-demand nodes in any case.

    Raises:
        ValueError: If ``last`` is below 0.
    """

    horizon = 0

    def __init__(self, last: int = 0) -> None:
        if last < 0:
            raise ValueError(f"last must be at least 0 intervals, got {last}")
        self.last = last

    def decide(self, observation: Observation) -> tuple[IntArray, IntArray]:
        spot = observation.usable
        return spot, np.where(observation.intervals_left <= self.last, observation.batch.max_nodes - spot, 0)
