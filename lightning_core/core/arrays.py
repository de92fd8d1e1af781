"""Array types of the core, the levels of forecast quantiles, and the removal of rows from columns."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from statistics import NormalDist
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Value = TypeVar("Value")
Number = TypeVar("Number", bound=np.generic)
FloatArray = npt.NDArray[np.float64]


IntArray = npt.NDArray[np.int64]


BoolArray = npt.NDArray[np.bool_]


ObjectArray = npt.NDArray[np.object_]


# Levels of the quantiles of every forecast, evenly spaced, shape ``(20,)``.
LEVELS: FloatArray = (np.arange(20) + 0.5) / 20


# Quantiles of the standard normal distribution at those levels, shape ``(20,)``.
NORMAL: FloatArray = np.array([NormalDist().inv_cdf(level) for level in LEVELS.tolist()])


def among(rows: IntArray, some: Collection[int]) -> BoolArray:
    """Return whether each row is one of some, shape ``(n,)``; at once if there are none.

    Example::

        >>> among(np.array([3, 5, 8]), {5})
        array([False,  True, False])
    """
    return np.isin(rows, list(some)) if some else np.zeros(len(rows), np.bool_)


def kept(column: npt.NDArray[Number], stays: BoolArray) -> npt.NDArray[Number]:
    """Return the entries of the rows that stay, of a column that may be shorter or longer than the rows.

    Args:
        column: One entry per row along the first axis.
        stays: Whether each row stays, shape ``(n,)``.

    Example::

        >>> kept(np.array([1.0, 2.0, 3.0]), np.array([True, False, True, True]))
        array([1., 3.])
    """
    n = min(len(column), len(stays))
    return column[:n][stays[:n]]


def kept_by_row(values: Mapping[int, Value], stays: BoolArray) -> dict[int, Value]:
    """Return the values of the rows that stay under their new numbers.

    Example::

        >>> kept_by_row({0: "a", 1: "b", 2: "c"}, np.array([False, True, True]))
        {0: 'b', 1: 'c'}
    """
    numbers = np.cumsum(stays) - 1
    return {int(numbers[row]): value for row, value in values.items() if stays[row]}


def renumbered(row: float, stays: BoolArray) -> float:
    """Return the new number of a row; one that has left is halfway between those that stay around it.

    Args:
        row: Number of a row, or such a half; a negative one stands for none and stays.
        stays: Whether each row stays, shape ``(n,)``.

    Example::

        >>> stays = np.array([True, False, True, False])
        >>> [renumbered(row, stays) for row in (0, 1, 2, 3, 2.5)]
        [0, 0.5, 1, 1.5, 1.5]
    """
    if row < 0:
        return row
    before = int(np.count_nonzero(stays[: math.ceil(row)]))
    return before if row == int(row) and stays[int(row)] else before - 0.5
