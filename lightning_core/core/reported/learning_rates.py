"""The learning rates of a training, as they are reported: a few points, relative to the highest."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from operator import lt
from typing import NamedTuple

import numpy as np

from lightning_core.core.arrays import FloatArray
from lightning_core.core.limits import MAX_COUNT, MAX_RATES

# Largest distance from the line through its neighbours, relative to the highest rate, at which a point is left out.
TOLERANCE = 1e-3

Points = list[tuple[int, float]]
"""Numbers of batches, growing, each with the learning rate with which the batch is trained."""


class LearningRates(NamedTuple):
    """The learning rates of a whole training relative to the highest of them, past and planned.

    They are linear between two points, and constant before the first and after the last one.
    """

    batches: tuple[int, ...]
    """Numbers of batches, growing; the first batch of a job is number 1."""
    rates: tuple[float, ...]
    """Learning rate with which each of these batches is trained, divided by the highest of all; from 0 to 1."""

    @classmethod
    def through(cls, points: Sequence[tuple[int, float]]) -> LearningRates:
        """Return points relative to the highest rate; if no rate is above 0, all count as the highest.

        Example::

            >>> LearningRates.through([(1, 0.02), (9, 0.01)])
            LearningRates(batches=(1, 9), rates=(1.0, 0.5))
        """
        highest = max(rate for _, rate in points)
        rates = (round(min(max(rate / highest, 0.0), 1.0), 6) if highest > 0 else 1.0 for _, rate in points)
        return cls(tuple(batch for batch, _ in points), tuple(rates))

    @property
    def are_valid(self) -> bool:
        """Whether an estimator can take them: 1 to ``MAX_RATES`` points in range and in order.

        Example::

            >>> LearningRates((1, 90), (1.0, 0.0)).are_valid, LearningRates((90, 1), (1.0, 0.0)).are_valid
            (True, False)
        """
        batches, rates = self
        if not 0 < len(batches) == len(rates) <= MAX_RATES or not 0 < batches[0] <= batches[-1] <= MAX_COUNT:
            return False
        return all(map(lt, batches, batches[1:])) and all(0 <= rate <= 1 for rate in rates)


def fewer(points: Points, count: int = MAX_RATES) -> tuple[Points, float]:
    """Leave points out that are near the line through those beside them.

    Args:
        points: Points of a course.
        count: Number of points that stay at most, at least 2.

    Returns:
        The points that stay, and the mean distance of all from the line through these, relative to the highest rate.

    Example::

        >>> fewer([(1, 0.0), (2, 1.0), (3, 2.0), (4, 2.0), (9, 2.0)])
        ([(1, 0.0), (3, 2.0), (9, 2.0)], 0.0)
    """
    if len(points) < 3:
        return points, 0.0
    x, y = (np.array(column, np.float64) for column in zip(*points, strict=True))
    highest = float(np.max(np.abs(y))) or 1.0
    stays = {0, len(points) - 1}
    parts = [_farthest(x, y, 0, len(points) - 1)]
    while parts and len(stays) < count:
        distance, start, at, end = heappop(parts)
        if -distance <= TOLERANCE * highest:
            break
        stays.add(at)
        for a, b in ((start, at), (at, end)):
            if b - a > 1:
                heappush(parts, _farthest(x, y, a, b))
    left = sorted(stays)
    distance = float(np.mean(np.abs(y - np.interp(x, x[left], y[left])))) / highest
    return [points[at] for at in left], distance


def _farthest(x: FloatArray, y: FloatArray, start: int, end: int) -> tuple[float, int, int, int]:
    """Return the point between two that is farthest from the line through them, with its distance, negative."""
    line = y[start] + (y[end] - y[start]) * (x[start : end + 1] - x[start]) / (x[end] - x[start])
    distance = np.abs(y[start : end + 1] - line)
    at = int(np.argmax(distance))
    return -float(distance[at]), start, start + at, end
