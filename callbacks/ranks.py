"""What the processes of one training do together: rank 0 decides, all do the same after the same batch.

One small tensor is broadcast every few batches. How many lie between two is decided by rank 0 from what a broadcast and
a batch cost it, and travels in the same tensor, so that no rank ever asks its own clock.
"""

from __future__ import annotations

import math
import time
from enum import IntEnum, IntFlag

import torch

# Seconds of training between two agreements.
REACT = 0.05
# Part of the training's time that agreeing may cost.
COST = 0.01


class Action(IntEnum):
    """What a training does next."""

    GO = 0
    HOLD = 1
    STOP = 2
    """The target is met."""
    LEAVE = 3
    """Save where that is exact, and leave."""
    OVER = 4
    """Leave."""
    FENCED = 5
    """Leave, and save nothing: another incarnation has taken its place."""


class Also(IntFlag):
    """What a training does beside that."""

    NOTHING = 0
    SAVE = 1
    KEEP = 2
    """Save the model as the best so far."""


def batches_between(broadcast: float, batch: float) -> int:
    """After how many batches to agree again, of the seconds that a broadcast and a batch take.

    Example::

        >>> batches_between(broadcast=2e-4, batch=1e-3), batches_between(broadcast=2e-4, batch=2.0)
        (50, 1)
    """
    return max(1, int(REACT / batch), math.ceil(broadcast / (COST * batch)))


class Ranks:
    """This process's end of the agreement.

    Args:
        rank: of this process.
        device: where a tensor must be for this training's process group to send it.
    """

    def __init__(self, rank: int, device: torch.device) -> None:
        self._first = rank == 0
        self._tensor = torch.zeros(3, dtype=torch.int64, device=device)
        self._between = self._left = 1
        self._cost = math.inf
        self._since = time.perf_counter()

    def due(self) -> bool:
        """Counts a batch; whether all agree after it."""
        self._left -= 1
        return self._left <= 0

    def agree(self, word: Action, also: int) -> tuple[Action, int]:
        """What rank 0 says, whatever the others say; all call it together.

        Args:
            word: what to do next.
            also: what to do beside it, as :class:`Also`.
        """
        began = time.perf_counter()
        if self._first:
            batch = max(began - self._since, 1e-6) / self._between
            between = 1 if self._cost == math.inf else batches_between(self._cost, batch)
            self._tensor.copy_(torch.tensor([word, also, between]))
        torch.distributed.broadcast(self._tensor, 0)
        said, agreed, self._between = self._tensor.tolist()
        self._left = self._between
        self._since = time.perf_counter()
        # The first broadcast sets up connections, others wait for a slow rank: neither is what one costs.
        self._cost = min(self._since - began, 1.1 * self._cost)
        return Action(said), int(agreed)
