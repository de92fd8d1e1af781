"""Caches for what need not be worked out again, such as what a policy computes from the row of a job alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lightning_core.core.arrays import FloatArray, IntArray

# Rows processed together, so that their arrays stay in the processor's cache.
BLOCK = 512


class Memo(dict[Any, Any]):
    """Answers that need not be worked out again. They are no state: one that is missing is found again."""


class RowCache:
    """Values of a function by row, computed again only where the arguments of a row have changed.

    What it holds is no state, and need not be saved: a value that is missing is computed again, to the same bit.

    Args:
        function: Function of arguments, shape ``(n, k)``, with values of shape ``(n, m)``, each row by itself.
        k: Number of arguments of a row.
        m: Number of its values.
    """

    def __init__(self, function: Callable[[FloatArray], FloatArray], k: int, m: int) -> None:
        self._function = function
        self._k = k
        self._known = np.zeros((0, k + m))  # the arguments of each row, then its values

    def __call__(self, rows: IntArray, arguments: FloatArray) -> FloatArray:
        """Return the values of rows, shape ``(n, m)``; one with a NaN among its arguments is computed each time.

        Args:
            rows: Number of each row, shape ``(n,)``, at least one.
            arguments: Arguments of each row, shape ``(n, k)``.
        """
        if (size := int(rows.max()) + 1) > len(self._known):
            more = np.full((2 * size - len(self._known), self._known.shape[1]), np.nan)
            self._known = np.concatenate([self._known, more])
        known = self._known[rows]
        changed = np.flatnonzero((known[:, : self._k] != arguments).any(axis=1))
        for start in range(0, len(changed), BLOCK):
            block = changed[start : start + BLOCK]
            given = arguments[block]
            known[block] = self._known[rows[block]] = np.hstack([given, self._function(given)])
        return known[:, self._k :]
