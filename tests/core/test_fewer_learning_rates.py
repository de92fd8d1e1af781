"""Learning rates as few points: those that say how they change, and no others."""

from __future__ import annotations

import numpy as np
import pytest

from lightning_core.core.reported import LearningRates, fewer

COSINE = [(batch, 0.5 + 0.5 * float(np.cos(np.pi * batch / 100))) for batch in range(1, 101)]


def test_rates_are_relative_to_the_highest() -> None:
    assert LearningRates.through([(1, 0.1), (5, 0.4), (9, -0.1)]) == LearningRates((1, 5, 9), (0.25, 1.0, 0.0))
    assert LearningRates.through([(1, 0.0), (5, 0.0)]) == LearningRates((1, 5), (1.0, 1.0))


@pytest.mark.parametrize("count", [2, 3, 4, 9])
def test_no_more_points_stay_than_may_and_the_ends_do(count: int) -> None:
    points, distance = fewer(COSINE, count)
    assert len(points) == count
    assert (points[0], points[-1]) == (COSINE[0], COSINE[-1])
    assert points == sorted(points)
    x, y = np.array(COSINE).T
    line = np.interp(x, *np.array(points).T)
    assert distance == pytest.approx(float(np.mean(np.abs(y - line))) / max(y))


def test_points_farthest_from_the_line_stay_first() -> None:
    """A peak at 4 and a hollow at 7 of the same course: the first stays at once, the second next."""
    course = [(1, 0.0), (2, 0.0), (4, 1.0), (5, 0.2), (7, -0.5), (9, 0.0)]
    assert fewer(course, 3)[0] == [course[0], course[2], course[-1]]
    assert fewer(course, 4)[0] == [course[0], course[2], course[4], course[-1]]
    assert fewer(course, 6) == (course, 0.0)


def test_points_on_a_line_and_next_to_each_other_are_no_change() -> None:
    assert fewer([(1, 4.0), (2, 3.0), (3, 2.0), (4, 1.0)])[0] == [(1, 4.0), (4, 1.0)]
    step = [(1, 1.0), (2, 1.0), (3, 0.1), (4, 0.1)]
    assert fewer(step) == (step, 0.0)
    assert fewer([(1, 0.0), (2, 0.0), (3, 0.0)]) == ([(1, 0.0), (3, 0.0)], 0.0)
