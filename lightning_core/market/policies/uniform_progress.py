"""Even progress up to the deadline (Wu et al., "Can't Be Late", NSDI 2024)."""

from __future__ import annotations

import numpy as np

from lightning_core.core.arrays import BoolArray, IntArray
from lightning_core.market.model import EXACT
from lightning_core.market.views import Seen


class UniformProgress:
    """Spot instances whenever there are any; on-demand ones only where there are none and the job is behind."""

    horizon = 0

    def decide(self, seen: Seen) -> tuple[IntArray, IntArray]:
        batch, spot = seen.batch, seen.usable
        lacks = seen.due() - seen.progress
        enough = batch.up[:, None] * batch.speed >= lacks[:, None] - EXACT
        fewest = np.where(enough.any(1), enough.argmax(1), batch.most)
        return spot, np.where((spot == 0) & (lacks > EXACT), np.minimum(fewest, batch.most), 0)


class AllOrNothing:
    """The policy as published: all the instances that a job can use, or none.

    Spot whenever there are enough. On on-demand instances it stays until it is ahead of even progress by twice what a
    change costs; idle, it takes them once it is behind.
    """

    horizon = 0

    def __init__(self) -> None:
        self._on: BoolArray = np.zeros(0, np.bool_)  # on-demand instances

    def decide(self, seen: Seen) -> tuple[IntArray, IntArray]:
        batch = seen.batch
        if seen.slot == 0 or len(self._on) != len(batch):  # the first slot that it sees
            self._on = np.zeros(len(batch), np.bool_)
        spot = seen.usable >= batch.most
        even, step = seen.due(-1), batch.work / batch.deadline
        ahead = seen.progress >= even + 2 * (1 - batch.up) * step - EXACT
        behind = seen.progress < even - EXACT
        self._on = ~spot & ((self._on & ~ahead) | behind)
        return np.where(spot, batch.most, 0), np.where(self._on, batch.most, 0)
