"""Power laws by discounted least squares with a ridge, and a confidence bound on the line (LaiRA, eq. 9, Theorem 1).

theta = (-b, ln a) minimises lambda |theta|^2 + sum of gamma^(n - i) (X_i theta - ln l_i)^2 over the n cells, with
X_i = (ln s_i, 1). Unlike a fit without one, the ridge depends on the unit of s, because it pulls ln a, the line's
height at s = 1, towards 0. Here s counts batches, the paper's unit of data.

An online form by the inverse of V would forget its lambda as gamma^n. So the moments are kept, and lambda is added when
the line is needed. The 2 x 2 system is solved for -b and the line's height at the weighted mean of ln s: a change of
coordinates of determinant 1, in which every critical sum has positive terms only, so that nothing cancels.
"""

from __future__ import annotations

import numpy as np

from lightning_core.core.arrays import NORMAL, BoolArray, FloatArray, IntArray
from lightning_core.estimators.least_squares import MAX_LOG_POSITION, LeastSquares


class Ridge(LeastSquares):
    """A bank of power laws fitted by discounted least squares with a ridge.

    Args:
        gamma: Forgetting factor per cell; 1 forgets nothing.
        ridge: Weight lambda of the penalty on the exponent and on ln a.
        min_cells: Minimum number of cells before the bank forecasts anything.

    Raises:
        ValueError: If an argument is out of its range.

    Example::

        >>> bank = Ridge()
        >>> bank.grow(1)
        >>> row = np.array([0])
        >>> for s in (10.0, 20.0, 40.0, 80.0):
        ...     bank.observe(row, np.array([s]), np.array([2.0 * s**-0.5]))
        >>> bank.predict(row, np.array([160.0])).round(3), bank.width(row, np.array([160.0])).round(2)
        (array([0.161]), array([1.24]))
    """

    def __init__(self, gamma: float = 0.9, ridge: float = 1e-2, min_cells: int = 3) -> None:
        super().__init__(gamma=gamma, min_cells=min_cells)
        if not 0 < ridge < np.inf:
            raise ValueError(f"ridge must be positive and finite, got {ridge}")
        self.ridge = ridge

    def slope(self, rows: IntArray) -> FloatArray:
        return np.where(self._known(rows), -self._line(rows)[0], np.nan)

    def log_loss(self, rows: IntArray, position: FloatArray) -> FloatArray:
        """Return the forecast of ln l at ``position`` batches, shape ``(n,)``; NaN with too few cells."""
        rising, level = self._line(rows)
        return np.where(self._known(rows), level + rising * (np.log(position) - self._mean(rows)), np.nan)

    def width(self, rows: IntArray, position: FloatArray) -> FloatArray:
        """Return |X| in the norm of V^-1 at ``position`` batches, shape ``(n,)``; times beta_n it bounds the error."""
        return self._width(rows, np.log(position))

    def radius(self, rows: IntArray, bound: float, noise: float, delta: float) -> FloatArray:
        """Return beta_n of Theorem 1, shape ``(n,)``.

        Args:
            rows: Rows of the bank, shape ``(n,)``.
            bound: Bound S on the norm of theta.
            noise: Sub-Gaussian scale R of a cell's ln l.
            delta: Probability that the bound fails.
        """
        norm2 = self._newest[rows] ** 2 + 1.0
        # (1 - gamma^2n) / (1 - gamma^2) is the sum of the squared weights.
        seen = np.log1p(norm2 * self._weight2[rows] / (2.0 * self.ridge))
        radius: FloatArray = np.sqrt(self.ridge) * bound + noise * np.sqrt(2.0 * np.log(1.0 / delta) + 2.0 * seen)
        return radius

    def predict(self, rows: IntArray, position: FloatArray) -> FloatArray:
        # Losses stay within e^+-50; a fit beyond is clipped and does not overflow.
        return np.exp(np.clip(self.log_loss(rows, position), -50.0, 50.0))

    def first_passage(self, rows: IntArray, threshold: FloatArray) -> FloatArray:
        """Return the quantiles of the first passage (delta method with V^-1 and the scatter about the line)."""
        rising, level = self._line(rows)
        falling = rising < 0
        b = np.where(falling, np.maximum(-rising, 1e-12), 1.0)
        centre = self._mean(rows) + (level - np.log(threshold)) / b
        weight = np.maximum(self._weight[rows], 1e-300)
        effective = np.maximum(weight * weight / np.maximum(self._weight2[rows], 1e-300), 3.0)
        scatter = self._yy[rows] + rising * (rising * self._xx[rows] - 2.0 * self._xy[rows])
        scatter = np.maximum(scatter + weight * (level - self._mean_y[rows]) ** 2, 0.0) / (effective - 2.0)
        error = np.sqrt(scatter) * self._width(rows, centre) / b
        log_position = centre[:, None] + error[:, None] * NORMAL
        reached = np.where(log_position < MAX_LOG_POSITION, np.exp(np.minimum(log_position, MAX_LOG_POSITION)), np.inf)
        reached[~falling] = np.inf
        reached[~self._known(rows)] = np.nan
        return reached

    def _known(self, rows: IntArray) -> BoolArray:
        known: BoolArray = self._count[rows] >= self.min_cells
        return known

    def _mean(self, rows: IntArray) -> FloatArray:
        """Return the weighted mean of ln s."""
        return self._newest[rows] + self._mean_x[rows]

    def _determinant(self, rows: IntArray) -> FloatArray:
        """Return the determinant of V."""
        weight, ridge = self._weight[rows], self.ridge
        return (self._xx[rows] + ridge) * (weight + ridge) + ridge * weight * self._mean(rows) ** 2

    def _line(self, rows: IntArray) -> tuple[FloatArray, FloatArray]:
        """Return -b and the line's height at the mean of ln s."""
        weight, ridge, mean = self._weight[rows], self.ridge, self._mean(rows)
        xy, total = self._xy[rows], weight * self._mean_y[rows]
        determinant = self._determinant(rows)
        rising = ((weight + ridge) * xy + ridge * mean * total) / determinant
        level = (ridge * mean * xy + (self._xx[rows] + ridge * (1.0 + mean**2)) * total) / determinant
        return rising, level

    def _width(self, rows: IntArray, x: FloatArray) -> FloatArray:
        away = self._weight[rows] * (x - self._mean(rows)) ** 2
        return np.sqrt((self._xx[rows] + away + self.ridge * (1.0 + x**2)) / self._determinant(rows))
