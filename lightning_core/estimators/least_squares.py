"""Power laws by discounted least squares: ln l = ln a - b ln s.

Wang, Yu, Zhao and Zhou, "Learning with Adaptive Resource Allocation" (LARA), ICML 2024, section 3.1, eqs. 3.1 to 3.6.

There are two ways to forget. ``gamma`` weighs a cell by gamma^(age in cells), as printed (eq. 3.4); over a long run ln
s hardly moves within that window and the slope becomes noise. ``power`` weighs it by (s_i / s_n)^power, so that the
window is a constant part of the run (log-time forgetting).

The state of a row is five centred moments of (ln s, ln l): means, variances and covariance under the weights, with ln s
relative to the newest cell. Sums that are not centred lose the slope (0.333 for 0.3 after 1e7 cells), and the recursive
covariance of eq. 3.5 winds up under forgetting.
"""

from __future__ import annotations

import numpy as np

from lightning_core.core.arrays import NORMAL, BoolArray, FloatArray, IntArray, kept
from lightning_core.core.saved_state import Stateful

# A position beyond e^40 batches counts as never reached, which also avoids overflow.
MAX_LOG_POSITION = 40.0


class LeastSquares(Stateful):
    """A bank of power laws fitted by discounted least squares.

    Args:
        power: Log-time forgetting; the weight of cell i is (s_i / s_n)^power.
        gamma: Forgetting factor per cell instead, as LARA prints it; 1 forgets nothing.
        min_cells: Minimum number of cells before the bank forecasts anything.

    Raises:
        ValueError: If an argument is out of its range.

    Example::

        >>> bank = LeastSquares()
        >>> bank.grow(1)
        >>> row = np.array([0])
        >>> for s in range(10, 200, 10):
        ...     bank.observe(row, np.array([float(s)]), np.array([2.0 * s**-0.5]))
        >>> round(float(bank.predict(row, np.array([400.0]))[0]), 6)
        0.1
        >>> bank.first_passage(row, np.array([0.1]))[0, [0, 9, 19]].round(3)
        array([400., 400., 400.])
    """

    def __init__(self, power: float = 4.0, gamma: float | None = None, min_cells: int = 3) -> None:
        if not 0 <= power < np.inf:
            raise ValueError(f"power must be at least 0 and finite, got {power}")
        if gamma is not None and not 0 < gamma <= 1:
            raise ValueError(f"gamma must be above 0 and at most 1, got {gamma}")
        if min_cells < 3:
            raise ValueError(f"min_cells must be at least 3 cells, got {min_cells}")
        self.power = power
        self.gamma = gamma
        self.min_cells = min_cells
        self._count = np.zeros(0, np.int64)
        # newest: ln s of the newest cell; mean_x: the weighted mean of ln s, from newest (at most 0).
        self._newest, self._weight, self._weight2 = np.zeros((3, 0))
        self._mean_x, self._mean_y, self._xx, self._xy, self._yy = np.zeros((5, 0))

    STATE = ("_count", "_newest", "_weight", "_weight2", "_mean_x", "_mean_y", "_xx", "_xy", "_yy")

    def grow(self, rows: int) -> None:
        extra = rows - len(self._count)
        if extra > 0:
            for name in self.STATE:
                column = getattr(self, name)
                setattr(self, name, np.concatenate([column, np.zeros(extra, column.dtype)]))

    def keep(self, stays: BoolArray) -> None:
        for name in self.STATE:
            setattr(self, name, kept(getattr(self, name), stays))

    def observe(self, rows: IntArray, position: FloatArray, loss: FloatArray) -> None:
        x = np.log(position)
        y = np.log(loss)
        first = self._count[rows] == 0
        step = np.where(first, 0.0, x - self._newest[rows])
        keep = np.exp(-self.power * step) if self.gamma is None else self.gamma
        old = keep * self._weight[rows]
        weight = old + 1.0
        # Relative to the new cell (x = 0), the old ones lie one step further back.
        from_mean_x = step - self._mean_x[rows]
        from_mean_y = np.where(first, 0.0, y - self._mean_y[rows])
        gain = old / weight
        self._xx[rows] = keep * self._xx[rows] + gain * from_mean_x * from_mean_x
        self._xy[rows] = keep * self._xy[rows] + gain * from_mean_x * from_mean_y
        self._yy[rows] = keep * self._yy[rows] + gain * from_mean_y * from_mean_y
        self._mean_x[rows] = -from_mean_x * gain
        self._mean_y[rows] = np.where(first, y, self._mean_y[rows] + from_mean_y / weight)
        self._weight[rows] = weight
        self._weight2[rows] = keep * keep * self._weight2[rows] + 1.0
        self._newest[rows] = x
        self._count[rows] += 1

    def slope(self, rows: IntArray) -> FloatArray:
        """Return the exponent b of l = a s^-b, shape ``(n,)``; NaN with too few cells."""
        xx = self._xx[rows]
        known = (self._count[rows] >= self.min_cells) & (xx > 0)
        return np.where(known, -self._xy[rows] / np.where(known, xx, 1.0), np.nan)

    def predict(self, rows: IntArray, position: FloatArray) -> FloatArray:
        ahead = np.log(position) - self._newest[rows] - self._mean_x[rows]
        # Losses stay within e^+-50; a fit beyond is clipped and does not overflow.
        return np.exp(np.clip(self._mean_y[rows] - self.slope(rows) * ahead, -50.0, 50.0))

    def first_passage(self, rows: IntArray, threshold: FloatArray) -> FloatArray:
        b = self.slope(rows)
        falling = b > 0
        b_safe = np.where(falling, b, 1.0)
        below = self._mean_y[rows] - np.log(threshold)  # required fall of ln l from its mean
        reach = below / b_safe  # ... and the distance in ln s that it takes
        # Standard error of `reach` with independent cells: of the slope over that distance, and of the mean.
        weight = np.maximum(self._weight[rows], 1e-300)
        effective = np.maximum(weight * weight / np.maximum(self._weight2[rows], 1e-300), 3.0)
        xx = np.where(falling, self._xx[rows], 1.0)
        misfit = np.maximum(self._yy[rows] - b_safe * b_safe * xx, 0.0) / weight * effective / (effective - 2.0)
        error = np.sqrt(misfit * (1.0 / effective + reach * reach * weight / (xx * effective))) / b_safe
        centre = self._newest[rows] + self._mean_x[rows] + reach
        log_position = centre[:, None] + error[:, None] * NORMAL
        reached = np.where(log_position < MAX_LOG_POSITION, np.exp(np.minimum(log_position, MAX_LOG_POSITION)), np.inf)
        reached[~falling] = np.inf
        reached[np.isnan(b)] = np.nan
        return reached
