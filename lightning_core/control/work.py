"""The work that a job on a market is planned with, and the work that its safety net keeps time for.

The work of a target in batches is known. That of a loss to reach is forecast, with its doubt: the plan goes by what is
likely, and the net by what is hardly ever exceeded. So the net promises a loss in time only as far as that quantile
holds. Both move with each forecast.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from lightning_core.core.arrays import LEVELS, FloatArray

# Probabilities that a job needs no more than the work that it is planned with, and than the work that is guarded, in
# steps of 0.05.
PLANNED, GUARDED = 0.5, 0.9


class Work(NamedTuple):
    """Batches of a job, from its beginning."""

    planned: float
    guarded: float


def work_of(batches: int, forecast: FloatArray) -> Work | None:
    """Return the work of a job that has a loss to reach; None while nothing is known of it.

    Args:
        batches: Batches done; a job that has not ended has at least one more to do.
        forecast: Quantiles of its work at :data:`~lightning_core.core.arrays.LEVELS`, shape ``(20,)``; NaN for none.

    Example::

        >>> work = work_of(0, np.linspace(100.0, 290.0, 20))
        >>> [round(batches) for batches in work]
        [195, 275]
    """
    if np.isnan(forecast).any():
        return None
    return Work(*(max(_quantile(forecast, level), batches + 1.0) for level in (PLANNED, GUARDED)))


def _quantile(forecast: FloatArray, level: float) -> float:
    """Return the quantile halfway between the two that are next to it, on a scale of logarithms."""
    below = round(level * len(LEVELS)) - 1
    return math.sqrt(forecast[below] * forecast[below + 1])
