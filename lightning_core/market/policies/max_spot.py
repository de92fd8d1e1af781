"""All the spot instances that there are, and on-demand ones near the deadline."""

from __future__ import annotations

import numpy as np

from lightning_core.core.arrays import IntArray
from lightning_core.market.views import Seen


class MaxSpot:
    """Maximal spot utilisation (MSU): the safety net brings the job home, if it is there.

    Args:
        last: in so many slots before the deadline it fills up with on-demand instances, whether it must or not.

    Raises:
        ValueError: if ``last`` is below 0.
    """

    horizon = 0

    def __init__(self, last: int = 0) -> None:
        if last < 0:
            raise ValueError(f"last must be at least 0 slots, got {last}")
        self.last = last

    def decide(self, seen: Seen) -> tuple[IntArray, IntArray]:
        spot = seen.usable
        return spot, np.where(seen.slots_left <= self.last, seen.batch.most - spot, 0)
