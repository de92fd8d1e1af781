"""A synthetic market for tests and benchmarks."""

from __future__ import annotations

import math

import numpy as np

from lightning_core.market.spot_market import Market
from lightning_core.market.traces import INTERVAL


def synthetic(
    seed: int,
    intervals: int = 1344,
    max_nodes: int = 16,
    price: float = 0.6,
    calm: float = 0.9,
    interval: float = INTERVAL,
) -> Market:
    """Return a market whose count and price vary around a daily wave, each an autoregression of order 1.

    Args:
        seed: Seed of the draws.
        intervals: Number of intervals.
        max_nodes: Nodes on offer at the best of times.
        price: Mean price, in on-demand prices.
        calm: Fraction of its distance from the wave that each keeps from interval to interval, 0 to below 1.
        interval: Seconds of an interval.

    Raises:
        ValueError: If ``calm`` is out of its range.
    """
    if not 0 <= calm < 1:
        raise ValueError(f"calm must be at least 0 and below 1, got {calm}")
    draw = np.random.default_rng(seed)
    noise = draw.standard_normal((2, intervals)) * math.sqrt(1 - calm**2)
    swings = np.zeros((2, intervals))
    for at in range(1, intervals):
        swings[:, at] = calm * swings[:, at - 1] + noise[:, at]
    wave = np.sin(np.arange(intervals) * interval * 2 * np.pi / 86400.0 + draw.uniform(0, 2 * np.pi))
    counts = np.clip(np.round(max_nodes * (0.5 + 0.15 * wave + 0.25 * swings[0])), 0, max_nodes).astype(np.int64)
    prices = np.clip(price * (1 - 0.05 * wave + 0.12 * swings[1]), 0.05, 1.2)
    return Market(prices, counts, 1.0, interval, f"synthetic {seed}")
