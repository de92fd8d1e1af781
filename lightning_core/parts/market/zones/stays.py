"""Expected lifetime of an offer's spot nodes."""

from __future__ import annotations

import numpy as np

from lightning_core.core.arrays import IntArray
from lightning_core.parts.market.run_lengths import RunLengths


def expected_stay(counts: IntArray, nodes: int) -> float:
    """Return the intervals for which this many spot nodes stay, the present one included.

    The runs of intervals with this many on offer follow :mod:`lightning_core.parts.market.run_lengths`, so that nodes
    which have lasted are expected to last longer than those that have just come.

    Args:
        counts: Spot nodes on offer in each interval so far, shape ``(T,)``; the last one has this many.
        nodes: Number of nodes, at least 1.

    Example::

        >>> young, old = np.array([0] * 50 + [1]), np.array([0] * 20 + [1] * 31)
        >>> expected_stay(young, 1) < expected_stay(old, 1)
        True
    """
    runs = RunLengths((counts >= nodes).astype(np.int64), 2)
    hazards, ages = runs.hazards()[runs.level], runs.ages
    stay = 1.0 / hazards[-1]
    for at in range(len(ages) - 2, runs.row % len(ages) - 1, -1):
        passes = 1.0 / (ages[at + 1] - ages[at])  # to the next age, in an interval that the run survives
        lasts = 1.0 - hazards[at]
        stay = (1.0 + lasts * passes * stay) / (1.0 - lasts * (1.0 - passes))
    return float(stay)
