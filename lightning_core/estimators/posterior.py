"""A posterior over power laws with a shift and a floor: l(s) = a (s + s0)^-b + c.

A power law through the origin (LARA, eq. 3.1) has no warm-up and no floor; real curves have both, and a point estimate
does not tell its error. So many candidates are kept: a grid over the exponent b and the shift s0, each with and without
a floor, with a and c in closed form from running sums. They are weighed by their fit, but with the evidence of a few
cells at most: the errors of cells are correlated, and no candidate is exactly right.

Cells are weighed by (s_i / s)^power (log-time forgetting) and by l_i^-2 (noise in proportion to the loss). A long
memory is stable, a short one notices a bend: the candidates of both count equally.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lightning_core.core.arrays import LEVELS, NORMAL, BoolArray, FloatArray, IntArray, kept
from lightning_core.core.saved_state import Stateful

# A position beyond e^40 times the first cell counts as never reached, which also avoids overflow.
MAX_LOG_POSITION = 40.0
POWERS = (4.0, 16.0)
MAX_POWERS = 16
EXPONENTS = np.geomspace(0.05, 2.0, 9)
# Shifts in units of the first cell.
SHIFTS = np.array([0.0, 2.0, 8.0, 32.0, 128.0])
# Minimum relative squared misfit: a perfect fit is no proof.
MIN_MISFIT = 1e-8
# Four quantiles of the widening, in place of the whole distribution.
_WIDE = NORMAL[2::5]
# Losses are clipped to these, whose squares and inverse squares do not overflow.
MIN_LOSS, MAX_LOSS = 1e-50, 1e50
# Rows processed together, so that their candidates stay in the cache.
BLOCK = 256


class Posterior(Stateful):
    """A bank of posteriors over shifted power laws with a floor.

    Args:
        powers: Powers of log-time forgetting, each with its own candidates; the weight of cell i is (s_i / s_n)^power.
        evidence: Maximum number of cells that count as evidence.
        floor: Prior probability that a curve has a floor.
        widening: Standard deviation of the logarithm of the work left that the fit itself does not show.
        min_cells: Minimum number of cells before the bank forecasts anything.

    Raises:
        ValueError: If an argument is out of its range.

    Example::

        >>> bank = Posterior()
        >>> bank.grow(1)
        >>> row = np.array([0])
        >>> for s in range(10, 1000, 10):
        ...     bank.observe(row, np.array([float(s)]), np.array([2.0 * s**-0.5 + 0.1]))
        >>> bank.first_passage(row, np.array([0.15]))[0, [1, 9, 18]].round(-1)
        array([1470., 1560., 1760.])
    """

    # It accepts curves above a floor (above_floor.py): its candidates include a floor of their own.
    any_loss = True

    def __init__(
        self,
        powers: Sequence[float] = POWERS,
        evidence: float = 6.0,
        floor: float = 0.1,
        widening: float = 0.2,
        min_cells: int = 3,
    ) -> None:
        if len(powers) > MAX_POWERS:
            raise ValueError(f"powers must be at most {MAX_POWERS}, got {len(powers)}")
        if not powers or not all(0 <= power < np.inf for power in powers):
            raise ValueError(f"powers must be at least one, each at least 0 and finite, got {list(powers)}")
        if not 0 < evidence < np.inf:
            raise ValueError(f"evidence must be positive and finite, got {evidence}")
        if not 0 < floor < 1:
            raise ValueError(f"floor must be above 0 and below 1, got {floor}")
        if not 0 <= widening < np.inf:
            raise ValueError(f"widening must be at least 0 and finite, got {widening}")
        if min_cells < 3:
            raise ValueError(f"min_cells must be at least 3 cells, got {min_cells}")
        self.powers, self.evidence, self.floor = tuple(powers), evidence, floor
        self.widening, self.min_cells = widening, min_cells
        self._power = np.array(self.powers)
        self._b = np.repeat(EXPONENTS, len(SHIFTS))
        self._shift = np.tile(SHIFTS, len(EXPONENTS))
        self._count = np.zeros(0, np.int64)
        # unit: position of the first cell, the unit of the shifts. Per power, weight: sum of the weights in time,
        # weight2: sum of their squares, precision: sum of the weights over l^2. The moments under these weights are of
        # l and of x = (s + s0)^-b for each pair of an exponent and a shift.
        memories = len(self.powers)
        self._unit, self._newest = np.zeros((2, 0))
        self._weight, self._weight2, self._precision, self._mean_l, self._ll = np.zeros((5, 0, memories))
        self._mean_x, self._xx, self._xl = np.zeros((3, 0, memories, len(self._b)))
        # Forecasts are cached until the row's next cell or a request for another threshold.
        self._asked = np.zeros(0)
        self._passage = np.zeros((0, len(LEVELS)))

    STATE = ("_count", "_unit", "_newest", "_weight", "_weight2", "_precision", "_mean_l", "_ll", "_mean_x", "_xx",
                "_xl", "_asked", "_passage")  # fmt: skip

    def grow(self, rows: int) -> None:
        extra = rows - len(self._count)
        if extra > 0:
            extra = max(extra, len(self._count))  # amortised like a list, so that growing one by one is not quadratic
            for name in self.STATE:
                column = getattr(self, name)
                more = np.zeros((extra, *column.shape[1:]), column.dtype)
                setattr(self, name, np.concatenate([column, more]))

    def keep(self, stays: BoolArray) -> None:
        for name in self.STATE:
            setattr(self, name, kept(getattr(self, name), stays))

    def observe(self, rows: IntArray, position: FloatArray, loss: FloatArray) -> None:
        at = slice(int(rows[0]), int(rows[0]) + 1) if len(rows) == 1 else rows  # avoids copies for a single row
        loss = np.clip(loss, MIN_LOSS, MAX_LOSS)[:, None]
        first = self._count[at] == 0
        self._unit[at] = unit = np.where(first, position, self._unit[at])
        keep = (np.where(first, 0.0, self._newest[at]) / position)[:, None] ** self._power
        x = self._shape(position / unit)[:, None, :]
        fresh = 1.0 / (loss * loss)
        old = keep * self._precision[at]
        total = old + fresh
        step = fresh / total
        to_l, to_x = loss - self._mean_l[at], x - self._mean_x[at]
        gain = old * step
        keep_x, gain_x = keep[..., None], gain[..., None] * to_x
        self._ll[at] = keep * self._ll[at] + gain * to_l * to_l
        self._xx[at] = keep_x * self._xx[at] + gain_x * to_x
        self._xl[at] = keep_x * self._xl[at] + gain_x * to_l[..., None]
        self._mean_l[at] += step * to_l
        self._mean_x[at] += step[..., None] * to_x
        self._precision[at] = total
        self._weight[at] = keep * self._weight[at] + 1.0
        self._weight2[at] = keep * keep * self._weight2[at] + 1.0
        self._newest[at] = position
        self._count[at] += 1
        self._asked[at] = 0.0

    def predict(self, rows: IntArray, position: FloatArray) -> FloatArray:
        known = self._count[rows] >= self.min_cells
        said = np.full(len(rows), np.nan)
        if known.any():
            at = rows[known]
            scale, base, belief = self._candidates(at)
            x = self._shape(position[known] / self._unit[at])[:, None, None, :]
            curve = np.maximum(scale * x + base, MIN_LOSS)
            said[known] = np.exp(np.sum(belief * np.log(curve), axis=(1, 2, 3)))
        return said

    def first_passage(self, rows: IntArray, threshold: FloatArray) -> FloatArray:
        stale = np.flatnonzero((self._asked[rows] != threshold) & (self._count[rows] >= self.min_cells))
        for start in range(0, len(stale), BLOCK):
            block = stale[start : start + BLOCK]
            at = rows[block]
            self._passage[at] = self._forecast(at, np.clip(threshold[block], MIN_LOSS, MAX_LOSS))
            self._asked[at] = threshold[block]
        return np.where((self._count[rows] >= self.min_cells)[:, None], self._passage[rows], np.nan)

    def _shape(self, position: FloatArray) -> FloatArray:
        """Return the candidates' x at positions in units of the first cell, shape ``(n, grid)``."""
        shape: FloatArray = np.exp(-self._b * np.log(position[:, None] + self._shift))
        return shape

    def _candidates(self, rows: IntArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return scale, floor and belief of each, shape ``(n, powers, 2, grid)``: without a floor, then with one."""
        weight, weight2 = self._weight[rows, :, None], self._weight2[rows, :, None]
        precision, mean_l, ll = self._precision[rows, :, None], self._mean_l[rows, :, None], self._ll[rows, :, None]
        mean_x, xx, xl = self._mean_x[rows], self._xx[rows], self._xl[rows]
        scale, base, misfit = np.zeros((3, len(rows), len(self.powers), 2, len(self._b)))
        raw_xl = xl + precision * mean_x * mean_l
        scale[:, :, 0] = raw_xl / (xx + precision * mean_x * mean_x)
        misfit[:, :, 0] = ll + precision * mean_l * mean_l - scale[:, :, 0] * raw_xl
        steep = np.divide(xl, xx, out=np.zeros_like(xl), where=xx > 0)
        above = mean_l - steep * mean_x
        possible = (steep > 0) & (above > 0)
        scale[:, :, 1] = np.where(possible, steep, 0.0)
        base[:, :, 1] = np.where(possible, above, 0.0)
        misfit[:, :, 1] = ll - steep * xl
        speaks = np.minimum(weight * weight / weight2, self.evidence)[:, :, None]
        relative = np.maximum(misfit, 0.0) / weight[:, :, None] + MIN_MISFIT
        log_belief = np.log([[1.0 - self.floor], [self.floor]]) - speaks / 2 * np.log(relative)
        log_belief[:, :, 1][~possible] = -np.inf
        belief = np.exp(log_belief - log_belief.max(axis=(2, 3), keepdims=True))
        belief /= belief.sum(axis=(2, 3), keepdims=True) * len(self.powers)
        return scale, base, belief

    def _forecast(self, rows: IntArray, threshold: FloatArray) -> FloatArray:
        scale, base, belief = self._candidates(rows)
        here = (self._newest[rows] / self._unit[rows])[:, None]
        above = threshold[:, None, None, None] - base
        reaches = (above > 0) & (scale > 0)
        log_u = np.log(np.divide(scale, above, out=np.ones_like(scale), where=reaches)) / self._b
        reaches &= log_u < MAX_LOG_POSITION
        u = np.exp(np.where(reaches, log_u, 0.0)) - self._shift
        left = np.where(reaches, np.maximum(u - here[:, :, None, None], 1.0), np.inf).reshape(len(rows), -1)
        order = np.argsort(left, axis=1)
        left = np.take_along_axis(left, order, axis=1)
        up_to = np.cumsum(np.take_along_axis(belief.reshape(left.shape), order, axis=1), axis=1)
        # One search for all rows: each row's beliefs run from its number to the next one.
        row = np.arange(len(rows))[:, None]
        at = np.searchsorted((up_to / up_to[:, -1:] + row).ravel(), (LEVELS + row).ravel())
        return (here + self._widened(left.ravel()[at].reshape(-1, len(LEVELS)))) * self._unit[rows, None]

    def _widened(self, left: FloatArray) -> FloatArray:
        """Spread each quantile by the widening, and return the quantiles of the result."""
        with np.errstate(divide="ignore"):
            spread = np.log(left)[:, :, None] + self.widening * _WIDE
        spread = np.sort(spread.reshape(len(left), -1), axis=1).reshape(len(left), len(LEVELS), -1)
        middle: FloatArray = np.exp((spread[:, :, 1] + spread[:, :, 2]) / 2.0)
        return middle
