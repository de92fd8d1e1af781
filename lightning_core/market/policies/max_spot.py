"""All the spot instances that there are, and on-demand ones near the deadline."""

from __future__ import annotations

import numpy as np

from lightning_core.core.arrays import IntArray
from lightning_core.market.observation import Observation


class MaxSpot:
    """Maximal spot utilisation (MSU): the safety net brings the job home, if it is there.

    Args:
        last: in so many intervals before the deadline it fills up with on-demand instances, whether it must or not.

    Raises:
        ValueError: if ``last`` is below 0.
    """

    horizon = 0

    def __init__(self, last: int = 0) -> None:
        if last < 0:
            raise ValueError(f"last must be at least 0 intervals, got {last}")
        self.last = last

    def decide(self, observation: Observation) -> tuple[IntArray, IntArray]:
        spot = observation.usable
        return spot, np.where(observation.intervals_left <= self.last, observation.batch.max_nodes - spot, 0)
