"""What is remembered by row, when rows of jobs that are over leave and the others close up."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from lightning_core.core.arrays import BoolArray

Value = TypeVar("Value")
Number = TypeVar("Number", bound=np.generic)


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
