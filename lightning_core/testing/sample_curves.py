"""Banks and curves for the checks of the conformance suite."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lightning_core.core.arrays import FloatArray, IntArray
from lightning_core.core.protocols import Estimator

Make = Callable[[], Estimator]
ROW = np.array([1])


def power_laws(rows: int, cells: int, noise: float = 0.05, seed: int = 3) -> tuple[FloatArray, FloatArray]:
    """Return noisy power laws on one grid: positions of shape ``(cells,)`` and losses of shape ``(cells, rows)``."""
    draw = np.random.default_rng(seed)
    positions = np.arange(10.0, 10.0 * cells + 1, 10.0)
    laws = 2.0 * positions[:, None] ** -draw.uniform(0.2, 0.8, rows)
    return positions, laws * draw.lognormal(0, noise, (cells, rows))


def make_bank(make: Make, rows: int = 3) -> Estimator:
    """Return a bank with rows."""
    bank = make()
    bank.grow(rows)
    return bank


def feed(bank: Estimator, positions: FloatArray, losses: FloatArray, rows: IntArray = ROW) -> None:
    """Add cells of shape ``(cells,)``, the same for all rows, or ``(cells, rows)``."""
    for position, loss in zip(positions, losses, strict=True):
        bank.observe(rows, np.full(len(rows), position), np.array(np.broadcast_to(loss, len(rows))))


def passage(bank: Estimator, threshold: float, rows: IntArray = ROW) -> FloatArray:
    """Return the forecast of one threshold for all rows."""
    return bank.first_passage(rows, np.full(len(rows), threshold))


def median(quantiles: FloatArray) -> FloatArray:
    """Return the middle of the two central quantiles, on a logarithmic scale."""
    middle: FloatArray = np.sqrt(quantiles[:, 9] * quantiles[:, 10])
    return middle


def is_sorted(quantiles: FloatArray) -> bool:
    """Return whether each row increases; an infinite quantile is followed by infinite ones."""
    return bool((quantiles[:, 1:] >= quantiles[:, :-1]).all())


def is_close(one: FloatArray, other: FloatArray) -> bool:
    """Return whether two arrays are equal but for rounding."""
    return np.allclose(one, other, rtol=1e-12, atol=0.0, equal_nan=True)
