"""Curves that misbehave: recorded ones with what smooth families do not foresee, drawn by seed.

One in seven learning curves is ill-behaved (LCDB 1.1). The recordings that bundles are drawn from are not, or hardly.
So each gets one of four: a second descent after a rise, a plateau with a step down, a spike with a slow return as after
a restart from bad weights, or a rise that stays. Where and how much is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.curves.bundles import Recording, smoothed
from lightning_core.core.arrays import FloatArray

# Part of the cells of a recording at which it happens.
EARLIEST, LATEST = 0.05, 0.4


def second_descent(part: FloatArray, at: float, draw: np.random.Generator) -> FloatArray:
    """Return the factor of a rise that is over after as long as it took to come."""
    height, width = draw.uniform(0.2, 0.8), draw.uniform(0.2, 0.6) * at
    factor: FloatArray = 1.0 + height * np.exp(-((part - at - 2.0 * width) ** 2) / (2.0 * width**2))
    return factor


def step_down(part: FloatArray, at: float, draw: np.random.Generator) -> FloatArray:
    """Return the factor of a loss that stands higher until it drops within a few cells."""
    height, width = draw.uniform(0.3, 1.0), 0.02 * at
    factor: FloatArray = 1.0 + height / (1.0 + np.exp(np.clip((part - at) / width, -50.0, 50.0)))
    return factor


def spike(part: FloatArray, at: float, draw: np.random.Generator) -> FloatArray:
    """Return the factor of a sudden rise with a slow return."""
    height, width = draw.uniform(0.5, 2.0), draw.uniform(0.1, 0.4) * at
    factor: FloatArray = 1.0 + np.where(part < at, 0.0, height * np.exp(-np.maximum(part - at, 0.0) / width))
    return factor


def rise(part: FloatArray, at: float, draw: np.random.Generator) -> FloatArray:
    """Return the factor of a rise that stays, as of a validation loss that overfits."""
    slope = draw.uniform(0.1, 0.5)
    factor: FloatArray = np.exp(slope * np.maximum(np.log(part / at), 0.0))
    return factor


KINDS: tuple[Callable[[FloatArray, float, np.random.Generator], FloatArray], ...] = (
    second_descent, step_down, spike, rise,
)  # fmt: skip


def misbehaving(pool: Sequence[Recording], seed: int) -> list[Recording]:
    """Return the recordings, each with one misbehaviour.

    Args:
        pool: Recordings.
        seed: Seed of all draws.
    """
    draw = np.random.default_rng(seed)
    found = []
    for number, one in enumerate(pool):
        part = np.arange(1, len(one.loss) + 1) / len(one.loss)
        at = float(np.exp(draw.uniform(np.log(EARLIEST), np.log(LATEST))))
        loss = one.loss * KINDS[number % len(KINDS)](part, at, draw)
        found.append(one._replace(loss=loss, smooth=smoothed(loss)))
    return found
