"""TODO."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from lightning_core.core.arrays import FloatArray, IntArray


@dataclass(frozen=True, eq=False, slots=True)
class Market:
    """Spot instances interval by interval.

    Args:
        price: of a spot instance for an interval, shape ``(T,)``, not negative.
        available: how many can be had, shape ``(T,)``, whole.
        on_demand: price of an on-demand instance for an interval.
        seconds: of an interval.
        name: for people.

    Raises:
        ValueError: if one is out of its range.

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
            raise ValueError(
                f"price and available must be of the same intervals, got {price.shape} and {available.shape}"
            )
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
