"""A spot market: prices and numbers of spot nodes, interval by interval."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from lightning_core.core.arrays import FloatArray, IntArray


@dataclass(frozen=True, eq=False, slots=True)
class Market:
    """Spot nodes on offer, interval by interval.

    Within an interval nothing changes: no node is preempted in the middle of one, because a trace is read at the lowest
    count of each interval. An interval is paid for whole. On-demand nodes are always on offer.

    Args:
        price: Price of a spot node for an interval, shape ``(T,)``, not negative.
        available: Spot nodes on offer, shape ``(T,)``, whole.
        on_demand: Price of an on-demand node for an interval.
        seconds: Seconds of an interval.
        name: Name for messages.

    Raises:
        ValueError: If one is out of its range.

    Example::

        >>> market = Market([0.4, 0.5, 0.4], [8, 0, 3])
        >>> len(market), float(market.price.mean().round(3))
        (3, 0.433)
    """

    price: FloatArray
    available: IntArray
    on_demand: float = 1.0
    seconds: float = 1800.0
    name: str = "market"

    def __post_init__(self) -> None:
        price, available = np.asarray(self.price, float), np.asarray(self.available)
        if price.ndim != 1 or price.shape != available.shape or not len(price):
            raise ValueError(f"price and available must have the same length, got {price.shape} and {available.shape}")
        if not (np.isfinite(price).all() and (price >= 0).all()):
            raise ValueError(f"price must be at least 0 and finite, got {price.min()} to {price.max()}")
        whole = available.astype(np.int64)
        if (whole != available).any() or (whole < 0).any():
            raise ValueError(f"available must be whole and at least 0, got {available.min()} to {available.max()}")
        for rule, value in (("on_demand", self.on_demand), ("seconds", self.seconds)):
            if not 0 < value < math.inf:
                raise ValueError(f"{rule} must be positive and finite, got {value}")
        object.__setattr__(self, "price", price)
        object.__setattr__(self, "available", whole)

    def __len__(self) -> int:
        return len(self.price)
